//! Raw keys (`FI_MR_RAW`, `fi_mr_raw_attr`; `fi_mr(3)`): keys too large for the 64 bits of a
//! header.
//!
//! ```text
//!   0        8         9        10        16              32
//!   | key    | version | demand | zeros   | tag           |
//! ```
//!
//! The tag authenticates the key together with the region's address, length and rights, under a
//! secret of the domain that no peer ever sees: BLAKE3, keyed. A domain with `FI_MR_RAW` demands
//! the tag with every access: each segment of a read or write is followed by an empty segment,
//! whose address and key fields carry the sixteen bytes of the tag. So a peer has to know, or to
//! guess, 192 bits instead of 64. Tags are compared in constant time.

use std::fmt;

use super::access::Access;
use super::table::MrAddressing;
use crate::buf::RegionMemory;
use crate::error::{Error, ErrorKind, Result};
use crate::random::RandomSource;

/// Hashed in front of the fields: no other use of the secret gives the same tag.
const PURPOSE: &[u8] = b"tokio-fabric raw memory region key, version 1";
const VERSION: u8 = 1;
const DEMAND: u8 = 1;

/// The authentication tag of a raw key.
pub(crate) type Tag = [u8; 16];

/// The 32-byte key of a region in a domain with `FI_MR_RAW` (`fi_mr_raw_attr`).
///
/// Send it to the peers that may access the region; a peer maps it with
/// [`Domain::map_raw`](crate::Domain::map_raw) to a key for operations.
///
/// The key is a secret: `Debug` does not show it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::mr::RawKey;
/// use tokio_fabric::testing::Net;
///
/// let domain = Net::loopback().peer()?.domain;
/// let region = domain.register(vec![0u8; 64]).await?;
/// let (_base, key) = region.raw_key();
/// let received = RawKey::from_bytes(&key.to_bytes())?; // As a peer receives it.
/// assert!(domain.is_own_raw_key(&received));
/// # Ok(()) }
/// ```
#[doc(alias = "FI_ETOOSMALL")]
#[derive(Clone, Copy)]
pub struct RawKey([u8; RawKey::LEN]);

impl RawKey {
    /// Length of a raw key in bytes: the `mr_key_size` of a domain with `FI_MR_RAW`.
    pub const LEN: usize = crate::limits::RAW_KEY_SIZE;

    /// The key as bytes, to be sent to a peer.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        self.0
    }

    /// The raw key that a peer has sent as bytes.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if there are not exactly [`RawKey::LEN`] bytes, or if they
    /// are not a raw key.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let invalid = |what| Error::new(ErrorKind::InvalidArgument, what);
        let bytes: [u8; Self::LEN] =
            (bytes.try_into()).map_err(|_| invalid("key_size: a raw key has 32 bytes"))?;
        let known = bytes[8] == VERSION && bytes[9] <= DEMAND && bytes[10..16] == [0; 6];
        match known {
            true => Ok(RawKey(bytes)),
            false => Err(invalid(
                "raw_key: the bytes have not the form of a raw key of this library",
            )),
        }
    }

    /// The key in the header of an operation.
    pub(crate) fn wire_key(&self) -> u64 {
        let mut key = [0; 8];
        key.copy_from_slice(&self.0[..8]);
        u64::from_le_bytes(key)
    }

    /// The tag, if the region's domain demands it with every access.
    pub(crate) fn demanded_tag(&self) -> Option<Tag> {
        (self.0[9] & DEMAND != 0).then(|| self.tag())
    }

    pub(super) fn tag(&self) -> Tag {
        let mut tag = [0; 16];
        tag.copy_from_slice(&self.0[16..]);
        tag
    }
}

impl PartialEq for RawKey {
    /// Compares in constant time.
    fn eq(&self, other: &Self) -> bool {
        blake3::Hash::from_bytes(self.0) == blake3::Hash::from_bytes(other.0)
    }
}

impl Eq for RawKey {}

impl fmt::Debug for RawKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RawKey(32 bytes)")
    }
}

/// The buffer for a raw key is too small (`FI_ETOOSMALL` of `fi_mr_raw_attr`).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let region = Net::loopback().peer()?.domain.register(vec![0u8; 64]).await?;
/// let too_small = region.raw_attr(&mut [0; 8]).unwrap_err();
/// assert_eq!(too_small.key_size, 32);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawKeyTooSmall {
    /// The size of the buffer that is needed, in bytes.
    pub key_size: usize,
}

impl fmt::Display for RawKeyTooSmall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the raw key takes {} bytes", self.key_size)
    }
}

impl std::error::Error for RawKeyTooSmall {}

impl From<RawKeyTooSmall> for Error {
    fn from(error: RawKeyTooSmall) -> Self {
        Error::new(ErrorKind::TooSmall, error.to_string())
    }
}

/// The fields of a region that its tag authenticates.
pub(super) struct Sealed {
    key: u64,
    base_addr: u64,
    len: u64,
    access: Access,
}

impl Sealed {
    pub(super) fn new(
        key: u64,
        addressing: MrAddressing,
        memory: &RegionMemory,
        access: Access,
    ) -> Self {
        Sealed {
            key,
            base_addr: addressing.base_of(memory),
            len: memory.len() as u64,
            access,
        }
    }
}

/// A domain's secret, and whether its regions are reached by raw keys only.
pub(crate) struct RawKeys {
    secret: [u8; 32],
    /// `FI_MR_RAW`: every access must carry the tag of its region.
    pub(super) demanded: bool,
}

impl RawKeys {
    /// Creates the keys of a domain, with a fresh secret.
    pub(crate) fn new(demanded: bool, random: &RandomSource) -> Result<Self> {
        let mut secret = [0; 32];
        random.fill(&mut secret, "a domain's secret")?;
        Ok(RawKeys { secret, demanded })
    }

    pub(super) fn seal(&self, region: &Sealed) -> RawKey {
        let mut bytes = [0; RawKey::LEN];
        bytes[..8].copy_from_slice(&region.key.to_le_bytes());
        bytes[8] = VERSION;
        bytes[9] = if self.demanded { DEMAND } else { 0 };
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(PURPOSE).update(&bytes[..16]);
        for field in [region.base_addr, region.len, region.access.bits()] {
            hasher.update(&field.to_le_bytes());
        }
        bytes[16..].copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        RawKey(bytes)
    }
}

debug_fields!(RawKeys, self => demanded: self.demanded);

/// Compares tags in constant time.
pub(super) fn is_same_tag(one: &Tag, other: &Tag) -> bool {
    let [one, other] = [one, other].map(|tag| {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(tag);
        blake3::Hash::from_bytes(bytes)
    });
    one == other
}
