//! The handler of a passive endpoint: its event queue, and the application behind it.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use crate::eq::{
    ConnRequest, Event, EventError, EventQueue, EventReserve, EventSlot, HandleWatch,
    WeakEventQueue,
};
use crate::error::Error;
use crate::id::{EndpointId, UserContext};
use crate::sync::{ManualProgress, WakeList};
use crate::wire::ExtensionOffer;

use super::{Handover, IncomingRequest, RequestDecision, RequestHandler};

/// Puts requests into an event queue; each waits for a slot there (ruling 8).
pub(crate) struct EventHandler {
    /// Weak: only the application keeps its queue open.
    events: WeakEventQueue,
    watch: HandleWatch,
    /// The passive endpoint.
    id: EndpointId,
    context: Option<UserContext>,
    /// The reservation for which the listener waits. Dropped with the listener, so that no waker
    /// stays in the queue.
    waiting: Option<EventReserve>,
    /// The manual progress that drives the listener, if the application drives it.
    progress: Option<Arc<ManualProgress>>,
}

impl EventHandler {
    pub(crate) fn new(
        events: &EventQueue,
        id: EndpointId,
        context: Option<UserContext>,
        progress: Option<Arc<ManualProgress>>,
    ) -> Self {
        let events = events.downgrade();
        EventHandler {
            watch: events.watch(),
            events,
            id,
            context,
            waiting: None,
            progress,
        }
    }

    /// Takes a slot of the event queue. `None`: the queue is full, and wakes this task when it has
    /// room.
    fn slot(&mut self, cx: &mut Context<'_>) -> Option<EventSlot> {
        let events = self.events.upgrade()?;
        let waiting = self.waiting.get_or_insert_with(|| events.reserve());
        match Pin::new(waiting).poll(cx) {
            Poll::Pending => None,
            Poll::Ready(slot) => {
                self.waiting = None;
                slot
            }
        }
    }
}

impl RequestHandler for EventHandler {
    fn refuses_when_exhausted(&self) -> bool {
        true
    }

    /// The application decides later.
    type Accepted = Infallible;

    fn on_request(
        &mut self,
        request: &IncomingRequest<'_>,
        _now: Instant,
        cx: &mut Context<'_>,
    ) -> RequestDecision<Infallible> {
        let Some(slot) = self.slot(cx) else {
            return RequestDecision::NoRoom;
        };
        let IncomingRequest {
            peer,
            local,
            data,
            params,
            identity,
            ..
        } = *request;
        let has_auth_key = params.offer.is_some_and(ExtensionOffer::proves_key);
        let (request, holder) = ConnRequest::new(self.id, peer, local, data.clone(), has_auth_key);
        let certificates = identity.and_then(|it| it.certificates.clone());
        let request = request
            .driven_by(self.progress.clone())
            .with_certificates(certificates);
        slot.fill(Event::ConnRequest(request), &mut WakeList::new());
        RequestDecision::Deferred(holder)
    }

    fn hand_over(&mut self, accepted: Infallible, _: Option<Handover>, _now: Instant) {
        match accepted {}
    }

    fn is_gone(&mut self, cx: &mut Context<'_>) -> bool {
        self.watch.is_gone(cx)
    }

    fn on_broken(&mut self, error: &Error, cx: &mut Context<'_>) -> bool {
        let Some(slot) = self.slot(cx) else {
            return false;
        };
        let event = EventError::new(error.clone())
            .with_context(self.context)
            .with_endpoint(self.id);
        slot.fill(Event::Error(event), &mut WakeList::new());
        true
    }
}
