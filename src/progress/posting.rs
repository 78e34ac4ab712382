//! Posting to a port, and taking back what was posted.

use std::net::SocketAddr;
use std::task::{Poll, Waker};

use crate::error::{Error, ErrorKind, OperationKind, Phase, Result};
use crate::id::reaches;
use crate::proto::{Lifecycle, OpKey, PostOptions, RefusedPost, Withdrawn};

use super::port::{Port, PortState, PostedOp};
use super::report::{AwaitedOp, OpRecord, Report};

impl PortState {
    /// Refuses what is posted to an endpoint that is closing.
    fn check_closing(&self) -> Result<()> {
        // A connection that broke refuses by its own reason.
        let ours = !self.life.may_post()
            && self.machine.fault().is_none()
            && !self.machine.is_peer_closing();
        if ours && self.machine.lifecycle() != Lifecycle::Closed {
            return Err(Error::new(ErrorKind::BadState, "the endpoint is closing"));
        }
        Ok(())
    }
}

impl Port {
    /// Posts an operation. The first one on an idle connection since the driver ran is sent within
    /// this call, unless the link leaves sends to the driver; others are gathered (ruling 5).
    pub(crate) fn post(&self, operation: OpRecord) -> Result<PostedOp, Box<RefusedPost<Report>>> {
        let PostOptions {
            wait,
            more,
            timeout,
            ..
        } = operation.options;
        let _entered = self.span.enter();
        tracing::trace!(operation = ?operation.operation(), len = operation.len, "posted");
        let is_receive = operation.is_receive();
        #[cfg(feature = "metrics")]
        let kind = operation.operation();
        let mut state = self.lock("post");
        state.activity += 1;
        let was_idle = !is_receive && state.machine.is_transmit_idle();
        let was_paused = is_receive && state.machine.is_read_paused();
        // 1. The machine admits the operation, or lets it wait for room.
        if let Err(error) = state.check_closing() {
            return Err(RefusedPost::new(state.about_peer(error), operation));
        }
        let (machine, mut host) = state.machine_and_host(self);
        let key = machine.post(operation, &mut host).map_err(|mut refused| {
            refused.error = state.about_peer(refused.error);
            refused
        })?;
        #[cfg(feature = "metrics")]
        if !is_receive {
            state.latencies.posted(key, kind);
        }
        if let Some(timeout) = timeout {
            state.timers.deadlines.add(key, timeout, ());
            self.waker.wake_by_ref();
        }
        // 2. What it has queued is sent now, or by the driver; a receive may let reading go on.
        if !is_receive {
            self.send_posted(&mut state, was_idle && !more);
        } else if was_paused || state.io.stage.is_some() || state.machine.wants_credit() {
            self.waker.wake_by_ref();
        }
        // 3. What was sent whole by now awaits no peer.
        self.watch_peer(&mut state);
        // 4. One that waits for room and reports to a queue is awaited until its acceptance.
        let mut waiting = None;
        if wait
            && let Some(op) = state.machine.record_mut(key)
            && op.phase == Phase::Waiting
            && matches!(op.token, Report::Queue { .. })
        {
            waiting = Some(op.await_acceptance());
        }
        self.publish_and_wake(&mut state);
        Ok(PostedOp { key, waiting })
    }

    /// Posts a message that is copied: only counters count its end, and it never waits. Of a
    /// connected endpoint.
    pub(crate) fn inject(&self, bytes: &[u8], data: Option<u64>) -> Result<()> {
        let inject = |state: &mut PortState| state.machine.inject(bytes, data).map(Some);
        let injected = self.post_copied(OperationKind::Inject, bytes.len(), true, inject);
        match injected {
            Ok(_) => Ok(()),
            Err(error) => Err(error.with_operation(OperationKind::Inject)),
        }
    }

