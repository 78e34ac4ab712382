//! The listening task: accepts, gives each peer its steps, and passes complete requests on.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::error::{Error, ErrorKind};
use crate::proto::{HostShares, host_of};
use crate::transport::{Clock, Listener, RawLink, Receive};
use crate::wire::CmDecoder;

use super::half_open::Deadlines;
use super::handshake::{Handshake, Peer};
use super::wake::{ListenWake, PeerWaker};
use super::{BoundListener, ListenConfig, RequestHandler};

/// Connections accepted in one poll, so that a storm does not starve the requests already here.
const ACCEPTS_PER_POLL: usize = 64;
/// How long accepting pauses when the process has no descriptor left.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
pub(super) struct ListenTask<H> {
    pub(super) handler: H,
    /// When the handler has work of its own to do.
    pub(super) handler_due: Option<Instant>,
    pub(super) listener: Option<Box<dyn Listener>>,
    pub(super) clock: Box<dyn Clock>,
    pub(super) shared: Arc<ListenWake>,
    pub(super) peers: BTreeMap<u64, Peer>,
    /// Those of `peers` that no handler decides about.
    pub(super) half_open: HostShares<u64, IpAddr>,
    /// The deadlines of `peers`.
    pub(super) deadlines: Deadlines<u64>,
    /// Peers whose request waits for room, oldest first.
    pub(super) pending: VecDeque<u64>,
    pub(super) next: u64,
    pub(super) paused_until: Option<Instant>,
    pub(super) stopped: bool,
    /// Why the listener closed by itself, until the handler has been told.
    pub(super) broken: Option<Error>,
    pub(super) config: ListenConfig,
}

impl<H: RequestHandler> ListenTask<H> {
    pub(super) fn new(bound: BoundListener, handler: H) -> Self {
        let config = bound.config;
        ListenTask {
            handler,
            handler_due: None,
            listener: Some(bound.listener),
            clock: bound.clock,
            shared: bound.shared,
            peers: BTreeMap::new(),
            half_open: HostShares::new(config.half_open_max),
            deadlines: Deadlines::new(),
            pending: VecDeque::new(),
            next: 0,
            paused_until: None,
            stopped: false,
            broken: None,
            config,
        }
    }

    fn accept(&mut self, cx: &mut Context<'_>) {
        if let Some(until) = self.paused_until {
            if self.clock.now() < until {
                return;
            }
            self.paused_until = None;
        }
        for _ in 0..ACCEPTS_PER_POLL {
            if !self.pending.is_empty() {
                return;
            }
            let Some(listener) = &mut self.listener else {
                return;
            };
            match listener.poll_accept(cx) {
                Poll::Pending => return,
                Poll::Ready(Ok(raw)) => self.begin(raw),
                Poll::Ready(Err(error)) if error.kind() == ErrorKind::LimitReached => {
                    tracing::warn!(%error, "accepting pauses");
                    self.paused_until = Some(self.clock.now() + ACCEPT_BACKOFF);
                    return;
                }
                Poll::Ready(Err(error)) => return self.on_broken(error),
            }
        }
        cx.waker().wake_by_ref();
    }

    /// Listens no more; the handler is told. Peers on a lost transport go at their deadline.
    fn on_broken(&mut self, error: Error) {
        if self.listener.take().is_some() {
            tracing::warn!(%error, "the listener is broken and closes");
            self.shared.gone.store(true, Ordering::Release);
            self.broken = Some(error);
        }
    }

    fn begin(&mut self, raw: RawLink) {
        let id = self.next;
        self.next += 1;
        let waker = Waker::from(PeerWaker::new(&self.shared, id));
        let mut link = match self.config.transport.adopt(raw, waker.clone()) {
            Ok(link) => link,
            Err(error) => {
                tracing::debug!(%error, "an accepted connection was lost");
                return;
            }
        };
        link.receive(Receive::Stage);
        let deadline = self.clock.now().checked_add(self.config.handshake_timeout);
        let mut peer = Peer {
            id,
            host: host_of(link.peer_addr()),
            link,
            waker,
            deadline: None,
            handshake: Handshake::ReadingRequest(Box::new(CmDecoder::new())),
        };
        self.deadlines.set(id, &mut peer.deadline, deadline);
        let host = peer.host;
        self.peers.insert(id, peer);
        if self.count_half_open(id, host) {
            self.advance(id);
        }
    }

    /// One more is half open; closes the one that is evicted if these are too many. False: it is
    /// this one.
    pub(super) fn count_half_open(&mut self, id: u64, host: IpAddr) -> bool {
        let evicted = self.half_open.insert(id, host);
        if let Some(peer) = evicted.and_then(|evicted| self.peers.remove(&evicted)) {
            self.forget(peer);
        }
        evicted != Some(id)
    }

    /// The peer has nothing more to do here; what it still has of a connection closes.
    fn forget(&mut self, mut peer: Peer) {
        self.deadlines.set(peer.id, &mut peer.deadline, None);
        self.half_open.remove(peer.id, peer.host);
    }

