//! Memory with several owners, to be registered by ranges, as a registration cache takes it.
//!
//! - A [`SharedBuffer`] is writable memory that may be shared with regions of any range of it, and
//!   so is never exposed as a slice: bytes are copied from and to it.
//! - [`SharedMemory`] is such a buffer, bytes that never change, or an address range.
//!
//! A region of a range holds a window: the range, and one more owner of the whole. The window of a
//! cached region ([`OwnedBuffer::window`]) is never given back; the window of a separate region is,
//! as a [`SharedWindow`](super::SharedWindow). Neither region can be quiesced, which would claim
//! bytes that others share.

use std::fmt;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;

use super::buffer::Buffer;
use super::copy;
use super::owned_buffer::OwnedBuffer;
use super::range::AddressRange;
use super::traits::{IoBufMut, RegionBuf};
use crate::error::{Error, ErrorKind, Result};

/// A listener that is notified when the application drops its last handle of shared memory.
pub(crate) trait ReleaseListener: Send + Sync {
    /// The last handle of the buffer with this range of addresses is gone.
    fn released(&self, addresses: Range<usize>);
}

/// Writable memory with any number of owners, to be registered by ranges: through a
/// [`RegistrationCache`](crate::domain::RegistrationCache), or each range separately
/// ([`window`](Self::window)).
///
/// It is made from a writable buffer of any kind that regions can own, and
/// [returns](Self::into_buffer) that buffer.
///
/// Peers, local operations and other handles may write to it at any time, so it gives no `&[u8]` to
/// its bytes: copy with [`read_at`](Self::read_at) and [`write_at`](Self::write_at). A byte that is
/// written while it is read has either its old or its new value.
///
/// Clones are handles of the same memory. When the last handle is dropped, caches remove their idle
/// registrations of the memory; the memory is freed with the last region of it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{buf::{MappedBuffer, SharedBuffer}, Fabric, Hints};
///
/// let domain = Fabric::open(Hints::new())?.domain().open()?;
/// let cache = domain.cache().open()?;
/// let buffer = SharedBuffer::new(MappedBuffer::new(1 << 20)?);
/// drop(cache.register(&buffer, 0..4096).await?);
/// let again = cache.register(&buffer, 1024..2048).await?;
/// assert_eq!((again.len(), cache.stats().hits), (1024, 1));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct SharedBuffer {
    handle: Arc<Handle>,
}

/// The state that all handles of the application share; regions hold only the memory.
struct Handle {
    memory: Arc<OwnedBuffer>,
    /// The caches to notify when the last handle is dropped.
    caches: Mutex<Vec<Weak<dyn ReleaseListener>>>,
}

impl SharedBuffer {
    /// Makes shared memory from an exclusively owned, writable buffer, without copying it.
    pub fn new(buffer: impl RegionBuf + IoBufMut) -> SharedBuffer {
        let Ok(memory) = buffer.into_owned_buffer() else {
            unreachable!("the types that both traits name are owned whole");
        };
        Self::of(Arc::new(memory))
    }

    fn of(memory: Arc<OwnedBuffer>) -> SharedBuffer {
        // All its functions rest on this: every byte may be read and written in place.
        assert!(memory.is_writable() && !memory.is_range());
        SharedBuffer {
            handle: Arc::new(Handle {
                memory,
                caches: Mutex::default(),
            }),
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.handle.memory.len()
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `into.len()` bytes at `offset` out of the memory.
    ///
    /// # Errors
    /// `InvalidArgument` if the range is not entirely within the memory.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.check(offset, into.len())?;
        // SAFETY: the span is the whole of a writable buffer, which `self` keeps allocated. Only
        // the shared functions touch it: a window has the same cells (see `OwnedBuffer::whole`),
        // and only the last owner gets the buffer out (memory-model rules 1, 2).
        unsafe { copy::read_shared(self.handle.memory.span(), offset, into) };
        Ok(())
    }

    /// Copies all of `from` to `offset` of the memory.
    ///
    /// # Errors
    /// As for [`read_at`](Self::read_at).
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.check(offset, from.len())?;
        // SAFETY: as in `read_at`; writable, as `of` has checked.
        unsafe { copy::write_shared(self.handle.memory.span(), offset, from) };
        Ok(())
    }

    /// The buffer it was made from, if this is the last handle and no region contains any of it.
    /// Caches first remove their idle registrations of it.
    ///
    /// # Errors
    /// This handle, if there are others, or if a region of the memory is still in use.
    pub fn into_buffer(self) -> Result<Buffer, SharedBuffer> {
        let handle = Arc::try_unwrap(self.handle).map_err(|handle| SharedBuffer { handle })?;
        let memory = Arc::clone(&handle.memory);
        // Notifies the caches.
        drop(handle);
        let owned = Arc::try_unwrap(memory).map_err(SharedBuffer::of)?;
        Ok(Buffer::new(owned))
    }

    fn check(&self, offset: usize, len: usize) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{len} bytes at {offset} are not all within the {}",
                    self.len()
                ),
            )),
        }
    }

    /// The memory, which its windows own too.
    pub(super) fn memory(&self) -> &Arc<OwnedBuffer> {
        &self.handle.memory
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let caches = self
            .caches
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for cache in caches.iter().filter_map(Weak::upgrade) {
            cache.released(self.memory.span().addresses());
        }
    }
}

