//! The regions of a domain by key: resolves a peer's access to a region or refuses it. Pure and
//! total: every key, address and length that a peer can send has an answer, and none panics.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::Arc;

use super::access::Access;
use super::auth::{AccessContext, AuthSecret};
use super::flags::MrFlags;
use super::key::{KeyPolicy, KeyPool};
use super::raw::{RawKey, RawKeys, Sealed, Tag, is_same_tag};
use super::recent::{Audience, RecentKeys};
use crate::buf::{RegionMemory, RegionUse};
use crate::error::{Error, ErrorKind, Refusal, Result};
use crate::random::RandomSource;
use crate::stats::RegionStats;
use crate::sync::{GateError, Lock, Notify, Role};

/// The table as a domain and its regions share it.
pub(crate) type SharedTable = Arc<Lock<MrTable>>;

/// The way in which peers address a region (`fi_mr(3)`: "either the base virtual address of the
/// buffer or 0").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MrAddressing {
    /// A byte offset into the region.
    Offset,
    /// The target's virtual address (`FI_MR_VIRT_ADDR`).
    Virtual,
}

impl MrAddressing {
    /// The address that peers use for a region's first byte.
    pub(crate) fn base_of(self, memory: &RegionMemory) -> u64 {
        match self {
            MrAddressing::Offset => 0,
            MrAddressing::Virtual => memory.base_addr(),
        }
    }
}

impl From<GateError> for Refusal {
    fn from(closed: GateError) -> Self {
        match closed {
            // A region that is being closed was registered a moment ago: the peer has not guessed
            // the key.
            GateError::Revoked | GateError::Closed => Refusal::Revoked,
            GateError::Quiesced
            | GateError::Refreshing
            | GateError::Disabled
            | GateError::Parked => Refusal::Held,
        }
    }
}

/// A peer's request to access a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessRequest {
    pub(crate) key: u64,
    /// The tag of a raw key, if the request carries one.
    pub(crate) tag: Option<Tag>,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    /// The rights that the access needs.
    pub(crate) need: Access,
    /// The access is to be persistent when it ends (`FI_COMMIT_COMPLETE`).
    pub(crate) persistent: bool,
}

struct Registered {
    memory: Arc<RegionMemory>,
    /// Boxed, since few regions have one.
    proof: Option<Box<RequiredProof>>,
    stats: RegionStats,
}

/// The proof that peers must show in addition to the key.
pub(super) struct RequiredProof {
    /// Only peers that have proven this key are admitted; `None`: all peers.
    auth_key: Option<AuthSecret>,
    /// Shown with every access in a domain with `FI_MR_RAW`.
    tag: Option<Tag>,
}

impl RequiredProof {
    /// True if the request and its context show the whole proof.
    pub(super) fn is_shown_by(&self, request: &AccessRequest, context: &AccessContext<'_>) -> bool {
        let is_shown = |tag: &Tag| request.tag.is_some_and(|shown| is_same_tag(tag, &shown));
        self.tag.as_ref().is_none_or(is_shown) && context.has(self.auth_key.as_ref())
    }
}

impl Registered {
    fn access(&self) -> Access {
        Access::from_bits_truncate(self.memory.rights())
    }

    /// Returns the memory that the request of an admitted peer names.
    #[inline]
    fn resolve(
        &self,
        addressing: MrAddressing,
        request: &AccessRequest,
    ) -> Result<RegionUse, Refusal> {
        self.memory.gate().is_open(Role::Remote)?;
        let flags = MrFlags::from_bits_truncate(self.memory.traits().flags);
        let persists = !request.persistent || flags.contains(MrFlags::RMA_PMEM);
        if !self.access().permits(request.need) || !persists {
            return Err(Refusal::AccessDenied);
        }
        let base = addressing.base_of(&self.memory);
        let (offset, len) = range_within(base, self.memory.len(), request.addr, request.len)
            .ok_or(Refusal::OutOfBounds)?;
        if !self.memory.attached().is_backed(offset..offset + len) {
            return Err(Refusal::Fault);
        }
        Ok(RegionUse::remote(Arc::clone(&self.memory), offset, len))
    }
}

