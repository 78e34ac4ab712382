//! Reused memory of frames and bodies.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use crate::limits::{SPARE_BUFFER_MAX, SPARE_BUFFERS_MAX};

thread_local! {
    /// Buffers that were dropped on this thread.
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Bytes of a frame or of a body, in reused memory. They are on the heap, since a call moves them
/// several times; small buffers need no new allocation.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FrameBuf(Vec<u8>);

impl FrameBuf {
    /// Creates an empty buffer with room for `len` bytes.
    #[inline]
    pub fn with_capacity(len: usize) -> FrameBuf {
        if len > SPARE_BUFFER_MAX {
            return FrameBuf(Vec::with_capacity(len));
        }
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop());
        let spare = spare.ok().flatten();
        FrameBuf(spare.unwrap_or_else(|| Vec::with_capacity(SPARE_BUFFER_MAX / 2)))
    }

    /// Creates a buffer with these bytes.
    pub fn from_slice(bytes: &[u8]) -> FrameBuf {
        let mut buffer = FrameBuf::with_capacity(bytes.len());
        buffer.0.extend_from_slice(bytes);
        buffer
    }

    /// Inserts bytes at `at`, and moves the following bytes back.
    pub fn insert_from_slice(&mut self, at: usize, bytes: &[u8]) {
        let len = self.0.len();
        self.0.extend_from_slice(bytes);
        self.0.copy_within(at..len, at + bytes.len());
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Returns the buffer as a `Vec`.
    pub fn into_vec(mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}

impl From<Vec<u8>> for FrameBuf {
    fn from(bytes: Vec<u8>) -> FrameBuf {
        FrameBuf(bytes)
    }
}

impl Clone for FrameBuf {
    fn clone(&self) -> FrameBuf {
        FrameBuf::from_slice(&self.0)
    }
}

impl Drop for FrameBuf {
    /// Keeps the memory on this thread, which usually took the buffer too.
    #[inline]
    fn drop(&mut self) {
        if (1..=SPARE_BUFFER_MAX).contains(&self.0.capacity()) {
            keep(std::mem::take(&mut self.0));
        }
    }
}

fn keep(mut buffer: Vec<u8>) {
    buffer.clear();
    // A thread that is ending drops the buffer.
    let _ = SPARE.try_with(|spare| {
        let mut spare = spare.borrow_mut();
        if spare.len() < SPARE_BUFFERS_MAX {
            spare.push(buffer);
        }
    });
}

impl Deref for FrameBuf {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl DerefMut for FrameBuf {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_buffers_are_used_again_empty_and_large_ones_are_not_kept() {
        let first = FrameBuf::from_slice(&[7; 100]);
        let at = first.as_ptr();
        drop(first);
        let mut again = FrameBuf::with_capacity(10);
        assert_eq!((again.as_ptr(), again.len()), (at, 0));
        again.extend_from_slice(b"headbody");
        again.insert_from_slice(4, b"more than there was behind it");
        assert_eq!(&again[..], b"headmore than there was behind itbody");
        drop(FrameBuf::from(vec![0; SPARE_BUFFER_MAX + 1]));
        drop(FrameBuf::default());
        let (_again, other) = (again, FrameBuf::with_capacity(SPARE_BUFFER_MAX));
        assert!(other.capacity() <= SPARE_BUFFER_MAX);
        let many: Vec<_> = (0..=SPARE_BUFFERS_MAX)
            .map(|_| FrameBuf::with_capacity(1))
            .collect();
        drop(many);
        SPARE.with_borrow(|spare| assert_eq!(spare.len(), SPARE_BUFFERS_MAX));
    }
}
