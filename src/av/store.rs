//! The storage of a vector's addresses: in this process, or in a file that several processes share.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use super::shared::SharedStore;
use super::table::{Entry, ReservedSlots, Table};
use crate::error::Result;
use crate::id::{AuthKeyAddr, FabricAddr};
use crate::sync::Lock;

pub(super) enum Store {
    Own {
        table: Lock<Table>,
        removals: AtomicU64,
    },
    Shared(SharedStore),
}

impl Store {
    pub(super) fn own(table: Lock<Table>) -> Self {
        Store::Own {
            table,
            removals: AtomicU64::new(0),
        }
    }

    /// Returns how often addresses were removed; `None` if other processes remove addresses too.
    pub(super) fn removals(&self) -> Option<u64> {
        match self {
            Store::Own { removals, .. } => Some(removals.load(Ordering::Acquire)),
            Store::Shared(_) => None,
        }
    }

    /// Reserves slots for `count` addresses, in their order.
    pub(super) fn reserve(&self, count: usize) -> Result<ReservedSlots> {
        match self {
            Store::Own { table, .. } => table.lock("reserve addresses").reserve(count),
            Store::Shared(shared) => shared.reserve(count),
        }
    }

    /// Commits an insertion: each address goes to its slot, and the slots of failed addresses are
    /// freed.
    pub(super) fn commit(
        &self,
        reserved: ReservedSlots,
        entries: Vec<Result<Entry>>,
    ) -> Vec<Result<FabricAddr>> {
        match self {
            Store::Own { table, .. } => table.lock("insert addresses").commit(reserved, entries),
            Store::Shared(shared) => shared.commit(reserved, entries),
        }
    }

    /// Removes the addresses that are in the vector. Returns for each address whether it was
    /// removed.
    pub(super) fn remove(&self, addrs: &[FabricAddr]) -> Result<Vec<bool>> {
        match self {
            Store::Own { table, removals } => {
                let mut table = table.lock("remove addresses");
                let removed = addrs.iter().map(|addr| table.remove(*addr).is_some());
                let removed = removed.collect();
                removals.fetch_add(1, Ordering::AcqRel);
                Ok(removed)
            }
            Store::Shared(shared) => shared.remove(addrs),
        }
    }

    pub(super) fn get(&self, addr: FabricAddr) -> Result<Option<Entry>> {
        match self {
            Store::Own { table, .. } => Ok(table.lock("look an address up").get(addr).copied()),
            Store::Shared(shared) => shared.get(addr),
        }
    }

    pub(super) fn at(&self, index: usize) -> Result<Option<(FabricAddr, Entry)>> {
        match self {
            Store::Own { table, .. } => Ok(table.lock("look an index up").at(index)),
            Store::Shared(shared) => shared.at(index),
        }
    }

    pub(super) fn find(&self, address: SocketAddr) -> Result<Option<(FabricAddr, Entry)>> {
        match self {
            Store::Own { table, .. } => Ok(table.lock("find an address").find(address)),
            Store::Shared(shared) => shared.with_table(|table| table.find(address)),
        }
    }

    /// Returns how many addresses were inserted with this key; 0 for a vector that processes share.
    pub(super) fn count_of_key(&self, key: AuthKeyAddr) -> usize {
        let is_of_key = |(_, entry): &(FabricAddr, Entry)| entry.auth_key == Some(key);
        match self {
            Store::Own { table, .. } => {
                let table = table.lock("count the addresses of a key");
                table.entries().filter(is_of_key).count()
            }
            Store::Shared(_) => 0,
        }
    }

    pub(super) fn len(&self) -> Result<usize> {
        match self {
            Store::Own { table, .. } => Ok(table.lock("count addresses").len()),
            Store::Shared(shared) => shared.with_table(Table::len),
        }
    }

    pub(super) fn names(&self) -> Result<Vec<FabricAddr>> {
        let names = |table: &Table| table.entries().map(|(addr, _)| addr).collect();
        match self {
            Store::Own { table, .. } => Ok(names(&table.lock("list addresses"))),
            Store::Shared(shared) => shared.with_table(names),
        }
    }
}
