//! Memory that this library neither owns nor touches: a range of addresses, which only the kernel
//! dereferences (socket calls, `process_vm_readv` and `process_vm_writev`). For addresses that are
//! not mapped the kernel returns `EFAULT`, and never raises a signal.
//!
//! Before an access the library asks the kernel to make its pages present (`MADV_POPULATE_READ` or
//! `_WRITE`, at most 4 MiB), so that a missing page refuses only this operation. For a page that
//! goes missing later the kernel returns `EFAULT`.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::OnceLock;

use rustix::mm::{Advice, madvise};

use super::span::Span;
use crate::limits::RESIDENT_PAGES_PER_CALL;

/// A range of this process's address space, to be registered as it is (`fi_mr(3)`: scalable
/// registration "occurs on memory address ranges").
///
/// It need not be mapped, neither when it is registered nor later: an access to a page that does
/// not exist fails with [`ErrorKind::BadAddress`](crate::ErrorKind::BadAddress) and has no other
/// effect.
///
/// A region of such ranges gives no safe access to its bytes as memory: it copies with system
/// calls, and supports neither atomic operations nor
/// [`MemoryRegion::quiesce`](crate::MemoryRegion::quiesce).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{buf::AddressRange, ErrorKind, Fabric, Hints};
///
/// let domain = Fabric::open(Hints::new())?.domain().open()?;
/// // SAFETY: nothing is ever mapped at the first page.
/// let nothing = unsafe { AddressRange::new(std::ptr::without_provenance_mut(16), 64) };
/// let region = domain.register(nothing).await?;
/// let error = region.read_at(0, &mut [0; 8]).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::BadAddress);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct AddressRange {
    span: Span,
}

impl AddressRange {
    /// `len` bytes from `start` on. Registration refuses a range that wraps around the end of the
    /// address space.
    ///
    /// # Safety
    /// While a region of this range or of a clone exists (until `deregister` has returned the
    /// range, or the last handle and the last operation are gone), the kernel may read the bytes at
    /// any time, and write them if the region's rights allow it. Memory that is mapped in the range
    /// during this time must therefore meet these conditions:
    /// - no Rust reference to the bytes exists while they may be written, and no `&mut` while they
    ///   may be read;
    /// - nothing depends on their values (they are not part of a `bool`, a `String`, or an
    ///   allocator's own data) while they may be written;
    /// - pages that are unmapped are not reused for memory that violates these conditions.
    pub unsafe fn new(start: *mut u8, len: usize) -> Self {
        AddressRange {
            span: Span::new(start, len),
        }
    }

    /// The address of its first byte.
    pub fn start(&self) -> *mut u8 {
        self.span.as_ptr()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.span.len()
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.span.is_empty()
    }

    pub(super) fn span(&self) -> Span {
        self.span
    }

    pub(super) fn of_span(span: Span) -> Self {
        AddressRange { span }
    }
}

impl fmt::Debug for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AddressRange({} bytes)", self.len())
    }
}

/// Copies out by a system call; `EFAULT` if not all of it can be read.
pub(super) fn read(from: Span, into: &mut [u8]) -> io::Result<()> {
    debug_assert_eq!(from.len(), into.len());
    let local = Span::new(into.as_mut_ptr(), into.len());
    all_of(local, from, |local, remote, pid| {
        // SAFETY: `local` is within `into`, which is borrowed for change; the addresses of `remote`
        // are followed by the kernel alone, which checks them. No Rust place is made of them.
        unsafe { libc::process_vm_readv(pid, local, 1, remote, 1, 0) }
    })
}

/// Copies in by a system call; `EFAULT` if not all of it can be written.
pub(super) fn write(into: Span, from: &[u8]) -> io::Result<()> {
    debug_assert_eq!(into.len(), from.len());
    all_of(Span::of(from), into, |local, remote, pid| {
        // SAFETY: `local` is within `from`, which is only read. The caller of `AddressRange::new`
        // has promised that the kernel may write there at any time; it checks the addresses.
        unsafe { libc::process_vm_writev(pid, local, 1, remote, 1, 0) }
    })
}

