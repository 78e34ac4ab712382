//! A buffer given back without its type.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::device::DeviceBuffer;
use super::owned_buffer::OwnedBuffer;
use super::range::AddressRange;
use super::shared_window::SharedWindow;
use super::traits::{Convert, IoBuf};

/// Memory that an operation or a region has given back: the very buffer that went in, not a copy,
/// with its type erased so that completions of all operations fit into one queue.
///
/// It may be read-only memory that others hold too, so what it can be used for is what any buffer
/// can: it derefs to its bytes (to none if it is an address range, device memory or a window of
/// shared memory), and it can be sent. [`Buffer::downcast`] gives the original type back, and with
/// it what that type allows: to be received into, registered, shared.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// # use tokio_fabric::{Fabric, Hints};
/// # let domain = Fabric::open(Hints::new())?.domain().open()?;
/// let region = domain.register(vec![7u8; 64]).await?.erase();
/// let mut buffers = region.deregister().await?;
/// let bytes: Vec<u8> = buffers.remove(0).downcast().expect("it was registered as a Vec");
/// assert_eq!(bytes, [7; 64]);
/// # Ok(()) }
/// ```
pub struct Buffer {
    /// No operation has its span.
    owned: OwnedBuffer,
}

impl Buffer {
    #[inline]
    pub(crate) fn new(mut owned: OwnedBuffer) -> Self {
        // Capacity that no operation has received into is none of its bytes.
        owned.cut_spare(0);
        Buffer { owned }
    }

    pub(crate) fn into_owned_buffer(self) -> OwnedBuffer {
        self.owned
    }

    pub(super) fn is_opaque(&self) -> bool {
        self.owned.is_opaque()
    }

    /// The address range that was registered.
    ///
    /// # Errors
    /// The buffer itself, if it is another kind of buffer.
    pub fn into_range(self) -> Result<AddressRange, Buffer> {
        self.owned.into_range().map_err(Buffer::new)
    }

    /// The device memory that was registered.
    ///
    /// # Errors
    /// The buffer itself, if it is another kind of buffer.
    pub fn into_device(self) -> Result<DeviceBuffer, Buffer> {
        self.owned.into_device().map_err(Buffer::new)
    }

    /// The window of shared memory that was registered.
    ///
    /// # Errors
    /// The buffer itself, if it is another kind of buffer.
    pub fn into_window(self) -> Result<SharedWindow, Buffer> {
        SharedWindow::from_owned_buffer(self.owned).map_err(Buffer::new)
    }

    /// Length in bytes: that of the buffer as it went in, not of what was received; of one that
    /// offered its capacity ([`IoBufMut`](crate::buf::IoBufMut)), of what was received. 0 for an
    /// address range, device memory, and a window of shared memory.
    pub fn len(&self) -> usize {
        if self.is_opaque() {
            0
        } else {
            self.owned.len()
        }
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, for change; `None` if the buffer is of a read-only type (`Bytes`, `String`, ..).
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        // SAFETY: invariant of the field: no operation has this buffer, and it is borrowed for
        // change (memory-model rule 1).
        unsafe { self.owned.bytes_mut() }
    }

    /// The bytes as a `Vec`, if that takes no copy: the buffer was a `Vec`, a boxed slice or a
    /// `String`.
    ///
    /// # Errors
    /// The buffer itself, if it was of another type; `to_vec()` copies.
    pub fn into_vec(self) -> Result<Vec<u8>, Buffer> {
        self.owned
            .into_vec()
            .or_else(|owned| owned.into_boxed().map(Vec::from))
            .or_else(|owned| owned.into_text().map(String::into_bytes))
            .map_err(Buffer::new)
    }

    /// The buffer that several messages landed in (`FI_MULTI_RECV`), of which this is one, to be
    /// posted again: only for the last of them, once no message can come into it any more. `None`
    /// for the others, which are gone then. A buffer that is no such part is the whole.
    /// [`downcast`](Self::downcast) gives it the type that it was posted as.
    pub fn into_whole(self) -> Option<Buffer> {
        let Some(whole) = self.owned.as_window().map(Arc::clone) else {
            return Some(self);
        };
        drop(self);
        Arc::into_inner(whole).map(Buffer::new)
    }

    /// The buffer as the type it was given in.
    ///
    /// # Errors
    /// The buffer itself, if it was of another type.
    pub fn downcast<B: IoBuf>(self) -> Result<B, Buffer> {
        B::from_owned_buffer(self.owned).map_err(Buffer::new)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: invariant of the field: no operation has this buffer, so nothing writes to it
        // while it is borrowed (memory-model rule 1).
        unsafe { self.owned.bytes() }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        Buffer::new(bytes.into())
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Its bytes are the user's and may be secret or large.
        write!(f, "Buffer({} bytes)", self.len())
    }
}
