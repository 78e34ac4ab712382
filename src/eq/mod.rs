//! Event queues (`fi_eq(3)`): connection management, completed registrations, failed control
//! operations and the application's own events, as one stream.
//!
//! The slot of an event is reserved before the operation that causes the event begins, so a queue
//! cannot overrun, and the "overrun" state of `fi_eq(3)` does not exist.

#![forbid(unsafe_code)]

mod event;
mod handles;
mod request;
#[cfg(test)]
mod tests;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::Stream;
use futures::stream::FusedStream;

use crate::error::{Error, ErrorKind, Result};
use crate::limits::EQ_SIZE_DEFAULT;
use crate::stats::QueueStats;
use crate::sync::{
    Dependence, Keep, ManualProgress, Reader, Reserve, ReserveMany, Ring, Slot, WakeList, WeakRing,
};

pub use crate::id::EndpointId;
pub use event::{Event, EventError};
pub(crate) use handles::HandleWatch;
use handles::Handles;
pub use request::ConnRequest;
pub(crate) use request::{AcceptedLink, ConnectParams, LinkTaker, Verdict};

/// A queue of [`Event`]s, read as a [`Stream`] or without waiting (`fi_eq(3)`).
///
/// Events are in the order in which they happened. Failures are events too ([`Event::Error`], where
/// C has `fi_eq_readerr`), so that `?` in an accept loop does not stop a server. Clones are handles
/// of the same queue; each event is delivered to exactly one reader.
///
/// The queue holds at most [`capacity`](Self::capacity) events; storage for them is allocated when
/// it is opened. Slots are reserved in advance: an endpoint reserves those of its `Connected` and
/// `Shutdown` when it is opened, a registration with an event when it is submitted. If no slot is
/// free, the call waits or fails with [`ErrorKind::Again`], and a listener stops accepting. No
/// event is lost, and a queue that is not read delays only the objects that report to it.
///
/// As a stream it yields `None` only after [`close`](Self::close).
///
/// ```
/// use tokio_fabric::{Event, Fabric, Hints};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let fabric = Fabric::open(Hints::new())?;
/// let events = fabric.event_queue().size(64).open()?;
/// let listener = fabric.passive_endpoint(&events).listen_at(([127, 0, 0, 1], 0).into())?;
/// let address = listener.local_addr();
/// let client = tokio::spawn(async move {
///     let endpoint = fabric.domain().open()?.endpoint().open()?;
///     endpoint.connect(address).await
/// });
/// match events.next().await {
///     Some(Event::ConnRequest(request)) => request.reject().data("closed today").send()?,
///     other => panic!("{other:?} instead of a request"),
/// }
/// let rejected = client.await.expect("no panic").unwrap_err();
/// assert_eq!(rejected.data(), "closed today");
/// # Ok(()) }
/// ```
///
/// # Cancel safety
///
/// An event leaves the queue in the poll that returns it. Dropping a waiting future or a handle
/// before that loses no event and no other reader's wake-up.
///
/// When the last handle is dropped, unread events are dropped, which rejects the connection
/// requests among them, and listeners that report to the queue stop listening.
#[doc(alias = "fi_eq_open")]
pub struct EventQueue {
    reader: Reader<Event>,
    handles: Arc<Handles>,
    writable: bool,
}

impl EventQueue {
    /// Starts a queue; `keep` stays alive until the queue is closed.
    pub(crate) fn builder(keep: Option<Keep>) -> EventQueueBuilder {
        EventQueueBuilder {
            size: 0,
            writable: false,
            keep,
        }
    }

    /// Takes the first event, if there is one (`fi_eq_read`). Also `None` if the queue is closed.
    #[doc(alias = "fi_eq_read")]
    pub fn try_next(&self) -> Option<Event> {
        self.ring().try_pop()
    }

    /// Waits for an event and takes it (`fi_eq_sread`). Returns `None` only once the queue is
    /// closed.
    ///
    /// May be called from several tasks at the same time, unlike the stream's `next`, which needs
    /// the handle exclusively. For a deadline wrap it in `tokio::time::timeout`.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future takes no event.
    #[doc(alias = "fi_eq_sread")]
    pub async fn next(&self) -> Option<Event> {
        let mut reader = self.reader.clone();
        poll_fn(|cx| reader.poll_pop(cx)).await
    }

