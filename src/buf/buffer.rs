//! A returned buffer with its type erased.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::device::DeviceBuffer;
use super::owned_buffer::OwnedBuffer;
use super::range::AddressRange;
use super::shared_window::SharedWindow;
use super::traits::{Convert, IoBuf};

/// Memory that an operation or a region has returned: the buffer that was passed in, not a copy,
/// with its type erased so that one queue can hold the completions of all operations.
///
/// It may be read-only memory with other owners. Therefore it allows only what every buffer allows:
/// it derefs to its bytes (to none if it is an address range, device memory or a window of shared
/// memory), and it can be sent. [`Buffer::downcast`] recovers the original type and everything that
/// type allows, such as receiving into it, registering it and sharing it.
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
    /// Invariant: no operation has the buffer's span.
    owned: OwnedBuffer,
}

impl Buffer {
    #[inline]
    pub(crate) fn new(mut owned: OwnedBuffer) -> Self {
        // Capacity that no operation has received into is not part of the buffer's bytes.
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

    /// Length in bytes: that of the buffer as it was passed in, not of the message that was
    /// received. For a buffer that offered its capacity ([`IoBufMut`](crate::buf::IoBufMut)) it is
    /// the number of bytes received. 0 for an address range, device memory, and a window of shared
    /// memory.
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

    /// The bytes, mutably; `None` if the buffer has a read-only type (`Bytes`, `String`, ...).
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        // SAFETY: invariant of the field: no operation has this buffer, and it is borrowed for
        // change (memory-model rule 1).
        unsafe { self.owned.bytes_mut() }
    }

    /// The bytes as a `Vec`, if that needs no copy: if the buffer was a `Vec`, a boxed slice or a
    /// `String`.
    ///
    /// # Errors
    /// The buffer itself, if it has another type; `to_vec()` copies.
    pub fn into_vec(self) -> Result<Vec<u8>, Buffer> {
        self.owned
            .into_vec()
            .or_else(|owned| owned.into_boxed().map(Vec::from))
            .or_else(|owned| owned.into_text().map(String::into_bytes))
            .map_err(Buffer::new)
    }

    /// The whole buffer that received several messages (`FI_MULTI_RECV`), of which this is one
    /// part, so that it can be posted again. Only the last remaining part returns it, when no more
    /// messages can be received into the buffer; all other parts return `None` and are dropped. A
    /// buffer that is not a part is returned as it is. [`downcast`](Self::downcast) recovers the
    /// type that was posted.
    pub fn into_whole(self) -> Option<Buffer> {
        let Some(whole) = self.owned.as_window().map(Arc::clone) else {
            return Some(self);
        };
        drop(self);
        Arc::into_inner(whole).map(Buffer::new)
    }

    /// The buffer as the type that was passed in.
    ///
    /// # Errors
    /// The buffer itself, if it has another type.
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