    /// The same of a message that is awaited ([`Port::poll_sent`]): gives its number. `None`: there
    /// is no room for it now. `more`: another post follows.
    pub(crate) fn send_copied(
        &self,
        bytes: &[u8],
        data: Option<u64>,
        more: bool,
    ) -> Result<Option<u64>> {
        let send = |state: &mut PortState| {
            let number = state.machine.inject_awaited(bytes, data)?;
            #[cfg(feature = "metrics")]
            if let Some(number) = number {
                state.latencies.posted_copied(number);
            }
            Ok(number)
        };
        self.post_copied(OperationKind::Send, bytes.len(), !more, send)
    }

    fn post_copied<N>(
        &self,
        operation: OperationKind,
        len: usize,
        may_inline: bool,
        post: impl FnOnce(&mut PortState) -> Result<Option<N>>,
    ) -> Result<Option<N>> {
        let _entered = self.span.enter();
        tracing::trace!(?operation, len, "posted");
        let mut state = self.lock("post a copy");
        state.activity += 1;
        let was_idle = state.machine.is_transmit_idle();
        let open = state.check_closing();
        let posted = open.and_then(|()| post(&mut state));
        let posted = posted.map_err(|error| state.about_peer(error))?;
        if posted.is_some() {
            self.send_posted(&mut state, was_idle && may_inline);
            self.watch_peer(&mut state);
            self.publish_and_wake(&mut state);
        }
        Ok(posted)
    }

    /// Ready once the copied message of this number has ended.
    #[inline]
    pub(crate) fn poll_sent(&self, number: u64, waker: &Waker) -> Poll<Result<()>> {
        self.sent.poll(number, waker)
    }

    /// How far a copied message has come.
    pub(crate) fn sent_phase(&self, number: u64) -> Phase {
        if self.sent.has_ended(number) {
            return Phase::Ended;
        }
        let phase = self.lock("phase").machine.injected_phase(number);
        phase.unwrap_or(Phase::Ended)
    }

    /// Asks a copied message to end early.
    pub(crate) fn cancel_sent(&self, number: u64) -> Withdrawn {
        let mut state = self.lock("cancel");
        let withdrawn = state.machine.cancel_injected(number, false);
        self.publish_and_wake(&mut state);
        withdrawn
    }

    /// The future of a copied message is dropped (ruling 4). `ended`: by its end.
    pub(crate) fn forget_sent(&self, number: u64, ended: bool) {
        if !ended {
            let mut state = self.lock("withdraw");
            state.machine.cancel_injected(number, true);
            self.publish_and_wake(&mut state);
        }
        drop(self.sent.forget(number));
    }

    /// Sends what was posted, or leaves it to the driver (ruling 5). `may_inline`: nothing is ahead
    /// of it, and nothing is said to follow.
    fn send_posted(&self, state: &mut PortState, may_inline: bool) {
        // A copy that may wait is the driver's.
        let may_inline = may_inline && !self.engine.copies_block();
        if may_inline && state.inline_send.take() {
            self.transmit_now(state);
        } else if state
            .machine
            .is_transmit_gathered(state.inline_send.frames_enough(state.io.peer_processor))
            && !self.engine.copies_block()
        {
            state.inline_send.on_gathered();
            if self.transmit_now(state) && state.machine.is_read_paused() {
                self.waker.wake_by_ref(); // Sent answers let reading go on.
            }
        } else {
            state.inline_send.on_post_queued();
            self.waker.wake_by_ref();
        }
    }

    /// Asks an operation to end early.
    pub(crate) fn cancel(&self, key: OpKey) -> Withdrawn {
        let mut state = self.lock("cancel");
        let withdrawn = state.machine.cancel(key);
        self.publish_and_wake(&mut state);
        withdrawn
    }

    /// Asks everything that is to be transmitted to end early; says how much of it has by that.
    pub(crate) fn cancel_all(&self) -> usize {
        let mut state = self.lock("cancel all");
        let ended = state.machine.cancel_all();
        self.publish_and_wake(&mut state);
        ended
    }

