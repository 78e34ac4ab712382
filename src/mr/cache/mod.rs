//! The registration cache (`fi_mr(3)`, "memory registration cache"): registrations that outlive
//! their use, found again by their addresses. It is explicit: only requests to a cache are cached,
//! and no function of the C library or of an allocator is replaced.
//!
//! An address is enough to find a registration: owned memory has shared owners, and a registration
//! is one of them, so its addresses still hold the bytes that were registered. For an address range
//! the caller guarantees this; a notice from the kernel or the caller that the memory was unmapped
//! ends its registrations.
//!
//! A registration without a handle is *idle*. If peers have rights to an idle registration, its
//! gate is parked, so that its key grants no access while the application does not use it. Only
//! idle registrations are evicted.
//!
//! Invariants: `count` and `size` cover the registrations that the cache tracks, and are within the
//! settings. Regions are dropped after the lock is released, since dropping their memory may run
//! code of the application; so are handles, whose drop takes the lock.
//!
//! A cached region is one more owner of its memory (a window, `buf/shared.rs`), so its addresses
//! mean the same bytes as long as it exists. It returns no buffers and cannot be quiesced. Address
//! ranges are watched with userfaultfd (`buf/watch.rs`: one thread of the process, which allocates
//! nothing); the cache applies the notices before every lookup of an address range. Applications
//! use the cache through `domain/cache`.

mod index;
#[cfg(loom)]
pub(crate) mod models;
mod recency;
mod region;
mod settings;
mod state;

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock, Weak};

use smallvec::smallvec;

use super::Access;
use super::core::{PreparedRegion, RegionCore, RegisterError};
use crate::buf::{Notices, OwnedBuffer, OwnedBuffers, ReleaseListener, WatchGuard, join_windows};
use crate::limits::CACHE_PIECES_MAX;
use crate::stats::CacheStats;
use crate::sync::Lock;

use region::Cached;
use state::{Removed, State};

pub(crate) use index::Kind;
pub use region::CachedRegion;
pub use settings::CacheWatch;
pub(crate) use settings::Settings;

/// A new registration that is not in a cache yet and has no other owner.
pub(crate) struct FreshRegion(Arc<Cached>);

impl FreshRegion {
    pub(crate) fn create(parts: PreparedRegion) -> Result<Self, Box<RegisterError>> {
        RegionCore::create(parts).map(|core| FreshRegion(Arc::new(Cached::new(core))))
    }
}

/// The state that all handles of a cache share.
pub(crate) struct Shared {
    settings: Settings,
    state: Lock<State>,
    /// Notices of unmapped memory; started by the first registration that is watched.
    notices: OnceLock<Option<Notices>>,
    /// This cache, for its registrations.
    this: Weak<Shared>,
    /// This cache, as the listener that shared memory notifies when its last handle is dropped.
    listener: Weak<dyn ReleaseListener>,
}

impl Shared {
    pub(crate) fn new(settings: Settings, expected: usize) -> Arc<Self> {
        Arc::new_cyclic(|this: &Weak<Shared>| Shared {
            settings,
            notices: OnceLock::new(),
            state: Lock::new(State::new(expected.min(settings.count_max))),
            this: Weak::clone(this),
            listener: Weak::clone(this) as Weak<dyn ReleaseListener>,
        })
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn stats(&self) -> CacheStats {
        let state = self.state.lock("count a cache");
        let mut stats = state.stats;
        for (_, member) in state.members.0.iter().filter(|(_, it)| it.is_idle()) {
            stats.idle_count += 1;
            stats.idle_size += member.addresses.len();
        }
        stats
    }

    /// Returns how many registrations the cache can hold without growing.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.state.lock("test").members.0.capacity()
    }

    /// Returns the listener to notify when shared memory is dropped.
    pub(crate) fn listener(&self) -> &Weak<dyn ReleaseListener> {
        &self.listener
    }

    /// Returns the registration that serves a range, if there is one.
    pub(crate) fn find(&self, kind: Kind, range: &Range<usize>) -> Option<CachedRegion> {
        if kind.unowned {
            self.apply_notices();
        }
        let mut state = self.state.lock("look into a cache");
        let found = state.find(kind, range);
        match &found {
            Some(_) => state.stats.hits += 1,
            None => state.stats.misses += 1,
        }
        found
    }

    /// Chooses what to register for a range that was not found: the range itself, or merged with
    /// all registrations that it touches. Returns the addresses and the windows that cover them.
    pub(crate) fn extent(
        &self,
        kind: Kind,
        range: &Range<usize>,
        window: OwnedBuffer,
    ) -> (Range<usize>, OwnedBuffers) {
        let alone = |window| (range.clone(), smallvec![window]);
        if range.is_empty() {
            return alone(window);
        }
        let state = self.state.lock("look for neighbours");
        let Some(index) = state.indices.iter().find(|it| it.kind() == kind) else {
            return alone(window);
        };
        let mut merged = range.clone();
        let mut places = Vec::new();
        // Repeat until nothing more is touched: a merged neighbour may touch further ones.
        loop {
            let touching = index.touching(&merged);
            if touching.len() == places.len() {
                break;
            }
            places = touching;
            for place in &places {
                let addresses = &state.members.0[*place].addresses;
                merged.start = merged.start.min(addresses.start);
                merged.end = merged.end.max(addresses.end);
            }
        }
        let neighbours = places.iter().map(|place| &state.members.0[*place].cached);
        let windows = windows_of(neighbours);
        drop(state);
        let Some(mut windows) = windows.filter(|_| merged.len() <= self.settings.size_max) else {
            return alone(window);
        };
        windows.push(window);
        let windows = join_windows(windows);
        if windows.len() > CACHE_PIECES_MAX {
            // Too many segments: register the requested range alone, cut out of the windows.
            let part = windows.iter().filter(|it| it.overlaps(range));
            let part: Option<OwnedBuffers> = part.map(|it| it.narrowed(range)).collect();
            return (range.clone(), part.unwrap_or_default());
        }
        (merged, windows.into())
    }

