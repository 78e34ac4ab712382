//! An address with a length, and lists of them in the kernel's own form: the only shape in which
//! memory reaches a system call.

use std::fmt;
use std::mem::MaybeUninit;

use crate::limits::SPAN_LIST_MAX;

/// Some bytes, by address. Inert: it owns nothing, keeps nothing alive and gives no access by
/// itself; a caller that passes it to the kernel proves that the bytes are allocated and may be
/// touched.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    start: *mut u8,
    len: usize,
}

// SAFETY: a span is two numbers; every use of the address is an unsafe operation with its own
// proof, on any thread (memory-model rule 2).
unsafe impl Send for Span {}
// SAFETY: as for Send; a shared span offers nothing but its two numbers.
unsafe impl Sync for Span {}

impl Span {
    #[inline]
    pub(crate) fn new(start: *mut u8, len: usize) -> Self {
        Span { start, len }
    }

    /// The span of a plain slice, for reading: header bytes, staging bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Span::new(bytes.as_ptr().cast_mut(), bytes.len())
    }

    /// The address, only to be written through when the memory is writable.
    #[inline]
    pub(crate) fn as_ptr(self) -> *mut u8 {
        self.start
    }

    #[inline]
    pub(crate) fn len(self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The address as a number, as peers in virtual address mode name it.
    pub(crate) fn address(self) -> u64 {
        self.start.addr() as u64
    }

    /// The addresses as numbers. No span wraps: it lies within one allocation.
    pub(crate) fn addresses(self) -> std::ops::Range<usize> {
        let start = self.start.addr();
        start..start + self.len
    }

    /// The part of `len` bytes at `offset`, which must lie within.
    pub(crate) fn part(self, offset: usize, len: usize) -> Span {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.len),
            "a part lies within its span"
        );
        // Wrapping arithmetic keeps this free of any claim about the memory; it never wraps, since
        // the whole span is within one allocation.
        Span::new(self.start.wrapping_add(offset), len)
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Addresses help attackers more than readers of logs.
        write!(f, "Span({} bytes)", self.len)
    }
}

/// A bounded list of spans as `iovec`s, built on the stack right before the call that takes it.
pub(crate) struct SpanList {
    entries: [MaybeUninit<libc::iovec>; SPAN_LIST_MAX],
    count: usize,
    bytes: usize,
}

impl SpanList {
    pub(crate) fn new() -> Self {
        SpanList {
            entries: [const { MaybeUninit::uninit() }; SPAN_LIST_MAX],
            count: 0,
            bytes: 0,
        }
    }

    /// Appends a span; empty ones are left out, as they mean nothing to the kernel. False, and
    /// nothing changes, when the list is full.
    pub(crate) fn push(&mut self, span: Span) -> bool {
        if span.is_empty() {
            return true;
        }
        if self.is_full() {
            return false;
        }
        self.entries[self.count].write(libc::iovec {
            iov_base: span.as_ptr().cast(),
            iov_len: span.len(),
        });
        self.count += 1;
        // Saturates only in a call of 2^64 bytes, which the kernel would shorten anyway.
        self.bytes = self.bytes.saturating_add(span.len());
        true
    }

    /// Appends room to be received into, as [`push`](Self::push) does. The borrow ends here: the
    /// caller keeps the room allocated and exclusive while the list is in use.
    pub(crate) fn push_room(&mut self, room: &mut [u8]) -> bool {
        self.push(Span::new(room.as_mut_ptr(), room.len()))
    }

    pub(crate) fn is_full(&self) -> bool {
        self.count == SPAN_LIST_MAX
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the number of listed spans.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of bytes that the spans cover together.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    #[allow(dead_code, reason = "a ring uses its lists again")]
    pub(crate) fn clear(&mut self) {
        self.count = 0;
        self.bytes = 0;
    }

    /// The list as `sendmsg` and `recvmsg` take it. The entries' memory is guaranteed by the
    /// payloads and leases they were made from, not by this list.
    pub(crate) fn as_iovecs(&self) -> &[libc::iovec] {
        let filled = &self.entries[..self.count];
        // SAFETY: invariant: the first `count` entries have been written by `push`; MaybeUninit<T>
        // has T's layout. No pointer inside is followed here (memory-model rule 2).
        unsafe { &*(std::ptr::from_ref(filled) as *const [libc::iovec]) }
    }

    /// The listed spans again.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = Span> + '_ {
        self.as_iovecs()
            .iter()
            .map(|entry| Span::new(entry.iov_base.cast(), entry.iov_len))
    }
}

impl fmt::Debug for SpanList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SpanList({} spans, {} bytes)", self.count, self.bytes)
    }
}
