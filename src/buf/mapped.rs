//! Memory straight from the system: whole pages, huge ones where they are offered.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::span::Span;
use crate::error::{Error, ErrorKind, Result};

/// The size of a huge page on x86-64, and on 64-bit ARM with 4 KiB pages.
const HUGE_PAGE: usize = 2 << 20;
/// The file that says whether the system makes huge pages of ordinary memory.
const TRANSPARENT: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// The kind of pages that the system has provided for a [`MappedBuffer`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::buf::{MappedBuffer, PageKind};
///
/// let buffer = MappedBuffer::huge(4 << 20)?;
/// match buffer.pages() {
///     PageKind::Huge => println!("pages of 2 MiB, reserved"),
///     PageKind::Transparent => println!("the system will use huge pages where it can"),
///     _ => println!("ordinary pages: this machine has no huge pages to give"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PageKind {
    /// Pages of the ordinary size.
    Ordinary,
    /// Ordinary pages, which the system may combine into huge ones: the buffer has requested this,
    /// and the system is configured to do it.
    Transparent,
    /// Huge pages of 2 MiB from the pool that the administrator has set aside. All of them are
    /// reserved.
    Huge,
}

/// Zeroed memory mapped from the system.
///
/// It starts at a page boundary and consists of whole pages. Pages are allocated when they are
/// first touched, or by a registration that faults them in
/// ([`MrMode::ALLOCATED`](crate::info::MrMode::ALLOCATED)), so a buffer may be far larger than the
/// memory it will ever use. If the machine runs out of memory when a page is touched, the system
/// responds as for all memory: it kills a process.
///
/// It is a buffer for operations and registrations like a `Vec<u8>`, and derefs to its bytes.
/// Dropping it returns the pages to the system, which takes time proportional to their number.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{buf::MappedBuffer, Fabric, Hints};
///
/// let domain = Fabric::open(Hints::new())?.domain().open()?;
/// // 64 GiB of addresses, without memory yet: registering them is as fast as registering 4 KiB.
/// let region = domain.register(MappedBuffer::new(64 << 30)?).lazily().await?;
/// region.write_at(40 << 30, b"one page of it")?;
/// # Ok(()) }
/// ```
pub struct MappedBuffer {
    start: NonNull<u8>,
    len: usize,
    /// Number of bytes mapped from `start`, in whole pages.
    mapped: usize,
    pages: PageKind,
}

// SAFETY: the mapping is this value's own, like a `Box<[u8]>`'s allocation, and may be used and
// unmapped from any thread.
unsafe impl Send for MappedBuffer {}
// SAFETY: a shared reference gives only `&[u8]` of plain bytes.
unsafe impl Sync for MappedBuffer {}

impl MappedBuffer {
    /// Maps `len` bytes, in pages of the ordinary size.
    ///
    /// # Errors
    /// [`ErrorKind::LimitReached`] if the system has no such range of addresses left.
    pub fn new(len: usize) -> Result<MappedBuffer> {
        let page = rustix::param::page_size();
        let mapped = whole_pages(len, page)?;
        let start = map(mapped, MapFlags::NORESERVE)?;
        Ok(Self::own(start, len, mapped, PageKind::Ordinary))
    }

    /// Maps `len` bytes that the kernel zeroes in a forked child (`MADV_WIPEONFORK`).
    ///
    /// # Errors
    /// As for [`new`](Self::new), and `InvalidArgument` from a kernel before Linux 4.14.
    pub(crate) fn zeroed_on_fork(len: usize) -> Result<MappedBuffer> {
        let buffer = Self::new(len)?;
        let start = buffer.start.as_ptr().cast();
        // SAFETY: the whole of this value's own mapping. The advice changes no byte in this
        // process, and in a child all bytes are zeros, which are as initialised as before.
        unsafe { madvise(start, buffer.mapped, Advice::LinuxWipeOnFork) }
            .map_err(|error| Error::from_io(&error.into(), "have memory zeroed on fork"))?;
        Ok(buffer)
    }

