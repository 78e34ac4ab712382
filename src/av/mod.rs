//! Address vectors (`fi_av(3)`): the peers of connectionless endpoints, each named by a small
//! value.

#![forbid(unsafe_code)]

mod builder;
mod insert;
mod table;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::id::{Context, FabricAddr};
use crate::info::AvType;
use crate::sync::{Dependence, Dependents, Keep, Lock};

use table::Table;

pub use builder::AddressVectorBuilder;
pub use insert::Insert;

/// The peers that connectionless endpoints talk to (`struct fid_av`, `fi_av(3)`): socket addresses,
/// each named by a [`FabricAddr`].
///
/// A [`FabricAddr`] names one insertion. Once the address is removed it is refused, also when
/// another address, or the same one again, has its place. An address is in a vector once.
///
/// Clones are handles of the same vector; every method may be called from several tasks at a time.
/// Dropping all handles needs no close.
#[derive(Clone)]
pub struct AddressVector {
    inner: Arc<Inner>,
}

struct Inner {
    table: Lock<Table>,
    av_type: AvType,
    /// Each insertion must give user ids along.
    user_ids: bool,
    context: Option<Context>,
    dependents: Dependents,
    /// What the vector was opened in; until it is closed.
    keep: Lock<Option<Keep>>,
}

impl Inner {
    fn check_open(&self) -> Result<()> {
        match self.dependents.is_closed() {
            false => Ok(()),
            true => Err(Error::new(
                ErrorKind::BadState,
                "the address vector is closed",
            )),
        }
    }
}

impl AddressVector {
    /// Starts the insertion of an address (`fi_av_insert`).
    pub fn insert(&self, address: SocketAddr) -> Insert {
        Insert::new(self.clone(), address)
    }

    /// Removes an address (`fi_av_remove`). It can be inserted again, and is named by another
    /// value then. Operations in progress go on: they know their peer.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it is not in the vector.
    pub fn remove(&self, addr: FabricAddr) -> Result<()> {
        self.inner.check_open()?;
        let removed = self.inner.table.lock("remove an address").remove(addr);
        removed.map(drop).ok_or_else(|| unknown(addr))
    }

    /// The socket address that was inserted (`fi_av_lookup`).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it was removed, or is of another vector.
    pub fn lookup(&self, addr: FabricAddr) -> Result<SocketAddr> {
        self.socket_addr(addr)
    }

    /// What names this peer, if it is in the vector.
    pub fn fabric_addr(&self, address: SocketAddr) -> Option<FabricAddr> {
        self.find(address).map(|(addr, _)| addr)
    }

    /// The identifier that the application gave the address (`FI_AV_USER_ID`), if it did.
    ///
    /// # Errors
    /// As [`lookup`](Self::lookup).
    pub fn user_id(&self, addr: FabricAddr) -> Result<Option<u64>> {
        let table = self.inner.table.lock("look a user id up");
        let entry = table.get(addr).ok_or_else(|| unknown(addr))?;
        Ok(entry.user_id)
    }

    /// Who has this index now; useful with [`AvType::Table`], whose indices can be foretold.
    pub fn at(&self, index: usize) -> Option<FabricAddr> {
        let table = self.inner.table.lock("look an index up");
        table.at(index).map(|(addr, _)| addr)
    }

    /// How many addresses are in it now.
    pub fn len(&self) -> usize {
        self.inner.table.lock("count addresses").len()
    }

    /// True if no address is in it now.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Map or table: what was asked for, or what was chosen.
    pub fn av_type(&self) -> AvType {
        self.inner.av_type
    }

    /// The context given when it was opened.
    pub fn context(&self) -> Option<Context> {
        self.inner.context
    }

    /// Closes the vector for all its handles (`fi_close`). Closing twice is no error.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`], naming them, while endpoints are bound to it.
    ///
    /// # Cancel safety
    /// Cancel safe: it does its work at the first poll and never waits.
    pub async fn close(&self) -> Result<()> {
        self.inner
            .dependents
            .close()
            .map_err(|users| Error::new(ErrorKind::Busy, format!("address vector {users}")))?;
        let keep = self.inner.keep.lock("close an address vector").take();
        drop(keep);
        Ok(())
    }

    /// Binds the object of this name, which makes `close` answer Busy until the result is dropped.
    pub(crate) fn depend(&self, name: String) -> Result<Dependence> {
        let closed = || Error::new(ErrorKind::BadState, "the address vector is closed");
        self.inner.dependents.depend(name).ok_or_else(closed)
    }

    /// Where the peer of this name is.
    pub(crate) fn socket_addr(&self, addr: FabricAddr) -> Result<SocketAddr> {
        let table = self.inner.table.lock("look an address up");
        let entry = table.get(addr).ok_or_else(|| unknown(addr))?;
        Ok(entry.address)
    }

    /// What names this peer: for whoever is to be told a source.
    pub(crate) fn find(&self, address: SocketAddr) -> Option<(FabricAddr, Option<u64>)> {
        let table = self.inner.table.lock("find an address");
        let (addr, entry) = table.find(address)?;
        Some((addr, entry.user_id))
    }
}

fn unknown(addr: FabricAddr) -> Error {
    let message = format!("{addr:?} is not in the address vector");
    Error::new(ErrorKind::InvalidArgument, message)
}

impl fmt::Debug for AddressVector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressVector")
            .field("av_type", &self.inner.av_type)
            .field("len", &self.len())
            .field("context", &self.inner.context)
            .finish_non_exhaustive()
    }
}
