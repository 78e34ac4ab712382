//! Memory that only its owner can copy, such as that of a GPU, at addresses that mean nothing to
//! this process (`FI_HMEM`, `fi_mr(3)`; `FI_SET_OPS_HMEM_OVERRIDE`, `fi_domain(3)`).
//!
//! The library never dereferences an address of such memory. Only the functions of [`HmemOps`] move
//! its bytes, in pieces.
//!
//! So no transport gets a span of it. Receives go through staging buffers. Sends go through a
//! bounce buffer in the frame (`send_batch.rs`), which is filled before the frame is handed out,
//! and again each time its bytes have gone out; a frame with more bytes to come ends its batch. If
//! a copy fails before its frame is handed out, the frame is taken back with its credit, or the
//! announced message is withdrawn; if it fails later, the connection ends. If copies may block
//! ([`HmemOps::may_block`]), blocking threads make the turns of the domain's ports, and work that
//! becomes due for a port meanwhile is recorded (`progress/blocking_turns.rs`).

use std::any::Any;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::log::hold_event;

use super::access_error::AccessError;
use super::owned_buffer::OwnedBuffer;
use super::span::Span;
use crate::limits::DEVICE_PIECE_MAX;
use crate::sync::Lock;

/// The kind of device that owns the memory (`enum fi_hmem_iface` of `fi_mr(3)`).
///
/// The library only passes it on to [`HmemOps`].
///
/// ```
/// use tokio_fabric::buf::{DeviceBuffer, HmemIface};
///
/// let buffer = DeviceBuffer::new(HmemIface::Cuda, 0, 0x7f00_0000_0000, 4096);
/// assert_eq!((buffer.iface(), buffer.len()), (HmemIface::Cuda, 4096));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HmemIface {
    /// Host memory (`FI_HMEM_SYSTEM`).
    System,
    /// Nvidia's CUDA (`FI_HMEM_CUDA`).
    Cuda,
    /// AMD's ROCr (`FI_HMEM_ROCR`).
    Rocr,
    /// Intel's oneAPI Level Zero (`FI_HMEM_ZE`).
    Ze,
    /// AWS Neuron (`FI_HMEM_NEURON`).
    Neuron,
    /// Habana SynapseAI (`FI_HMEM_SYNAPSEAI`).
    SynapseAi,
    /// Any other kind, identified by a number that the application chooses.
    Other(u32),
}

/// A buffer in memory that only its owner can copy, such as the memory of a GPU.
///
/// Register it with [`Domain::register`](crate::Domain::register), and pass slices of the region to
/// operations (`FI_MR_HMEM`); the domain's [`HmemOps`] move its bytes.
///
/// A region may consist of several such buffers, all of one interface and device. All its copies,
/// including `read_at` and `write_at`, use the domain's functions.
/// [`MemoryRegion::quiesce`](crate::MemoryRegion::quiesce) is not available for it, because there
/// are no bytes in host memory to give access to.
///
/// `fi_mr(3)` specifies the interface and the device in `struct fi_mr_attr`.
/// [`HmemOps`] has an example with a device.
///
/// ```
/// use std::sync::Arc;
/// use tokio_fabric::buf::{DeviceBuffer, HmemIface};
///
/// struct Allocation; // Frees the device memory when it is dropped.
///
/// let buffer = DeviceBuffer::new(HmemIface::Other(1), 0, 4096, 64);
/// let buffer = buffer.keeping(Arc::new(Allocation));
/// assert_eq!((buffer.address(), buffer.len()), (4096, 64));
/// ```
#[doc(alias("FI_HMEM", "FI_MR_HMEM"))]
#[derive(Clone)]
pub struct DeviceBuffer {
    place: DevicePlace,
    span: Span,
}

/// The place of a buffer's bytes, except their address.
#[derive(Clone)]
pub(super) struct DevicePlace {
    iface: HmemIface,
    device: u64,
    /// Keeps the memory allocated.
    keep: Option<Arc<dyn Any + Send + Sync>>,
}