    /// Looks at one peer; drops it when it has nothing more to do here.
    fn advance(&mut self, id: u64) {
        let Some(mut peer) = self.peers.remove(&id) else {
            return;
        };
        match self.step(&mut peer) {
            true => drop(self.peers.insert(id, peer)),
            false => self.forget(peer),
        }
    }

    /// Tells the handler that the listener broke, once there is room.
    fn report_broken(&mut self, cx: &mut Context<'_>) {
        if let Some(error) = &self.broken
            && self.handler.on_broken(error, cx)
        {
            self.broken = None;
        }
    }

    /// Tells the handler of whole requests, as far as it has room.
    fn pass_on_requests(&mut self, cx: &mut Context<'_>) {
        while let Some(&id) = self.pending.front() {
            let Some(mut peer) = self.peers.remove(&id) else {
                self.pending.pop_front();
                continue;
            };
            if self.pass_on(&mut peer, cx) {
                self.pending.pop_front();
            }
            match peer.handshake {
                Handshake::HandedOver => self.forget(peer),
                _ => drop(self.peers.insert(id, peer)),
            }
            if self.pending.front() == Some(&id) {
                return;
            }
        }
    }

    /// The handle is gone: requests that nobody was told of end with the listener.
    fn stop(&mut self) {
        self.listener = None;
        self.pending.clear();
        for (id, peer) in std::mem::take(&mut self.peers) {
            match peer.handshake {
                Handshake::Deciding { .. } | Handshake::Rejecting => {
                    self.peers.insert(id, peer);
                }
                _ => self.forget(peer),
            }
        }
    }

    /// Nobody hears requests any more: callers are refused from now on, and those that nobody was
    /// told of are rejected.
    fn reject_all(&mut self) {
        tracing::warn!("no handle of the event queue is left: the listener closes");
        // Whoever is refused because of this finds that the listener says so.
        self.shared.gone.store(true, Ordering::Release);
        self.listener = None;
        self.pending.clear();
        let ids: Vec<_> = self.peers.keys().copied().collect();
        for id in ids {
            let Some(mut peer) = self.peers.remove(&id) else {
                continue;
            };
            if matches!(
                peer.handshake,
                Handshake::ReadingRequest(_) | Handshake::Pending { .. }
            ) {
                self.reject(&mut peer, Bytes::new());
            }
            self.peers.insert(id, peer);
        }
    }

    fn expire(&mut self) -> Option<Instant> {
        let now = self.clock.now();
        while let Some(id) = self.deadlines.pop_due(now) {
            if let Some(mut peer) = self.peers.remove(&id) {
                peer.deadline = None;
                self.forget(peer);
            }
        }
        let first = self.deadlines.first();
        let others = [self.paused_until, self.handler_due];
        others.into_iter().flatten().chain(first).min()
    }
}

impl<H: RequestHandler> Future for ListenTask<H> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        // This task alone drives its transport. It goes first, since it makes peers ready.
        if let Poll::Ready(Err(lost)) = this.config.transport.poll_drive(cx) {
            this.on_broken(lost);
        }
        let ready = {
            let mut ready = this.shared.lock();
            ready.task = Some(cx.waker().clone());
            std::mem::take(&mut ready.peers)
        };
        for id in ready {
            this.advance(id);
        }
        this.handler_due = this.handler.poll(this.clock.now(), cx);
        if this.listener.is_some() && this.handler.is_gone(cx) {
            this.reject_all();
        }
        if this.shared.stopping.load(Ordering::Acquire) {
            if !std::mem::replace(&mut this.stopped, true) {
                this.stop();
            }
            if this.peers.is_empty() && this.handler.is_over() {
                return Poll::Ready(());
            }
        }
        loop {
            this.pass_on_requests(cx);
            if !this.pending.is_empty() {
                break; // There is no room; when there is, this task is woken.
            }
            this.accept(cx);
            if this.pending.is_empty() {
                break;
            }
        }
        this.report_broken(cx);
        while let Some(at) = this.expire() {
            if this.clock.poll_deadline(at, cx).is_pending() {
                break;
            }
            if this
                .paused_until
                .is_some_and(|until| until <= this.clock.now())
            {
                this.paused_until = None;
                cx.waker().wake_by_ref();
            }
            let now = this.clock.now();
            if this.handler_due.is_some_and(|due| due <= now) {
                this.handler_due = this.handler.poll(now, cx);
            }
        }
        let stopping = this.shared.stopping.load(Ordering::Acquire);
        if stopping && this.peers.is_empty() && this.handler.is_over() {
            return Poll::Ready(()); // The last rejection took too long, or the handler ended.
        }
        if !this.config.transport.rest(cx.waker()) {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl<H> Drop for ListenTask<H> {
    fn drop(&mut self) {
        self.shared.gone.store(true, Ordering::Release);
        self.listener = None;
        self.peers.clear();
        self.config.transport.driver_gone();
    }
}
