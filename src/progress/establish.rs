//! The calls of handles that begin and end a port's connection.

use std::net::SocketAddr;
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;

use crate::eq::{AcceptedLink, ConnectParams};
use crate::error::{Error, ErrorKind, Result};
use crate::id::UserContext;
use crate::proto::Lifecycle;

use super::link_life::LinkState;
use super::port::{Port, PortGuard, PortState};

impl Port {
    /// Connects: starts the active side.
    pub(crate) fn connect(
        &self,
        to: SocketAddr,
        from: Option<SocketAddr>,
        data: &[u8],
        context: Option<UserContext>,
        timeout: Duration,
    ) -> Result<()> {
        let mut state = self.lock_idle("connect")?;
        let transport = &self.engine.transport;
        let link = transport.connect(to, from, self.waker.clone())?;
        (state.io.peer, state.io.local) = (Some(to), None);
        self.span.record("peer", tracing::field::display(to));
        state.connect.context = context;
        self.begin_attempt(&mut state, link, Some(timeout), |machine| {
            machine.begin_connect(data);
        });
        Ok(())
    }

    /// Begins the passive side, which has accepted a request of this peer. [`Port::take_link`]
    /// follows.
    pub(crate) fn begin_accept(
        &self,
        peer: SocketAddr,
        context: Option<UserContext>,
    ) -> Result<()> {
        let mut state = self.lock_idle("accept")?;
        state.connect.context = context;
        state.connect.is_accepting = true;
        state.io.peer = Some(peer);
        Ok(())
    }

    /// Takes the accepted connection from the listener; `None`: the connection broke.
    pub(crate) fn take_link(&self, accepted: Option<AcceptedLink>, data: &[u8]) {
        let mut guard = self.lock("take a link");
        let state = &mut *guard;
        if !state.connect.is_accepting {
            return; // The port was closed meanwhile, and has reported it.
        }
        let gone = || Error::new(ErrorKind::PeerClosed, "before it was accepted");
        let accepted = accepted.ok_or_else(gone);
        if let Err(error) = accepted.and_then(|it| self.answer_request(state, it, data)) {
            self.connect_failed(state, error);
        }
    }

    /// Takes over an accepted connection and answers its request.
    fn answer_request(
        &self,
        state: &mut PortState,
        accepted: AcceptedLink,
        data: &[u8],
    ) -> Result<()> {
        let AcceptedLink {
            raw,
            params: ConnectParams { order, offer },
            timeout,
        } = accepted;
        self.engine.check_alive()?;
        let link = self.engine.transport.adopt(raw, self.waker.clone())?;
        let peer = link.peer_addr();
        state.io.peer = Some(peer);
        self.span.record("peer", tracing::field::display(peer));
        state.io.local = Some(link.local_addr());
        self.begin_attempt(state, link, Some(timeout), |machine| {
            machine.begin_accept(data, order, offer);
        });
        Ok(())
    }

    /// Locks the state of a port that may begin a connection, and reserves a slot for its Connected
    /// event.
    fn lock_idle(&self, purpose: &'static str) -> Result<PortGuard<'_>> {
        let mut state = self.lock(purpose);
        self.engine.check_alive()?;
        check_idle(&state)?;
        state.bindings.reserve_connected()?;
        state.connect.result = None;
        Ok(state)
    }

    /// Ready once the connection is up (with the acceptor's data) or has failed.
    pub(crate) fn poll_established(&self, waker: &Waker) -> Poll<Result<Bytes>> {
        let mut state = self.lock("poll established");
        if let Some(result) = &state.connect.result {
            return Poll::Ready(result.clone());
        }
        let stale = state.connect.waker.replace(waker.clone());
        // Dropped unlocked: the last waker of a task may run its destructor.
        drop(state);
        drop(stale);
        Poll::Pending
    }

    /// Closes the connection in order, without events, once the last handle of the endpoint is
    /// dropped (`fi_close`). A connection that is being accepted is established first, so that its
    /// peer sees the same whenever the handle is dropped.
    pub(crate) fn abandon(&self) {
        let mut state = self.lock("abandon");
        let events = (
            state.bindings.connected.take(),
            state.bindings.shutdown.take(),
        );
        state.connect.is_abandoned = state.connect.is_accepting;
        let goes_on = state.connect.is_abandoned;
        drop(state);
        drop(events); // This wakes tasks that wait for room in the queue.
        self.end_service();
        if !goes_on {
            self.begin_close();
        }
    }

    /// Ends the connection at once: the peer sees a loss.
    pub(crate) fn abort(&self) {
        let mut state = self.lock("abort");
        if state.machine.lifecycle() == Lifecycle::Connected {
            let why = "this side has aborted the connection";
            self.fail(&mut state, Error::new(ErrorKind::Canceled, why));
            self.waker.wake_by_ref();
        }
    }

    /// Stops the delivery of messages that came before a loss: no receive waits for them any more.
    pub(super) fn end_service(&self) {
        let mut state = self.lock("end the service");
        if state.machine.serves_receives() {
            self.waker.wake_by_ref(); // For its last turn.
        }
        state.machine.end_service();
        self.publish(&mut state);
    }

    /// Begins the orderly close of this side: queued frames are sent, then everything ends.
    pub(crate) fn begin_close(&self) {
        let mut state = self.lock("begin close");
        match state.life.state() {
            LinkState::Open => self.begin_flushing(&mut state),
            // There is no further attempt.
            LinkState::Retracting => self.begin_draining(&mut state),
            _ => return,
        }
        drop(state);
        self.waker.wake_by_ref();
    }

    pub(super) fn begin_flushing(&self, state: &mut PortState) {
        self.supersede(state);
        state.life.request_close();
        state.machine.request_close();
    }
}

fn check_idle(state: &PortState) -> Result<()> {
    match (state.machine.lifecycle(), state.life.state()) {
        _ if state.connect.is_accepting => Err(Error::new(ErrorKind::AlreadyConnected, "")),
        (Lifecycle::Idle, LinkState::Open) => Ok(()),
        (Lifecycle::Closed { .. }, _) | (_, LinkState::Flushing | LinkState::Draining) => {
            Err(Error::new(ErrorKind::BadState, "the endpoint is closed"))
        }
        _ => Err(Error::new(ErrorKind::AlreadyConnected, "")),
    }
}