    /// Shows the first event to `look` and leaves it in the queue (`fi_eq_read` with `FI_PEEK`).
    /// `None` if there is none, or if another peek is in progress.
    ///
    /// While `look` runs, no reader can take the event: other readers find the queue empty, and are
    /// woken afterwards. `look` may use the queue. If there are several readers, another one may
    /// take the event immediately afterwards.
    pub fn peek<R>(&self, look: impl FnOnce(&Event) -> R) -> Option<R> {
        self.ring().peek(look)
    }

    /// Appends an event of the application's own to the queue (`fi_eq_write`); a reader gets it as
    /// [`Event::User`]. The application determines the meaning of `code` and `data`; `data` is not
    /// copied.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Again`] if no slot is free; slots reserved for future events are not free.
    /// [`ErrorKind::InvalidArgument`] if the queue was not opened
    /// [`writable`](EventQueueBuilder::writable): "if the FI_WRITE flag is not set, then the
    /// application may not invoke fi_eq_write". [`ErrorKind::BadState`] if it is closed.
    #[doc(alias = "fi_eq_write")]
    pub fn write(&self, code: u32, data: Bytes) -> Result<()> {
        if !self.writable {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "write: the event queue was not opened writable (FI_WRITE)",
            ));
        }
        let Some(slot) = self.ring().try_reserve() else {
            return Err(match self.is_closed() {
                true => closed(),
                false => {
                    let places = self.capacity();
                    let what =
                        format!("all {places} places of the event queue are taken; read some");
                    Error::new(ErrorKind::Again, what)
                }
            });
        };
        slot.fill(Event::User { code, data }, &mut WakeList::new());
        Ok(())
    }

    /// True if the application may [`write`](Self::write) to the queue.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The largest number of events that the queue holds, including those with a reserved slot.
    pub fn capacity(&self) -> usize {
        self.ring().capacity()
    }

    /// Statistics: how many entries the queue holds and has held.
    pub fn stats(&self) -> QueueStats {
        self.ring().stats()
    }

    /// How many events wait to be read. Another reader may take them at any moment.
    pub fn len(&self) -> usize {
        self.ring().len()
    }

    /// True if no event waits to be read.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Closes the queue for all its handles (`fi_close`): its streams end, waiting readers get
    /// `None`, and "any events which remain on the EQ when it is closed are lost": connection
    /// requests among them are rejected, regions are released. Closing twice is not an error. If
    /// all handles are dropped, the queue need not be closed.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Busy`] while domains or endpoints are bound to the queue, or a slot is reserved
    /// for an event; the message names them, and the queue stays open.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it does its work at the first poll and never waits.
    pub async fn close(&self) -> Result<()> {
        self.ring()
            .close()
            .map_err(|users| Error::new(ErrorKind::Busy, format!("event queue {users}")))
    }

    /// True once the queue is closed.
    pub fn is_closed(&self) -> bool {
        self.ring().is_closed()
    }

    /// Takes a slot for one event; `None` if the queue is full (or closed).
    pub(crate) fn try_reserve(&self) -> Option<EventSlot> {
        self.ring().try_reserve().map(|slot| EventSlot { slot })
    }

    /// Waits for a slot; `None` once the queue is closed. May be dropped at any time.
    pub(crate) fn reserve(&self) -> EventReserve {
        EventReserve {
            reserve: self.ring().reserve(),
        }
    }

    /// Takes slots for `count` events; `None` if they are not all free (or the queue is closed).
    pub(crate) fn try_reserve_many(&self, count: usize) -> Option<Vec<EventSlot>> {
        self.ring().try_reserve_many(count).map(event_slots)
    }

    /// Waits until `count` slots are free at the same time; the queue must have at least `count`
    /// slots. `None` once it is closed. May be dropped at any time.
    pub(crate) fn reserve_many(&self, count: usize) -> EventReserveMany {
        EventReserveMany {
            reserve: self.ring().reserve_many(count),
        }
    }

    /// Binds the object of this name, so that `close` returns Busy until the result is dropped.
    /// Reading drives its progress, if that is manual.
    pub(crate) fn depend(
        &self,
        name: Arc<str>,
        progress: Option<&Arc<ManualProgress>>,
    ) -> Result<Dependence> {
        let dependence = self.ring().depend(name).ok_or_else(closed)?;
        self.ring().drive(progress);
        Ok(dependence)
    }

    /// Returns a handle that does not keep the queue alive: an event may hold a region and a region
    /// its domain, so the domain must not hold the queue.
    pub(crate) fn downgrade(&self) -> WeakEventQueue {
        WeakEventQueue {
            ring: self.ring().downgrade(),
            handles: Arc::downgrade(&self.handles),
            writable: self.writable,
        }
    }

    fn ring(&self) -> &Ring<Event> {
        self.reader.ring()
    }
}

