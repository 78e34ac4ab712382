//! Which port leads to which peer, found by the index of the peer's address, so that a post costs
//! one table access.
//!
//! An entry may be stale, which shows by the address vector's count of removals when it was made (a
//! removed address is to be refused), and by a port that is gone.

use std::sync::{Arc, Weak};

use crate::id::FabricAddr;
use crate::progress::Port;
use crate::sync::Lock;

pub(super) struct Ports {
    slots: Lock<Vec<Option<Slot>>>,
}

struct Slot {
    addr: FabricAddr,
    removals: u64,
    /// Weak: a peer that is not posted to any more costs no more than this.
    port: Weak<Port>,
}

impl Ports {
    pub(super) fn new() -> Self {
        Ports {
            slots: Lock::new(Vec::new()),
        }
    }

    /// The port that was noted for this address, if no address was removed since.
    pub(super) fn get(&self, addr: FabricAddr, removals: u64) -> Option<Arc<Port>> {
        let slots = self.slots.lock("find a port");
        let slot = slots.get(addr.index())?.as_ref()?;
        if slot.addr != addr || slot.removals != removals {
            return None;
        }
        slot.port.upgrade()
    }

    /// Notes the port of an address that the vector has, which bounds the index.
    pub(super) fn put(&self, addr: FabricAddr, removals: u64, port: &Arc<Port>) {
        let mut slots = self.slots.lock("note a port");
        let index = addr.index();
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
        if let Some(slot) = slots.get_mut(addr.index()) {
            *slot = None;
        }
    }
}
