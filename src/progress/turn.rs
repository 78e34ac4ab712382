//! One turn of a port: what the link has brought goes to the protocol, what the protocol wants goes
//! to the link, until nothing moves or the turn's budget is spent.

use std::time::Instant;

use crate::buf::{AccessError, RegionUse};
use crate::error::{Error, ErrorKind, Refusal};
use crate::mr::{Access, AccessContext, AccessRequest, MrTable};
use crate::proto::{
    Connection, Host, Lifecycle, OpKey, Operation, Outgoing, ReceivePlan, Receives, Refused,
};
use crate::sync::{Lock, WakeList};
use crate::transport::{Clock, Direct, Outcome, Receive, Received, SendBatch};

use super::arming::{PeerStream, RecvState, SendState};
use super::budget::Budget;
use super::driven::Turned;
use super::port::{Port, PortKind, PortState};
use super::receive_context::PortReceives;
use super::report::Report;
use super::shutdown::ShutdownState;

/// The outside world of a connection, for the length of one call.
pub(super) struct View<'a> {
    regions: &'a Lock<MrTable>,
    port: &'a Port,
    queue: &'a crate::cq::CompletionQueue,
    unasked: &'a mut std::collections::VecDeque<crate::cq::CqSlot>,
    receives: Option<&'a mut PortReceives>,
    wakes: &'a mut WakeList,
}

impl Host<Report> for View<'_> {
    fn reserve(&mut self, token: &mut Report) -> bool {
        token.reserve(&self.port.waker, self.wakes)
    }

    fn reserve_unasked(&mut self) -> bool {
        let mut slot = self.queue.try_reserve();
        if slot.is_none() {
            self.queue.on_room(&self.port.waker);
            slot = self.queue.try_reserve();
        }
        slot.map(|slot| self.unasked.push_back(slot)).is_some()
    }

    fn resolve(&mut self, request: &AccessRequest) -> Result<RegionUse, Refusal> {
        // A port that demands a key takes no access before the peer has proven it.
        let context = AccessContext::new(self.port.id(), self.port.auth_key());
        let found = self.regions.lock("resolve").resolve(request, context)?;
        let for_writing = request.need.contains(Access::REMOTE_WRITE);
        match found.probe(for_writing) {
            Ok(()) => Ok(found),
            Err(AccessError::Closed(closed)) => Err(closed.into()),
            Err(AccessError::Fault(_)) => Err(Refusal::Fault),
        }
    }

    fn demands_tags(&self) -> bool {
        self.port.engine.demands_tags
    }

    fn shared(&mut self) -> Option<&mut dyn Receives<Report>> {
        self.receives
            .as_mut()
            .map(|receives| &mut **receives as &mut dyn Receives<Report>)
    }
}

/// Runs `$body` with the state's machine and the host it works in.
macro_rules! with_host {
    ($port:expr, $state:expr, |$machine:ident, $host:ident| $body:expr) => {{
        let ($machine, mut host) = $state.machine_and_host($port);
        let $host = &mut host;
        $body
    }};
}

/// The port's next deadline, if the driver does not know of one as early.
fn next_alarm(state: &mut PortState, now: Instant) -> Option<Instant> {
    state.alarm = state.alarm.filter(|at| *at > now);
    let next = state
        .shutdown
        .deadline()
        .into_iter()
        .chain(state.deadlines.first())
        .min()?;
    if state.alarm.is_some_and(|at| at <= next) {
        return None;
    }
    state.alarm = Some(next);
    Some(next)
}

