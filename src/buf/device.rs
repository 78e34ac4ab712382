//! Memory that only its owner can copy: of a GPU, say, behind addresses that mean nothing to this
//! process (`FI_HMEM`, `fi_mr(3)`; `FI_SET_OPS_HMEM_OVERRIDE`, `fi_domain(3)`).
//!
//! Nothing here follows an address of it. Every byte that goes into such memory or comes out of it
//! passes the functions of [`HmemOps`], in pieces.
//!
//! So no transport gets a span of it. It is received through staging buffers, and sent from a
//! bounce buffer in its frame (`out_frame.rs`), which is filled before the frame is handed out and
//! again each time it has gone; a frame with more to come ends its batch. A copy that fails before
//! its frame is handed out takes the frame back with its credit, or withdraws what was announced;
//! later it ends the connection. Where the owner says that copies may wait
//! ([`HmemOps::may_block`]), blocking threads make the turns of the domain's ports, and what
//! becomes due for a port meanwhile is noted (`progress/aside.rs`).

use std::any::Any;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::access_error::AccessError;
use super::owned_buffer::OwnedBuffer;
use super::span::Span;
use crate::limits::DEVICE_PIECE_MAX;
use crate::sync::Lock;

/// Whose memory it is (`enum fi_hmem_iface` of `fi_mr(3)`). It is passed on to [`HmemOps`] and
/// means nothing else here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HmemIface {
    /// The host's own (`FI_HMEM_SYSTEM`).
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
    /// Any other owner, by a number that the application chooses.
    Other(u32),
}

/// A buffer in memory that only its owner can copy. It is registered
/// ([`Domain::register`](crate::Domain::register)), and operations use slices of its region
/// (`FI_MR_HMEM`); the domain's [`HmemOps`] move its bytes.
///
/// A region of such buffers, all of one interface and device, copies by those functions wherever it
/// copies, its own `read_at` and `write_at` included; it gives no guard by
/// [`MemoryRegion::quiesce`](crate::MemoryRegion::quiesce), since there are no bytes to show.
///
/// `fi_mr(3)` names the interface and the device in `struct fi_mr_attr`.
#[doc(alias("FI_HMEM", "FI_MR_HMEM"))]
#[derive(Clone)]
pub struct DeviceBuffer {
    place: DevicePlace,
    span: Span,
}

/// Where the bytes of a buffer are, but for their address.
#[derive(Clone)]
pub(super) struct DevicePlace {
    iface: HmemIface,
    device: u64,
    /// What keeps the memory allocated.
    keep: Option<Arc<dyn Any + Send + Sync>>,
}

impl DeviceBuffer {
    /// `len` bytes from `address` on, of this interface's device (0 if it has only one). A range
    /// that wraps around the end of the address space is refused when it is registered.
    ///
    /// Nothing here follows the address: what may be behind it is between the application and its
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

    /// Keeps `owner` for as long as this buffer, a region of it or an operation on that exists:
    /// what frees the memory when it is dropped.
    pub fn keeping(mut self, owner: Arc<dyn Any + Send + Sync>) -> Self {
        self.place.keep = Some(owner);
        self
    }

    /// Whose memory it is.
    pub fn iface(&self) -> HmemIface {
        self.place.iface
    }

    /// Which of the interface's devices has it.
    pub fn device(&self) -> u64 {
        self.place.device
    }

    /// Where it begins, as its device numbers addresses.
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

/// Some bytes of a device, by address (`struct iovec`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HmemSpan {
    /// Where they begin, as the device numbers addresses.
    pub address: u64,
    /// Length in bytes.
    pub len: usize,
}

/// The memory of a region: one or more spans of one device, addressed as one range of bytes
/// (`iface`, `device`, `hmem_iov` and `hmem_iov_count` of the callbacks).
#[derive(Clone, Copy, Debug)]
pub struct HmemIov<'a> {
    /// Whose memory it is.
    pub iface: HmemIface,
    /// Which of the interface's devices has it.
    pub device: u64,
    /// The spans, in order. At least one.
    pub spans: &'a [HmemSpan],
}

