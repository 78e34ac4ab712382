//! How often the allocator was asked, here and in the other end.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::File;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap};

/// The system's allocator, with a count of its calls from [`count_all`] on: a call that gives
/// memory counts one, a call that takes it back counts nothing.
#[derive(Debug)]
pub struct Counting;

/// Counts until [`share`] has found a place that the other end can read.
static OWN: AtomicU64 = AtomicU64::new(0);
/// Null until [`count_all`]: a count takes a quarter of an allocation's time.
static SHARED: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());

fn count() {
    let shared = SHARED.load(Ordering::Relaxed);
    // SAFETY: it is null, or `OWN`, or a mapping of this process that is never taken away.
    if let Some(place) = unsafe { shared.as_ref() } {
        place.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator as it came; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    /// # Safety
    /// As for the system's.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    /// # Safety
    /// As for the system's.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    /// # Safety
    /// As for the system's.
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }

    /// # Safety
    /// As for the system's.
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

fn file_of(process: u32) -> String {
    format!("/dev/shm/fabric-bench-{process}")
}

/// A counter in a file that several processes map.
fn map(file: &File) -> io::Result<&'static AtomicU64> {
    let len = size_of::<AtomicU64>();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, which replaces none.
    let place = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, file, 0)? };
    // SAFETY: a page begins there, of a file that holds as many bytes; all who map it use it as an
    // atomic number, and it is never unmapped.
    Ok(unsafe { &*place.cast::<AtomicU64>() })
}

/// Counts from now on.
pub fn count_all() {
    SHARED.store(ptr::from_ref(&OWN).cast_mut(), Ordering::Relaxed);
}

/// Lets the other end read this process's count.
///
/// # Errors
/// There is no shared memory.
pub fn share() -> io::Result<()> {
    let options = File::options()
        .read(true)
        .write(true)
        .create(true)
        .to_owned();
    let file = options.open(file_of(std::process::id()))?;
    file.set_len(size_of::<AtomicU64>() as u64)?;
    SHARED.store(ptr::from_ref(map(&file)?).cast_mut(), Ordering::Relaxed);
    Ok(())
}

/// Takes the name of the shared count away, once the other end has opened it or the run is over.
pub fn forget(process: u32) {
    let _ = std::fs::remove_file(file_of(process));
}

/// The counts of both ends.
#[derive(Debug)]
pub struct Allocations {
    peer: &'static AtomicU64,
}

impl Allocations {
    /// `None` if the other end does not count (it is not a program in Rust).
    pub fn of_both(peer: u32) -> Option<Allocations> {
        let file = File::options()
            .read(true)
            .write(true)
            .open(file_of(peer))
            .ok()?;
        Some(Allocations {
            peer: map(&file).ok()?,
        })
    }

    /// This end's, and the other's.
    pub fn now(&self) -> [u64; 2] {
        let shared = SHARED.load(Ordering::Relaxed);
        // SAFETY: as in `count`.
        let here = unsafe { shared.as_ref() }.unwrap_or(&OWN);
        [here, self.peer].map(|it| it.load(Ordering::Relaxed))
    }
}