impl DeviceBuffer {
    /// `len` bytes from `address` on, of this interface's device (0 if there is only one).
    /// Registration refuses a range that wraps around the end of the address space.
    ///
    /// The library never dereferences the address: its meaning is between the application and its
    /// [`HmemOps`].
    pub fn new(iface: HmemIface, device: u64, address: u64, len: usize) -> Self {
        let start = usize::try_from(address).unwrap_or(usize::MAX);
        DeviceBuffer {
            place: DevicePlace {
                iface,
                device,
                keep: None,
            },
            span: Span::new(std::ptr::without_provenance_mut(start), len),
        }
    }

    /// Keeps `owner` alive as long as this buffer, a region of it or an operation on that region
    /// exists. The owner's `Drop` can free the memory.
    pub fn keeping(mut self, owner: Arc<dyn Any + Send + Sync>) -> Self {
        self.place.keep = Some(owner);
        self
    }

    /// The kind of device that owns the memory.
    pub fn iface(&self) -> HmemIface {
        self.place.iface
    }

    /// The number of the device among those of its interface.
    pub fn device(&self) -> u64 {
        self.place.device
    }

    /// The address of the first byte, in the device's address space.
    pub fn address(&self) -> u64 {
        self.span.address()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.span.len()
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.span.is_empty()
    }

    pub(super) fn into_parts(self) -> (Span, DevicePlace) {
        (self.span, self.place)
    }

    pub(super) fn from_parts(span: Span, place: DevicePlace) -> Self {
        DeviceBuffer { place, span }
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DevicePlace { iface, device, .. } = &self.place;
        write!(f, "DeviceBuffer({} bytes, {iface:?} {device})", self.len())
    }
}

/// A range of device memory, by address (`struct iovec`).
///
/// ```
/// use tokio_fabric::buf::HmemSpan;
///
/// let span = HmemSpan { address: 4096, len: 64 };
/// assert_eq!(span.address + span.len as u64, 4160);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HmemSpan {
    /// The address of the first byte, in the device's address space.
    pub address: u64,
    /// Length in bytes.
    pub len: usize,
}

/// The memory of a region: one or more spans of one device, addressed as one range of bytes
/// (`iface`, `device`, `hmem_iov` and `hmem_iov_count` of the callbacks).
///
/// ```
/// use tokio_fabric::buf::{HmemIface, HmemIov, HmemSpan};
///
/// let spans = [HmemSpan { address: 0, len: 64 }, HmemSpan { address: 4096, len: 64 }];
/// let iov = HmemIov { iface: HmemIface::Other(1), device: 0, spans: &spans };
/// let parts: Vec<_> = iov.parts(60, 10).map(|part| (part.address, part.len)).collect();
/// assert_eq!(parts, [(60, 4), (4096, 6)]); // Ten bytes from offset 60 lie in both spans.
/// ```
#[derive(Clone, Copy, Debug)]
pub struct HmemIov<'a> {
    /// The kind of device that owns the memory.
    pub iface: HmemIface,
    /// The number of the device among those of its interface.
    pub device: u64,
    /// The spans, in order. At least one.
    pub spans: &'a [HmemSpan],
}

impl<'a> HmemIov<'a> {
    /// The parts of the spans that a copy of `len` bytes at `offset` touches, in order, without
    /// empty parts. Together they are shorter than `len` if the spans end before.
    pub fn parts(&self, offset: u64, len: usize) -> impl Iterator<Item = HmemSpan> + 'a {
        let (mut skip, mut left) = (offset, len);
        self.spans.iter().filter_map(move |span| {
            let skipped = skip.min(span.len as u64);
            skip -= skipped;
            // At most the length of the span.
            let len = left.min(span.len - skipped as usize);
            left -= len;
            (len > 0).then_some(HmemSpan {
                // No region wraps around.
                address: span.address.wrapping_add(skipped),
                len,
            })
        })
    }
}

