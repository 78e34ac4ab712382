//! Attempts to connect a port: how they begin, and how failed ones are given up. The port of a
//! connectionless endpoint keeps its posted operations for the next attempt (`rdm/attempt.rs`); the
//! port of a connected endpoint fails them.

use std::time::Duration;

use crate::proto::Connection;
use crate::transport::Link;

use super::port::{Port, PortKind, PortState, demand_key};
use super::report::Report;

impl Port {
    /// Begins an attempt over this link, which must succeed within `limit`.
    pub(super) fn begin_attempt(
        &self,
        state: &mut PortState,
        link: Box<dyn Link>,
        limit: Option<Duration>,
        begin: impl FnOnce(&mut Connection<Report>),
    ) {
        let mut link = link;
        let marked = state.bindings.traffic.map(|mark| link.set_traffic(mark));
        state.io.link = Some(link);
        if let Some(limit) = limit {
            state.life.limit_connect(limit);
        }
        // The link of an accepted connection is established already.
        state.bind_proofs();
        self.offer_local(state);
        begin(&mut state.machine);
        self.note_who_asks(state);
        if let Some(Err(error)) = marked {
            self.fail(state, error);
        }
        self.waker.wake_by_ref();
    }

    /// Gives up a failed attempt; another may follow.
    pub(super) fn give_up_attempt(&self, state: &mut PortState) {
        self.note_failed_attempt(state);
        self.take_attempt_back(state);
    }

    /// Takes everything back from the link of an attempt that was given up.
    pub(super) fn take_attempt_back(&self, state: &mut PortState) {
        state.life.retract();
        state.io.stage = None;
        state.io.cancel_submitted();
        // The link wakes the port once it has returned everything.
        self.waker.wake_by_ref();
    }

    /// Ends the teardown of an attempt whose link has returned everything: another may begin.
    pub(super) fn begin_again(&self, state: &mut PortState) {
        state.io.reset();
        match state.kind {
            PortKind::Rdm(_) => state.machine.reset_attempt(),
            PortKind::Msg => {
                let (machine, mut host) = state.machine_and_host(self);
                machine.handle_attempt_failed(&mut host);
            }
        }
        let keyed = demand_key(&mut state.machine, self.auth_key(), &self.engine.random);
        if let PortKind::Rdm(_) = state.kind {
            self.follow_attempt(state, keyed);
        } else if let Err(error) = keyed {
            // The connection must not be used without its key.
            self.fail(state, error);
            self.waker.wake_by_ref();
        }
    }
}