impl PortState {
    /// The machine, and the host it works in.
    pub(super) fn machine_and_host<'a>(
        &'a mut self,
        port: &'a Port,
    ) -> (&'a mut Connection<Report>, View<'a>) {
        let host = View {
            regions: &port.engine.regions,
            port,
            queue: &self.bindings.receive_queue,
            unasked: &mut self.unasked,
            receives: match &mut self.kind {
                PortKind::Msg => None,
                PortKind::Rdm(rdm) => Some(&mut rdm.receives),
            },
            wakes: &mut self.wakes,
        };
        (&mut self.machine, host)
    }

    /// Refuses what is posted to an endpoint that is closing.
    pub(super) fn check_closing(&self) -> Result<(), Error> {
        // A connection that broke has its own reason to tell.
        let ours = !self.shutdown.may_post()
            && self.machine.fault().is_none()
            && !self.machine.is_peer_closing();
        if ours && self.machine.lifecycle() != Lifecycle::Closed {
            return Err(Error::new(ErrorKind::BadState, "the endpoint is closing"));
        }
        Ok(())
    }

    /// An error that names the peer, if there is one.
    pub(super) fn about_peer(&self, error: Error) -> Error {
        match self.peer {
            Some(peer) => error.with_peer(peer),
            None => error,
        }
    }

    pub(super) fn post(
        &mut self,
        port: &Port,
        operation: Operation<Report>,
    ) -> Result<OpKey, Box<Refused<Report>>> {
        if let Err(error) = self.check_closing() {
            return Err(Refused::new(error, operation));
        }
        with_host!(port, self, |machine, host| machine.post(operation, host))
    }
}

impl Port {
    /// One turn.
    pub(super) fn turn(&self, now: Instant, clock: &dyn Clock, left: &mut Budget) -> Turned {
        self.wake_state.is_queued_no_more();
        #[cfg(test)]
        self.turns
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut guard = self.lock("turn");
        let state = &mut *guard;
        state.inline_spent = false;
        state.machine.handle_time(now);
        state.shutdown.start_limit(now);
        let machine = &state.machine;
        state.deadlines.start(now, |op| machine.phase(op).is_some());
        let mut settled = false;
        loop {
            let committed = self.commit(state);
            let moved = self.harvest(state, left) || committed;
            if !moved && settled {
                break;
            }
            self.feed(state);
            with_host!(self, state, |machine, host| {
                machine.admit(host);
                machine.resume(host);
            });
            self.feed(state);
            self.commit(state);
            let sent = self.transmit(state, left);
            self.arm(state);
            self.publish(state);
            self.shut_down(state, now);
            self.publish(state);
            // What has ended made room for those who wait, and sent answers let reading go on; no
            // outcome will come to tell of either.
            let again = state.machine.wants_admission() || sent && state.machine.is_read_paused();
            if !moved && !again {
                break;
            }
            // All that follows from what has moved is done; most turns bring one message, and end
            // when the link has been asked once more.
            settled =
                !(sent || again || state.stage.is_some() || matches!(state.kind, PortKind::Rdm(_)))
                    && state.shutdown.is_open();
            if !moved {
                left.spend(0);
            }
            left.tick(clock.now());
            if left.is_spent() {
                break;
            }
        }
        // A frame may have begun, and must go on.
        self.watch_peer(state);
        self.expire(state, now);
        let is_cut = left.is_spent();
        if is_cut {
            self.wake_state.is_queued_again();
        }
        Turned {
            is_over: state.shutdown.state() == ShutdownState::Closed,
            is_cut,
            alarm: next_alarm(state, now),
            stale: state.stale_alarm.take(),
        }
    }

    /// Tries the link without the reactor's word. True if there was an outcome: a turn is due.
    pub(super) fn try_link(&self) -> bool {
        let mut guard = self.lock("try the link");
        let state = &mut *guard;
        if state.stage.is_some() {
            return false;
        }
        let Some(outcome) = state.link.as_mut().and_then(|link| link.look()) else {
            return false;
        };
        self.handle(state, outcome);
        true
    }

