//! Insertion (`fi_av_insert`, `fi_av(3)`).

use std::fmt;
use std::net::SocketAddr;

use super::AddressVector;
use super::table::Entry;
use crate::error::{Error, ErrorKind, Result};
use crate::id::FabricAddr;

/// An insertion being described. End it by [`now`](Self::now).
#[must_use = "an insertion does nothing until it is ended by `now`"]
pub struct Insert {
    vector: AddressVector,
    address: SocketAddr,
    user_id: Option<u64>,
}

impl Insert {
    pub(super) fn new(vector: AddressVector, address: SocketAddr) -> Self {
        Insert {
            vector,
            address,
            user_id: None,
        }
    }

    /// What completions name the address by, instead of its [`FabricAddr`] (`FI_AV_USER_ID`).
    pub fn user_id(mut self, id: u64) -> Self {
        self.user_id = Some(id);
        self
    }

    /// Inserts within this call.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an address that is no peer's (a wildcard, port 0), or
    /// without a user id in a vector that wants them; [`ErrorKind::AddressInUse`] for one that is
    /// in the vector already; [`ErrorKind::LimitReached`] when the vector is full;
    /// [`ErrorKind::BadState`] when it is closed.
    pub fn now(self) -> Result<FabricAddr> {
        let inner = &self.vector.inner;
        inner.check_open()?;
        if inner.user_ids && self.user_id.is_none() {
            let message = "user_id: the vector was opened for them, and none is given";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let entry = Entry {
            address: peer_address(self.address)?,
            user_id: self.user_id,
        };
        inner.table.lock("insert an address").insert(entry)
    }
}

/// The address if it can be a peer's.
fn peer_address(address: SocketAddr) -> Result<SocketAddr> {
    if address.ip().is_unspecified() || address.port() == 0 {
        let message = format!("address: {address} is no peer's");
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    Ok(address)
}

impl fmt::Debug for Insert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Insert")
            .field("address", &self.address)
            .field("user_id", &self.user_id)
            .finish_non_exhaustive()
    }
}
