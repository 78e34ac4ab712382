//! Buffers that operations and registrations take. All traits are sealed: `owned_buffer.rs` has
//! proven for each type how it is taken apart and put together again.

use super::buffer::Buffer;
use super::memory::Memory;
use super::owned_buffer::{OwnedBuffer, OwnedBuffers};
use super::payload::Payload;
use crate::error::Error;

/// The use of a local buffer by an operation; a registered buffer must grant this use (`fi_mr(3)`,
/// access).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalUse {
    /// Source of a message (`FI_SEND`).
    Send,
    /// Destination of a message (`FI_RECV`).
    Receive,
    /// Destination of an RMA read (`FI_READ`).
    Read,
    /// Source of an RMA write (`FI_WRITE`).
    Write,
}

/// The error of a buffer that cannot be used in this way, and the buffer.
pub type Refused<B> = (Error, B);

/// Seals [`IoBuf`] and the other buffer traits.
#[doc(hidden)]
pub trait Convert: Sized {
    /// True if a region owns the memory; otherwise the memory need not even be mapped.
    const IS_OWNED: bool = true;

    fn into_memory(self, usage: LocalUse) -> Result<Memory, Refused<Self>>;

    /// Converts the buffer to memory of a new region. Refuses a part of a region, which already
    /// belongs to that region.
    fn into_owned_buffer(self) -> Result<OwnedBuffer, Refused<Self>>;

    /// Like [`Convert::from_memory`], for memory that is no part of a region.
    fn from_owned_buffer(owned: OwnedBuffer) -> Result<Self, OwnedBuffer>;

    /// Returns the buffer exactly as it was, or the memory, if it came from another type.
    fn from_memory(memory: Memory) -> Result<Self, Memory> {
        match memory {
            Memory::Owned(owned) => Self::from_owned_buffer(owned).map_err(Memory::Owned),
            region => Err(region),
        }
    }

    fn buffer_len(&self) -> usize;

    /// True if it is part of a region, as `FI_MR_LOCAL` requires.
    fn is_buffer_registered(&self) -> bool {
        false
    }

    /// Returns the bytes in place, if Rust code may touch them there and small messages of them are
    /// copied.
    fn buffer_bytes(&self) -> Option<&[u8]> {
        None
    }
}

/// Seals [`IoBufs`] and the other traits of several buffers.
#[doc(hidden)]
pub trait ConvertMany: Sized {
    /// Like [`Convert::IS_OWNED`], for all of them.
    const IS_OWNED: bool;

    /// Converts all buffers or none: a refusal gives every buffer back.
    fn into_payload(self, usage: LocalUse) -> Result<Payload, Refused<Self>>;

    /// Converts the buffers to the memory of a region: all or none.
    fn into_owned_buffers(self) -> Result<OwnedBuffers, Refused<Self>>;

    /// Returns the buffers, of the same types and in the same order; `None` if the payload came
    /// from other types.
    fn from_payload(payload: Payload) -> Option<Self>;

    /// Like [`ConvertMany::from_payload`], for buffers that a region gave back.
    fn from_owned_buffers(buffers: OwnedBuffers) -> Option<Self>;

    /// Returns the number of buffers; operations take at most `limits::IOV_LIMIT`.
    fn count(&self) -> usize;

    /// The sum of the buffers' lengths, in bytes.
    fn total_len(&self) -> usize;

    /// True if all are parts of regions, as `FI_MR_LOCAL` requires.
    fn is_registered(&self) -> bool;

    /// The bytes of a single buffer; see [`Convert::buffer_bytes`].
    fn single_bytes(&self) -> Option<&[u8]> {
        None
    }
}

/// A buffer that an operation may read from.
///
/// It is passed by value, belongs to the operation until that completes, and is returned with the
/// result: the same buffer, never a copy.
///
/// Implemented for `Vec<u8>`, `Box<[u8]>`, `String`, `Bytes`, `BytesMut`, `Arc<[u8]>`,
/// `&'static [u8]`, `&'static str`, [`MappedBuffer`](crate::buf::MappedBuffer), [`Buffer`] and
/// [`RegionSlice`](crate::mr::RegionSlice). Sealed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use bytes::Bytes;
/// use tokio_fabric::buf::IoBuf;
/// use tokio_fabric::testing::Net;
/// use tokio_fabric::{Endpoint, Result};
///
/// async fn send_twice<B: IoBuf>(endpoint: &Endpoint, buffer: B) -> Result<B> {
///     let (_, buffer) = endpoint.send(buffer).await?;
///     Ok(endpoint.send(buffer).await?.1)
/// }
///
/// let (a, _b) = Net::loopback().pair().await?;
/// send_twice(&a, vec![1, 2, 3]).await?;
/// send_twice(&a, Bytes::from_static(b"constant")).await?;
/// # Ok(()) }
/// ```
pub trait IoBuf: Convert + Send + Sized + 'static {}

