//! What the allocator has given out.

/// Bytes of this process's heap in use, as the C library counts them. It counts the C driver's in
/// the same way.
pub fn heap_in_use() -> u64 {
    // SAFETY: the call takes nothing and returns numbers.
    let info = unsafe { libc::mallinfo2() };
    info.uordblks as u64 + info.hblkhd as u64
}
