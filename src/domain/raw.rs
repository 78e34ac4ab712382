//! Raw keys of peers (`fi_mr_map_raw`; `fi_mr(3)`).

use super::Domain;
use crate::error::Result;
use crate::mr::{MappedKey, RawKey, WireKey};

impl Domain {
    /// Maps a raw key that a peer has sent, with its region's base address, to a key that
    /// operations of this domain take (`fi_mr_map_raw`). It may be called with any region's raw
    /// key, and must be if the peer's domain has [`MrMode::RAW`](crate::info::MrMode::RAW). A
    /// domain that has the mode itself takes mapped keys only.
    ///
    /// A read or write takes one segment more for each key whose domain demands proof of it, so
    /// that it reaches two remote ranges and not four.
    ///
    /// # Errors
    /// [`ErrorKind::BadState`](crate::ErrorKind::BadState) if the domain is closed. A made-up key
    /// is mapped like any other; the target refuses it.
    #[doc(alias = "fi_mr_map_raw")]
    pub fn map_raw(&self, base_addr: u64, raw_key: &RawKey) -> Result<MappedKey> {
        let keep = self.keep_open("mapped key")?;
        self.inner.mapped.map(base_addr, *raw_key, keep)
    }

    /// Whether this is the raw key of a region registered here now, and not a forged or altered
    /// one: for servers to which peers send back keys that they claim to have got from them. Takes
    /// the same time whatever the key's tag.
    pub fn is_own_raw_key(&self, raw_key: &RawKey) -> bool {
        let regions = self.inner.regions.lock("check a raw key");
        regions.is_authentic(raw_key)
    }

    /// The key and tag in the headers of operations that name this key.
    pub(crate) fn wire_key(&self, key: u64) -> Result<WireKey> {
        self.inner.mapped.wire_key(key)
    }
}
