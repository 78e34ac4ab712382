//! An allocator that counts, and the other things that a process can lose.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};

/// The system's allocator, with the bytes that are in use counted.
pub struct Counting;

static IN_USE: AtomicIsize = AtomicIsize::new(0);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

/// Bytes of an allocation that is a whole buffer.
const LARGE: usize = 128 << 10;

/// What a thread has asked for so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct OfThread {
    pub allocations: u64,
    /// Those of at least [`LARGE`] bytes.
    pub large: u64,
    /// Less what it has freed, which may have been another's.
    pub in_use: i64,
}

thread_local! {
    static OF_THREAD: Cell<OfThread> = const {
        Cell::new(OfThread { allocations: 0, large: 0, in_use: 0 })
    };
}

/// What this thread has asked for.
pub fn of_thread() -> OfThread {
    OF_THREAD.get()
}

fn count_of_thread(asked: usize, freed: usize) {
    // Nothing is counted of a thread that ends.
    let _ = OF_THREAD.try_with(|it| {
        let OfThread {
            allocations,
            large,
            in_use,
        } = it.get();
        it.set(OfThread {
            allocations: allocations + u64::from(asked > 0),
            large: large + u64::from(asked >= LARGE),
            in_use: in_use + asked as i64 - freed as i64,
        });
    });
}

/// How often the process has asked for memory.
pub fn allocations() -> usize {
    ALLOCATIONS.load(Ordering::SeqCst)
}

/// Bytes allocated and not freed, in the whole process.
pub fn bytes_in_use() -> isize {
    IN_USE.load(Ordering::SeqCst)
}

/// Open descriptors of this process.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Queues and buffers of rings that are mapped into this process.
pub fn ring_mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|line| line.contains("io_uring"))
        .count()
}

fn count(pointer: *mut u8, asked: usize, freed: usize) -> *mut u8 {
    if !pointer.is_null() {
        IN_USE.fetch_add(asked as isize - freed as isize, Ordering::SeqCst);
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        count_of_thread(asked, freed);
    }
    pointer
}

// SAFETY: every call goes to the system's allocator as it is; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are the system allocator's conditions.
        count(unsafe { System.alloc(layout) }, layout.size(), 0)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        count(unsafe { System.alloc_zeroed(layout) }, layout.size(), 0)
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size() as isize, Ordering::SeqCst);
        count_of_thread(0, layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        let moved = unsafe { System.realloc(pointer, layout, size) };
        count(moved, size, layout.size())
    }
}
