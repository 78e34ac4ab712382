//! Posting to a port, and taking back what was posted.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::error::{OperationKind, Phase, Result};
use crate::proto::{OpKey, Operation, PostOptions, Refused, Withdrawn};

use super::port::{Port, PortState, Posted};
use super::receive_context::TimedReport;
use super::report::{OpCell, Report};

/// How a port was before something was posted.
#[derive(Clone, Copy)]
struct StateBeforePost {
    idle: bool,
    paused: bool,
    /// Whoever posts several at a time has them sent together, by the driver; whoever posts one at
    /// a time gains nothing by another turn of it.
    left: bool,
}

impl StateBeforePost {
    fn a_post(state: &mut PortState) -> Self {
        state.activity += 1;
        StateBeforePost {
            idle: state.machine.is_transmit_idle(),
            paused: state.machine.is_read_paused(),
            left: state.bursts,
        }
    }
}

impl Port {
    /// Posts an operation. The first one on an idle connection since the driver ran is sent within
    /// this call, unless the link leaves sends to the driver; others are gathered (ruling 5).
    pub(crate) fn post(
        &self,
        operation: Operation<Report>,
    ) -> Result<Posted, Box<Refused<Report>>> {
        let PostOptions {
            wait,
            more,
            timeout,
            ..
        } = operation.options;
        let is_receive = operation.is_receive();
        let mut state = self.lock("post");
        let before = StateBeforePost::a_post(&mut state);
        let key = state.post(self, operation).map_err(|mut refused| {
            refused.error = state.about_peer(refused.error);
            refused
        })?;
        if let Some(timeout) = timeout {
            state.deadlines.add(key, timeout);
            self.waker.wake_by_ref();
        }
        if is_receive {
            if before.paused || state.stage.is_some() || state.machine.wants_credit() {
                self.waker.wake_by_ref();
            }
        } else {
            self.posted_to_send(&mut state, before, more);
        }
        // What was sent whole by now awaits nobody.
        self.watch_peer(&mut state);
        let mut cell = None;
        if wait
            && state.machine.phase(key) == Some(Phase::Waiting)
            && let Some(Report::Queue { waiting, .. }) = state.machine.token_mut(key)
        {
            cell = Some(Arc::clone(waiting.insert(OpCell::new())));
        }
        self.settle(&mut state);
        Ok(Posted { key, waiting: cell })
    }

    /// Posts a message that is copied: its end is told to counters only, and it never waits. Of a
    /// connected endpoint.
    pub(crate) fn inject(&self, bytes: &[u8], data: Option<u64>) -> Result<()> {
        let mut state = self.lock("inject");
        let before = StateBeforePost::a_post(&mut state);
        let open = state.check_closing();
        if let Err(error) = open.and_then(|()| state.machine.inject(bytes, data)) {
            let error = error.with_operation(OperationKind::Inject);
            return Err(state.about_peer(error));
        }
        self.posted_to_send(&mut state, before, false);
        self.watch_peer(&mut state);
        self.settle(&mut state);
        Ok(())
    }

    /// Something is to go out: sends it, or leaves it to the driver (ruling 5).
    fn posted_to_send(&self, state: &mut PortState, before: StateBeforePost, more: bool) {
        if before.idle && !state.inline_spent && !more && !before.left {
            state.inline_spent = true;
            self.transmit_now(state);
        } else if state.machine.is_transmit_gathered() {
            if self.transmit_now(state) && before.paused {
                self.waker.wake_by_ref(); // Sent answers let reading go on.
            }
        } else {
            state.bursts = true;
            self.waker.wake_by_ref();
        }
    }

    /// Asks an operation to end early.
    pub(crate) fn cancel(&self, key: OpKey) -> Withdrawn {
        let mut state = self.lock("cancel");
        let withdrawn = state.machine.cancel(key);
        self.settle(&mut state);
        withdrawn
    }

    /// Asks everything that is to be transmitted to end early; says how much of it has by that.
    pub(crate) fn cancel_all(&self) -> usize {
        let mut state = self.lock("cancel all");
        let ended = state.machine.cancel_all();
        self.settle(&mut state);
        ended
    }

    /// The future of an operation is dropped (ruling 4).
    pub(crate) fn withdraw(&self, key: OpKey, cell: &OpCell) {
        let mut state = self.lock("withdraw");
        match state.machine.withdraw(key) {
            Withdrawn::Ended => {}
            Withdrawn::Running => {
                if let Some(report) = state.machine.token_mut(key)
                    && !matches!(report, Report::Counted)
                {
                    *report = Report::Nowhere;
                }
            }
            Withdrawn::Gone => {
                if let Some(end) = cell.take() {
                    if end.is_message() {
                        let (len, overflow, data) = (end.len, end.overflow, end.data);
                        let machine = &mut state.machine;
                        machine.give_back(end.payload, len, overflow, data, end.order);
                    } else {
                        state.leftovers.push(end.payload);
                    }
                }
            }
        }
        self.settle(&mut state);
    }

    /// The future of a shared receive was dropped. If the receive is of this port, its message goes
    /// back as soon as it has landed, before any that is behind it: true. An end that is still to
    /// be told is told now, and so gives its message back.
    pub(crate) fn orphan(&self, cell: &OpCell) -> bool {
        let mut state = self.lock("orphan");
        let found = state.machine.orphan(|report| report.is_awaited_in(cell));
        self.settle(&mut state);
        found
    }

    /// The time of a shared receive has passed. If the receive is of this port, its message goes
    /// back as soon as it has landed, and its report is returned, so that nobody tells another end,
    /// with the peer that has not sent all of the message.
    pub(super) fn orphan_timed(
        &self,
        timed: &Arc<TimedReport>,
    ) -> Option<(Report, Option<SocketAddr>)> {
        let mut state = self.lock("orphan timed");
        let found = (state.machine).orphan(|report| report.is_taken_from(timed));
        let report = if found { timed.take() } else { None };
        self.settle(&mut state);
        report.map(|report| (report, state.peer))
    }

    /// Whoever waited for the acceptance of a queued operation goes away: it is withdrawn if it
    /// still waits.
    pub(crate) fn withdraw_waiting(&self, key: OpKey, cell: &OpCell) {
        let mut state = self.lock("withdraw waiting");
        if state.machine.phase(key) == Some(Phase::Waiting) && !cell.has_ended() {
            state.machine.cancel(key);
            self.waker.wake_by_ref(); // Those behind it may have all they wait for.
        }
        self.settle(&mut state);
    }

    /// Publishes what a call of the application's has ended, and leaves to the driver what follows
    /// from it: room for those who wait, frames that may go out now, the end of a connection that
    /// turned out to be broken.
    pub(super) fn settle(&self, state: &mut PortState) {
        self.publish(state);
        let machine = &state.machine;
        let broken = state.shutdown.is_open() && machine.fault().is_some();
        let transmits = !machine.is_transmit_out() && !machine.is_transmit_idle();
        if broken || transmits || machine.wants_admission() || machine.wants_end() {
            self.waker.wake_by_ref();
        }
    }
}