/// A reference to an event queue that is valid as long as the queue has a reader.
pub(crate) struct WeakEventQueue {
    ring: WeakRing<Event>,
    handles: Weak<Handles>,
    writable: bool,
}

impl WeakEventQueue {
    pub(crate) fn upgrade(&self) -> Option<EventQueue> {
        let handles = self.handles.upgrade()?;
        Some(EventQueue {
            reader: Reader::new(self.ring.upgrade()?),
            handles,
            writable: self.writable,
        })
    }

    /// Returns a watch that notifies a task once the last handle is dropped.
    pub(crate) fn watch(&self) -> HandleWatch {
        HandleWatch::new(self.handles.clone())
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::BadState, "the event queue is closed")
}

impl Clone for EventQueue {
    fn clone(&self) -> Self {
        EventQueue {
            reader: self.reader.clone(),
            handles: Arc::clone(&self.handles),
            writable: self.writable,
        }
    }
}

impl Stream for EventQueue {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.reader.poll_pop(cx)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // Other readers may take the events that are there now.
        (0, None)
    }
}

impl FusedStream for EventQueue {
    fn is_terminated(&self) -> bool {
        self.is_closed()
    }
}

debug_fields!(EventQueue, self =>
    capacity: self.capacity(), len: self.len(), writable: self.writable, closed: self.is_closed()
);

/// Opens an [`EventQueue`] (`fi_eq_open`). You get one from
/// [`Fabric::event_queue`](crate::Fabric::event_queue).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{Event, Fabric, Hints};
///
/// let events = Fabric::open(Hints::new())?.event_queue().size(16).writable().open()?;
/// events.write(1, "of the application's own".into())?;
/// assert!(matches!(events.next().await, Some(Event::User { code: 1, .. })));
/// # Ok(()) }
/// ```
#[must_use = "nothing is opened before `open`"]
pub struct EventQueueBuilder {
    /// Number of slots; 0: the default.
    size: usize,
    writable: bool,
    keep: Option<Keep>,
}

impl EventQueueBuilder {
    /// The number of events the queue holds, including those with a reserved slot. Default, also
    /// for 0: 256. An endpoint reserves two slots, and a registration that requested an event one.
    /// If the queue is too small, these wait; each slot takes a few hundred bytes from the start.
    pub fn size(mut self, size: usize) -> Self {
        self.size = size;
        self
    }

    /// Allows the application to [`write`](EventQueue::write) its own events (`FI_WRITE`). Default:
    /// no.
    pub fn writable(mut self) -> Self {
        self.writable = true;
        self
    }

    /// Opens the queue.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LimitReached`] if there is no memory for a queue of this size.
    pub fn open(self) -> Result<EventQueue> {
        let size = match self.size {
            0 => EQ_SIZE_DEFAULT,
            size => size,
        };
        let ring = Ring::new(size, self.keep)?;
        Ok(EventQueue {
            handles: Arc::new(Handles::new(ring.clone())),
            reader: Reader::new(ring),
            writable: self.writable,
        })
    }
}

debug_fields!(EventQueueBuilder, self => size: self.size, writable: self.writable);

/// A reserved slot for one event. Dropping it frees the slot.
#[derive(Debug)]
#[must_use = "a slot that is dropped frees its place"]
pub(crate) struct EventSlot {
    slot: Slot<Event>,
}

impl EventSlot {
    /// Puts the event at the end of the queue. The caller drops `wakes` with no lock held.
    pub(crate) fn fill(self, event: Event, wakes: &mut WakeList) {
        self.slot.fill(event, wakes);
    }
}

/// Waits for a slot; `None` once the queue is closed. May be dropped at any time.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub(crate) struct EventReserve {
    reserve: Reserve<Event>,
}

impl Future for EventReserve {
    type Output = Option<EventSlot>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = Pin::new(&mut self.reserve).poll(cx);
        polled.map(|slot| slot.map(|slot| EventSlot { slot }))
    }
}

fn event_slots(slots: Vec<Slot<Event>>) -> Vec<EventSlot> {
    slots.into_iter().map(|slot| EventSlot { slot }).collect()
}

/// Waits for several slots; `None` once the queue is closed. May be dropped at any time.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub(crate) struct EventReserveMany {
    reserve: ReserveMany<Event>,
}

impl Future for EventReserveMany {
    type Output = Option<Vec<EventSlot>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = Pin::new(&mut self.reserve).poll(cx);
        polled.map(|slots| slots.map(event_slots))
    }
}
