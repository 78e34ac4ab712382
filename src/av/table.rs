//! The addresses of one vector, by index and by address; generations guard the indices. Pure.
//!
//! Invariants: a slot is free, reserved, or used by one entry; `by_address` has exactly the used
//! slots; `free` has exactly the free slots that have a generation left, since a generation of an
//! index is never used twice.
//!
//! An insertion (`insertion_task.rs`) reserves the slots of all its addresses when it begins, so
//! that indices follow the order of the calls. Names are looked up on blocking threads, and the
//! last lookup to end puts the addresses into their slots. Then the task stores the result, writes
//! the events, and wakes the wakers, in this order.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::SocketAddr;

use crate::error::{Error, ErrorKind, Result};
use crate::id::{AuthKeyAddr, FabricAddr, canonical};

/// An address, the application's identifier of it (`FI_AV_USER_ID`), and the authorization key of
/// the peer (`FI_AUTH_KEY`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// In its canonical form.
    pub(super) address: SocketAddr,
    pub(super) user_id: Option<u64>,
    pub(super) auth_key: Option<AuthKeyAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotState {
    Free,
    /// Reserved for an insertion in progress.
    Reserved,
    Used(Entry),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddressSlot {
    /// The generation of the entry in this slot, or of the next one if there is none.
    pub(super) generation: u32,
    pub(super) state: SlotState,
}

impl AddressSlot {
    pub(super) const NEW: AddressSlot = AddressSlot {
        generation: 0,
        state: SlotState::Free,
    };
    /// A slot that is never used again.
    pub(super) const RETIRED: AddressSlot = AddressSlot {
        generation: FabricAddr::GENERATION_COUNT,
        state: SlotState::Free,
    };

    fn can_be_reserved(&self) -> bool {
        self.state == SlotState::Free && self.generation < FabricAddr::GENERATION_COUNT
    }

    /// Returns the entry, if its generation is this one.
    pub(super) fn entry(&self, generation: u32) -> Option<&Entry> {
        match &self.state {
            SlotState::Used(entry) if generation == self.generation => Some(entry),
            _ => None,
        }
    }
}

/// The slots reserved for the addresses of one insertion, in their order.
#[derive(Debug)]
#[must_use = "slots that are not committed stay reserved"]
pub(super) struct ReservedSlots {
    pub(super) indices: Vec<u32>,
}

#[derive(Debug)]
pub(super) struct Table {
    /// The id of the vector, which is a part of its addresses' names.
    vector: u32,
    count_max: u32,
    slots: Vec<AddressSlot>,
    /// The lowest index is taken first: `fi_av(3)`, "inserted at the lowest index that corresponds
    /// to an unused table location".
    free: BinaryHeap<Reverse<u32>>,
    by_address: HashMap<SocketAddr, u32>,
}

impl Table {
    pub(super) fn new(vector: u32, count_max: u32, expected: usize) -> Self {
        debug_assert!(count_max <= FabricAddr::INDEX_COUNT);
        Table {
            vector,
            count_max,
            slots: Vec::with_capacity(expected),
            free: BinaryHeap::new(),
            by_address: HashMap::with_capacity(expected),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_address.len()
    }

    pub(super) fn slot(&self, index: u32) -> Option<AddressSlot> {
        self.slots.get(index as usize).copied()
    }

    /// Takes the lowest free indices for `count` addresses, or none.
    pub(super) fn reserve(&mut self, count: usize) -> Result<ReservedSlots> {
        let room = self.free.len() + (self.count_max as usize - self.slots.len());
        if count > room {
            let message = format!("an address vector holds {} addresses", self.count_max);
            return Err(Error::new(ErrorKind::LimitReached, message));
        }
        let mut indices = Vec::with_capacity(count);
        for _ in 0..count {
            let index = match self.free.pop() {
                Some(Reverse(index)) => index,
                None => {
                    self.slots.push(AddressSlot::NEW);
                    self.slots.len() as u32 - 1
                }
            };
            self.slots[index as usize].state = SlotState::Reserved;
            indices.push(index);
        }
        Ok(ReservedSlots { indices })
    }

    /// Puts each entry into the slot that was reserved for it, and frees the slots of addresses
    /// that have failed before or fail here.
    pub(super) fn commit(
        &mut self,
        reserved: ReservedSlots,
        entries: Vec<Result<Entry>>,
    ) -> Vec<Result<FabricAddr>> {
        debug_assert_eq!(reserved.indices.len(), entries.len());
        let slots = reserved.indices.into_iter().zip(entries);
        slots
            .map(|(index, entry)| {
                let filled = entry.and_then(|entry| self.fill(index, entry));
                if filled.is_err() {
                    self.release(index);
                }
                filled
            })
            .collect()
    }

    fn fill(&mut self, index: u32, entry: Entry) -> Result<FabricAddr> {
        let identity = entry.address;
        if self.by_address.contains_key(&identity) {
            let message = format!("{} is in the address vector already", entry.address);
            return Err(Error::new(ErrorKind::AddressInUse, message));
        }
        let slot = self.slots.get_mut(index as usize);
        let Some(slot) = slot.filter(|slot| slot.state == SlotState::Reserved) else {
            // Only the file of a shared vector can have this state.
            let message = "the place in the address vector was taken away";
            return Err(Error::new(ErrorKind::Canceled, message));
        };
        slot.state = SlotState::Used(entry);
        self.by_address.insert(identity, index);
        Ok(FabricAddr::new(self.vector, slot.generation, index))
    }

    fn release(&mut self, index: u32) {
        let slot = self.slots.get_mut(index as usize);
        if let Some(slot) = slot.filter(|slot| slot.state == SlotState::Reserved) {
            slot.state = SlotState::Free;
            self.free.push(Reverse(index));
        }
    }

    pub(super) fn get(&self, addr: FabricAddr) -> Option<&Entry> {
        let slot = self.slots.get(addr.index())?;
        (addr.vector() == self.vector)
            .then(|| slot.entry(addr.generation()))
            .flatten()
    }

    pub(super) fn remove(&mut self, addr: FabricAddr) -> Option<Entry> {
        let entry = *self.get(addr)?;
        let slot = self.slots.get_mut(addr.index())?;
        slot.state = SlotState::Free;
        slot.generation += 1;
        if slot.can_be_reserved() {
            self.free.push(Reverse(addr.index() as u32));
        }
        self.by_address.remove(&entry.address);
        Some(entry)
    }

    pub(super) fn find(&self, address: SocketAddr) -> Option<(FabricAddr, Entry)> {
        let index = *self.by_address.get(&canonical(address))?;
        self.at(index as usize)
    }

    /// Returns the entry that has this index now.
    pub(super) fn at(&self, index: usize) -> Option<(FabricAddr, Entry)> {
        let slot = self.slots.get(index)?;
        match slot.state {
            SlotState::Used(entry) => {
                let addr = FabricAddr::new(self.vector, slot.generation, index as u32);
                Some((addr, entry))
            }
            SlotState::Free | SlotState::Reserved => None,
        }
    }

    /// Returns all entries of the vector, by index.
    pub(super) fn entries(&self) -> impl Iterator<Item = (FabricAddr, Entry)> {
        (0..self.slots.len()).filter_map(|index| self.at(index))
    }

    /// Removes everything. [`Table::load`] then loads the new slots, by index.
    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.free.clear();
        self.by_address.clear();
    }

    /// Loads the next slot from a file. If another slot has the address already, lookups find the
    /// first slot.
    pub(super) fn load(&mut self, slot: AddressSlot) {
        let index = self.slots.len() as u32;
        if slot.can_be_reserved() {
            self.free.push(Reverse(index));
        }
        if let SlotState::Used(entry) = slot.state {
            let identity = entry.address;
            self.by_address.entry(identity).or_insert(index);
        }
        self.slots.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(port: u16) -> Entry {
        Entry {
            address: SocketAddr::from(([10, 0, 0, 1], port)),
            user_id: None,
            auth_key: None,
        }
    }

    fn insert(table: &mut Table, port: u16) -> Result<FabricAddr> {
        let reserved = table.reserve(1)?;
        table.commit(reserved, vec![Ok(entry(port))]).remove(0)
    }

    /// A name is never used again: a slot that has had all its generations is retired.
    #[test]
    fn a_place_without_a_generation_left_is_not_used_again() {
        let mut table = Table::new(0, 2, 0);
        let first = insert(&mut table, 1).unwrap();
        table.slots[0].generation = FabricAddr::GENERATION_COUNT - 1;
        assert_eq!(table.get(first), None);
        let last = table.at(0).unwrap().0;
        table.remove(last).unwrap();
        assert_eq!(insert(&mut table, 2).unwrap().index(), 1);
        let full = insert(&mut table, 3).unwrap_err();
        assert_eq!(full.kind(), ErrorKind::LimitReached);
    }

    /// An insertion that does not fit takes no place at all.
    #[test]
    fn a_reservation_that_does_not_fit_takes_nothing() {
        let mut table = Table::new(0, 3, 0);
        insert(&mut table, 1).unwrap();
        assert_eq!(
            table.reserve(3).unwrap_err().kind(),
            ErrorKind::LimitReached
        );
        assert_eq!(table.reserve(2).unwrap().indices, [1, 2]);
    }

    /// Random insertions and removals agree with a plain model, in which nothing is ever reused.
    #[test]
    fn names_agree_with_a_model_that_never_reuses_one() {
        let mut table = Table::new(5, 64, 0);
        let mut alive: Vec<(FabricAddr, u16)> = Vec::new();
        let mut dead: Vec<FabricAddr> = Vec::new();
        let mut seed = 1_u64;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % below
        };
        for step in 0..4000 {
            if random(2) == 0 || alive.is_empty() {
                let port = random(100) as u16 + 1;
                match insert(&mut table, port) {
                    Ok(addr) => {
                        assert!(alive.iter().all(|(_, known)| *known != port), "{step}");
                        assert!(!dead.contains(&addr), "{step}");
                        let lower = |index| alive.iter().any(|(at, _)| at.index() == index);
                        assert!((0..addr.index()).all(lower), "{step}: not the lowest index");
                        alive.push((addr, port));
                    }
                    Err(error) if error.kind() == ErrorKind::AddressInUse => {
                        assert!(alive.iter().any(|(_, known)| *known == port), "{step}");
                    }
                    Err(_) => assert_eq!(alive.len(), 64, "{step}"),
                }
            } else {
                let (addr, port) = alive.swap_remove(random(alive.len()));
                assert_eq!(table.remove(addr), Some(entry(port)), "{step}");
                dead.push(addr);
            }
            assert_eq!(table.len(), alive.len());
            for (addr, port) in &alive {
                assert_eq!(table.get(*addr), Some(&entry(*port)), "{step}");
                assert_eq!(table.find(entry(*port).address).unwrap().0, *addr, "{step}");
            }
            if let Some(gone) = dead.get(random(dead.len().max(1))) {
                assert_eq!(table.get(*gone), None, "{step}");
            }
        }
        assert!(dead.len() > 1000);
    }
}
