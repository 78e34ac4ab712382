//! The audience of a passive endpoint: its event queue, and the application behind it.

use std::task::Context;
use std::time::Instant;

use crate::eq::{ConnRequest, Event, EventError, EventQueue, EventSlot};
use crate::error::Error;
use crate::id::{Context as UserContext, EndpointId};
use crate::sync::WakeList;
use crate::wire::Offer;

use super::{Asking, Audience, Handover, Told};

/// Tells an event queue of requests; each waits for a slot there (ruling 8).
pub(crate) struct EventAudience {
    pub(crate) events: EventQueue,
    /// The passive endpoint.
    pub(crate) id: EndpointId,
    pub(crate) context: Option<UserContext>,
}

impl EventAudience {
    /// A slot of the event queue. `None`: it is full, and wakes this task when it has room.
    fn slot(&self, cx: &mut Context<'_>) -> Option<EventSlot> {
        self.events.try_reserve().or_else(|| {
            self.events.on_room(cx.waker());
            self.events.try_reserve()
        })
    }
}

impl Audience for EventAudience {
    fn tell(&mut self, asking: &Asking<'_>, _now: Instant, cx: &mut Context<'_>) -> Told {
        let Some(slot) = self.slot(cx) else {
            return Told::NoRoom;
        };
        let Asking {
            peer,
            local,
            data,
            offer,
        } = *asking;
        let has_auth_key = offer.is_some_and(Offer::proves_key);
        let (request, holder) = ConnRequest::new(self.id, peer, local, data.clone(), has_auth_key);
        slot.fill(Event::ConnRequest(request), &mut WakeList::new());
        Told::Later(holder)
    }

    fn hand_over(&mut self, handover: Option<Handover>, _now: Instant) {
        debug_assert!(handover.is_none(), "the application decides later");
    }

    fn broken(&mut self, error: &Error, cx: &mut Context<'_>) -> bool {
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