/// Transfers all bytes. A short transfer ends before a missing page: the next call returns the
/// error.
fn all_of(
    local: Span,
    remote: Span,
    transfer: impl Fn(*const libc::iovec, *const libc::iovec, libc::pid_t) -> libc::ssize_t,
) -> io::Result<()> {
    let pid = libc::pid_t::try_from(std::process::id())
        .map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    let mut done = 0;
    while done < local.len() {
        let [here, there] = [local, remote].map(|span| {
            let rest = span.part(done, span.len() - done);
            libc::iovec {
                iov_base: rest.as_ptr().cast(),
                iov_len: rest.len(),
            }
        });
        match usize::try_from(transfer(&raw const here, &raw const there, pid)) {
            Ok(0) => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
            Ok(count) => done += count,
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}

/// Checks that the kernel allows this process such copies; a sandbox may forbid them. Only success
/// is remembered, so that later registrations need no system call, which takes far longer than a
/// registration. If a sandbox forbids the copies later, the accesses fail.
pub(crate) fn check_kernel_copies() -> io::Result<()> {
    static ALLOWED: OnceLock<()> = OnceLock::new();
    if ALLOWED.get().is_none() {
        let (byte, mut copy) = ([1u8], [0u8]);
        read(Span::of(&byte), &mut copy)?;
        let _ = ALLOWED.set(());
    }
    Ok(())
}

/// Makes the pages of `span` present, for writing or for reading only. `None`: this kernel cannot
/// do that (before 5.14, or forbidden).
///
/// `EFAULT` stands for whatever is missing: no mapping, no right, no page behind a mapping.
pub(super) fn populate(span: Span, for_writing: bool) -> io::Result<Option<()>> {
    if span.is_empty() {
        return Ok(Some(()));
    }
    let page = rustix::param::page_size();
    let before = span.as_ptr().addr() % page;
    let start = span.as_ptr().wrapping_sub(before);
    let Some(len) =
        (before.checked_add(span.len())).and_then(|len| len.checked_next_multiple_of(page))
    else {
        return Err(io::Error::from_raw_os_error(libc::EFAULT));
    };
    let advice = if for_writing {
        Advice::LinuxPopulateWrite
    } else {
        Advice::LinuxPopulateRead
    };
    loop {
        // SAFETY: making pages present changes no byte; the kernel checks the addresses. Whole
        // pages are named, and what else lies on the first and the last is not changed either.
        match unsafe { madvise(start.cast(), len, advice) } {
            Ok(()) => return Ok(Some(())),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(rustix::io::Errno::NOMEM | rustix::io::Errno::FAULT) => {
                return Err(io::Error::from_raw_os_error(libc::EFAULT));
            }
            // The right is missing, or the mapping is a device's.
            Err(rustix::io::Errno::INVAL) if can_populate() => {
                return Err(io::Error::from_raw_os_error(libc::EFAULT));
            }
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns whether this kernel can make pages present on demand. Tested once, with a page of our
/// own.
fn can_populate() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let page = rustix::param::page_size();
        let own = vec![0u8; 2 * page];
        let start = own.as_ptr().wrapping_add(own.as_ptr().align_offset(page));
        // SAFETY: a page within `own`, which is alive; nothing in it changes.
        let done = unsafe { madvise(start.cast_mut().cast(), page, Advice::LinuxPopulateRead) };
        done.is_ok()
    })
}

/// Returns which bytes of `span` have pages now, by offset in it, in order.
pub(super) fn resident(span: Span) -> io::Result<Vec<Range<usize>>> {
    let page = rustix::param::page_size();
    let before = span.as_ptr().addr() % page;
    let pages = before.saturating_add(span.len()).div_ceil(page);
    let mut found: Vec<Range<usize>> = Vec::new();
    let mut at = 0;
    while at < pages {
        let mut states = [0u8; RESIDENT_PAGES_PER_CALL];
        let mut count = RESIDENT_PAGES_PER_CALL.min(pages - at);
        let address = |at: usize| span.as_ptr().wrapping_sub(before).wrapping_add(at * page);
        match mincore(address(at), count * page, &mut states) {
            Ok(()) => {}
            // Some of the pages are not mapped: ask for one after the other.
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
                for (index, state) in states[..count].iter_mut().enumerate() {
                    let mut one = [0];
                    let mapped = mincore(address(at + index), page, &mut one).is_ok();
                    *state = if mapped { one[0] } else { 0 };
                }
            }
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => count = 0,
            Err(error) => return Err(error),
        }
        for index in (0..count).filter(|index| states[*index] & 1 != 0) {
            let start = ((at + index) * page).saturating_sub(before);
            let end = ((at + index + 1) * page - before).min(span.len());
            match found.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => found.push(start..end),
            }
        }
        at += count;
    }
    Ok(found)
}

fn mincore(start: *mut u8, len: usize, states: &mut [u8]) -> io::Result<()> {
    assert!(len.div_ceil(rustix::param::page_size()) <= states.len());
    // SAFETY: the kernel writes one byte per page to `states`, which has room for them, as just
    // checked; of the pages it only reports which are present.
    let asked = unsafe { libc::mincore(start.cast(), len, states.as_mut_ptr()) };
    match asked {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Writes the pages of a mapped file back to it, and waits for that. On memory that persists by
/// itself (a file mapped directly, DAX), the kernel flushes the processor's caches instead.
pub(super) fn synchronize(span: Span) -> io::Result<()> {
    if span.is_empty() {
        return Ok(());
    }
    let page = rustix::param::page_size();
    let before = span.as_ptr().addr() % page;
    let start = span.as_ptr().wrapping_sub(before);
    // SAFETY: the kernel writes memory to a file, and changes none; it checks the addresses.
    let done = unsafe { libc::msync(start.cast(), before + span.len(), libc::MS_SYNC) };
    match done {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            // The system's error for addresses that are not mapped.
            error if error.raw_os_error() == Some(libc::ENOMEM) => {
                Err(io::Error::from_raw_os_error(libc::EFAULT))
            }
            error => Err(error),
        },
    }
}

/// Returns whether all of `span` is mapped from files and shared with them, so that writing to it
/// changes the files.
pub(super) fn is_shared_file(span: Span) -> io::Result<bool> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let (mut at, end) = (span.as_ptr().addr(), span.as_ptr().addr() + span.len());
    // Mappings are listed in order. Each: start-end, rights, offset, device, inode, name.
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let bounds = words.next().and_then(|word| word.split_once('-'));
        let number = |text| usize::from_str_radix(text, 16).ok();
        let Some((first, last)) = bounds.and_then(|(a, b)| Some((number(a)?, number(b)?))) else {
            continue;
        };
        if at >= end || last <= at {
            continue;
        }
        let shared = words.next().is_some_and(|rights| rights.ends_with('s'));
        let is_file = words.nth(2).is_some_and(|inode| inode != "0");
        if first > at || !shared || !is_file {
            return Ok(false);
        }
        at = last;
    }
    Ok(at >= end)
}
