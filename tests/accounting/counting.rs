//! An allocator that counts, and the other things that a process can lose.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};

/// The system's allocator, with the bytes that are in use counted.
pub struct Counting;

static IN_USE: AtomicIsize = AtomicIsize::new(0);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

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

fn count(pointer: *mut u8, bytes: isize) -> *mut u8 {
    if !pointer.is_null() {
        IN_USE.fetch_add(bytes, Ordering::SeqCst);
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
    }
    pointer
}

// SAFETY: every call goes to the system's allocator as it is; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are the system allocator's conditions.
        count(unsafe { System.alloc(layout) }, layout.size() as isize)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        count(
            unsafe { System.alloc_zeroed(layout) },
            layout.size() as isize,
        )
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size() as isize, Ordering::SeqCst);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        let moved = unsafe { System.realloc(pointer, layout, size) };
        count(moved, size as isize - layout.size() as isize)
    }
}
