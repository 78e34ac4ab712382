//! The file in memory that two processes share: made and sealed by one, checked and mapped by both.
//!
//! The file cannot shrink, grow or be sealed further, so no access to a mapping of it ever fails
//! because the file has become too short. Its pages are allocated when they are written to. A
//! writer therefore populates pages before it uses them, to get an error if memory is lacking, and
//! frees the pages of an empty ring.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::fs::{
    FallocateFlags, FileType, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals,
    fstat, ftruncate, memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::param::page_size;

use crate::error::{Error, ErrorKind, Result};
use crate::limits::{LOCAL_RING_LEN_MAX, LOCAL_RING_LEN_MIN};

const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// A sealed file: one page of words, then a ring for each direction.
#[derive(Debug)]
pub(super) struct SharedFile {
    fd: OwnedFd,
    ring_len: usize,
}

impl SharedFile {
    /// Makes a file with rings of `ring_len` bytes, a power of two and a multiple of the page size.
    ///
    /// # Errors
    /// The system has no memory or descriptor left, or does not support sealed files in memory.
    pub(super) fn create(ring_len: usize) -> Result<Self> {
        debug_assert!(is_ring_len(ring_len));
        let made = || {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let fd = memfd_create(c"tokio-fabric", flags)?;
            ftruncate(&fd, file_len(ring_len) as u64)?;
            fallocate(&fd, FallocateFlags::empty(), 0, page_size() as u64)?;
            fcntl_add_seals(&fd, SEALS)?;
            Ok(fd)
        };
        let fd = made().map_err(|error| os_error(error, "making shared memory"))?;
        Ok(SharedFile { fd, ring_len })
    }

    /// Takes a file that a peer has made.
    ///
    /// # Errors
    /// [`ErrorKind::ProtocolViolation`]: wrong seals, type or size; a mapping might fail later.
    pub(super) fn received(fd: OwnedFd) -> Result<Self> {
        let seals = fcntl_get_seals(&fd).map_err(|_| not_such("it cannot be sealed"))?;
        if !seals.contains(SEALS) {
            return Err(not_such("it is not sealed"));
        }
        let stat = fstat(&fd).map_err(|error| os_error(error, "looking at shared memory"))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(not_such("it is not a file"));
        }
        let rings = usize::try_from(stat.st_size).ok();
        let rings = rings.and_then(|len| len.checked_sub(page_size()));
        let ring_len = rings.map_or(0, |rings| rings / 2);
        if !is_ring_len(ring_len) || stat.st_size as usize != file_len(ring_len) {
            return Err(not_such("its size is not that of two rings"));
        }
        Ok(SharedFile { fd, ring_len })
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Maps the words of both directions.
    pub(super) fn map_words(&self) -> Result<Mapping> {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        Mapping::new(&self.fd, 0, page_size(), both)
    }

    /// Maps the ring of a direction, 0 or 1; a ring that the peer writes is mapped read-only.
    pub(super) fn map_ring(&self, direction: usize, is_written: bool) -> Result<Mapping> {
        let at = page_size() + direction * self.ring_len;
        let access = match is_written {
            true => ProtFlags::READ | ProtFlags::WRITE,
            false => ProtFlags::READ,
        };
        Mapping::new(&self.fd, at as u64, self.ring_len, access)
    }
}

fn is_ring_len(len: usize) -> bool {
    let range = LOCAL_RING_LEN_MIN..=LOCAL_RING_LEN_MAX;
    len.is_power_of_two() && range.contains(&len) && len.is_multiple_of(page_size())
}

fn file_len(ring_len: usize) -> usize {
    page_size() + 2 * ring_len
}

fn not_such(why: &str) -> Error {
    let what = format!("the peer's shared memory cannot be used: {why}");
    Error::new(ErrorKind::ProtocolViolation, what)
}

fn os_error(error: Errno, doing: &'static str) -> Error {
    Error::from_io(&error.into(), doing)
}

/// A mapped part of a shared file; the drop unmaps it. Another process may write to it at any time.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is an address and a length. Each access through it is an unsafe operation with
// its own proof, which holds on any thread.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(fd: &OwnedFd, at: u64, len: usize, access: ProtFlags) -> Result<Self> {
        // SAFETY: the kernel chooses an unused range of addresses.
        let mapped = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, fd, at) };
        let start = mapped.map_err(|error| os_error(error, "mapping shared memory"))?;
        let start = NonNull::new(start.cast()).ok_or_else(|| not_such("it is at address 0"))?;
        Ok(Mapping { start, len })
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Makes the system allocate the pages of a range that begins at a page boundary.
    ///
    /// # Errors
    /// The system has no memory left.
    pub(super) fn populate(&self, at: usize, len: usize) -> Result<()> {
        match self.advise(at, len, Advice::LinuxPopulateWrite) {
            // Linux before 5.14 allocates the pages when they are written to.
            Err(Errno::INVAL) => Ok(()),
            done => done.map_err(|error| os_error(error, "growing shared memory")),
        }
    }

    /// Frees all pages: their contents are lost, and all bytes are zero.
    pub(super) fn give_back(&self) {
        // Fails only if the system does not support it; the pages are then kept.
        let _ = self.advise(0, self.len, Advice::LinuxRemove);
    }

    fn advise(&self, at: usize, len: usize, advice: Advice) -> rustix::io::Result<()> {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len));
        // SAFETY: the range is within the mapping, which lives as long as `self`; neither advice
        // changes what is mapped, and no reference is formed to bytes that another process writes.
        unsafe { madvise(self.start.as_ptr().add(at).cast(), len, advice) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and no address of it is used after this.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "what was mapped can be unmapped");
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags, open};

    use super::*;

    const LEN: usize = LOCAL_RING_LEN_MIN;

    fn refused(fd: OwnedFd) -> String {
        let error = SharedFile::received(fd).expect_err("it is not such a file");
        assert_eq!(error.kind(), ErrorKind::ProtocolViolation);
        error.to_string()
    }

    fn memfd(len: u64) -> OwnedFd {
        let fd = memfd_create(c"test", MemfdFlags::ALLOW_SEALING).expect("a file");
        ftruncate(&fd, len).expect("a length");
        fd
    }

    #[test]
    fn a_sealed_file_is_taken() {
        let file = SharedFile::create(LEN).expect("a file");
        let same = file.fd.try_clone().expect("a descriptor");
        let same = SharedFile::received(same).expect("it is such a file");
        assert_eq!(same.ring_len, LEN);
        assert!(ftruncate(&same.fd, 0).is_err(), "it does not shrink");
        same.map_words().expect("words");
        same.map_ring(1, false).expect("a ring");
    }

    /// A file that may shrink would end the process that reads it (SIGBUS).
    #[test]
    fn a_file_that_may_shrink_is_refused() {
        assert!(refused(memfd(file_len(LEN) as u64)).contains("not sealed"));
        let shrinks = memfd(file_len(LEN) as u64);
        fcntl_add_seals(&shrinks, SealFlags::GROW | SealFlags::SEAL).expect("sealed");
        assert!(refused(shrinks).contains("not sealed"));
    }

    #[test]
    fn a_file_of_another_size_or_kind_is_refused() {
        for len in [0, 1, file_len(LEN) - 1, file_len(LEN) + 1, page_size() + 2] {
            let fd = memfd(len as u64);
            fcntl_add_seals(&fd, SEALS).expect("sealed");
            assert!(refused(fd).contains("size"), "{len}");
        }
        let device = open("/dev/zero", OFlags::RDWR, Mode::empty()).expect("a device");
        assert!(refused(device).contains("cannot be sealed"));
    }
}
