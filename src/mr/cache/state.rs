//! What a cache keeps track of, under its lock.

use std::ops::Range;
use std::sync::Arc;

use slab::Slab;

use super::hints::Hints;
use super::index::{Index, Kind};
use super::recency::{Link, Linked, Recency};
use super::region::{Cached, CachedRegion};
use super::settings::Settings;
use super::stats::CacheStats;
use crate::buf::Watched;
use crate::mr::Access;

/// Registrations on their way out, to be dropped without the lock. Mostly it is one.
pub(super) struct Gone {
    first: Option<Leaving>,
    more: Vec<Leaving>,
}

type Leaving = (Arc<Cached>, Option<Watched>);

impl Gone {
    pub(super) fn new() -> Self {
        Gone {
            first: None,
            more: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, leaving: Leaving) {
        match self.first {
            None => self.first = Some(leaving),
            Some(_) => self.more.push(leaving),
        }
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.more.len()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Leaving> {
        self.first.iter_mut().chain(&mut self.more)
    }
}

/// Registrations in use that a search for room passes over at most, so that a miss costs no more in
/// a cache full of them.
const LOOKS_MAX: usize = 64;

pub(super) struct State {
    /// One per kind asked for so far: a few.
    pub(super) indices: Vec<Index>,
    hints: Hints,
    pub(super) members: Members,
    recency: Recency,
    pub(super) stats: CacheStats,
    /// Count and size after the last search for memory that nobody else has.
    searched: (usize, usize),
    /// How many it has entered so far.
    pub(super) entered: u64,
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
    watched: Option<Watched>,
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
            hints: Hints::new(),
            members: Members(Slab::with_capacity(expected)),
            recency: Recency::default(),
            stats: CacheStats::default(),
            searched: (0, 0),
            entered: 0,
        }
    }

    pub(super) fn find(&mut self, kind: Kind, range: &Range<usize>) -> Option<CachedRegion> {
        let at = self.indices.iter().position(|it| it.kind() == kind)?;
        let index = &self.indices[at];
        let hinted = self.hints.get(range).filter(|place| {
            let member = self.members.0.get(*place);
            member.is_some_and(|it| it.index == at && index.serves(&it.addresses, range))
        });
        let place = match hinted {
            Some(place) => place,
            None => {
                let place = index.find(range)?;
                self.hints.set(range, place);
                place
            }
        };
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
        watched: Option<Watched>,
        settings: &Settings,
        gone: &mut Gone,
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
            let Some(oldest) = self.recency.oldest().filter(|_| looks < LOOKS_MAX) else {
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
        self.entered += 1;
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
        let hinted = self.place_of(cached);
        let Some(place) = hinted else { return };
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
    pub(super) fn remove(&mut self, place: usize) -> (Arc<Cached>, Option<Watched>) {
        self.recency.remove(&mut self.members, place);
        let member = self.members.0.remove(place);
        self.indices[member.index].remove(&member.addresses);
        self.stats.count -= 1;
        self.stats.size -= member.addresses.len();
        (member.cached, member.watched)
    }

    /// Lets go of memory that gives no notice and that only this cache still has. It is looked for
    /// when the cache has doubled, so that a request pays for a few looks, however many there
    /// are.
    pub(super) fn search_abandoned(&mut self, gone: &mut Gone) {
        const COUNT_MIN: usize = 16;
        const SIZE_MIN: usize = 1 << 20;
        let (count, size) = self.searched;
        if self.stats.count <= 2 * count + COUNT_MIN
            && self.stats.size <= size.saturating_mul(2).saturating_add(SIZE_MIN)
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
        self.searched = (self.stats.count, self.stats.size);
    }

    pub(super) fn invariants(&self, settings: &Settings) {
        debug_assert_eq!(self.stats.count, self.members.0.len());
        debug_assert!(self.stats.count <= settings.count_max);
        debug_assert!(self.stats.size <= settings.size_max);
    }
}
