//! Raw keys of peers, mapped to keys that operations take (`fi_mr_map_raw`, `fi_mr_unmap_key`;
//! `fi_mr(3)`).

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::access::Access;
use super::key::{KEY_NOT_AVAILABLE, KeyPolicy};
use super::raw::{RawKey, Tag};
use super::remote::RemoteRegion;
use crate::error::{Error, ErrorKind, Result};
use crate::random::RandomSource;
use crate::sync::{Keep, Lock};

/// The key and tag that a header carries for a key of the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WireKey {
    pub(crate) key: u64,
    pub(crate) tag: Option<Tag>,
}

/// The mapped keys of one domain.
pub(crate) struct MappedKeys {
    keys: Lock<HashMap<u64, RawKey>>,
    /// `FI_MR_RAW`: keys that are not mapped are refused.
    required: bool,
    random: RandomSource,
}

impl MappedKeys {
    pub(crate) fn new(required: bool, random: RandomSource) -> Arc<Self> {
        Arc::new(MappedKeys {
            keys: Lock::new(HashMap::new()),
            required,
            random,
        })
    }

    /// Maps a key, until the result is dropped. `keep` keeps the domain from being closed.
    pub(crate) fn map(self: &Arc<Self>, base: u64, raw: RawKey, keep: Keep) -> Result<MappedKey> {
        let mut keys = self.keys.lock("map a raw key");
        // Drawn anew for each mapping, so that keys of different peers cannot be mistaken for each
        // other, nor for a key that needed no mapping.
        let draw = || self.random.number("a key");
        let key = KeyPolicy::Provider.choose(draw, |key| keys.contains_key(&key))?;
        keys.insert(key, raw);
        Ok(MappedKey {
            key,
            base,
            table: Arc::clone(self),
            _keep: keep,
        })
    }

    /// Returns the key and tag that a header carries for this key.
    pub(crate) fn wire_key(&self, key: u64) -> Result<WireKey> {
        match self.keys.lock("look for a mapped key").get(&key) {
            Some(raw) => Ok(WireKey {
                key: raw.wire_key(),
                tag: raw.demanded_tag(),
            }),
            None if self.required => Err(Error::new(
                ErrorKind::KeyRejected,
                "with FI_MR_RAW, a peer's raw key is mapped before it is used",
            )),
            None if key == KEY_NOT_AVAILABLE => Err(Error::new(
                ErrorKind::KeyRejected,
                "FI_KEY_NOTAVAIL: the region is reached by its raw key, which is mapped first",
            )),
            None => Ok(WireKey { key, tag: None }),
        }
    }
}

debug_fields!(MappedKeys, self =>
    count: self.keys.lock("count mapped keys").len(), required: self.required
);

/// A peer's raw key, mapped to a key that operations of this domain accept (`fi_mr_map_raw`).
///
/// [`unmap`](Self::unmap) or dropping the value releases it; until then its domain cannot be
/// closed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::{Net, connect};
///
/// let net = Net::loopback();
/// let (client, server) = (net.peer()?, net.peer()?);
/// let (endpoint, _server) = connect(&client, &server).await?;
/// let region = server.domain.register(b"hello".to_vec()).await?;
/// let (base, raw_key) = region.raw_key(); // The server sends both.
///
/// let mapped = client.domain.map_raw(base, &raw_key)?;
/// let (_, bytes) = endpoint.read(vec![0; 5], mapped.remote(5)).await?;
/// assert_eq!(bytes, b"hello");
/// # Ok(()) }
/// ```
#[must_use = "the key is released when this is dropped"]
pub struct MappedKey {
    key: u64,
    base: u64,
    table: Arc<MappedKeys>,
    _keep: Keep,
}

impl MappedKey {
    /// The key: 64 bits that are valid only in this domain.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// The peer's region, `len` bytes from its base address on, for operations of this domain. The
    /// value claims all rights of peers; the target decides.
    pub fn remote(&self, len: u64) -> RemoteRegion {
        RemoteRegion {
            addr: self.base,
            len,
            key: self.key,
            access: Access::REMOTE,
        }
    }

    /// Releases the key (`fi_mr_unmap_key`). Operations that have been posted continue; later ones
    /// with this key are refused, here or by the target.
    #[doc(alias = "fi_mr_unmap_key")]
    pub fn unmap(self) {}
}

impl Drop for MappedKey {
    fn drop(&mut self) {
        self.table.keys.lock("unmap a key").remove(&self.key);
    }
}

impl fmt::Debug for MappedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MappedKey").finish_non_exhaustive()
    }
}
