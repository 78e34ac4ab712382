//! What may be given to an operation, and what may be registered. All traits are sealed: the types
//! are those whose taking apart and putting together `owned_buffer.rs` has proven.

use super::buffer::Buffer;
use super::memory::Memory;
use super::owned_buffer::{OwnedBuffer, OwnedBuffers};
use super::payload::Payload;
use crate::error::Error;

/// What an operation does with a local buffer; a registered one must grant it (`fi_mr(3)`, access).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalUse {
    /// Source of a message (`FI_SEND`).
    #[doc(hidden)]
    Send,
    /// Destination of a message (`FI_RECV`).
    #[doc(hidden)]
    Receive,
    /// Destination of an RMA read (`FI_READ`).
    #[doc(hidden)]
    Read,
    /// Source of an RMA write (`FI_WRITE`).
    #[doc(hidden)]
    Write,
}

/// A buffer that cannot be used so: why, and the buffer.
pub type Refused<B> = (Error, B);

/// How one buffer becomes memory of an operation and comes back: what seals [`IoBuf`] and its kin.
/// Nothing in it is for programs.
pub trait Convert: Sized {
    /// A region owns the memory; else it need not even be there.
    #[doc(hidden)]
    const IS_OWNED: bool = true;

    #[doc(hidden)]
    fn into_memory(self, usage: LocalUse) -> Result<Memory, Refused<Self>>;

    /// As memory of a region that it is to belong to; a part of a region belongs to that already.
    #[doc(hidden)]
    fn into_owned_buffer(self) -> Result<OwnedBuffer, Refused<Self>>;

    /// As [`Convert::from_memory`], of memory that is no part of a region.
    #[doc(hidden)]
    fn from_owned_buffer(owned: OwnedBuffer) -> Result<Self, OwnedBuffer>;

    /// The buffer again, exactly as it was; the memory, if it came from another type.
    #[doc(hidden)]
    fn from_memory(memory: Memory) -> Result<Self, Memory> {
        match memory {
            Memory::Owned(owned) => Self::from_owned_buffer(owned).map_err(Memory::Owned),
            region => Err(region),
        }
    }

    #[doc(hidden)]
    fn buffer_len(&self) -> usize;

    /// True if it is part of a region, as `FI_MR_LOCAL` asks.
    #[doc(hidden)]
    fn is_buffer_registered(&self) -> bool {
        false
    }
}

/// How the buffers of one operation become its payload and come back: what seals [`IoBufs`] and its
/// kin. Nothing in it is for programs.
pub trait ConvertMany: Sized {
    /// As [`Convert::IS_OWNED`], of all of them.
    #[doc(hidden)]
    const IS_OWNED: bool;

    /// All or none: a refusal gives every buffer back.
    #[doc(hidden)]
    fn into_payload(self, usage: LocalUse) -> Result<Payload, Refused<Self>>;

    /// As the memory of a region. All or none.
    #[doc(hidden)]
    fn into_owned_buffers(self) -> Result<OwnedBuffers, Refused<Self>>;

    /// The buffers again, same types, same order; `None` if the payload came from others.
    #[doc(hidden)]
    fn from_payload(payload: Payload) -> Option<Self>;

    /// As [`ConvertMany::from_payload`], of what a region gave back.
    #[doc(hidden)]
    fn from_owned_buffers(buffers: OwnedBuffers) -> Option<Self>;

    /// How many buffers; operations take at most `limits::IOV_LIMIT`.
    #[doc(hidden)]
    fn count(&self) -> usize;

    /// Their lengths added up, in bytes.
    #[doc(hidden)]
    fn total_len(&self) -> usize;

    /// True if all are parts of regions, as `FI_MR_LOCAL` asks.
    #[doc(hidden)]
    fn is_registered(&self) -> bool;
}

/// A buffer an operation may read from. It is given by value, belongs to the operation until that
/// ends, and comes back with the result: the same buffer, never copied.
///
/// Implemented for `Vec<u8>`, `Box<[u8]>`, `String`, `Bytes`, `BytesMut`, `Arc<[u8]>`,
/// `&'static [u8]`, `&'static str`, [`MappedBuffer`](crate::buf::MappedBuffer),
/// [`Buffer`](crate::Buffer) and [`RegionSlice`](crate::mr::RegionSlice). Sealed.
pub trait IoBuf: Convert + Send + Sized + 'static {}