impl fmt::Debug for SharedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBuffer({} bytes)", self.len())
    }
}

/// Resolves a range within `len` bytes; `None` if it is not entirely within.
pub(crate) fn range_within(len: usize, range: impl RangeBounds<usize>) -> Option<Range<usize>> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(start) => start.checked_add(1)?,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(end) => end.checked_add(1)?,
        Bound::Excluded(end) => *end,
        Bound::Unbounded => len,
    };
    (start <= end && end <= len).then_some(start..end)
}

/// Sorts windows by their addresses, and cuts them so that none overlaps. Windows of one buffer
/// that adjoin become one.
pub(crate) fn join_windows(mut windows: Vec<OwnedBuffer>) -> Vec<OwnedBuffer> {
    windows.sort_by_key(|window| window.span().addresses().start);
    let mut joined: Vec<OwnedBuffer> = Vec::with_capacity(windows.len());
    for window in windows {
        let Range { start, end } = window.span().addresses();
        let Some(last) = joined.last_mut() else {
            joined.push(window);
            continue;
        };
        let before = last.span().addresses();
        if end <= before.end {
            continue;
        }
        let same = match (last.as_window(), window.as_window()) {
            (Some(last), Some(next)) => Arc::ptr_eq(last, next) && start <= before.end,
            _ => false,
        };
        let wider = if same {
            last.narrowed(&(before.start..end))
        } else {
            None
        };
        match wider {
            Some(wider) => *last = wider,
            None => joined.extend(window.narrowed(&(start.max(before.end)..end))),
        }
    }
    joined
}

/// Memory that may be registered by ranges any number of times, because all its owners share it: a
/// [`SharedBuffer`]; bytes that never change (`Bytes`, `Arc<[u8]>`, `&'static [u8]`); or an
/// [`AddressRange`], which the caller keeps mapped. Sealed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use bytes::Bytes;
/// use tokio_fabric::{Fabric, Hints};
///
/// let cache = Fabric::open(Hints::new())?.domain().open()?.cache().open()?;
/// let bytes = Bytes::from_static(b"never changes");
/// let first = cache.register(&bytes, 0..5).await?;
/// let second = cache.register(&bytes, 6..13).await?;
/// assert_eq!((first.len(), second.len()), (5, 7));
/// # Ok(()) }
/// ```
pub trait SharedMemory: Clone + Send + 'static {
    /// The addresses of the memory.
    #[doc(hidden)]
    fn addresses(&self) -> Range<usize>;

    /// Returns one more owner of the memory, for windows.
    #[doc(hidden)]
    #[allow(private_interfaces, reason = "the trait is sealed by this")]
    fn owner(&self) -> Arc<OwnedBuffer>;

    /// True if its bytes may be written to.
    #[doc(hidden)]
    fn is_writable(&self) -> bool;

    /// True if no buffer owns it, and the caller keeps it mapped.
    #[doc(hidden)]
    fn is_unowned(&self) -> bool {
        false
    }

    /// Registers a listener for the drop of its last handle. Types that send no notice are checked
    /// from time to time ([`OwnedBuffer::is_ours_alone`]).
    #[doc(hidden)]
    #[allow(private_interfaces, reason = "the trait is sealed by this")]
    fn notify_on_release(&self, _cache: &Weak<dyn ReleaseListener>) {}
}

#[allow(private_interfaces, reason = "as in the trait")]
impl SharedMemory for SharedBuffer {
    fn addresses(&self) -> Range<usize> {
        self.handle.memory.span().addresses()
    }

    fn owner(&self) -> Arc<OwnedBuffer> {
        Arc::clone(&self.handle.memory)
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn notify_on_release(&self, cache: &Weak<dyn ReleaseListener>) {
        let caches = self.handle.caches.lock();
        let mut caches = caches.unwrap_or_else(PoisonError::into_inner);
        if !caches.iter().any(|known| known.ptr_eq(cache)) {
            caches.retain(|known| known.strong_count() > 0);
            caches.push(Weak::clone(cache));
        }
    }
}

#[allow(private_interfaces, reason = "as in the trait")]
impl SharedMemory for AddressRange {
    fn addresses(&self) -> Range<usize> {
        let start = self.start().addr();
        // A range that wraps around has no bytes that could be asked for.
        start..start.checked_add(self.len()).unwrap_or(start)
    }

    fn owner(&self) -> Arc<OwnedBuffer> {
        Arc::new(OwnedBuffer::from(self.clone()))
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn is_unowned(&self) -> bool {
        true
    }
}

macro_rules! unchanging {
    ($($memory:ty),*) => {$(
        #[allow(private_interfaces, reason = "as in the trait")]
        impl SharedMemory for $memory {
            fn addresses(&self) -> Range<usize> {
                let range = self.as_ptr_range();
                range.start.addr()..range.end.addr()
            }

            fn owner(&self) -> Arc<OwnedBuffer> {
                Arc::new(OwnedBuffer::from(self.clone()))
            }

            fn is_writable(&self) -> bool {
                false
            }
        }
    )*};
}

unchanging!(Bytes, Arc<[u8]>, &'static [u8]);
