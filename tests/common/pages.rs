//! Pages that a test maps, takes away and protects as it likes.

use std::ffi::c_void;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio_fabric::buf::AddressRange;

pub const PAGE: usize = 4096;

/// Some pages of the test's own. They are unmapped in the end.
pub struct Pages {
    start: *mut u8,
    len: usize,
}

// SAFETY: nothing but an address; the bytes are touched as the test arranges it.
unsafe impl Send for Pages {}
// SAFETY: as for Send.
unsafe impl Sync for Pages {}

impl Pages {
    /// So many zeroed pages, none of them present yet.
    pub fn new(count: usize) -> Pages {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Pages::map(count, flags, -1)
    }

    /// The first pages of a file, shared with it.
    pub fn of_file(file: &std::fs::File, count: usize) -> Pages {
        Pages::map(count, libc::MAP_SHARED, file.as_raw_fd())
    }

    /// Maps where no other code does: the system gives addresses from the top down, and what a test
    /// unmaps here must not become part of another mapping while a region still means it.
    fn map(count: usize, flags: i32, fd: i32) -> Pages {
        static NEXT: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);
        let len = count * PAGE;
        let start = NEXT.fetch_add(len + 16 * PAGE, Ordering::Relaxed);
        let start = ptr::with_exposed_provenance_mut::<c_void>(start);
        let read_write = libc::PROT_READ | libc::PROT_WRITE;
        let flags = flags | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: a new mapping, which replaces none.
        let mapped = unsafe { libc::mmap(start, len, read_write, flags, fd, 0) };
        assert_eq!(mapped, start, "{}", std::io::Error::last_os_error());
        Pages {
            start: start.cast(),
            len,
        }
    }

    pub fn address(&self) -> usize {
        self.start.addr()
    }

    /// Bytes `from..from + len`, to be registered.
    pub fn range(&self, from: usize, len: usize) -> AddressRange {
        // SAFETY: the pages are the test's own; it touches them by `get` and `set` only, and keeps
        // them longer than the region.
        unsafe { AddressRange::new(self.start.wrapping_add(from), len) }
    }

    /// Takes pages away; their addresses lead nowhere then.
    pub fn unmap(&self, first: usize, count: usize) {
        // SAFETY: pages of this mapping, to which no reference exists.
        let answer = unsafe { libc::munmap(self.page(first), count * PAGE) };
        assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
    }

    /// Puts zeroed pages where there may be none.
    pub fn map_again(&self, first: usize, count: usize) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let read_write = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: within the addresses that this mapping took.
        let at = unsafe { libc::mmap(self.page(first), count * PAGE, read_write, flags, -1, 0) };
        assert_eq!(at, self.page(first));
    }

    pub fn protect(&self, first: usize, count: usize, protection: i32) {
        // SAFETY: pages of this mapping, to which no reference exists.
        let answer = unsafe { libc::mprotect(self.page(first), count * PAGE, protection) };
        assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
    }

    /// Copies out what is not written at the moment.
    pub fn get(&self, from: usize, len: usize) -> Vec<u8> {
        assert!(from + len <= self.len);
        let mut bytes = vec![0; len];
        // SAFETY: within the mapping; the test has made sure that the pages are there and quiet.
        unsafe { ptr::copy_nonoverlapping(self.start.add(from), bytes.as_mut_ptr(), len) };
        bytes
    }

    /// Copies in where no other thread reads at the moment.
    pub fn set(&self, from: usize, bytes: &[u8]) {
        assert!(from + bytes.len() <= self.len);
        // SAFETY: as in `get`.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(from), bytes.len()) };
    }

    fn page(&self, number: usize) -> *mut c_void {
        assert!(number * PAGE <= self.len);
        self.start.wrapping_add(number * PAGE).cast()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this mapping's own addresses; regions made of them are gone, or get EFAULT.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}
