//! One turn of a port. In rounds, outcomes of the link go to the machine and frames of the machine
//! go to the link, until nothing moves or the budget is spent.
//!
//! ```text
//!                bytes                  frames                  completions, events
//!   link ───────────────▶  machine  ───────────────▶  link              │
//!     │ 1 take outcomes   2 feed   3 transmit           │ 4 arm         ▼ 5 deliver
//!     └──────────────────────◀── next round ◀───────────┴── 6 advance link ──▶ turn ends
//! ```
//!
//! Within step 1 each outcome is followed by steps 3 and 4: the link has room again for a batch or
//! a receive, and is kept busy.
//!
//! A turn holds the port's lock. Its budget, in bytes and time, is that of the driver's poll
//! (`budget.rs`): a port that spends it is queued behind ports that have become ready meanwhile.

use std::time::Instant;

use crate::buf::Stage;
use crate::proto::ReceivePlan;
use crate::transport::{Clock, DirectBuffer, Outcome, Receive, shares_processor, wake_bytes};

use super::budget::Budget;
use super::host::with_host;
use super::link_life::LinkState;
use super::pollable::{NextTurn, TurnResult};
use super::port::{Port, PortIo, PortState};

impl Port {
    pub(super) fn turn(&self, now: Instant, clock: &dyn Clock, left: &mut Budget) -> TurnResult {
        // From here on, waking the port puts it on the ready list again.
        self.port_waker.mark_dequeued();
        let _entered = self.span.enter();
        let mut state = self.lock("turn");
        let published = state.published();
        self.turn_of(&mut state, published, now, clock, left)
    }

    /// Takes a turn if the link has anything although the reactor has not reported it ready. The
    /// port stays on the ready list if it is there.
    pub(super) fn try_turn(
        &self,
        now: Instant,
        clock: &dyn Clock,
        left: &mut Budget,
    ) -> Option<TurnResult> {
        let _entered = self.span.enter();
        let mut state = self.lock("try the link");
        let published = state.published();
        let found = self.try_receive(&mut state);
        found.then(|| self.turn_of(&mut state, published, now, clock, left))
    }

    /// Takes a turn. Its completions are the events published since the count was `published`.
    fn turn_of(
        &self,
        state: &mut PortState,
        published: u64,
        now: Instant,
        clock: &dyn Clock,
        left: &mut Budget,
    ) -> TurnResult {
        #[cfg(test)]
        self.turns
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.begin_turn(state, now);
        let mut may_follow = true;
        let mut acks_wait = false;
        loop {
            // 1. Take the link's outcomes: received bytes are in the staging buffer or in the
            // receive's, sent frames go back to their operations.
            let committed = self.commit(state);
            let moved = self.take_outcomes(state, left) || committed;
            if !moved && !may_follow {
                break;
            }
            // 2. Feed staged bytes to the machine, then admit posts that wait for room, and feed
            // the bytes that the machine takes after that.
            self.feed(state);
            if state.machine.publishes_first() {
                self.publish(state);
            }
            with_host!(self, state, |machine, host| {
                machine.admit_waiting(host);
                machine.resume(host);
            });
            self.feed(state);
            self.commit(state);
            // 3. Hand frames to the link, including answers to what has just been received.
            acks_wait = moved && acks_can_wait(state, left);
            let sent = !acks_wait && self.transmit(state, left);
            // 4. Arm the next receive, into the place that the machine plans for the next bytes.
            self.arm(state);
            // 5. Deliver completions, counters and events, in order. Wakers wait for the unlock.
            self.publish(state);
            // 6. Advance the link's state, which may end operations.
            self.advance_link(state, now);
            self.publish(state);

            // Completed operations make room for the backlog, and answers that were sent let
            // reading go on: no outcome will report either.
            let again = state.machine.wants_admission() || sent && state.machine.is_read_paused();
            if !moved && !again {
                break;
            }
            // Most turns process one message. If it leaves nothing to do, the next round ends as
            // soon as the link has no other outcome.
            may_follow =
                sent || again || acks_wait || state.io.stage.is_some() || !state.life.is_open();
            if !moved {
                left.spend_step();
            }
            left.tick(clock.now());
            if left.is_spent() {
                break;
            }
        }
        if acks_wait {
            self.transmit(state, left);
        }
        let mut turned = self.end_turn(state, now, left);
        turned.completions = state.published() - published;
        turned
    }

    /// Begins a turn. Time limits set by calls, which have no clock, begin to run now.
    fn begin_turn(&self, state: &mut PortState, now: Instant) {
        state.inline_send.on_turn();
        let PortIo {
            peer,
            link,
            peer_processor,
            ..
        } = &mut state.io;
        peer_processor.on_turn(|| {
            let is_here = peer.is_some_and(|peer| peer.ip().is_loopback());
            let socket = link.as_ref().filter(|_| is_here).and_then(|it| it.socket());
            socket.is_some_and(shares_processor)
        });
        state.machine.handle_time(now);
        state.life.start_limit(now);
        if state.life.is_overdue(now) {
            // The socket may hold bytes that show that the peer is alive, but too few to wake this
            // side.
            self.try_receive(state);
        }
        let machine = &state.machine;
        state
            .timers
            .deadlines
            .start(now, |op, _| machine.phase(op).is_some());
    }

