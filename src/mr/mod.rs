//! Memory regions (`fi_mr(3)`): memory that a domain knows, with the rights local operations and
//! peers have to it.
//!
//! - [`MemoryRegion`] owns writable memory, [`ReadOnlyRegion`] memory that never changes.
//! - [`RegionSlice`] is a range of either, to be used as the buffer of a local operation.
//! - [`RemoteRegion`] is what a peer needs to address a region: a small plain value.
//! - [`MrTable`] finds the region a peer's key means, or says why not.
//!
//! Invariants: a key resolves only while its region is registered and not revoked. A removed key is
//! forgotten before its region's buffers go back to the application. No range check overflows.

#![forbid(unsafe_code)]

mod access;
mod core;
mod key;
mod quiesce;
mod read_only;
mod region;
mod remote;
mod slice;
mod table;
#[cfg(test)]
mod tests;

pub use access::Access;
pub use quiesce::Quiesced;
pub use read_only::ReadOnlyRegion;
pub use region::MemoryRegion;
pub use remote::RemoteRegion;
pub use slice::RegionSlice;

pub(crate) use self::core::{NewRegion, prepare, unprepare};
pub(crate) use key::KeyPolicy;
pub(crate) use table::{MrAddressing, MrTable, SharedTable};