/// Functions that copy memory which only its owner can copy (`struct fi_hmem_override_ops` of
/// `fi_domain(3)`).
///
/// Pass them to a domain with [`Domain::set_ops`](crate::Domain::set_ops). They are called for
/// every byte that moves into or out of a [`DeviceBuffer`]: of messages, datagrams, remote memory
/// access, atomic operations and a region's own methods.
///
/// Each call copies at most 1 MiB. The functions are called by the domain's driver, by calls that
/// post a datagram or a receive for a message that has already arrived, and by a region's own
/// methods. The calls may come from several threads at once, and while a lock of the connection is
/// held, so they must not wait for anything of this library. While one runs, the other connections
/// of the same driver wait, unless the functions [may block](Self::may_block).
///
/// An error, a panic or a short copy fails the operation that it belongs to and nothing else, with
/// two exceptions that end the connection: part of a message or write of more than 1 MiB may have
/// been sent already, and a peer without this library's extension cannot be informed of a failed
/// access.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use std::{io, sync::{Arc, Mutex}};
/// use tokio_fabric::buf::{DeviceBuffer, HmemIface, HmemIov, HmemOps};
/// use tokio_fabric::domain::{DomainOps, SET_OPS_HMEM_OVERRIDE};
/// use tokio_fabric::{Caps, Fabric, Hints};
///
/// /// A device whose addresses are places in a table.
/// struct Device(Mutex<Vec<u8>>);
///
/// impl HmemOps for Device {
///     fn copy_to_host(&self, into: &mut [u8], iov: &HmemIov, at: u64) -> io::Result<usize> {
///         let (memory, mut done) = (self.0.lock().unwrap(), 0);
///         for part in iov.parts(at, into.len()) {
///             let from = part.address as usize;
///             into[done..done + part.len].copy_from_slice(&memory[from..from + part.len]);
///             done += part.len;
///         }
///         Ok(done)
///     }
///     fn copy_from_host(&self, iov: &HmemIov, at: u64, from: &[u8]) -> io::Result<usize> {
///         let (mut memory, mut done) = (self.0.lock().unwrap(), 0);
///         for part in iov.parts(at, from.len()) {
///             let into = part.address as usize;
///             memory[into..into + part.len].copy_from_slice(&from[done..done + part.len]);
///             done += part.len;
///         }
///         Ok(done)
///     }
/// }
///
/// let hints = Hints::new().caps(Caps::MSG | Caps::RMA | Caps::HMEM);
/// let domain = Fabric::open(hints)?.domain().open()?;
/// let device = Arc::new(Device(Mutex::new(vec![0; 1 << 20])));
/// domain.set_ops(SET_OPS_HMEM_OVERRIDE, DomainOps::Hmem(device))?;
/// let region = domain.register(DeviceBuffer::new(HmemIface::Other(1), 0, 4096, 64)).await?;
/// region.write_at(0, b"over there")?; // Operations take `region.slice(..)`.
/// # Ok(()) }
/// ```
pub trait HmemOps: Send + Sync + 'static {
    /// Copies `into.len()` bytes from `offset` of the device memory to the host
    /// (`copy_from_hmem_iov`). Returns the number of bytes copied; fewer than requested is a
    /// failure.
    ///
    /// # Errors
    /// The owner's error, which is reported by its operating system number (`fi_errno`), or as
    /// `EIO` if it has none.
    fn copy_to_host(&self, into: &mut [u8], iov: &HmemIov<'_>, offset: u64) -> io::Result<usize>;

    /// Copies `from` to `offset` of the device memory (`copy_to_hmem_iov`). Returns the number of
    /// bytes copied; fewer than passed is a failure.
    ///
    /// # Errors
    /// As for [`copy_to_host`](Self::copy_to_host).
    fn copy_from_host(&self, iov: &HmemIov<'_>, offset: u64, from: &[u8]) -> io::Result<usize>;

    /// True if a copy may take long. Then blocking threads of the runtime serve the domain's
    /// connections, each as it becomes ready, so that the driver and other connections continue
    /// during a copy. A post on the same connection waits for the copy in progress. Every message
    /// of the domain costs an additional wake-up between threads. Called once, by
    /// [`Domain::set_ops`](crate::Domain::set_ops). A domain with manual progress waits for copies
    /// in any case. Default: false.
    fn may_block(&self) -> bool {
        false
    }
}

/// The functions of a domain, as its regions hold them.
#[derive(Clone)]
pub(crate) struct SharedHmemOps(pub(crate) Arc<dyn HmemOps>);

impl fmt::Debug for SharedHmemOps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HmemOps")
    }
}

