//! Memory regions (`fi_mr(3)`): memory that is registered with a domain, and the rights that local
//! operations and peers have to it.
//!
//! - [`MemoryRegion`] owns writable memory, [`ReadOnlyRegion`] memory that never changes.
//! - [`RegionSlice`] is a range of either. Use it as the buffer of a local operation.
//! - [`RemoteRegion`] contains everything a peer needs to address a region: a small plain value.
//! - [`RawKey`] is a key of 32 bytes; a peer maps it to a [`MappedKey`] before it uses it.

#![forbid(unsafe_code)]

// Invariants: a key resolves only while its region is registered and not revoked. A removed key is
// forgotten before its region's buffers go back to the application. No range check overflows.

mod access;
mod auth;
mod cache;
mod core;
mod deregistration;
mod flags;
mod key;
mod mapped;
mod quiesce;
mod raw;
mod read_only;
mod recent;
mod region;
mod remote;
mod slice;
mod table;
#[cfg(test)]
mod tests;
mod typed;

// The documentation lists methods in the order of the modules; methods for few programs come last.
mod atomic;

#[cfg(loom)]
pub(crate) fn models() -> impl Iterator<Item = crate::sync::model::Model> {
    cache::models::MODELS.iter().copied()
}

pub use access::Access;
pub use atomic::AtomicInteger;
pub use cache::{CacheWatch, CachedRegion};
pub use flags::{MrBind, MrFlags};
pub use key::KEY_NOT_AVAILABLE;
pub use mapped::MappedKey;
pub use quiesce::Quiesced;
pub use raw::{RawKey, RawKeyTooSmall};
pub use read_only::ReadOnlyRegion;
pub use region::MemoryRegion;
pub use remote::RemoteRegion;
pub use slice::RegionSlice;

pub(crate) use self::core::{Parent, PreparedRegion, RegisterError, gate_error, prepare};
pub(crate) use auth::{AccessContext, AuthSecret, Sealed, SessionKey};
pub(crate) use cache::{
    FreshRegion, Kind as CacheKind, Settings as CacheSettings, Shared as CacheShared,
};
pub(crate) use key::KeyPolicy;
pub(crate) use mapped::{MappedKeys, WireKey};
pub(crate) use raw::{RawKeys, Tag};
pub(crate) use table::{AccessRequest, MrAddressing, MrTable, SharedTable};