    fn end_turn(&self, state: &mut PortState, now: Instant, left: &Budget) -> TurnResult {
        // A frame that was sent in part waits for the peer, which must be watched.
        self.watch_peer(state);
        self.localize_if_busy(state);
        self.expire(state, now);
        let next = match state.life.state() {
            LinkState::Closed if !state.machine.serves_receives() => {
                self.end_turns(state);
                NextTurn::Never
            }
            _ if left.is_spent() => {
                self.port_waker.mark_queued();
                NextTurn::Requeued
            }
            _ => NextTurn::WhenWoken,
        };
        let alarm = (state.timers).next_alarm(next, now, state.life.deadline());
        TurnResult {
            next,
            alarm,
            stale_alarm: state.timers.stale_alarm.take(),
            completions: 0,
        }
    }

    /// Ends the port in its last turn. It waits no longer for receives, or for room in its queue.
    pub(super) fn end_turns(&self, state: &mut PortState) {
        state.machine.end_service();
        self.publish(state);
        state.bindings.receive_queue.withdraw(&self.waker);
    }

    /// Step 1, as far as the budget goes, with steps 3 and 4 after each outcome. Returns true if
    /// there were any outcomes.
    pub(super) fn take_outcomes(&self, state: &mut PortState, left: &mut Budget) -> bool {
        let mut moved = false;
        while !left.is_spent() {
            let Some(outcome) = state.io.link.as_mut().and_then(|link| link.poll_outcome()) else {
                break;
            };
            moved = true;
            left.spend(outcome.bytes());
            self.handle_outcome(state, outcome);
            // Staged bytes are fed before anything more is received.
            if state.io.stage.is_some() || left.is_spent() {
                break;
            }
            self.transmit(state, left);
            self.arm(state);
        }
        moved
    }

    /// Step 2: feeds staged bytes to the machine. Bytes that it does not take wait for a receive,
    /// or for room.
    #[inline]
    fn feed(&self, state: &mut PortState) {
        while let Some(stage) = state.io.stage.take() {
            self.feed_stage(state, stage);
            if !state.machine.publishes_first() {
                break;
            }
            self.publish(state);
        }
    }

    #[inline(never)]
    fn feed_stage(&self, state: &mut PortState, mut stage: Stage) {
        let taken = with_host!(self, state, |machine, host| machine
            .handle_stage(&stage, host));
        stage.advance(taken);
        if !stage.is_empty() {
            state.io.stage = Some(stage);
        }
    }

    /// Step 3: hands frames to the link while the link takes them at once and the budget lasts, but
    /// at least one batch: receiving must not stop all sending. Returns true if the link has sent
    /// any.
    pub(super) fn transmit(&self, state: &mut PortState, left: &mut Budget) -> bool {
        let mut sent = false;
        // Nothing is sent once the stream has ended, nor while the link returns its buffers.
        while state.life.may_send() {
            if state.io.link.is_none() {
                break;
            }
            let batch = with_host!(self, state, |machine, host| machine.poll_transmit(host));
            let (Some(batch), Some(link)) = (batch, &mut state.io.link) else {
                break;
            };
            state.inline_send.on_batch(batch.is_burst);
            state.counts.backend_sends += 1;
            link.send(batch);
            let Some(outcome) = link.poll_outcome() else {
                break;
            };
            match &outcome {
                Outcome::Sent { .. } => sent = true,
                // The link has another outcome: it must be polled again.
                _ => self.waker.wake_by_ref(),
            }
            left.spend(outcome.bytes());
            self.handle_outcome(state, outcome);
            // Credit is asked for after received bytes are processed, our CLOSE after frames are
            // sent.
            let machine = &state.machine;
            if left.is_spent() || machine.is_transmit_idle() && !machine.wants_close() {
                break;
            }
        }
        sent
    }

    /// Step 3 within a call of the application: the driver does the rest.
    pub(super) fn transmit_now(&self, state: &mut PortState) -> bool {
        let mut left = Budget::of_call();
        let sent = self.transmit(state, &mut left);
        if left.is_spent() {
            self.waker.wake_by_ref();
        }
        sent
    }

    /// Step 4: arms the next receive, or watches for the peer's end while reading is paused.
    fn arm(&self, state: &mut PortState) {
        let Some(link) = &mut state.io.link else {
            return;
        };
        let submitted = link.submitted();
        if submitted.receive || !state.life.may_receive() {
            return;
        }
        // Staged bytes are fed before more is received; if the machine takes none, it is paused.
        let plan = match state.io.stage {
            Some(_) => ReceivePlan::Paused,
            None => state.machine.poll_receive(),
        };
        match plan {
            ReceivePlan::Stage => link.receive(Receive::Stage),
            ReceivePlan::Direct {
                payload,
                offset,
                len,
                leases,
                frame_len,
                frame_left,
            } => link.receive(Receive::Direct(DirectBuffer {
                payload,
                offset,
                len: len as u32, // at most a piece
                leases,
                wake_bytes: wake_bytes(frame_len, frame_left),
            })),
            ReceivePlan::Paused if state.machine.is_read_paused() => {
                // The link reports the end of the peer's stream once; watching again would report
                // it with every turn.
                if !submitted.watch && state.machine.may_hear_end() {
                    link.watch();
                }
                self.register_unasked_answers(state);
            }
            ReceivePlan::Paused => {}
        }
    }
}

/// True if only a few acks of staged frames are to be sent, and the next bytes of the peer may have
/// arrived already. The acks go out as one frame once no bytes are left, at the latest at the end
/// of the turn. The ack of a large payload, which is received directly, does not wait.
fn acks_can_wait(state: &PortState, left: &Budget) -> bool {
    !left.is_spent() && state.machine.owes_few_acks()
}
