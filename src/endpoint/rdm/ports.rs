//! Which port leads to which peer, found by the index of the peer's address, so that a post costs
//! one table access.
//!
//! An entry may be stale, which shows by the address vector's count of removals when it was made (a
//! removed address is to be refused), and by a port that is gone.

use std::sync::{Arc, Weak};

use smallvec::SmallVec;

use crate::id::FabricAddr;
use crate::progress::Port;
use crate::sync::Lock;

pub(super) struct Ports {
    /// The highest bits of addresses, which name a context of the peer.
    context_bits: u32,
    /// By context, and by index: those of most endpoints are all of context 0.
    slots: Lock<SmallVec<[Vec<Option<Slot>>; 1]>>,
}

struct Slot {
    addr: FabricAddr,
    removals: u64,
    /// Weak: a peer that is not posted to any more costs no more than this.
    port: Weak<Port>,
}

impl Ports {
    /// For the addresses of a vector that keeps so many bits for contexts.
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

    /// The port that was noted for this address, if no address was removed since.
    pub(super) fn get(&self, addr: FabricAddr, removals: u64) -> Option<Arc<Port>> {
        let slots = self.slots.lock("find a port");
        let (context, index) = self.place_of(addr);
        let slot = slots.get(context)?.get(index)?.as_ref()?;
        if slot.addr != addr || slot.removals != removals {
            return None;
        }
        slot.port.upgrade()
    }

    /// Notes the port of an address that the vector has, which bounds the index, and the context.
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