/// The regions of one domain by key.
///
/// Invariant: the table has a region from its registration to its deregistration, under one key.
pub(crate) struct MrTable {
    addressing: MrAddressing,
    keys: KeyPolicy,
    raw: RawKeys,
    /// Hashed with a random seed, since keys may be chosen by others. Nothing depends on its order.
    regions: HashMap<u64, Registered>,
    /// Keys of deregistered regions that peers could reach.
    recent: RecentKeys,
    pool: KeyPool,
    /// The domain is closed: nothing is registered any more.
    closed: bool,
    /// Largest number of regions (`mr_cnt` of `fi_domain(3)`).
    count_max: usize,
    /// Number of regions that were entered.
    registrations: u64,
    /// Number of accesses that were granted.
    accesses: u64,
    /// Notified when the last region is removed; present once a task waits for that.
    emptied: Option<Arc<Notify>>,
}

impl MrTable {
    pub(crate) fn new(
        addressing: MrAddressing,
        keys: KeyPolicy,
        raw: RawKeys,
        random: RandomSource,
    ) -> Self {
        MrTable {
            addressing,
            keys,
            raw,
            regions: HashMap::new(),
            recent: RecentKeys::default(),
            pool: KeyPool::new(random),
            closed: false,
            count_max: usize::MAX,
            registrations: 0,
            accesses: 0,
            emptied: None,
        }
    }

    /// Reserves room for this many regions, so that inserting them does not grow the table.
    pub(crate) fn expecting(mut self, regions: usize) -> Self {
        self.regions = HashMap::with_capacity(regions);
        self
    }

    /// Sets the largest number of regions.
    pub(crate) fn at_most(mut self, regions: usize) -> Self {
        self.count_max = regions;
        self
    }

    /// Enters a region under the requested key, or under one of our choice.
    ///
    /// `LimitReached` if the domain already has as many regions as it offers; `KeyInUse`
    /// (`FI_ENOKEY`) if the key is taken, `KeyRejected` (`FI_EKEYREJECTED`) if it is out of range
    /// or only the library chooses keys.
    #[inline]
    pub(crate) fn insert(
        &mut self,
        requested: Option<u64>,
        memory: &Arc<RegionMemory>,
        auth_key: Option<AuthSecret>,
    ) -> Result<u64> {
        if self.closed {
            return Err(Error::new(ErrorKind::BadState, "the domain is closed"));
        }
        if self.regions.len() >= self.count_max {
            return Err(self.full());
        }
        let key = match requested {
            Some(key) => {
                self.keys.check(key)?;
                key
            }
            None => {
                let is_taken = |key| self.regions.contains_key(&key);
                self.keys.choose(|| self.pool.draw(), is_taken)?
            }
        };
        let proof = (self.raw.demanded || auth_key.is_some()).then(|| {
            let tag = self.raw.demanded.then(|| self.raw_key(key, memory).tag());
            Box::new(RequiredProof { auth_key, tag })
        });
        let registered = Registered {
            memory: Arc::clone(memory),
            proof,
            stats: RegionStats::default(),
        };
        match self.regions.entry(key) {
            Entry::Vacant(free) => {
                free.insert(registered);
                self.registrations += 1;
                Ok(key)
            }
            Entry::Occupied(_) => Err(Error::new(
                ErrorKind::KeyInUse,
                "another region of the domain has the requested_key",
            )),
        }
    }

    #[cold]
    fn full(&self) -> Error {
        let what = format!(
            "the domain's mr_cnt is {}, and as many regions are registered: deregister one, or ask \
             for more in the hints (Hints::domain)",
            self.count_max
        );
        Error::new(ErrorKind::LimitReached, what)
    }

    /// Removes a key, if it still names this region: another region may have got the key since.
    #[inline]
    pub(crate) fn remove(&mut self, key: u64, memory: &Arc<RegionMemory>) {
        let Entry::Occupied(entry) = self.regions.entry(key) else {
            return;
        };
        if !Arc::ptr_eq(&entry.get().memory, memory) {
            return;
        }
        let removed = entry.remove();
        if removed.access().intersects(Access::REMOTE) {
            let audience = Audience {
                proof: removed.proof,
                endpoints: memory.attached().endpoints(),
            };
            self.recent.push(key, audience);
        }
    }