impl<'a> HmemIov<'a> {
    /// What of the spans a copy of `len` bytes at `offset` touches, in order; empty parts are left
    /// out. It ends early if the spans do.
    pub fn parts(&self, offset: u64, len: usize) -> impl Iterator<Item = HmemSpan> + 'a {
        let (mut skip, mut left) = (offset, len);
        self.spans.iter().filter_map(move |span| {
            let skipped = skip.min(span.len as u64);
            skip -= skipped;
            // No more than a span is long.
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

/// How memory is copied that only its owner can copy (`struct fi_hmem_override_ops` of
/// `fi_domain(3)`). Given to a domain by [`Domain::set_ops`](crate::Domain::set_ops), and called
/// for every byte that moves into or out of a [`DeviceBuffer`]: of messages, datagrams, remote
/// memory access, atomic operations and a region's own calls.
///
/// Both are called with at most 1 MiB at a time, by the domain's driver, by calls that post a
/// datagram, or a receive for a message that waits, and by a region's own calls; from several
/// threads at once, and while a lock of the connection is held: they must not wait for anything of
/// this library. While one runs, the other connections of that driver wait, unless it
/// [may block](Self::may_block).
///
/// An error, a panic or a copy that is short fails the operation that it was for, and nothing else,
/// with two exceptions: of a message or write of more than 1 MiB a part may be on its way already,
/// and a peer without this library's extension gets no word of an access that failed. Then the
/// connection ends.
pub trait HmemOps: Send + Sync + 'static {
    /// Copies `into.len()` bytes from `offset` of the device's memory to the host
    /// (`copy_from_hmem_iov`). Returns how many bytes it has copied; fewer than asked for is a
    /// failure.
    ///
    /// # Errors
    /// The owner's, as the system's number (`fi_errno`): `EIO` if it has none.
    fn copy_to_host(&self, into: &mut [u8], iov: &HmemIov<'_>, offset: u64) -> io::Result<usize>;

    /// Copies `from` to `offset` of the device's memory (`copy_to_hmem_iov`). Returns how many
    /// bytes it has copied; fewer than given is a failure.
    ///
    /// # Errors
    /// As of [`copy_to_host`](Self::copy_to_host).
    fn copy_from_host(&self, iov: &HmemIov<'_>, offset: u64, from: &[u8]) -> io::Result<usize>;

    /// True if a copy may take long: then blocking threads of the runtime serve the domain's
    /// connections, each as it becomes ready, and the driver and its other connections go on while
    /// one waits. A post on the same connection waits for the copy that is under way. It costs a
    /// wake from thread to thread for every message of the domain. Asked once, by
    /// [`Domain::set_ops`](crate::Domain::set_ops). A domain that is driven by hand waits in any
    /// case. Default: false.
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
    /// Held by each atomic operation: the owner's copies are none.
    atomic: Lock<()>,
}

impl DeviceMemory {
    /// `None`: they are not all of one interface and device, or it has no owner that copies.
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

    /// Copies out. A failure may leave pieces before it copied.
    pub(super) fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), AccessError> {
        for (at, piece) in into.chunks_mut(DEVICE_PIECE_MAX).enumerate() {
            let (at, asked) = (offset + at * DEVICE_PIECE_MAX, piece.len());
            let copy = || (self.ops.0).copy_to_host(piece, &self.iov(), at as u64);
            owner_copies(copy, asked)?;
        }
        Ok(())
    }

    /// Copies in, likewise.
    pub(super) fn write(&self, offset: usize, from: &[u8]) -> Result<(), AccessError> {
        for (at, piece) in from.chunks(DEVICE_PIECE_MAX).enumerate() {
            let at = offset + at * DEVICE_PIECE_MAX;
            let copy = || (self.ops.0).copy_from_host(&self.iov(), at as u64, piece);
            owner_copies(copy, piece.len())?;
        }
        Ok(())
    }

    /// Loads the number of `size` bytes at `offset`, and puts in its place what `change` makes of
    /// it, if anything. Atomic among all calls of this function on this region.
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

/// Calls the owner's function, whose panic ends what it was for and nothing else.
fn owner_copies(copy: impl FnOnce() -> io::Result<usize>, asked: usize) -> Result<(), AccessError> {
    match catch_unwind(AssertUnwindSafe(copy)) {
        Ok(Ok(copied)) if copied == asked => Ok(()),
        Ok(Ok(_)) => Err(AccessError::Owner(libc::EIO)),
        Ok(Err(error)) => Err(AccessError::Owner(
            error.raw_os_error().unwrap_or(libc::EIO),
        )),
        Err(_) => {
            tracing::error!("a function that copies device memory panicked");
            Err(AccessError::Owner(libc::EIO))
        }
    }
}
