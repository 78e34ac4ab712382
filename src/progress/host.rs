//! The host of a connection's machine: gives its calls completion queue slots, regions, and the
//! shared receives.

use std::collections::VecDeque;

use tracing::Level;

use crate::buf::RegionUse;
use crate::cq::{Completion, CqSlot};
use crate::error::Refusal;
use crate::info::{Caps, SideCaps};
use crate::log::{hold_event, is_logged};
use crate::mr::{Access, AccessContext, AccessRequest, MrTable};
use crate::proto::{Connection, Host, Receives};
use crate::sync::{Lock, Ring, WakeList};

use super::port::{Port, PortState};
use super::receive_context::PortReceives;
use super::report::{OpRecord, Report};

/// The host of a port's machine, for one call.
pub(super) struct PortHost<'a> {
    regions: &'a Lock<MrTable>,
    port: &'a Port,
    queue: &'a Ring<Completion>,
    caps: SideCaps,
    remote_slots: &'a mut VecDeque<CqSlot>,
    receives: Option<&'a mut PortReceives>,
    wakes: &'a mut WakeList,
}

impl Host<Report> for PortHost<'_> {
    fn reserve(&mut self, operation: &mut OpRecord) -> bool {
        Report::reserve(operation, self.wakes, Some(&self.port.waker))
    }

    fn reserve_remote_completion(&mut self) -> bool {
        let slot = self.queue.reserve_or_wake(&self.port.waker);
        slot.map(|slot| self.remote_slots.push_back(CqSlot::new(slot)))
            .is_some()
    }

    fn resolve(&mut self, request: &AccessRequest) -> Result<RegionUse, Refusal> {
        // A port that demands a key allows no access before the peer has proven it.
        let context = AccessContext::new(self.port.id(), self.port.auth_key());
        let found = self.regions.lock("resolve").resolve(request, context);
        let for_writing = request.need.contains(Access::REMOTE_WRITE);
        let found = found.and_then(|found| match found.probe(for_writing) {
            Ok(()) => Ok(found),
            Err(denied) => Err(denied.into()),
        });
        if let Err(reason) = &found
            && is_logged(Level::INFO)
        {
            let (span, reason) = (self.port.span.clone(), *reason);
            hold_event(move || {
                tracing::info!(parent: &span, %reason, "an access of the peer is refused");
            });
        }
        found
    }

    fn admits(&self, need: Caps) -> bool {
        self.caps.has(need)
    }

    fn demands_tags(&self) -> bool {
        self.port.engine.demands_tags
    }

    fn shared(&mut self) -> Option<&mut dyn Receives> {
        self.receives
            .as_mut()
            .map(|receives| &mut **receives as &mut dyn Receives)
    }
}

impl PortState {
    /// Returns the machine, and the host for a call of it.
    pub(super) fn machine_and_host<'a>(
        &'a mut self,
        port: &'a Port,
    ) -> (&'a mut Connection<Report>, PortHost<'a>) {
        let host = PortHost {
            regions: &port.engine.regions,
            port,
            queue: &self.bindings.receive_queue,
            caps: self.bindings.caps,
            remote_slots: &mut self.remote_slots,
            receives: self.receives.as_deref_mut(),
            wakes: &mut self.deferred.wakes,
        };
        (&mut self.machine, host)
    }
}

/// Runs `$body` with the state's machine and its host.
macro_rules! with_host {
    ($port:expr, $state:expr, |$machine:ident, $host:ident| $body:expr) => {{
        let ($machine, mut host) = $state.machine_and_host($port);
        let $host = &mut host;
        $body
    }};
}
pub(super) use with_host;