    /// Notifies `notify` from now on when the last region is removed.
    pub(crate) fn notify_when_emptied(&mut self, notify: &Arc<Notify>) {
        self.emptied = Some(Arc::clone(notify));
    }

    /// Returns the `Notify` to notify after the lock is released, if no region is left and a task
    /// waits for that.
    #[inline]
    pub(crate) fn emptied(&self) -> Option<Arc<Notify>> {
        match self.emptied {
            Some(ref notify) if self.is_empty() => Some(Arc::clone(notify)),
            _ => None,
        }
    }

    /// Resolves a request to the memory it names, or refuses it. The refusal is `Revoked` also if
    /// the region was deregistered lately.
    pub(crate) fn resolve<'a>(
        &mut self,
        request: &AccessRequest,
        context: impl Into<AccessContext<'a>>,
    ) -> Result<RegionUse, Refusal> {
        let context = context.into();
        let Some(region) = self.regions.get_mut(&request.key) else {
            return Err(match self.recent.contains(request, &context) {
                true => Refusal::Revoked,
                false => Refusal::UnknownKey,
            });
        };
        // A peer that lacks the tag or the authorization key, or uses an endpoint that the region
        // is not bound to, gets the same answer as for an unknown key.
        let proof = region.proof.as_deref();
        let is_admitted = proof.is_none_or(|it| it.is_shown_by(request, &context))
            && region.memory.attached().admits(context.endpoint);
        if !is_admitted {
            return Err(Refusal::UnknownKey);
        }
        let found = region.resolve(self.addressing, request);
        match &found {
            Ok(_) => {
                self.accesses += 1;
                region.stats.accesses += 1;
                region.stats.bytes += request.len;
            }
            Err(_) => region.stats.refused += 1,
        }
        found
    }

    /// Returns the statistics of peers' accesses to the region with this key.
    pub(crate) fn region_stats(&self, key: u64) -> Option<RegionStats> {
        self.regions.get(&key).map(|region| region.stats)
    }

    /// Returns how many regions were entered, and how many accesses granted.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.registrations, self.accesses)
    }

    /// Refuses further insertions.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    /// True if every access must carry the tag of a raw key (`FI_MR_RAW`).
    pub(crate) fn demands_tags(&self) -> bool {
        self.raw.demanded
    }

    /// Returns the raw key of a region, made of the properties that it was registered with.
    pub(crate) fn raw_key(&self, key: u64, memory: &RegionMemory) -> RawKey {
        let access = Access::from_bits_truncate(memory.rights());
        let sealed = Sealed::new(key, self.addressing, memory, access);
        self.raw.seal(&sealed)
    }

    /// Returns whether this is the raw key of a region that is registered here now.
    pub(crate) fn is_authentic(&self, raw: &RawKey) -> bool {
        let key = raw.wire_key();
        let region = self.regions.get(&key);
        region.is_some_and(|it| self.raw_key(key, &it.memory) == *raw)
    }

    /// True if a seed determines the keys, and the order of events in the domain.
    pub(crate) fn is_seeded(&self) -> bool {
        self.pool.is_seeded()
    }

    /// Returns the way in which peers address this domain's regions.
    pub(crate) fn addressing(&self) -> MrAddressing {
        self.addressing
    }

    /// Returns how many regions are registered.
    pub(crate) fn len(&self) -> usize {
        self.regions.len()
    }

    /// Returns how many regions the table can hold without growing.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.regions.capacity()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }
}

/// Returns the offset and length of a range within a region of `region_len` bytes at `base`; `None`
/// if it is not entirely within. An empty range may be at the very end.
fn range_within(base: u64, region_len: usize, addr: u64, len: u64) -> Option<(usize, usize)> {
    let offset = addr.checked_sub(base)?;
    let end = offset.checked_add(len)?;
    let within = end <= u64::try_from(region_len).ok()?;
    // Offset and length are at most `region_len`, which is a usize.
    within.then(|| Some((usize::try_from(offset).ok()?, usize::try_from(len).ok()?)))?
}

impl fmt::Debug for MrTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys are secrets: knowing one permits access.
        f.debug_struct("MrTable")
            .field("addressing", &self.addressing)
            .field("keys", &self.keys)
            .field("regions", &self.regions.len())
            .finish()
    }
}
