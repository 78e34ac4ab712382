//! Raw keys of peers (`fi_mr_map_raw`; `fi_mr(3)`).

use super::Domain;
use crate::error::Result;
use crate::mr::{MappedKey, RawKey, WireKey};

impl Domain {
    /// Maps a raw key that a peer has sent, together with its region's base address, to a key that
    /// operations of this domain accept (`fi_mr_map_raw`). It may be used with the raw key of any
    /// region, and must be used if the peer's domain has [`MrMode::RAW`](crate::info::MrMode::RAW).
    /// A domain that has this mode itself accepts only mapped keys.
    ///
    /// A read or write uses one additional segment for each key whose domain demands proof of it,
    /// so it can access two such remote ranges instead of four.
    ///
    /// # Errors
    /// [`ErrorKind::BadState`](crate::ErrorKind::BadState) if the domain is closed. A forged key is
    /// mapped like any other; the target refuses it.
    #[doc(alias = "fi_mr_map_raw")]
    pub fn map_raw(&self, base_addr: u64, raw_key: &RawKey) -> Result<MappedKey> {
        let keep = self.keep("mapped key")?;
        self.inner.mapped.map(base_addr, *raw_key, keep)
    }

    /// Whether this is the raw key of a region that is currently registered in this domain, and not
    /// a forged or altered one. It is for servers to which peers return keys that they claim to
    /// have got from the server. It takes the same time whatever the key's tag.
    pub fn is_own_raw_key(&self, raw_key: &RawKey) -> bool {
        let regions = self.inner.regions.lock("check a raw key");
        regions.is_authentic(raw_key)
    }

    /// The key and tag in the headers of operations that name this key.
    pub(crate) fn wire_key(&self, key: u64) -> Result<WireKey> {
        self.inner.mapped.wire_key(key)
    }
}
