//! The domain's keys: which region a peer means, and whether it may. Pure and total: every key,
//! address and length a peer can send has an answer, none of them a panic.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::fmt;
use std::sync::Arc;

use super::access::Access;
use super::key::KeyPolicy;
use crate::buf::{RegionMemory, RegionUse};
use crate::error::{Error, ErrorKind, Refusal, Result};
use crate::sync::{GateClosed, Lock, Role};

/// The table as a domain and its regions share it.
pub(crate) type SharedTable = Arc<Lock<MrTable>>;

/// What a peer's address means (`fi_mr(3)`: "either the base virtual address of the buffer or 0").
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

impl From<GateClosed> for Refusal {
    fn from(closed: GateClosed) -> Self {
        match closed {
            // A region that is being closed was one a moment ago: whoever reaches for it now has
            // not guessed.
            GateClosed::Revoked | GateClosed::Closed => Refusal::Revoked,
            GateClosed::Quiesced => Refusal::Held,
        }
    }
}

struct Registered {
    memory: Arc<RegionMemory>,
    access: Access,
}

/// The regions of one domain by key.
///
/// Invariant: a region is in here from its registration to its deregistration, under one key.
pub(crate) struct MrTable {
    addressing: MrAddressing,
    keys: KeyPolicy,
    regions: HashMap<u64, Registered>,
}

impl MrTable {
    pub(crate) fn new(addressing: MrAddressing, keys: KeyPolicy) -> Self {
        MrTable {
            addressing,
            keys,
            regions: HashMap::new(),
        }
    }

    /// Enters a region under the requested key, or under one of our choice.
    ///
    /// `KeyInUse` (`FI_ENOKEY`) if the key is taken, `KeyRejected` (`FI_EKEYREJECTED`) if it is out
    /// of range or the application has no say.
    pub(crate) fn insert(
        &mut self,
        requested: Option<u64>,
        memory: Arc<RegionMemory>,
        access: Access,
    ) -> Result<u64> {
        let key = match requested {
            Some(key) => {
                self.keys.check(key)?;
                key
            }
            None => self.keys.choose(|key| self.regions.contains_key(&key))?,
        };
        match self.regions.entry(key) {
            Slot::Occupied(_) => Err(Error::new(
                ErrorKind::KeyInUse,
                "another region of the domain has the requested_key",
            )),
            Slot::Vacant(slot) => {
                slot.insert(Registered { memory, access });
                Ok(key)
            }
        }
    }

    /// Forgets a key, if it still means this region: by then it may have been given to another.
    pub(crate) fn remove(&mut self, key: u64, memory: &Arc<RegionMemory>) {
        if let Slot::Occupied(slot) = self.regions.entry(key)
            && Arc::ptr_eq(&slot.get().memory, memory)
        {
            slot.remove();
        }
    }

    /// The memory that `len` bytes at `addr` under `key` mean to a peer that needs these rights.
    pub(crate) fn resolve(
        &self,
        key: u64,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<RegionUse, Refusal> {
        let region = self.regions.get(&key).ok_or(Refusal::UnknownKey)?;
        region.memory.gate().is_open(Role::Remote)?;
        if !region.access.permits(need) {
            return Err(Refusal::AccessDenied);
        }
        let base = self.addressing.base_of(&region.memory);
        let (offset, len) =
            range_within(base, region.memory.len(), addr, len).ok_or(Refusal::OutOfBounds)?;
        Ok(RegionUse::remote(Arc::clone(&region.memory), offset, len))
    }

    /// How peers address this domain's regions.
    pub(crate) fn addressing(&self) -> MrAddressing {
        self.addressing
    }

    /// How many regions are registered.
    pub(crate) fn len(&self) -> usize {
        self.regions.len()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }
}

/// The offset and length of a range within a region of `region_len` bytes at `base`; `None` unless
/// all of it is. An empty range may stand at the very end.
fn range_within(base: u64, region_len: usize, addr: u64, len: u64) -> Option<(usize, usize)> {
    let offset = addr.checked_sub(base)?;
    let end = offset.checked_add(len)?;
    let within = end <= u64::try_from(region_len).ok()?;
    // Both are at most `region_len`, which is a usize.
    within.then(|| Some((usize::try_from(offset).ok()?, usize::try_from(len).ok()?)))?
}

impl fmt::Debug for MrTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys are secrets of a kind: whoever knows one may use it.
        f.debug_struct("MrTable")
            .field("addressing", &self.addressing)
            .field("keys", &self.keys)
            .field("regions", &self.regions.len())
            .finish()
    }
}
