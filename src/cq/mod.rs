//! Completion queues (`fi_cq(3)`): they receive the completions of operations that were posted with
//! a context, and report data that peers send with their writes.
//!
//! The slot of a completion is reserved when its operation is accepted, so a queue cannot overrun,
//! and the "overrun" state of `fi_cq(3)` does not exist.

#![forbid(unsafe_code)]

mod completion;
mod slots;
mod source;
#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures::Stream;
use futures::stream::FusedStream;

use crate::error::{Error, ErrorKind, Result};
use crate::id::DomainId;
use crate::limits::CQ_SIZE_DEFAULT;
use crate::stats::QueueStats;
use crate::sync::{Dependence, DomainScope, Keep, ManualProgress, Reader, Ring};

pub use completion::{Completion, CompletionError, CompletionFlags};
pub(crate) use slots::CqSlot;
pub(crate) use source::{Source, SourceName, Sources};

/// A queue of [`Completion`]s, read as a [`Stream`], in batches, or without waiting (`fi_cq(3)`).
///
/// Completions are in the order in which their operations completed. Failed operations are reported
/// in the same way, with the error in [`Completion::result`] (where C has `fi_cq_readerr`). Clones
/// are handles of the same queue; each completion is delivered to exactly one reader.
///
/// The queue holds at most [`capacity`](Self::capacity) completions, including those of outstanding
/// operations; their memory is allocated when the queue is opened. If the queue is full, the next
/// queued operation waits (`try_*` fails with [`ErrorKind::Again`]), and a connection on which a
/// peer's write with data arrives is not read until a slot is free. No completion is dropped.
///
/// As a stream it yields `None` only after [`close`](Self::close).
///
/// ```
/// use tokio_fabric::UserContext;
/// use tokio_fabric::testing::Net;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let (a, b) = Net::loopback().pair().await?;
/// for number in 0..3u64 {
///     b.recv(vec![0; 8]).queue(number).await?;
///     a.send(vec![number as u8; 8]).await?;
/// }
/// for number in 0..3 {
///     let completion = b.receive_queue().next().await.expect("it is open");
///     assert_eq!((completion.context, completion.len), (UserContext(number), 8));
/// }
/// # Ok(()) }
/// ```
///
/// # Cancel safety
///
/// A completion leaves the queue in the poll that returns it. Dropping a waiting future or a handle
/// before that loses no completion and no other reader's wake-up.
#[doc(alias = "fi_cq_open")]
pub struct CompletionQueue {
    domain: DomainId,
    reader: Reader<Completion>,
}

impl CompletionQueue {
    /// Starts building a queue of this domain. `keep` stays alive until the queue is closed; if it
    /// is an error, opening the queue returns it.
    pub(crate) fn builder(
        domain: &DomainScope,
        keep: Result<Option<Keep>>,
    ) -> CompletionQueueBuilder {
        CompletionQueueBuilder {
            domain: domain.own(),
            size: 0,
            keep,
            progress: domain.progress().cloned(),
        }
    }

    /// Takes the first completion, if there is one (`fi_cq_read` with a count of one). Also `None`
    /// if the queue is closed.
    #[doc(alias = "fi_cq_read")]
    pub fn try_next(&self) -> Option<Completion> {
        self.ring().try_pop()
    }

    /// Waits for a completion and takes it (`fi_cq_sread`). Returns `None` only once the queue is
    /// closed.
    ///
    /// May be called from several tasks at the same time, unlike the stream's `next`, which needs
    /// the handle exclusively. For a deadline wrap it in `tokio::time::timeout`; in place of
    /// `fi_cq_signal`, drop the future.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future takes no completion.
    #[doc(alias = "fi_cq_sread")]
    pub async fn next(&self) -> Option<Completion> {
        let mut reader = self.reader.clone();
        poll_fn(|cx| reader.poll_pop(cx)).await
    }

    /// Appends the completions that are available now, at most `max`, to `into`, and returns their
    /// number (`fi_cq_read`). Never waits: returns 0 if there are none, or if the queue is closed.
    #[doc(alias = "fi_cq_read")]
    pub fn read_batch(&self, into: &mut Vec<Completion>, max: usize) -> usize {
        self.ring().try_pop_batch(into, max)
    }

    /// Waits for at least one completion, and takes all that are available, at most `max`
    /// (`fi_cq_sread`).
    ///
    /// Returns no completion only if the queue is closed or `max` is 0. May be called from several
    /// tasks at the same time.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future takes no completion.
    #[doc(alias = "fi_cq_sread")]
    pub async fn next_batch(&self, max: usize) -> Vec<Completion> {
        if max == 0 {
            return Vec::new();
        }
        let mut reader = self.reader.clone();
        poll_fn(|cx| reader.poll_pop_batch(cx, max)).await
    }

    /// The largest number of completions that the queue holds, including those of outstanding
    /// operations.
    pub fn capacity(&self) -> usize {
        self.ring().capacity()
    }

    /// Statistics: how many entries the queue holds and has held.
    pub fn stats(&self) -> QueueStats {
        self.ring().stats()
    }

