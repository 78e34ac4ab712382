//! What a cache keeps track of, under its lock.

use std::ops::Range;
use std::sync::Arc;

use slab::Slab;

use super::index::{Index, Kind};
use super::recency::{Link, Linked, Recency};
use super::region::{Cached, CachedRegion};
use super::settings::Settings;
use super::stats::CacheStats;
use crate::buf::WatchGuard;
use crate::limits::{CACHE_EVICTION_LOOKS_MAX, CACHE_SWEEP_BYTES_MIN, CACHE_SWEEP_COUNT_MIN};
use crate::mr::Access;

/// A registration that was taken out, to be dropped without the lock.
pub(super) type Removed = (Arc<Cached>, Option<WatchGuard>);

pub(super) struct State {
    /// One per kind asked for so far: a few.
    pub(super) indices: Vec<Index>,
    pub(super) members: Members,
    recency: Recency,
    pub(super) stats: CacheStats,
    /// Count and size after the last sweep.
    swept: (usize, usize),
}

/// Where members are. A place is given again only after its member has been taken out.
pub(super) struct Members(pub(super) Slab<Member>);

pub(super) struct Member {
    pub(super) cached: Arc<Cached>,
    /// Those of `cached`, beside what else a look needs.
    pub(super) addresses: Range<usize>,
    /// Which of the indices has it.
    index: usize,
    /// Its gate is shut.
    parked: bool,
    watched: Option<WatchGuard>,
    link: Link,
}

impl Member {
    /// Nobody has a handle, and while the lock is held nobody gets one.
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
    /// Keeps track of nothing yet; ready for as many as are expected.
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

    /// Keeps track of a registration, if there is room, and not of what it covers.
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
                // In use for long; those behind it get their turn.
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
        // A peer gets at no more than was registered for it, unless merging was asked for.
        let exact = kind.access.intersects(Access::REMOTE) && !settings.merges;
        self.indices.push(Index::new(kind, exact));
        self.indices.len() - 1
    }

    /// Shuts the gate of one that nobody else has, if the cache keeps track of it.
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

    /// Keeps no track of one any more.
    pub(super) fn remove(&mut self, place: usize) -> Removed {
        self.recency.remove(&mut self.members, place);
        let member = self.members.0.remove(place);
        self.indices[member.index].remove(&member.addresses);
        self.stats.count -= 1;
        self.stats.size -= member.addresses.len();
        (member.cached, member.watched)
    }

    /// Removes registrations of memory that gives no notice and that only this cache still has. It
    /// looks at all of them whenever the cache has doubled, which is O(1) per request, amortized.
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
