//! Staging buffers: small frames and headers are received into them and then parsed. One is taken
//! when a socket has something to read, so idle connections hold none.

use std::cell::RefCell;
use std::fmt;
use std::mem;
use std::ops::Deref;

use crate::limits::{STAGE_SIZE, STAGES_PER_THREAD_MAX};

thread_local! {
    /// Buffers of stages that were dropped on this thread, to be used again.
    static IDLE: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// Received bytes not yet consumed; derefs to them. Each connection has at most one at a time.
///
/// Invariant: `start <= end <= buffer.len()`.
pub(crate) struct Stage {
    /// Empty only during drop.
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Stage {
    /// Takes an empty stage. If this thread has no idle buffer one is made, so this never waits.
    pub(crate) fn take() -> Self {
        let idle = IDLE.try_with(|idle| idle.borrow_mut().pop());
        // Zeroed once, when the buffer is made; bytes of former users are never exposed.
        let made = || vec![0; STAGE_SIZE].into_boxed_slice();
        Stage {
            buffer: idle.ok().flatten().unwrap_or_else(made),
            start: 0,
            end: 0,
        }
    }

    /// Returns the number of idle buffers of this thread.
    #[cfg(test)]
    pub(crate) fn idle_count() -> usize {
        IDLE.with_borrow(Vec::len)
    }

    /// Frees the buffers that lie idle on this thread.
    #[cfg(feature = "test-util")]
    pub(crate) fn drop_kept() {
        let _ = IDLE.try_with(RefCell::take);
    }

    /// Returns the room behind the bytes held, to receive into; call [`Stage::fill`] then.
    pub(crate) fn spare(&mut self) -> &mut [u8] {
        &mut self.buffer[self.end..]
    }

    /// Notes that the first `count` bytes of the room have been received.
    pub(crate) fn fill(&mut self, count: usize) {
        assert!(
            count <= self.buffer.len() - self.end,
            "only as many bytes arrive as there was room for"
        );
        self.end += count;
    }

    /// The bytes held, to be changed in place.
    #[cfg(feature = "tls")]
    pub(crate) fn held_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start..self.end]
    }

    /// Drops all but the first `len` of the bytes held.
    #[cfg(feature = "tls")]
    pub(crate) fn truncate(&mut self, len: usize) {
        self.end = self.end.min(self.start + len);
    }

    /// Consumes the first `count` bytes.
    pub(crate) fn advance(&mut self, count: usize) {
        assert!(
            count <= self.end - self.start,
            "only bytes that are there are consumed"
        );
        self.start += count;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }
}

impl Deref for Stage {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let buffer = mem::take(&mut self.buffer);
        // A thread that is ending keeps none.
        let _ = IDLE.try_with(|idle| {
            let mut idle = idle.borrow_mut();
            if idle.len() < STAGES_PER_THREAD_MAX {
                idle.push(buffer);
            }
        });
    }
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stage({} bytes)", self.len())
    }
}
