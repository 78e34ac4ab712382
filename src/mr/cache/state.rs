//! The part of a cache that its lock protects: the registrations.

use std::ops::Range;
use std::sync::Arc;

use slab::Slab;

use super::index::{Index, Kind};
use super::recency::{Link, Linked, Recency};
use super::region::{Cached, CachedRegion};
use super::settings::Settings;
use crate::buf::WatchGuard;
use crate::limits::{CACHE_EVICTION_LOOKS_MAX, CACHE_SWEEP_BYTES_MIN, CACHE_SWEEP_COUNT_MIN};
use crate::mr::Access;
use crate::stats::CacheStats;

/// A registration that was removed, to be dropped after the lock is released.
pub(super) type Removed = (Arc<Cached>, Option<WatchGuard>);

pub(super) struct State {
    /// One index per kind asked for so far: a few.
    pub(super) indices: Vec<Index>,
    pub(super) members: Members,
    recency: Recency,
    pub(super) stats: CacheStats,
    /// Count and size after the last sweep.
    swept: (usize, usize),
}

/// The entries. A slot is reused only after its entry has been removed.
pub(super) struct Members(pub(super) Slab<Member>);

pub(super) struct Member {
    pub(super) cached: Arc<Cached>,
    /// The addresses of `cached`, here so that a lookup touches one cache line.
    pub(super) addresses: Range<usize>,
    /// The index that contains the entry.
    index: usize,
    /// Its gate is parked.
    parked: bool,
    watched: Option<WatchGuard>,
    link: Link,
}

impl Member {
    /// True if the registration has no handle. It gets no new one while the lock is held.
    pub(super) fn is_idle(&self) -> bool {
        self.cached.is_idle()
    }
}

impl Linked for Members {
    fn link(&mut self, place: usize) -> &mut Link {
        &mut self.0[place].link
    }
}

impl State {
    /// An empty cache with room for the expected number of registrations.
    pub(super) fn new(expected: usize) -> Self {
        State {
            indices: Vec::new(),
            members: Members(Slab::with_capacity(expected)),
            recency: Recency::default(),
            stats: CacheStats::default(),
            swept: (0, 0),
        }
    }

    pub(super) fn find(&mut self, kind: Kind, range: &Range<usize>) -> Option<CachedRegion> {
        let at = self.indices.iter().position(|it| it.kind() == kind)?;
        let place = self.indices[at].find(range)?;
        self.recency.touch(&mut self.members, place);
        let member = &mut self.members.0[place];
        if std::mem::take(&mut member.parked) {
            member.cached.core.park(false);
        }
        Some(CachedRegion::of(Arc::clone(&member.cached), range))
    }

    /// Enters a registration, if there is room, and removes those that it covers.
    pub(super) fn enter(
        &mut self,
        kind: Kind,
        new: &Arc<Cached>,
        watched: Option<WatchGuard>,
        settings: &Settings,
        gone: &mut Vec<Removed>,
    ) {
        let size = new.addresses.len();
        let fits = size > 0 && size <= settings.size_max && settings.count_max > 0;
        if !fits {
            self.stats.untracked += 1;
            gone.push((Arc::clone(new), watched));
            return;
        }
        let at = self.index_of(kind, settings);
        for place in self.indices[at].within(&new.addresses) {
            gone.push(self.remove(place));
            self.stats.superseded += 1;
        }
        let is_room = |stats: &CacheStats| {
            stats.count < settings.count_max && stats.size <= settings.size_max - size
        };
        let mut looks = 0;
        while !is_room(&self.stats) {
            let Some(oldest) = self
                .recency
                .oldest()
                .filter(|_| looks < CACHE_EVICTION_LOOKS_MAX)
            else {
                self.stats.untracked += 1;
                gone.push((Arc::clone(new), watched));
                return;
            };
            if self.members.0[oldest].is_idle() {
                gone.push(self.remove(oldest));
                self.stats.evictions += 1;
            } else {
                // The registration is in use: make it the newest, and look at the next one.
                self.recency.touch(&mut self.members, oldest);
                looks += 1;
            }
        }
        let place = self.members.0.insert(Member {
            cached: Arc::clone(new),
            addresses: new.addresses.clone(),
            index: at,
            parked: false,
            watched,
            link: Link::default(),
        });
        self.recency.push(&mut self.members, place);
        self.indices[at].insert(&new.addresses, place);
        self.stats.count += 1;
        self.stats.size += size;
    }

    fn index_of(&mut self, kind: Kind, settings: &Settings) -> usize {
        if let Some(at) = self.indices.iter().position(|it| it.kind() == kind) {
            return at;
        }
        // A key gives a peer access to the whole registration, so registrations with rights for
        // peers serve only exactly their range, unless merging was requested.
        let exact = kind.access.intersects(Access::REMOTE) && !settings.merges;
        self.indices.push(Index::new(kind, exact));
        self.indices.len() - 1
    }

    /// Parks the gate of an idle registration, if it is in the cache.
    pub(super) fn park(&mut self, cached: &Arc<Cached>) {
        let Some(place) = self.place_of(cached) else {
            return;
        };
        let member = &mut self.members.0[place];
        if !std::mem::replace(&mut member.parked, true) {
            cached.core.park(true);
        }
    }

    fn place_of(&self, cached: &Arc<Cached>) -> Option<usize> {
        let at = (self.indices.iter()).filter_map(|index| index.find(&cached.addresses));
        let mut same = at.filter(|place| Arc::ptr_eq(&self.members.0[*place].cached, cached));
        same.next()
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, place: usize) -> Removed {
        self.recency.remove(&mut self.members, place);
        let member = self.members.0.remove(place);
        self.indices[member.index].remove(&member.addresses);
        self.stats.count -= 1;
        self.stats.size -= member.addresses.len();
        (member.cached, member.watched)
    }

    /// Removes idle registrations whose memory has no other owner left and does not notify the
    /// cache of that. It scans all entries whenever the cache has doubled: O(1) per request,
    /// amortized.
    pub(super) fn sweep_abandoned(&mut self, gone: &mut Vec<Removed>) {
        let (count, size) = self.swept;
        if self.stats.count <= 2 * count + CACHE_SWEEP_COUNT_MIN
            && self.stats.size <= size.saturating_mul(2).saturating_add(CACHE_SWEEP_BYTES_MIN)
        {
            return;
        }
        let is_abandoned =
            |member: &Member| member.is_idle() && member.cached.core.memory().is_ours_alone();
        let members = self.members.0.iter();
        let abandoned: Vec<usize> = members
            .filter(|(_, member)| is_abandoned(member))
            .map(|(place, _)| place)
            .collect();
        for place in abandoned {
            gone.push(self.remove(place));
            self.stats.forgotten += 1;
        }
        self.swept = (self.stats.count, self.stats.size);
    }

    pub(super) fn invariants(&self, settings: &Settings) {
        debug_assert_eq!(self.stats.count, self.members.0.len());
        debug_assert!(self.stats.count <= settings.count_max);
        debug_assert!(self.stats.size <= settings.size_max);
    }
}
