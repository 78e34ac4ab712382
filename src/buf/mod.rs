//! Buffers: what operations take and give back, what regions are made of, and shared memory.

#![allow(unsafe_code)]

// Memory that operations own: buffers taken apart before their address is given out, the shared
// memory of regions, and the forms in which both reach a socket.
//
// ```text
//   user's Vec, Bytes, ..  --IoBuf-->  Held  --+
//                                              +--> Memory --> Payload --> Frame --> spans
//   RegionSlice, peers     ---------> RegionUse +
// ```
//
// Who may touch which byte:
//
// - A `Held` has one owner and is lent to nobody. Its bytes are touched by plain copies through
//   that owner, or by the kernel while the owner is inside the transport.
// - The bytes of a `RegionMemory` are shared with peers, the kernel and other handles. Nobody
//   forms a Rust reference to them, except under `Exclusive` or when they are read-only. They
//   are touched only by who holds an entry of the region's gate.
// - An [`AddressRange`] is nobody's; its bytes are touched by the kernel only, also in a region.
// - A `Span` is an address and a length and keeps nothing alive; a payload and its leases do.

mod atomics;
mod attached;
mod backing;
mod buffer;
mod carving;
mod convert;
mod copy;
mod denied;
mod exclusive;
mod frame;
mod held;
mod intervals;
mod mapped;
mod pages;
mod payload;
mod piece;
mod pin;
mod range;
mod region;
mod regions;
mod shared;
mod span;
mod stage;
#[cfg(test)]
mod tests;
mod traits;
mod watch;

pub use buffer::Buffer;
pub use mapped::{MappedBuffer, PageKind};
pub use range::AddressRange;
pub use shared::{SharedBuffer, SharedMemory};
pub use traits::{
    Convert, ConvertMany, IoBuf, IoBufMut, IoBufs, IoBufsMut, ReadOnlyBuf, RegionBuf, RegionBufs,
    RegionContents,
};

pub(crate) use attached::RegionTraits;
pub(crate) use carving::Carving;
pub(crate) use denied::Denied;
pub(crate) use exclusive::Exclusive;
pub(crate) use frame::Frame;
pub(crate) use held::{Held, OwnedBuffers};
pub(crate) use payload::{Leases, Payload};
pub(crate) use piece::{Memory, RegionUse};
pub(crate) use range::check_kernel_copies;
pub(crate) use region::RegionMemory;
pub(crate) use shared::{Released, join_windows};
pub(crate) use span::SpanList;
pub(crate) use stage::{Stage, StagePool};
pub(crate) use traits::{LocalUse, Refused};
pub(crate) use watch::{Notices, Watched, can_watch};