/// A buffer that an operation may write into.
///
/// The operation may use the bytes that exist (`len`, not `capacity`). The length does not change;
/// the result contains the number of bytes received. Later bytes of the buffer may have changed
/// too, if a message was cut off by the end of its connection.
///
/// An *empty* `Vec<u8>` or `BytesMut` offers its whole capacity instead, and is returned with the
/// received bytes as its contents. If the operation failed, its length is 0, or the length that the
/// error [reports](crate::Failed::received_len). `Vec::with_capacity(n)` may allocate more than `n`
/// bytes, which matters for an RMA read: it reads as many bytes as the buffers offer. A buffer that
/// was posted for many messages (`multi_recv`) is returned empty. Regions do not use spare
/// capacity.
///
/// Implemented for `Vec<u8>`, `Box<[u8]>`, `BytesMut`, [`MappedBuffer`](crate::buf::MappedBuffer)
/// and [`RegionSlice`](crate::mr::RegionSlice). Sealed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let (a, b) = Net::loopback().pair().await?;
/// a.send("one").await?;
/// let (received, buffer) = b.recv(vec![0; 64]).await?; // 64 bytes, three of which are written.
/// assert_eq!((received.len, buffer.len()), (3, 64));
/// a.send("two").await?;
/// let (_, buffer) = b.recv(Vec::<u8>::with_capacity(64)).await?;
/// // It was empty, so its length is that of the message.
/// assert_eq!(buffer, b"two");
/// # Ok(()) }
/// ```
pub trait IoBufMut: IoBuf {}

/// The buffers of one operation: an [`IoBuf`], or an array or `Vec` of them, which are sent as one
/// message (`fi_sendv(3)`).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let (a, b) = Net::loopback().pair().await?;
/// let (_, [header, body]) = a.send(["header, ", "body"]).await?;
/// let (received, buffer) = b.recv(vec![0; 64]).await?;
/// assert_eq!(&buffer[..received.len], [header, body].concat().as_bytes());
/// # Ok(()) }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be given to an operation",
    label = "not a buffer that an operation can own until it ends",
    note = "bytes that are borrowed or in an array: `.to_vec()` copies them, and so does `inject`, up to 128",
    note = "several buffers, as one message: an array or `Vec` of `Vec<u8>`, `Bytes`, .."
)]
pub trait IoBufs: ConvertMany + Send + Sized + 'static {}

/// The buffers of one receiving operation: an [`IoBufMut`], or an array or `Vec` of them.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let (a, b) = Net::loopback().pair().await?;
/// a.send("header, body").await?;
/// let (_, [header, body]) = b.recv([vec![0; 8], vec![0; 4]]).await?;
/// assert_eq!((&header[..], &body[..]), (&b"header, "[..], &b"body"[..]));
/// # Ok(()) }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be received into",
    label = "not a buffer that an operation can own until it ends, and write to",
    note = "`vec![0; n]` can, or `Vec::with_capacity(n)`, `BytesMut`, `Box<[u8]>`; it comes back with the result"
)]
pub trait IoBufsMut: IoBufs {}

/// A buffer that peers may write to once it is registered: `Vec<u8>`, `Box<[u8]>`, `BytesMut` and
/// [`MappedBuffer`](crate::buf::MappedBuffer), which the region owns; a
/// [`SharedWindow`](crate::buf::SharedWindow), which has other owners too; an
/// [`AddressRange`](crate::buf::AddressRange), which the caller keeps mapped; or a
/// [`DeviceBuffer`](crate::buf::DeviceBuffer), which its owner copies. Sealed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::buf::RegionBuf;
/// use tokio_fabric::{Domain, Fabric, Hints, RemoteRegion, Result};
///
/// async fn lend<B: RegionBuf>(domain: &Domain, buffer: B) -> Result<RemoteRegion> {
///     Ok(domain.register(buffer).await?.remote())
/// }
///
/// let domain = Fabric::open(Hints::new())?.domain().open()?;
/// assert_eq!(lend(&domain, vec![0u8; 64]).await?.len, 64);
/// # Ok(()) }
/// ```
pub trait RegionBuf: Convert + Send + Sized + 'static {}

/// The buffers of one region: a [`RegionBuf`], or an array or `Vec` of them, which are registered
/// as one region (`fi_mr_regv(3)`).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{Fabric, Hints};
///
/// let domain = Fabric::open(Hints::new())?.domain().open()?;
/// let region = domain.register([vec![0u8; 64], vec![0; 32]]).await?;
/// assert_eq!((region.len(), region.segment_count()), (96, 2));
/// let [first, second] = region.deregister().await?;
/// assert_eq!((first.len(), second.len()), (64, 32));
/// # Ok(()) }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be registered",
    label = "not a buffer that a region can own and peers may write to",
    note = "`Vec<u8>`, `Box<[u8]>`, `BytesMut` and others can; for memory that is only read: `register_read_only`"
)]
pub trait RegionBufs: ConvertMany + Send + Sized + 'static {}

/// The value that a region returns when it is deregistered: the buffers that it was made from, in
/// their own types; a region [without a buffer type](crate::MemoryRegion::erase) returns
/// `Vec<Buffer>`. Sealed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{Buffer, Fabric, Hints};
///
/// let domain = Fabric::open(Hints::new())?.domain().open()?;
/// let _typed: Vec<u8> = domain.register(vec![0u8; 64]).await?.deregister().await?;
/// let erased: Vec<Buffer> = domain.register(vec![0u8; 64]).await?.erase().deregister().await?;
/// assert_eq!(erased[0].len(), 64);
/// # Ok(()) }
/// ```
pub trait RegionContents: ConvertMany + Send + Sized + 'static {}

/// A buffer that a read-only region can own, whose bytes never change: `Bytes`, `Arc<[u8]>`,
/// `&'static [u8]`, `&'static str`. Sealed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{Fabric, Hints};
///
/// let domain = Fabric::open(Hints::new())?.domain().open()?;
/// let region = domain.register_read_only("constant").await?;
/// assert_eq!(&region[..], b"constant");
/// # Ok(()) }
/// ```
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
