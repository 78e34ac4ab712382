//! Buffers: what operations take and give back, what regions are made of, and shared memory.

#![allow(unsafe_code)]

// Memory that operations own: buffers taken apart before their address is given out, the shared
// memory of regions, and the forms in which both reach a socket.
//
// ```text
//   user's Vec, Bytes, ..  --IoBuf-->  OwnedBuffer --+
//                                                    +--> Memory --> Payload --> OutFrame --> spans
//   RegionSlice, peers     ---------> RegionUse -----+
// ```
//
// Access to bytes:
//
// - An `OwnedBuffer` has one owner. Its bytes are touched by plain copies through that owner, or by
//   the kernel while the owner is inside the transport.
// - The bytes of a `RegionMemory` are shared with peers, the kernel and other handles. No Rust
//   reference to them exists, except under `QuiescedAccess` or when they are read-only. They are
//   touched only while an entry of the region's gate is held.
// - An [`AddressRange`] owns nothing; its bytes are touched by the kernel only, also in a region.
// - The bytes of a [`DeviceBuffer`] are copied by the functions of its owner alone; its spans are
//   given to no other code, nor to the kernel.
// - A `Span` is an address and a length and keeps nothing alive; a payload and its leases do.

mod access_error;
mod atomics;
mod attached;
mod backing;
mod buffer;
mod buffer_cursor;
mod convert;
mod copy;
mod copy_ends;
mod device;
mod intervals;
mod mapped;
mod memory;
mod owned_buffer;
mod pages;
mod payload;
mod pin;
mod quiesced_access;
mod range;
mod region;
mod regions;
mod send_batch;
mod shared;
mod shared_window;
mod span;
mod stage;
#[cfg(test)]
mod tests;
mod traits;
mod watch;

pub use buffer::Buffer;
pub use device::{DeviceBuffer, HmemIface, HmemIov, HmemOps, HmemSpan};
pub use mapped::{MappedBuffer, PageKind};
pub use range::AddressRange;
pub use shared::{SharedBuffer, SharedMemory};
pub use shared_window::SharedWindow;
pub use traits::{
    Convert, ConvertMany, IoBuf, IoBufMut, IoBufs, IoBufsMut, ReadOnlyBuf, RegionBuf, RegionBufs,
    RegionContents,
};

pub(crate) use access_error::AccessError;
pub(crate) use attached::RegionTraits;
pub(crate) use buffer_cursor::BufferCursor;
pub(crate) use copy_ends::{CopyFrom, CopyTo};
pub(crate) use device::SharedHmemOps;
pub(crate) use memory::{Memory, RegionUse};
pub(crate) use owned_buffer::{OwnedBuffer, OwnedBuffers};
#[cfg(feature = "tls")]
pub(crate) use payload::Slices;
pub(crate) use payload::{Leases, Payload, try_copied, zeroed};
pub(crate) use quiesced_access::QuiescedAccess;
pub(crate) use range::check_kernel_copies;
pub(crate) use region::RegionMemory;
pub(crate) use send_batch::{BounceBuffer, FrameStep, OutFrame, SendBatch};
pub(crate) use shared::{ReleaseListener, join_windows, range_within};
pub(crate) use span::{Span, SpanList};
pub(crate) use stage::Stage;
pub(crate) use traits::{LocalUse, Refused};
pub(crate) use watch::{Notices, WatchGuard, can_watch};
