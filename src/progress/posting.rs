//! Posting to a port, and withdrawing posted operations.

use std::net::SocketAddr;
use std::task::{Poll, Waker};

use crate::error::{Error, ErrorKind, OperationKind, Phase, Result};
use crate::id::reaches;
use crate::proto::{OpKey, PostOptions, RefusedPost, Withdrawn};

use super::port::{Port, PortState, PostedOp};
use super::report::{AwaitedOp, OpRecord, Report};

impl PortState {
    /// Refuses posts to an endpoint that is closing.
    fn check_closing(&self) -> Result<()> {
        // A connection that broke refuses posts with its own reason.
        let ours = !self.life.may_post()
            && self.machine.fault().is_none()
            && !self.machine.is_peer_closing();
        if ours && !self.machine.lifecycle().is_closed() {
            return Err(Error::new(ErrorKind::BadState, "the endpoint is closing"));
        }
        Ok(())
    }
}

impl Port {
    /// Posts an operation. The first send on an idle connection since the driver ran goes out
    /// within this call, unless the link leaves sends to the driver; other sends are gathered
    /// (ruling 5).
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
        // 2. Queued frames are sent now, or by the driver; a receive may let reading go on.
        if !is_receive {
            self.send_posted(&mut state, was_idle && !more);
        } else if was_paused || state.io.stage.is_some() || state.machine.wants_credit() {
            self.waker.wake_by_ref();
        }
        // 3. Watch the peer, unless the operation has been sent completely and does not wait for
        // it.
        self.watch_peer(&mut state);
        // 4. The future of an operation that waits for room and reports to a queue awaits its
        // acceptance.
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

    /// Posts a message that is copied, on a connected endpoint. The post never waits; only counters
    /// report the end of the message.
    pub(crate) fn inject(&self, bytes: &[u8], data: Option<u64>) -> Result<()> {
        let inject = |state: &mut PortState| state.machine.inject(bytes, data).map(Some);
        let injected = self.post_copied(OperationKind::Inject, bytes.len(), true, inject);
        match injected {
            Ok(_) => Ok(()),
            Err(error) => Err(error.with_operation(OperationKind::Inject)),
        }
    }

    /// Posts a copied message that is awaited ([`Port::poll_sent`]); returns its number. `None`:
    /// there is no room for the message now. `more`: another post follows.
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
        // A message that is left to the driver changes nothing else before the driver's turn.
        if posted.is_some() && self.send_posted(&mut state, was_idle && may_inline) {
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

    /// Withdraws a copied message whose future is dropped (ruling 4). `ended`: the message has
    /// ended.
    pub(crate) fn forget_sent(&self, number: u64, ended: bool) {
        if !ended {
            let mut state = self.lock("withdraw");
            state.machine.cancel_injected(number, true);
            self.publish_and_wake(&mut state);
        }
        drop(self.sent.forget(number));
    }

    /// Sends the queued frames and returns true, or leaves them to the driver and returns false
    /// (ruling 5). `may_inline`: no frame was queued before this post, and the caller has not
    /// announced another post.
    fn send_posted(&self, state: &mut PortState, may_inline: bool) -> bool {
        // Copies that may block are left to the driver.
        let may_send = !self.engine.copies_block();
        if may_send && may_inline && state.inline_send.take() {
            self.transmit_now(state);
            return true;
        }
        let enough = state.inline_send.frames_enough(state.io.peer_processor);
        if may_send && state.machine.is_transmit_gathered(enough) {
            state.inline_send.on_gathered();
            if self.transmit_now(state) && state.machine.is_read_paused() {
                self.waker.wake_by_ref(); // Sent answers let reading go on.
            }
            return true;
        }
        state.inline_send.on_post_queued();
        self.waker.wake_by_ref();
        false
    }

    /// Asks an operation to end early.
    pub(crate) fn cancel(&self, key: OpKey) -> Withdrawn {
        let mut state = self.lock("cancel");
        let withdrawn = state.machine.cancel(key);
        self.publish_and_wake(&mut state);
        withdrawn
    }

    /// Asks all operations that transmit to end early; returns how many ended at once.
    pub(crate) fn cancel_all(&self) -> usize {
        let mut state = self.lock("cancel all");
        let ended = state.machine.cancel_all();
        self.publish_and_wake(&mut state);
        ended
    }

    /// Withdraws an operation whose future is dropped (ruling 4).
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

    /// Cancels an operation if it still waits for room. Called when the future of its acceptance is
    /// dropped.
    pub(crate) fn withdraw_waiting(&self, key: OpKey, awaited: &AwaitedOp) {
        let mut state = self.lock("withdraw waiting");
        if state.machine.phase(key) == Some(Phase::Waiting) && !awaited.has_ended() {
            state.machine.cancel(key);
            self.waker.wake_by_ref(); // Posts behind it may have room now.
        }
        self.publish_and_wake(&mut state);
    }

    /// Publishes the operations that a call of the application has ended, and wakes the driver if
    /// work follows: posts to admit, frames to send, or a broken connection to end.
    pub(super) fn publish_and_wake(&self, state: &mut PortState) {
        self.publish(state);
        let machine = &state.machine;
        let broken = state.life.is_open() && machine.fault().is_some();
        let transmits = !machine.is_transmit_out() && !machine.is_transmit_idle();
        let is_due = machine.wants_admission() || machine.wants_close();
        // Operations that wait for a peer whose stream has ended have a deadline, which begins with
        // a turn.
        let is_over = machine.has_served_receives();
        if broken || transmits || is_due || is_over || machine.awaits_ended_peer() {
            self.waker.wake_by_ref();
        }
    }
}

/// Refuses a peer of an IP version in which the endpoint cannot be reached: the peer could not
/// answer.
pub(super) fn check_ip_version(own: SocketAddr, peer: SocketAddr) -> Result<()> {
    if reaches(own, peer) {
        return Ok(());
    }
    let what = format!("the endpoint is at {own}, of another IP version: open it at [::] for both");
    Err(Error::new(ErrorKind::InvalidArgument, what).with_peer(peer))
}
