//! The event of a domain whose driver has ended without having been asked to (`fi_domain(3)`: the
//! event queue of a domain is for "asynchronous control events that occur on the domain").

use crate::eq::{Event, EventError, EventSlot};
use crate::id::UserContext;
use crate::sync::WakeList;

use super::engine::Engine;

/// A place in the event queue that the domain is bound to, and the domain's context.
pub(crate) struct EndReport {
    pub(crate) slot: EventSlot,
    pub(crate) context: UserContext,
}

impl Engine {
    /// Has the end of the driver reported here; of one that has ended already, now.
    pub(crate) fn report_end_by(&self, report: EndReport) {
        *self.lock_end_report() = Some(report);
        if self.is_gone() {
            self.report_end();
        }
    }

    /// The driver has ended: reports it, if that is not what the application asked for.
    pub(super) fn report_end(&self) {
        let report = self.lock_end_report().take();
        let Some(EndReport { slot, context }) = report.filter(|_| !self.is_stopping()) else {
            return;
        };
        let mut wakes = WakeList::new();
        let error = EventError::new(self.why_gone()).with_context(Some(context));
        slot.fill(Event::Error(error), &mut wakes);
    }

    /// The driver ends as it was asked to: the place is free again.
    pub(super) fn drop_end_report(&self) {
        let report = self.lock_end_report().take();
        drop(report);
    }
}
