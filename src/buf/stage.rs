//! Staging buffers: small frames and headers are received into them and then parsed. A pool lends
//! one when a socket has something to read, so idle connections hold none.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::limits::STAGE_SIZE;
use crate::sync::Lock;

/// Keeps idle staging buffers for reuse, at most so many; more are made when needed and freed
/// after, so taking one never fails and never waits. Each connection has at most one at a time,
/// which bounds those in use.
pub(crate) struct StagePool {
    idle: Lock<Vec<Box<[u8]>>>,
    idle_max: usize,
}

impl StagePool {
    /// A pool that keeps up to `idle_max` idle buffers of [`STAGE_SIZE`] bytes.
    pub(crate) fn new(idle_max: usize) -> Arc<Self> {
        Arc::new(StagePool {
            idle: Lock::new(Vec::new()),
            idle_max,
        })
    }

    /// Lends an empty stage.
    pub(crate) fn take(self: &Arc<Self>) -> Stage {
        let idle = self.idle.lock("take a stage").pop();
        // Zeroed once, at its making; what a later user finds beyond its own bytes is never shown.
        let buffer = idle.unwrap_or_else(|| vec![0; STAGE_SIZE].into_boxed_slice());
        Stage {
            buffer,
            start: 0,
            end: 0,
            pool: Arc::clone(self),
        }
    }

    /// How many buffers lie idle.
    pub(crate) fn idle_count(&self) -> usize {
        self.idle.lock("count stages").len()
    }

    fn put(&self, buffer: Box<[u8]>) {
        let mut idle = self.idle.lock("return a stage");
        if idle.len() < self.idle_max {
            idle.push(buffer);
        }
    }
}

debug_fields!(StagePool, self => idle: self.idle_count(), idle_max: self.idle_max);

/// Received bytes not yet consumed; derefs to them. Goes back to its pool when dropped.
///
/// Invariant: `start <= end <= buffer.len()`.
pub(crate) struct Stage {
    /// Empty only during drop.
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    pool: Arc<StagePool>,
}

impl Stage {
    /// The room behind the bytes held, to receive into; then say [`Stage::fill`].
    pub(crate) fn spare(&mut self) -> &mut [u8] {
        &mut self.buffer[self.end..]
    }

    /// The first `count` bytes of the room have been received.
    pub(crate) fn fill(&mut self, count: usize) {
        assert!(
            count <= self.buffer.len() - self.end,
            "only as many bytes arrive as there was room for"
        );
        self.end += count;
    }

    /// The first `count` bytes are consumed.
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
        self.pool.put(std::mem::take(&mut self.buffer));
    }
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stage({} bytes)", self.len())
    }
}