    /// Enters a new registration and returns a handle of the requested range. If another thread has
    /// entered a registration of the range meanwhile, the handle is of that one. If there is no
    /// room, the registration is not cached and ends with its last handle.
    pub(crate) fn insert(
        &self,
        kind: Kind,
        asked: &Range<usize>,
        addresses: Range<usize>,
        fresh: FreshRegion,
    ) -> CachedRegion {
        let FreshRegion(mut new) = fresh;
        let cached = Arc::get_mut(&mut new).expect("a fresh registration has one owner");
        cached.addresses = addresses;
        if kind.access.intersects(Access::REMOTE) {
            cached.closed_by = Some(Weak::clone(&self.this));
        }
        let mut gone = Vec::new();
        // Watch the range before entering the registration, so that no notice is missed.
        let watched = kind.unowned.then(|| self.watch(&new.addresses));
        let mut state = self.state.lock("enter a registration");
        // Look again: another thread may have entered a registration since the miss.
        let found = match asked.is_empty() {
            true => None,
            false => state.find(kind, asked),
        };
        let region = match found {
            Some(region) => {
                gone.push((new, watched.flatten()));
                region
            }
            None => {
                state.sweep_abandoned(&mut gone);
                match watched {
                    Some(None) if self.settings.watch == CacheWatch::System => {
                        state.stats.untracked += 1;
                    }
                    watched => {
                        let watched = watched.flatten();
                        state.enter(kind, &new, watched, &self.settings, &mut gone);
                    }
                }
                CachedRegion::of(new, asked)
            }
        };
        state.invariants(&self.settings);
        drop(state);
        drop(gone);
        region
    }

    /// Drops a handle of this registration; dropping the last one parks its gate.
    fn release_handle(&self, cached: &Arc<Cached>) {
        let mut state = self.state.lock("park a registration");
        if cached.release_handle() {
            state.park(cached);
        }
    }

    /// Removes every registration with a byte of a range and returns how many there were. Those in
    /// use end with their last handle.
    pub(crate) fn forget(&self, addresses: &Range<usize>) -> usize {
        self.forget_matching(addresses, |_| true).len()
    }

    fn forget_matching(
        &self,
        addresses: &Range<usize>,
        those: impl Fn(Kind) -> bool,
    ) -> Vec<Removed> {
        let mut state = self.state.lock("forget a range");
        let indices = state.indices.iter().filter(|index| those(index.kind()));
        let places: Vec<usize> = indices
            .flat_map(|index| index.overlapping(addresses))
            .collect();
        let mut gone = Vec::new();
        for place in places {
            gone.push(state.remove(place));
        }
        state.stats.forgotten += gone.len() as u64;
        gone
    }

    /// Removes the registrations of ranges that the kernel reported as unmapped.
    fn apply_notices(&self) {
        let Some(Some(notices)) = self.notices.get() else {
            return;
        };
        if !notices.are_fresh() {
            return;
        }
        for range in notices.take() {
            let mut gone = self.forget_matching(&range, |kind| kind.unowned);
            let watched = gone.iter_mut().filter_map(|(_, watched)| watched.as_mut());
            watched.for_each(WatchGuard::went_away);
        }
    }

    /// Watches a range; `None` if that is not possible.
    fn watch(&self, range: &Range<usize>) -> Option<WatchGuard> {
        if self.settings.watch != CacheWatch::System || range.is_empty() {
            return None;
        }
        let notices = self
            .notices
            .get_or_init(|| Notices::begin().ok())
            .as_ref()?;
        let watched = notices.watch(range);
        if let Err(error) = &watched {
            tracing::debug!(%error, "a range is not watched, so its registration is not kept");
        }
        watched.ok()
    }

    /// Removes all idle registrations and returns how many there were.
    pub(crate) fn clear(&self) -> usize {
        let mut gone = Vec::new();
        let mut state = self.state.lock("clear a cache");
        let members = state.members.0.iter().filter(|(_, it)| it.is_idle());
        let idle: Vec<usize> = members.map(|(place, _)| place).collect();
        for place in idle {
            gone.push(state.remove(place));
        }
        drop(state);
        gone.len()
    }
}

/// Returns the windows of all these registrations; `None` if there is none. This makes no handles,
/// so idle registrations stay idle.
fn windows_of<'a>(neighbours: impl Iterator<Item = &'a Arc<Cached>>) -> Option<Vec<OwnedBuffer>> {
    let mut all = Vec::new();
    for cached in neighbours {
        all.extend(cached.core.memory().windows()?);
    }
    (!all.is_empty()).then_some(all)
}

impl ReleaseListener for Shared {
    fn released(&self, addresses: Range<usize>) {
        self.forget(&addresses);
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistrationCache")
            .field("settings", &self.settings)
            .field("stats", &self.stats())
            .finish()
    }
}