    /// Maps `len` bytes in huge pages of the best kind that the system currently offers; see
    /// [`pages`](Self::pages). They make long transfers and page faults cheaper, but waste memory
    /// if only a little of each page is used.
    ///
    /// # Errors
    /// As for [`new`](Self::new). A system without huge pages is not an error.
    pub fn huge(len: usize) -> Result<MappedBuffer> {
        let mapped = whole_pages(len, HUGE_PAGE)?;
        // Without NORESERVE: pages of the pool are reserved now, or the mapping fails; touching
        // them later cannot fail.
        if let Ok(start) = map(mapped, MapFlags::HUGETLB | MapFlags::HUGE_2MB) {
            return Ok(Self::own(start, len, mapped, PageKind::Huge));
        }
        // The system makes huge pages of aligned spans only, so we choose one from a larger range.
        let Some(wide) = mapped.checked_add(HUGE_PAGE) else {
            return Err(too_long());
        };
        let base = map(wide, MapFlags::NORESERVE)?;
        let before = base.as_ptr().align_offset(HUGE_PAGE);
        // SAFETY: `before` is less than a huge page, so this is within the range just mapped.
        let start = unsafe { base.add(before) };
        // SAFETY: the parts of that range before and after the chosen span, which nothing refers
        // to.
        unsafe {
            unmap(base, before);
            unmap(start.add(mapped), HUGE_PAGE - before);
        }
        // SAFETY: advice about memory that is all ours changes no byte of it.
        let advised =
            unsafe { madvise(start.as_ptr().cast(), mapped, Advice::LinuxHugepage) }.is_ok();
        let pages = if advised && makes_huge_pages() {
            PageKind::Transparent
        } else {
            PageKind::Ordinary
        };
        Ok(Self::own(start, len, mapped, pages))
    }

    fn own(start: NonNull<u8>, len: usize, mapped: usize, pages: PageKind) -> Self {
        MappedBuffer {
            start,
            len,
            mapped,
            pages,
        }
    }

    /// The kind of its pages.
    pub fn pages(&self) -> PageKind {
        self.pages
    }

    /// Takes the buffer apart into its span, the number of mapped bytes and the kind of their
    /// pages. Nothing is freed.
    #[inline]
    pub(super) fn into_parts(self) -> (Span, usize, PageKind) {
        let it = ManuallyDrop::new(self);
        (Span::new(it.start.as_ptr(), it.len), it.mapped, it.pages)
    }

    /// Puts a buffer together again.
    ///
    /// # Safety
    /// The parts are those that [`MappedBuffer::into_parts`] returned, and this is their only use.
    #[inline]
    pub(super) unsafe fn from_parts(span: Span, mapped: usize, pages: PageKind) -> Self {
        MappedBuffer {
            // SAFETY: the start of a mapping, by the caller's promise, which is not null.
            start: unsafe { NonNull::new_unchecked(span.as_ptr()) },
            len: span.len(),
            mapped,
            pages,
        }
    }
}

impl Deref for MappedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes from `start` are mapped readable, zeroed by the system and so
        // initialised, and this value's own while it is borrowed.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for MappedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; mapped writable, and borrowed for change.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for MappedBuffer {
    fn drop(&mut self) {
        // SAFETY: the whole of this value's own mapping, to which nothing refers any more.
        unsafe { unmap(self.start, self.mapped) };
    }
}

impl fmt::Debug for MappedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedBuffer({} bytes, {:?})", self.len, self.pages)
    }
}

fn map(len: usize, flags: MapFlags) -> Result<NonNull<u8>> {
    let (rights, flags) = (
        ProtFlags::READ | ProtFlags::WRITE,
        MapFlags::PRIVATE | flags,
    );
    // SAFETY: the system chooses the addresses of the new mapping, so it replaces no other mapping.
    let start = unsafe { mmap_anonymous(ptr::null_mut(), len, rights, flags) };
    let start = start.map_err(|error| Error::from_io(&error.into(), "map memory"))?;
    NonNull::new(start.cast()).ok_or_else(too_long)
}

/// # Safety
/// The range is of whole pages that the caller mapped, or empty, and nothing refers to it any more.
unsafe fn unmap(start: NonNull<u8>, len: usize) {
    if len > 0 {
        // SAFETY: the caller's promise.
        let unmapped = unsafe { munmap(start.as_ptr().cast(), len) };
        debug_assert!(unmapped.is_ok(), "a whole mapping of ours can be unmapped");
    }
}

/// Rounds up to whole pages, at least one: a mapping cannot be empty.
fn whole_pages(len: usize, page: usize) -> Result<usize> {
    let whole = len.max(1).checked_next_multiple_of(page);
    whole
        .filter(|whole| isize::try_from(*whole).is_ok())
        .ok_or_else(too_long)
}

fn too_long() -> Error {
    Error::new(
        ErrorKind::LimitReached,
        "no mapping can have that many bytes",
    )
}

fn makes_huge_pages() -> bool {
    let setting = std::fs::read_to_string(TRANSPARENT).unwrap_or_default();
    setting.contains("[always]") || setting.contains("[madvise]")
}
