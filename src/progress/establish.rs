//! How a port's connection begins and ends, as handles ask for it.

use std::net::SocketAddr;
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;

use crate::eq::{AcceptedLink, ConnectParams};
use crate::error::{Error, ErrorKind, Result};
use crate::id::UserContext;
use crate::proto::Lifecycle;

use super::port::{Port, PortState};
use super::shutdown::ShutdownState;

impl Port {
    /// Starts the active side.
    pub(crate) fn connect(
        &self,
        to: SocketAddr,
        from: Option<SocketAddr>,
        data: &[u8],
        context: Option<UserContext>,
        timeout: Duration,
    ) -> Result<()> {
        let mut state = self.lock("connect");
        self.engine.check_alive()?;
        check_idle(&state)?;
        state.bindings.reserve_connected()?;
        state.establishing.result = None;
        let link = self
            .engine
            .transport
            .connect(to, from, self.waker.clone())?;
        state.peer = Some(to);
        state.link = Some(link);
        state.connect_context = context;
        state.shutdown.limit_connect(timeout);
        state.machine.begin_connect(data);
        drop(state);
        self.waker.wake_by_ref();
        Ok(())
    }

    /// Takes over an accepted connection and answers its request.
    pub(crate) fn accept(
        &self,
        accepted: AcceptedLink,
        data: &[u8],
        context: Option<UserContext>,
    ) -> Result<()> {
        let mut state = self.lock("accept");
        self.engine.check_alive()?;
        check_idle(&state)?;
        state.bindings.reserve_connected()?;
        state.establishing.result = None;
        let link = self
            .engine
            .transport
            .adopt(accepted.raw, self.waker.clone())?;
        state.peer = Some(link.peer_addr());
        state.local = Some(link.local_addr());
        state.link = Some(link);
        state.connect_context = context;
        state.shutdown.limit_connect(accepted.timeout);
        let ConnectParams { order, offer } = accepted.params;
        state.machine.begin_accept(data, order, offer);
        drop(state);
        self.waker.wake_by_ref();
        Ok(())
    }

    /// Ready once the connection is up (with the acceptor's data) or has failed.
    pub(crate) fn poll_established(&self, waker: &Waker) -> Poll<Result<Bytes>> {
        let mut state = self.lock("poll established");
        if let Some(result) = &state.establishing.result {
            return Poll::Ready(result.clone());
        }
        let stale = state.establishing.waker.replace(waker.clone());
        // With the lock released: the last waker of a task may run its destructor.
        drop(state);
        drop(stale);
        Poll::Pending
    }

    /// The last handle of the endpoint has gone: it closes in order, and nobody is told
    /// (`fi_close`).
    pub(crate) fn abandon(&self) {
        let mut state = self.lock("abandon");
        let events = (
            state.bindings.connected.take(),
            state.bindings.shutdown.take(),
        );
        drop(state);
        drop(events); // Whoever waits for room in their queue is woken.
        self.begin_close();
    }

    /// Begins the orderly end of this side: what is queued goes out, then everything ends.
    pub(crate) fn begin_close(&self) {
        let mut state = self.lock("begin close");
        match state.shutdown.state() {
            ShutdownState::Open => self.begin_orderly_end(&mut state),
            // What it was to go on with ends too.
            ShutdownState::Retracting => self.begin_draining(&mut state),
            _ => return,
        }
        drop(state);
        self.waker.wake_by_ref();
    }

    pub(super) fn begin_orderly_end(&self, state: &mut PortState) {
        self.moves(state);
        state.shutdown.request_close();
        state.machine.begin_end();
    }
}

impl Port {
    /// True once the connection has ended in order.
    pub(crate) fn has_ended_in_order(&self) -> bool {
        self.lock("how it ended").ended_in_order
    }
}

fn check_idle(state: &PortState) -> Result<()> {
    match (state.machine.lifecycle(), state.shutdown.state()) {
        (Lifecycle::Idle, ShutdownState::Open) => Ok(()),
        (Lifecycle::Closed, _) | (_, ShutdownState::Flushing | ShutdownState::Draining) => {
            Err(Error::new(ErrorKind::BadState, "the endpoint is closed"))
        }
        _ => Err(Error::new(ErrorKind::AlreadyConnected, "")),
    }
}
