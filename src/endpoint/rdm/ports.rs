//! Maps peers to ports by the index of the peer's address, so that a post costs one table access.
//!
//! An entry may be stale: if an address was removed since the entry was made (then the address
//! vector's count of removals differs, and the removed address must be refused), or if the port no
//! longer exists.

use std::sync::{Arc, Weak};

use smallvec::SmallVec;

use crate::id::FabricAddr;
use crate::progress::Port;
use crate::sync::Lock;

pub(super) struct Ports {
    /// How many of the highest bits of an address name a context of the peer.
    context_bits: u32,
    /// By context, then by index. Most endpoints use only context 0.
    slots: Lock<SmallVec<[Vec<Option<Slot>>; 1]>>,
}

struct Slot {
    addr: FabricAddr,
    removals: u64,
    /// Weak, so that a peer without further posts keeps only this entry.
    port: Weak<Port>,
}

impl Ports {
    /// Creates the table for the addresses of a vector that uses this many bits for contexts.
    pub(super) fn new(context_bits: u32) -> Self {
        Ports {
            context_bits,
            slots: Lock::new(SmallVec::new()),
        }
    }

    #[inline]
    fn place_of(&self, addr: FabricAddr) -> (usize, usize) {
        let (_, context) = addr.split(self.context_bits);
        (usize::from(context), addr.index())
    }

    /// Returns the port of this address, if no address was removed since the port was noted.
    pub(super) fn get(&self, addr: FabricAddr, removals: u64) -> Option<Arc<Port>> {
        let slots = self.slots.lock("find a port");
        let (context, index) = self.place_of(addr);
        let slot = slots.get(context)?.get(index)?.as_ref()?;
        if slot.addr != addr || slot.removals != removals {
            return None;
        }
        slot.port.upgrade()
    }

    /// Notes the port of an address that is in the vector, so its index and context are bounded.
    pub(super) fn put(&self, addr: FabricAddr, removals: u64, port: &Arc<Port>) {
        let mut slots = self.slots.lock("note a port");
        let (context, index) = self.place_of(addr);
        if slots.len() <= context {
            slots.resize_with(context + 1, Vec::new);
        }
        let slots = &mut slots[context];
        if slots.len() <= index {
            slots.resize_with(index + 1, || None);
        }
        slots[index] = Some(Slot {
            addr,
            removals,
            port: Arc::downgrade(port),
        });
    }

    pub(super) fn forget(&self, addr: FabricAddr) {
        let mut slots = self.slots.lock("forget a port");
        let (context, index) = self.place_of(addr);
        let slot = slots
            .get_mut(context)
            .and_then(|slots| slots.get_mut(index));
        if let Some(slot) = slot {
            *slot = None;
        }
    }
}
