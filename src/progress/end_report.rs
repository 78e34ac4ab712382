//! The event that reports that a domain's driver has ended unasked (`fi_domain(3)`: the event queue
//! of a domain is for "asynchronous control events that occur on the domain").

use crate::eq::{Event, EventError, EventSlot};
use crate::id::UserContext;
use crate::sync::WakeList;

use super::engine::Engine;

/// A reserved slot in the domain's event queue, and the domain's context.
pub(crate) struct EndReport {
    pub(crate) slot: EventSlot,
    pub(crate) context: UserContext,
}

impl Engine {
    /// Sets where the driver's end is reported. If the driver has ended already, reports it at
    /// once.
    pub(crate) fn report_end_by(&self, report: EndReport) {
        *self.lock_end_report() = Some(report);
        if self.is_gone() {
            self.report_end();
        }
    }

    /// Reports the end of the driver, unless the application asked for it.
    pub(super) fn report_end(&self) {
        let report = self.lock_end_report().take();
        let Some(EndReport { slot, context }) = report.filter(|_| !self.is_stopping()) else {
            return;
        };
        let mut wakes = WakeList::new();
        let error = EventError::new(self.why_gone()).with_context(Some(context));
        slot.fill(Event::Error(error), &mut wakes);
    }

    /// Frees the slot: the driver ends because it was asked to.
    pub(super) fn drop_end_report(&self) {
        let report = self.lock_end_report().take();
        drop(report);
    }
}