/// A buffer an operation may write into.
///
/// What is offered are the bytes that are there (`len`, not `capacity`); the length does not
/// change, the result says how many were received. Bytes behind those may have changed too, if a
/// message was cut off by the end of its connection.
///
/// An *empty* `Vec<u8>` or `BytesMut` offers its whole capacity instead, and comes back with what
/// was received as its length: of an operation that failed 0, or what its failure
/// [says](crate::Failed::received_len) was received. `Vec::with_capacity(n)` may have more than `n`
/// bytes, which counts for an RMA read: it reads as many as are offered. What is posted for many
/// messages (`multi_recv`) comes back empty. A region registers no capacity.
///
/// Implemented for `Vec<u8>`, `Box<[u8]>`, `BytesMut`, [`MappedBuffer`](crate::buf::MappedBuffer)
/// and [`RegionSlice`](crate::mr::RegionSlice). Sealed.
pub trait IoBufMut: IoBuf {}

/// The buffers of one operation: one [`IoBuf`], or an array or `Vec` of them, which are sent as one
/// message (`fi_sendv(3)`).
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be given to an operation",
    label = "not a buffer that an operation can own until it ends",
    note = "bytes that are borrowed or in an array: `.to_vec()` copies them, and so does `inject`, up to 128",
    note = "several buffers, as one message: an array or `Vec` of `Vec<u8>`, `Bytes`, .."
)]
pub trait IoBufs: ConvertMany + Send + Sized + 'static {}

/// The buffers of one operation that receives: one [`IoBufMut`], or an array or `Vec` of them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be received into",
    label = "not a buffer that an operation can own until it ends, and write to",
    note = "`vec![0; n]` can, or `Vec::with_capacity(n)`, `BytesMut`, `Box<[u8]>`; it comes back with the result"
)]
pub trait IoBufsMut: IoBufs {}

/// A buffer that peers may write to once it is registered: `Vec<u8>`, `Box<[u8]>`, `BytesMut` and
/// [`MappedBuffer`](crate::buf::MappedBuffer), which the region owns; a
/// [`SharedWindow`](crate::buf::SharedWindow), which others own too; an
/// [`AddressRange`](crate::buf::AddressRange), which the caller keeps mapped; or a
/// [`DeviceBuffer`](crate::buf::DeviceBuffer), which its owner copies. Sealed.
pub trait RegionBuf: Convert + Send + Sized + 'static {}

/// The buffers of one region: one [`RegionBuf`], or an array or `Vec` of them, which are registered
/// as one (`fi_mr_regv(3)`).
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be registered",
    label = "not a buffer that a region can own and peers may write to",
    note = "`Vec<u8>`, `Box<[u8]>`, `BytesMut` and others can; for memory that is only read: `register_read_only`"
)]
pub trait RegionBufs: ConvertMany + Send + Sized + 'static {}

/// What a region gives back when it is deregistered: the buffers it was made of, in their own
/// type; of a region [without its type](crate::MemoryRegion::erase), `Vec<Buffer>`. Sealed.
pub trait RegionContents: ConvertMany + Send + Sized + 'static {}

/// A buffer that a read-only region can own, whose bytes never change: `Bytes`, `Arc<[u8]>`,
/// `&'static [u8]`, `&'static str`. Sealed.
pub trait ReadOnlyBuf: IoBuf {}

impl<B: IoBuf> IoBufs for B {}
impl<B: IoBuf, const N: usize> IoBufs for [B; N] {}
impl<B: IoBuf> IoBufs for Vec<B> {}

impl<B: IoBufMut> IoBufsMut for B {}
impl<B: IoBufMut, const N: usize> IoBufsMut for [B; N] {}
impl<B: IoBufMut> IoBufsMut for Vec<B> {}

impl<B: RegionBufs> RegionContents for B {}
impl RegionContents for Vec<Buffer> {}

impl<B: RegionBuf> RegionBufs for B {}
impl<B: RegionBuf, const N: usize> RegionBufs for [B; N] {}
impl<B: RegionBuf> RegionBufs for Vec<B> {}
