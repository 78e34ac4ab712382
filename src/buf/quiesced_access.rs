//! Sole access to a region's memory: the one way to a `&mut [u8]` into it (memory-model rule 3).

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::slice;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::task::coop;

use super::region::RegionMemory;
use crate::sync::{DrainScope, GateError, WaiterKey};

/// Shuts the gate to new users, waits until it is drained, and then returns [`QuiescedAccess`].
/// Dropping it opens the gate again.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Quiescing {
    /// Taken at the end, when the exclusion is passed on.
    memory: Option<Arc<RegionMemory>>,
    key: Option<WaiterKey>,
}

impl RegionMemory {
    /// Begins to exclude all users. `Err` if the region is closed or excluded already.
    pub(crate) fn quiesce(self: &Arc<Self>) -> Result<Quiescing, GateError> {
        self.gate().begin_quiesce()?;
        Ok(Quiescing {
            memory: Some(Arc::clone(self)),
            key: None,
        })
    }
}

impl Future for Quiescing {
    type Output = QuiescedAccess;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<QuiescedAccess> {
        let budget = ready!(coop::poll_proceed(cx));
        let this = self.get_mut();
        if let Some(memory) = &this.memory {
            let gate = memory.gate();
            ready!(gate.poll_drained(DrainScope::All, &mut this.key, cx.waker()));
        }
        budget.made_progress();
        let memory = this.memory.take();
        Poll::Ready(QuiescedAccess {
            memory: memory.expect("a future is not polled after its end"),
        })
    }
}

impl Drop for Quiescing {
    fn drop(&mut self) {
        if let Some(memory) = &self.memory {
            memory.gate().cancel_wait(&mut self.key);
            memory.gate().end_quiesce();
        }
    }
}

impl fmt::Debug for Quiescing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Quiescing")
    }
}

/// Sole access to a region's bytes, until dropped. If it is leaked, the region stays quiesced.
///
/// Invariant: the gate is quiesced on behalf of this value and drained of all roles, so no entry
/// exists; the gate cannot be closed meanwhile, so the buffers are still in the region.
pub(crate) struct QuiescedAccess {
    memory: Arc<RegionMemory>,
}

impl QuiescedAccess {
    pub(crate) fn segment_count(&self) -> usize {
        self.memory.segment_count()
    }

    /// The bytes of one segment.
    pub(crate) fn segment(&self, index: usize) -> &[u8] {
        let span = self.memory.segment(index);
        // SAFETY: by the invariant the bytes are allocated and nothing else touches them while
        // `self` lives; writing takes `&mut self` (memory-model rule 3).
        unsafe { slice::from_raw_parts(span.as_ptr().cast_const(), span.len()) }
    }

    /// The bytes of one segment, for change.
    pub(crate) fn segment_mut(&mut self, index: usize) -> &mut [u8] {
        self.segments_mut()
            .nth(index)
            .expect("the caller asks for a segment that exists")
    }

    /// The bytes of all segments, for change.
    pub(crate) fn segments_mut(&mut self) -> impl ExactSizeIterator<Item = &mut [u8]> {
        let memory = &*self.memory;
        assert!(memory.is_writable(), "only writable regions are written to");
        (0..memory.segment_count()).map(move |index| {
            let span = memory.segment(index);
            // SAFETY: as in `segment`; writable, as just checked; `self` is borrowed for change as
            // long as the slices live, and segments are separately owned buffers, so the slices of
            // different indices do not overlap (memory-model rule 3).
            unsafe { slice::from_raw_parts_mut(span.as_ptr(), span.len()) }
        })
    }
}

impl Drop for QuiescedAccess {
    fn drop(&mut self) {
        self.memory.gate().end_quiesce();
    }
}

impl fmt::Debug for QuiescedAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QuiescedAccess").field(&self.memory).finish()
    }
}