/// The memory of a region of device buffers.
pub(super) struct DeviceMemory {
    ops: SharedHmemOps,
    iface: HmemIface,
    device: u64,
    spans: Box<[HmemSpan]>,
    /// Held by each atomic operation, since the owner's copies are not atomic.
    atomic: Lock<()>,
}

impl DeviceMemory {
    /// Joins these buffers; `None` if they are not all of one interface and device, or if there are
    /// no functions that copy them.
    pub(super) fn of(buffers: &[OwnedBuffer], ops: Option<&SharedHmemOps>) -> Option<Self> {
        let mut owner = None;
        let mut spans = Vec::with_capacity(buffers.len());
        for buffer in buffers {
            let place = buffer.device_place()?;
            let this = (place.iface, place.device);
            if *owner.get_or_insert(this) != this {
                return None;
            }
            spans.push(HmemSpan {
                address: buffer.span().address(),
                len: buffer.len(),
            });
        }
        let (iface, device) = owner?;
        Some(DeviceMemory {
            ops: ops?.clone(),
            iface,
            device,
            spans: spans.into(),
            atomic: Lock::new(()),
        })
    }

    fn iov(&self) -> HmemIov<'_> {
        HmemIov {
            iface: self.iface,
            device: self.device,
            spans: &self.spans,
        }
    }

    /// Copies out of the memory. If it fails, earlier pieces may have been copied.
    pub(super) fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), AccessError> {
        for (at, piece) in into.chunks_mut(DEVICE_PIECE_MAX).enumerate() {
            let (at, asked) = (offset + at * DEVICE_PIECE_MAX, piece.len());
            let copy = || (self.ops.0).copy_to_host(piece, &self.iov(), at as u64);
            owner_copies(copy, asked)?;
        }
        Ok(())
    }

    /// Copies into the memory. If it fails, earlier pieces may have been copied.
    pub(super) fn write(&self, offset: usize, from: &[u8]) -> Result<(), AccessError> {
        for (at, piece) in from.chunks(DEVICE_PIECE_MAX).enumerate() {
            let at = offset + at * DEVICE_PIECE_MAX;
            let copy = || (self.ops.0).copy_from_host(&self.iov(), at as u64, piece);
            owner_copies(copy, piece.len())?;
        }
        Ok(())
    }

    /// Loads the number of `size` bytes at `offset`, and stores what `change` makes of it, if
    /// anything. Atomic among all calls of this function on this region.
    pub(super) fn update(
        &self,
        offset: usize,
        size: usize,
        mut change: impl FnMut([u8; 8]) -> Option<[u8; 8]>,
    ) -> Result<[u8; 8], AccessError> {
        let _alone = self.atomic.lock("change a number of a device");
        let mut seen = [0; 8];
        self.read(offset, &mut seen[..size])?;
        if let Some(changed) = change(seen) {
            self.write(offset, &changed[..size])?;
        }
        Ok(seen)
    }
}

/// Calls the owner's function. Its panic ends the operation that it was called for, and nothing
/// else.
fn owner_copies(copy: impl FnOnce() -> io::Result<usize>, asked: usize) -> Result<(), AccessError> {
    match catch_unwind(AssertUnwindSafe(copy)) {
        Ok(Ok(copied)) if copied == asked => Ok(()),
        Ok(Ok(_)) => Err(AccessError::Owner(libc::EIO)),
        Ok(Err(error)) => Err(AccessError::Owner(
            error.raw_os_error().unwrap_or(libc::EIO),
        )),
        Err(_) => {
            hold_event(|| tracing::error!("a function that copies device memory panicked"));
            Err(AccessError::Owner(libc::EIO))
        }
    }
}