    /// How many completions wait to be read. Another reader may take them at any moment.
    pub fn len(&self) -> usize {
        self.ring().len()
    }

    /// True if no completion waits to be read.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Closes the queue for all its handles (`fi_close`): its streams end, waiting readers get
    /// `None`, and "any completions which remain on the CQ when it is closed are lost", with their
    /// buffers. Closing twice is not an error. If all handles are dropped, the queue need not be
    /// closed.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Busy`] while endpoints are bound to the queue or operations have yet to report
    /// to it; the message names them, and the queue stays open.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it does its work at the first poll and never waits.
    pub async fn close(&self) -> Result<()> {
        self.ring()
            .close()
            .map_err(|users| Error::new(ErrorKind::Busy, format!("completion queue {users}")))
    }

    /// True once the queue is closed.
    pub fn is_closed(&self) -> bool {
        self.ring().is_closed()
    }

    /// Takes a slot for one completion; `None` if the queue is full (or closed).
    pub(crate) fn try_reserve(&self) -> Option<CqSlot> {
        self.ring().try_reserve().map(CqSlot::new)
    }

    /// As `try_reserve`, but if no slot is free, `waker` is woken once when one becomes free.
    pub(crate) fn reserve_or_wake(&self, waker: &Waker) -> Option<CqSlot> {
        self.ring().reserve_or_wake(waker).map(CqSlot::new)
    }

    /// Withdraws a waker that waits for a slot. Returns true if the waker was waiting.
    pub(crate) fn withdraw(&self, waker: &Waker) -> bool {
        self.ring().withdraw(waker)
    }

    /// Returns the queue's ring, for an object that fills the queue and never reads it: a handle is
    /// five times as large.
    pub(crate) fn places(&self) -> Ring<Completion> {
        self.ring().clone()
    }

    /// Binds the object of this name, so that `close` returns Busy until the result is dropped.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the queue belongs to no domain of `scope`,
    /// [`ErrorKind::BadState`] if it is closed.
    pub(crate) fn depend(&self, scope: &DomainScope, name: Arc<str>) -> Result<Dependence> {
        scope.check("completion queue", self.domain)?;
        let closed = || Error::new(ErrorKind::BadState, "the completion queue is closed");
        let dependence = self.ring().depend(name).ok_or_else(closed)?;
        self.drive(scope.progress());
        Ok(dependence)
    }

    /// From now on reading the queue drives this progress.
    pub(crate) fn drive(&self, progress: Option<&Arc<ManualProgress>>) {
        self.ring().drive(progress);
    }

    /// Returns whether both handles are of the same queue.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.ring().is_same(other.ring())
    }

    fn ring(&self) -> &Ring<Completion> {
        self.reader.ring()
    }
}

impl Clone for CompletionQueue {
    fn clone(&self) -> Self {
        CompletionQueue {
            domain: self.domain,
            reader: self.reader.clone(),
        }
    }
}

impl Stream for CompletionQueue {
    type Item = Completion;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Completion>> {
        self.reader.poll_pop(cx)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // Other readers may take the completions that are there now.
        (0, None)
    }
}

impl FusedStream for CompletionQueue {
    fn is_terminated(&self) -> bool {
        self.is_closed()
    }
}

debug_fields!(CompletionQueue, self =>
    capacity: self.capacity(), len: self.len(), closed: self.is_closed()
);

/// Opens a [`CompletionQueue`] (`fi_cq_open`).
///
/// You get one from [`Domain::completion_queue`](crate::Domain::completion_queue).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let domain = Net::loopback().peer()?.domain;
/// let queue = domain.completion_queue().size(4096).open()?;
/// assert_eq!(queue.capacity(), 4096);
/// # Ok(()) }
/// ```
#[must_use = "nothing is opened before `open`"]
pub struct CompletionQueueBuilder {
    domain: DomainId,
    /// Number of slots; 0: the default.
    size: usize,
    keep: Result<Option<Keep>>,
    progress: Option<Arc<ManualProgress>>,
}

impl CompletionQueueBuilder {
    /// The number of completions the queue holds, including those of outstanding operations.
    /// Default, also for 0 (`fi_cq(3)`): 1024. If the queue is too small, posts have to wait; each
    /// slot takes a few hundred bytes from the start.
    pub fn size(mut self, size: usize) -> Self {
        self.size = size;
        self
    }

    /// Opens the queue.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LimitReached`] if `cq_cnt` is a
    /// [limit](crate::domain::DomainBuilder::limit) that is reached, or if there is no memory for a
    /// queue of this size; [`ErrorKind::BadState`] if the domain is closed.
    pub fn open(self) -> Result<CompletionQueue> {
        let size = match self.size {
            0 => CQ_SIZE_DEFAULT,
            size => size,
        };
        let ring = Ring::new(size, self.keep?)?;
        ring.drive(self.progress.as_ref());
        Ok(CompletionQueue {
            domain: self.domain,
            reader: Reader::new(ring),
        })
    }
}

debug_fields!(CompletionQueueBuilder, self => size: self.size);
