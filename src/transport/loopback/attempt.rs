//! Connections between hosts of a simulated network: how they are established, and their relays.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Waker;

use super::datagrams::Inbox;
use super::hosts::{Host, Wire};
use super::pipe::Pipe;
use super::relay::{Direction, Relay};
use super::stream::PipeConnect;
use super::{LoopbackNet, LoopbackTransport, PipeEnd};
use crate::error::Result;
use crate::sync::Lock;
use crate::transport::Link;

/// The other host's answer, once it has come.
pub(super) struct ConnectAttempt {
    state: Lock<(Option<bool>, Option<Waker>)>,
}

impl ConnectAttempt {
    fn new() -> Arc<Self> {
        Arc::new(ConnectAttempt {
            state: Lock::new((None, None)),
        })
    }

    pub(super) fn poll(&self, waker: &Waker) -> Option<bool> {
        let mut state = self.state.lock("look for the answer");
        if state.0.is_none() {
            state.1 = Some(waker.clone());
        }
        state.0
    }

    fn answer(&self, accepted: bool) {
        let waker = {
            let mut state = self.state.lock("answer");
            state.0 = Some(accepted);
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl LoopbackNet {
    /// Removes all listeners and sockets at this address, without notice to their peers.
    pub(super) fn forget_sockets_of(&self, ip: std::net::IpAddr) {
        let gone: Vec<_> = {
            let mut listeners = self.listeners.lock("forget listeners");
            let at: Vec<_> = listeners
                .keys()
                .copied()
                .filter(|at| at.ip() == ip)
                .collect();
            at.iter().filter_map(|at| listeners.remove(at)).collect()
        };
        for backlog in gone {
            backlog.close();
        }
        let mut inboxes = self.inboxes.lock("forget datagram sockets");
        inboxes.retain(|inbox| {
            inbox
                .upgrade()
                .is_some_and(|inbox| inbox.address().ip() != ip)
        });
    }

    /// Carries a datagram from host to host. Returns it if it must be delivered at once; otherwise
    /// it arrives later, or, over a cut wire, not at all.
    pub(super) fn carry(
        &self,
        from: SocketAddr,
        to: Arc<Inbox>,
        bytes: &[u8],
    ) -> Option<Arc<Inbox>> {
        let hosts = [from, to.address()].map(|at| self.hosts.of_ip(at.ip()));
        let Some(wire) = self.hosts.wire(hosts[0], hosts[1]) else {
            return Some(to);
        };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return Some(to);
        };
        if wire.is_cut() {
            return None;
        }
        let at = wire.arrival(bytes.len());
        if at <= tokio::time::Instant::now() {
            return Some(to);
        }
        let bytes = bytes.to_vec();
        runtime.spawn(async move {
            tokio::time::sleep_until(at).await;
            to.push(from, &bytes);
        });
        None
    }
}

impl LoopbackTransport {
    pub(in crate::transport) fn at(mut self, host: Host) -> Self {
        self.host = Some(host);
        self
    }

    /// Returns the host that connects, if either side is at a named host.
    pub(super) fn host_for(&self, to: SocketAddr) -> Option<Host> {
        let is_named = self.net.hosts.of_ip(to.ip()) != 0;
        let nameless = || is_named.then(|| self.net.host(""));
        self.host.clone().or_else(nameless)
    }

    /// Connects as TCP does: a request is sent, an answer comes back, and a request without an
    /// answer is repeated until the link is dropped.
    pub(super) fn connect_hosts(
        &self,
        host: &Host,
        to: SocketAddr,
        from: Option<SocketAddr>,
        waker: Waker,
    ) -> Result<Box<dyn Link>> {
        let to = self.own(to)?;
        let mut local = self.own(from.unwrap_or_else(|| SocketAddr::new(to.ip(), 0)))?;
        if from.is_none() {
            local.set_ip(host.ip());
        }
        if local.port() == 0 {
            local.set_port(self.net.ephemeral_port());
        }
        let ends = (host.index(), self.net.hosts.of_ip(to.ip()));
        let wires = (
            self.net.hosts.wire(ends.0, ends.1),
            self.net.hosts.wire(ends.1, ends.0),
        );
        let (mut near, mut far) = PipeEnd::pair(local, to);
        let (Some(there), Some(back)) = wires else {
            self.net
                .hosts
                .add_end(ends.0, [&near.incoming, &near.outgoing]);
            let connect = match self.net.find(to).is_some_and(|to| to.push(far).is_ok()) {
                true => PipeConnect::Accepted,
                false => PipeConnect::Refused,
            };
            return Ok(self.connecting(near, connect, waker));
        };
        // Each direction has two pipes, with the wire between them.
        (far.incoming, far.outgoing) = (Arc::new(Pipe::new()), Arc::new(Pipe::new()));
        (near.is_relayed, far.is_relayed) = (true, true);
        self.net
            .hosts
            .add_end(ends.0, [&near.incoming, &near.outgoing]);
        let relay = Relay::new(
            Direction::new(&near.outgoing, &far.incoming, Arc::clone(&there)),
            Direction::new(&far.outgoing, &near.incoming, Arc::clone(&back)),
        );
        let attempt = ConnectAttempt::new();
        let request = Request {
            net: Arc::clone(&self.net),
            host: ends.1,
            far,
            attempt: Arc::clone(&attempt),
        };
        self.runtime.spawn(async move {
            if request.handshake(&there, &back).await {
                relay.await;
            }
        });
        Ok(self.connecting(near, PipeConnect::Pending(attempt), waker))
    }
}

/// A connection request on its way to another host.
struct Request {
    net: Arc<LoopbackNet>,
    host: usize,
    far: PipeEnd,
    attempt: Arc<ConnectAttempt>,
}

impl Request {
    async fn handshake(self, there: &Wire, back: &Wire) -> bool {
        there.pass().await;
        if Arc::strong_count(&self.attempt) == 1 {
            // The link was dropped: the request is not repeated.
            return false;
        }
        let backlog = self.net.find(self.far.local);
        back.pass().await;
        self.attempt.answer(backlog.is_some());
        let Some(backlog) = backlog else {
            return false;
        };
        there.pass().await;
        let pipes = [&self.far.incoming, &self.far.outgoing];
        self.net.hosts.add_end(self.host, pipes);
        if let Err(far) = backlog.push(self.far) {
            // The listener is gone, or its backlog is full.
            far.reset();
        }
        true
    }
}