    /// Takes outcomes from the link. True if there were any.
    pub(super) fn harvest(&self, state: &mut PortState, left: &mut Budget) -> bool {
        let mut moved = false;
        while !left.is_spent() {
            let Some(outcome) = state.link.as_mut().and_then(|link| link.poll_outcome()) else {
                break;
            };
            moved = true;
            left.spend(outcome.bytes());
            self.handle(state, outcome);
            // Staged bytes are fed before anything more is received.
            if state.stage.is_some() || left.is_spent() {
                break;
            }
            self.transmit(state, left);
            self.arm(state);
        }
        moved
    }

    fn handle(&self, state: &mut PortState, outcome: Outcome) {
        match outcome {
            Outcome::Connected => {
                state.local = state.link.as_ref().map(|link| link.local_addr());
            }
            Outcome::Sent { batch, result } => {
                let SendBatch { frames, leases } = batch;
                drop(leases);
                state.send = SendState::Idle;
                match result {
                    Ok(sent) => {
                        state.liveness.sent += sent as u64;
                        state.machine.handle_sent(frames, sent);
                    }
                    Err(error) => {
                        state.machine.handle_sent(frames, 0);
                        self.fail(state, error);
                    }
                }
            }
            Outcome::Received(received) => {
                state.recv.go(RecvState::Idle);
                self.received(state, received);
            }
            Outcome::PeerGone(error) => self.peer_gone(state, error),
            Outcome::Failed(error) => self.fail(state, error),
        }
    }

    fn received(&self, state: &mut PortState, received: Received) {
        if state.shutdown.state() == ShutdownState::Lingering {
            match received {
                Received::Stage(stage) => state.shutdown.on_discarded(stage.len()),
                // Taken back because some region was closed: reading goes on.
                Received::Cancelled { .. } => {}
                _ => state.shutdown.on_peer_gone(),
            }
            return;
        }
        match received {
            // What comes while the connection is being taken down is of no use any more.
            Received::Stage(_) if !state.shutdown.may_receive() => {}
            Received::Stage(stage) => {
                state.liveness.machine.on_received();
                state.activity += 1;
                state.stage = Some(stage);
            }
            Received::Direct { direct, len } => {
                let Direct {
                    payload, leases, ..
                } = direct;
                drop(leases);
                state.liveness.machine.on_received();
                state.activity += 1;
                with_host!(self, state, |machine, host| machine
                    .handle_direct(payload, len, host));
            }
            Received::End { returned } => {
                self.take_back(state, returned);
                state.machine.handle_end();
            }
            Received::Failed {
                error,
                returned: Some(direct),
            } if error.kind() == ErrorKind::BadAddress => {
                drop(direct.leases);
                let refused = with_host!(self, state, |machine, host| machine
                    .handle_fault(direct.payload, host));
                if !refused {
                    self.fail(state, error);
                }
            }
            Received::Failed { error, returned } => {
                self.take_back(state, returned);
                self.fail(state, error);
            }
            Received::Cancelled { returned } => self.take_back(state, returned),
        }
    }

    fn take_back(&self, state: &mut PortState, returned: Option<Direct>) {
        if let Some(Direct {
            payload, leases, ..
        }) = returned
        {
            drop(leases);
            with_host!(self, state, |machine, host| machine
                .handle_direct(payload, 0, host));
        }
    }

    pub(super) fn fail(&self, state: &mut PortState, error: Error) {
        let error = state.about_peer(error);
        state.machine.fail(error);
    }

    /// Told while reading is paused. A broken connection ends now; after an orderly end the bytes
    /// in the socket may still hold what operations wait for.
    fn peer_gone(&self, state: &mut PortState, error: Error) {
        if state.recv == RecvState::Watching {
            state.recv.go(RecvState::Idle);
        }
        state.peer_stream = PeerStream::Finished;
        if error.kind() != ErrorKind::PeerClosed {
            self.fail(state, error);
            return;
        }
        let staged = state.stage.as_ref().map_or(0, |stage| stage.len());
        let unread = state.link.as_ref().map_or(0, |link| link.unread()) + staged;
        with_host!(self, state, |machine, host| machine
            .handle_last_bytes(unread as u64, host));
    }