    /// The future of an operation is dropped (ruling 4).
    pub(crate) fn withdraw(&self, key: OpKey, awaited: AwaitedOp) {
        let _after; // Declared before the guard, and so dropped after it.
        let mut state = self.lock("withdraw");
        match state.machine.withdraw(key) {
            Withdrawn::Ended => _after = Some(awaited),
            Withdrawn::Running => {
                if let Some(report) = state.machine.token_mut(key)
                    && !matches!(report, Report::Counted)
                {
                    *report = Report::Nowhere;
                }
                _after = Some(awaited);
            }
            Withdrawn::Gone => {
                if let Some(mut op) = awaited.detach() {
                    if op.is_message_received() {
                        state.machine.requeue_message(&op);
                    }
                    state.deferred.drops.push(op.take_payload());
                }
                _after = None;
            }
        }
        self.publish_and_wake(&mut state);
    }

    /// The future of a shared receive was dropped. If the receive is of this port, its message goes
    /// back as soon as it is whole, before any that is behind it: true. A result that is
    /// still to be delivered is delivered now, and so gives its message back.
    pub(crate) fn detach_receive(&self, receive: OpKey) -> bool {
        let mut state = self.lock("detach receive");
        let found = state.machine.detach_matched(receive).is_some();
        self.publish_and_wake(&mut state);
        found
    }

    /// The time of a shared receive has passed. If the receive is of this port, its message goes
    /// back as soon as it is whole, and its record comes back, which has ended so; the error
    /// names the peer that has not sent all of the message.
    pub(super) fn detach_timed(&self, receive: OpKey, error: &Error) -> Option<OpRecord> {
        let mut state = self.lock("detach timed");
        let found = state.machine.detach_matched(receive);
        let error = state.about_peer(error.clone());
        let parted = found.and_then(|op| {
            let is_reported = !matches!(state.machine.token_mut(op), Some(Report::Counted));
            let machine = &mut state.machine;
            is_reported
                .then(|| machine.part_with(op, Report::Counted, error))
                .flatten()
        });
        self.publish_and_wake(&mut state);
        parted
    }

    /// The future of a queued operation's acceptance is dropped: it is withdrawn if it still waits.
    pub(crate) fn withdraw_waiting(&self, key: OpKey, awaited: &AwaitedOp) {
        let mut state = self.lock("withdraw waiting");
        if state.machine.phase(key) == Some(Phase::Waiting) && !awaited.has_ended() {
            state.machine.cancel(key);
            self.waker.wake_by_ref(); // Those behind it may have all they wait for.
        }
        self.publish_and_wake(&mut state);
    }

    /// Publishes what a call of the application's has ended, and leaves to the driver what follows
    /// from it: room for those who wait, frames that may go out now, the end of a connection that
    /// turned out to be broken.
    pub(super) fn publish_and_wake(&self, state: &mut PortState) {
        self.publish(state);
        let machine = &state.machine;
        let broken = state.life.is_open() && machine.fault().is_some();
        let transmits = !machine.is_transmit_out() && !machine.is_transmit_idle();
        let is_due = machine.wants_admission() || machine.wants_close();
        // What waits for a peer whose stream has ended has a deadline, which begins with a turn.
        let is_over = machine.has_served_receives();
        if broken || transmits || is_due || is_over || machine.awaits_ended_peer() {
            self.waker.wake_by_ref();
        }
    }
}

/// Refuses a peer of an IP version that the endpoint is not reached by: it could not answer.
pub(super) fn check_ip_version(own: SocketAddr, peer: SocketAddr) -> Result<()> {
    if reaches(own, peer) {
        return Ok(());
    }
    let what = format!("the endpoint is at {own}, of another IP version: open it at [::] for both");
    Err(Error::new(ErrorKind::InvalidArgument, what).with_peer(peer))
}
