//! A device whose memory this process cannot touch: its addresses are mapped without any right, so
//! that an access faults, and its owner reaches the bytes through a file.

use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::SeqCst};

use tokio_fabric::Domain;
use tokio_fabric::buf::{DeviceBuffer, HmemIface, HmemIov, HmemOps};
use tokio_fabric::domain::{DomainOps, SET_OPS_HMEM_OVERRIDE};

pub const DEVICE: u64 = 3;

/// What the owner does instead of the copy that is due to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Gives this number.
    Number(i32),
    Short,
    Panic,
}

pub struct Device {
    file: File,
    iface: HmemIface,
    start: usize,
    len: usize,
    next: AtomicUsize,
    /// Copies, and the longest.
    pub copies: AtomicUsize,
    pub longest: AtomicUsize,
    /// So many copies succeed before one fails; none if negative.
    fails_after: AtomicI64,
    failure: std::sync::Mutex<Failure>,
    /// Copies may wait, as the device says.
    blocks: bool,
    /// Copies wait while this is set.
    is_held: std::sync::Mutex<bool>,
    released: std::sync::Condvar,
}

impl Device {
    pub fn new(len: usize) -> Arc<Device> {
        Device::of(HmemIface::Cuda, len)
    }

    /// One that is reached by this interface.
    pub fn of(iface: HmemIface, len: usize) -> Arc<Device> {
        Device::with(iface, len, false)
    }

    /// One whose copies may wait.
    pub fn that_blocks(len: usize) -> Arc<Device> {
        Device::with(HmemIface::Cuda, len, true)
    }

    fn with(iface: HmemIface, len: usize, blocks: bool) -> Arc<Device> {
        // SAFETY: a name that ends in 0, and a mapping without rights, which replaces none.
        let (file, start) = unsafe {
            let fd = libc::memfd_create(c"device".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0, "{}", io::Error::last_os_error());
            let (flags, none) = (libc::MAP_SHARED, std::ptr::null_mut());
            let start = libc::mmap(none, len, libc::PROT_NONE, flags, fd, 0);
            assert_ne!(start, libc::MAP_FAILED, "{}", io::Error::last_os_error());
            (File::from_raw_fd(fd), start.addr())
        };
        file.set_len(len as u64).unwrap();
        Arc::new(Device {
            file,
            iface,
            start,
            len,
            next: AtomicUsize::new(0),
            copies: AtomicUsize::new(0),
            longest: AtomicUsize::new(0),
            fails_after: AtomicI64::new(-1),
            failure: std::sync::Mutex::new(Failure::Short),
            blocks,
            is_held: std::sync::Mutex::new(false),
            released: std::sync::Condvar::new(),
        })
    }

    /// Copies for this domain from now on.
    pub fn serve(self: &Arc<Self>, domain: &Domain) {
        let ops = DomainOps::Hmem(Arc::clone(self) as Arc<dyn HmemOps>);
        domain.set_ops(SET_OPS_HMEM_OVERRIDE, ops).unwrap();
    }

    /// So many bytes that are in no other buffer.
    pub fn allocate(self: &Arc<Self>, len: usize) -> DeviceBuffer {
        let at = self.next.fetch_add(len.next_multiple_of(64), SeqCst);
        assert!(at + len <= self.len, "a larger device is needed");
        let address = (self.start + at) as u64;
        let keep = Arc::clone(self);
        DeviceBuffer::new(self.iface, DEVICE, address, len).keeping(keep)
    }

    pub fn fail_after(&self, copies: i64, how: Failure) {
        *self.failure.lock().unwrap() = how;
        self.fails_after.store(copies, SeqCst);
    }

    /// From now on copies wait for their release.
    pub fn hold(&self) {
        *self.is_held.lock().unwrap() = true;
    }

    pub fn release(&self) {
        *self.is_held.lock().unwrap() = false;
        self.released.notify_all();
    }

    /// True if the next copy is to fail, which it does once.
    fn is_to_fail(&self, len: usize) -> Option<Failure> {
        self.copies.fetch_add(1, SeqCst);
        self.longest.fetch_max(len, SeqCst);
        let left = self.fails_after.fetch_sub(1, SeqCst);
        (left == 0).then(|| *self.failure.lock().unwrap())
    }

    fn each(
        &self,
        iov: &HmemIov<'_>,
        offset: u64,
        len: usize,
        mut copy: impl FnMut(&File, usize, std::ops::Range<usize>) -> io::Result<()>,
    ) -> io::Result<usize> {
        assert_eq!((iov.iface, iov.device), (self.iface, DEVICE));
        let failure = self.is_to_fail(len);
        let held = self.is_held.lock().unwrap();
        drop(self.released.wait_while(held, |held| *held));
        match failure {
            Some(Failure::Number(os)) => return Err(io::Error::from_raw_os_error(os)),
            Some(Failure::Short) => return Ok(len - 1),
            Some(Failure::Panic) => panic!("the device has had enough"),
            None => {}
        }
        let mut done = 0;
        for part in iov.parts(offset, len) {
            let at = part.address as usize - self.start;
            copy(&self.file, at, done..done + part.len)?;
            done += part.len;
        }
        Ok(done)
    }
}

impl HmemOps for Device {
    fn copy_to_host(&self, into: &mut [u8], iov: &HmemIov<'_>, offset: u64) -> io::Result<usize> {
        let len = into.len();
        self.each(iov, offset, len, |file, at, part| {
            file.read_exact_at(&mut into[part], at as u64)
        })
    }

    fn copy_from_host(&self, iov: &HmemIov<'_>, offset: u64, from: &[u8]) -> io::Result<usize> {
        self.each(iov, offset, from.len(), |file, at, part| {
            file.write_all_at(&from[part], at as u64)
        })
    }

    fn may_block(&self) -> bool {
        self.blocks
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, to which no reference exists.
        unsafe {
            libc::munmap(std::ptr::without_provenance_mut(self.start), self.len);
        }
    }
}