    /// Feeds what lies in the staging buffer.
    fn feed(&self, state: &mut PortState) {
        let Some(mut stage) = state.stage.take() else {
            return;
        };
        let taken = with_host!(self, state, |machine, host| machine
            .handle_stage(&stage, host));
        stage.advance(taken);
        if !stage.is_empty() {
            state.stage = Some(stage);
        }
    }

    /// Hands frames to the link as long as it takes them at once and anything is left, but one
    /// batch at least: what is received must not keep all else from going out. True if it took any.
    pub(super) fn transmit(&self, state: &mut PortState, left: &mut Budget) -> bool {
        let mut sent = false;
        // Once the stream has ended nothing goes out, and nothing again while a port drains.
        while state.shutdown.may_send() {
            if state.link.is_none() {
                break;
            }
            let outgoing = with_host!(self, state, |machine, host| machine.poll_transmit(host));
            let (Some(outgoing), Some(link)) = (outgoing, &mut state.link) else {
                break;
            };
            let Outgoing {
                frames,
                leases,
                is_burst,
            } = outgoing;
            state.send = SendState::InFlight {
                region: !leases.is_empty(),
            };
            state.bursts = is_burst;
            link.send(SendBatch { frames, leases });
            let Some(outcome) = link.poll_outcome() else {
                break;
            };
            match &outcome {
                Outcome::Sent { .. } => sent = true,
                // A link that has told something expects to be asked again, and the driver does.
                _ => self.waker.wake_by_ref(),
            }
            left.spend(outcome.bytes());
            self.handle(state, outcome);
            if left.is_spent() {
                break;
            }
        }
        sent
    }

    /// The same within a call that is no turn: the driver does the rest.
    pub(super) fn transmit_now(&self, state: &mut PortState) -> bool {
        let mut left = Budget::of_call();
        let sent = self.transmit(state, &mut left);
        if left.is_spent() {
            self.waker.wake_by_ref();
        }
        sent
    }

    /// Arms the next receive, or watches for the peer's death while reading is paused.
    fn arm(&self, state: &mut PortState) {
        if state.recv.is_armed() || !state.shutdown.may_receive() {
            return;
        }
        let Some(link) = &mut state.link else { return };
        // Staged bytes are fed before more is received; if the machine takes none it is paused.
        let plan = match state.stage {
            Some(_) => ReceivePlan::Paused,
            None => state.machine.poll_receive(),
        };
        let region = match plan {
            ReceivePlan::Stage => {
                link.receive(Receive::Stage);
                false
            }
            ReceivePlan::Direct {
                payload,
                offset,
                len,
                leases,
            } => {
                let region = !leases.is_empty();
                link.receive(Receive::Direct(Direct {
                    payload,
                    offset,
                    len,
                    leases,
                }));
                region
            }
            ReceivePlan::Paused => {
                if state.machine.is_read_paused() {
                    // The peer's end is told once; watching again would tell the same for ever.
                    if state.recv == RecvState::Idle && state.peer_stream == PeerStream::Open {
                        state.recv.go(RecvState::Watching);
                        link.watch();
                    }
                    self.owe_signs(state);
                }
                return;
            }
        };
        state.recv.go(RecvState::Armed { region });
    }

    /// Kernel operations on peers' regions are taken back; the machine looks at each region again
    /// before it hands it out anew. True if there were any.
    pub(super) fn regions_changed(&self) -> bool {
        let mut guard = self.lock("regions changed");
        let state = &mut *guard;
        let Some(link) = &mut state.link else {
            return false;
        };
        let receives = state.recv == RecvState::Armed { region: true };
        let sends = state.send == SendState::InFlight { region: true };
        if receives {
            link.cancel_receive();
        }
        if sends {
            link.cancel_send();
        }
        receives || sends
    }
}
