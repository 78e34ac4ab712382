//! The addresses of one vector: by index, guarded by generations, and by address. Pure.
//!
//! Invariants: an index is free, or taken by one entry; `by_address` has exactly the used entries;
//! a generation of an index is never used twice, so a place whose generations are spent is not used
//! again.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::{IpAddr, SocketAddr};

use crate::error::{Error, ErrorKind, Result};
use crate::id::FabricAddr;

/// What tells peers apart: an IPv4 address is the same in whichever form it is written, and only
/// link-local addresses have a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    ip: IpAddr,
    port: u16,
    zone: u32,
}

impl Identity {
    pub(super) fn of(address: SocketAddr) -> Self {
        let zone = match address {
            SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => v6.scope_id(),
            _ => 0,
        };
        Identity {
            ip: address.ip().to_canonical(),
            port: address.port(),
            zone,
        }
    }
}

/// An address, and what the application calls it (`FI_AV_USER_ID`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) address: SocketAddr,
    pub(super) user_id: Option<u64>,
}

#[derive(Debug)]
struct Place {
    /// Of the entry that is here, or else of the next one.
    generation: u32,
    entry: Option<Entry>,
}

#[derive(Debug)]
pub(super) struct Table {
    /// Tells this vector's values from other vectors'.
    vector: u32,
    places: Vec<Place>,
    /// The lowest is taken first: `fi_av(3)`, "inserted at the lowest index that corresponds to an
    /// unused table location".
    free: BinaryHeap<Reverse<u32>>,
    by_address: HashMap<Identity, u32>,
}

impl Table {
    pub(super) fn new(vector: u32, expected: usize) -> Self {
        Table {
            vector,
            places: Vec::with_capacity(expected),
            free: BinaryHeap::new(),
            by_address: HashMap::with_capacity(expected),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_address.len()
    }

    /// Takes the lowest free index.
    fn take_index(&mut self) -> Result<u32> {
        if let Some(Reverse(index)) = self.free.pop() {
            return Ok(index);
        }
        let index = self.places.len() as u32;
        if index >= FabricAddr::INDEX_COUNT {
            let message = format!(
                "an address vector holds {} addresses",
                FabricAddr::INDEX_COUNT
            );
            return Err(Error::new(ErrorKind::LimitReached, message));
        }
        self.places.push(Place {
            generation: 0,
            entry: None,
        });
        Ok(index)
    }

    pub(super) fn insert(&mut self, entry: Entry) -> Result<FabricAddr> {
        let identity = Identity::of(entry.address);
        if self.by_address.contains_key(&identity) {
            return Err(duplicate(entry.address));
        }
        let index = self.take_index()?;
        self.by_address.insert(identity, index);
        let place = &mut self.places[index as usize];
        place.entry = Some(entry);
        Ok(FabricAddr::new(self.vector, place.generation, index))
    }

    pub(super) fn get(&self, addr: FabricAddr) -> Option<&Entry> {
        let place = self.places.get(addr.index())?;
        let same = addr.vector() == self.vector && addr.generation() == place.generation;
        place.entry.as_ref().filter(|_| same)
    }

    pub(super) fn remove(&mut self, addr: FabricAddr) -> Option<Entry> {
        self.get(addr)?;
        let place = self.places.get_mut(addr.index())?;
        let entry = place.entry.take()?;
        place.generation += 1;
        if place.generation < FabricAddr::GENERATION_COUNT {
            self.free.push(Reverse(addr.index() as u32));
        }
        self.by_address.remove(&Identity::of(entry.address));
        Some(entry)
    }

    pub(super) fn find(&self, address: SocketAddr) -> Option<(FabricAddr, Entry)> {
        let index = *self.by_address.get(&Identity::of(address))?;
        self.at(index as usize)
    }

    /// Who has this index now.
    pub(super) fn at(&self, index: usize) -> Option<(FabricAddr, Entry)> {
        let place = self.places.get(index)?;
        let addr = FabricAddr::new(self.vector, place.generation, index as u32);
        Some((addr, place.entry?))
    }
}

pub(super) fn duplicate(address: SocketAddr) -> Error {
    let message = format!("{address} is in the address vector already");
    Error::new(ErrorKind::AddressInUse, message)
}
