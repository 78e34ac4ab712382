//! The listening task: accepts connections, steps each peer's handshake, and passes complete
//! requests on.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;

use crate::error::{Error, ErrorKind};
use crate::limits::{ACCEPT_BACKOFF, ACCEPTS_PER_POLL};
use crate::log::{LogRate, emit_held};
use crate::proto::{HostShares, host_of};
use crate::sync::ProgressTask;
use crate::transport::{Clock, Listener, RawLink, Receive};
use crate::wire::CmDecoder;

use super::half_open::HandshakeDeadlines;
use super::handshake::{HandshakeState, IncomingPeer};
use super::pause::AcceptPause;
use super::spare::Spare;
use super::wake::{ListenWake, PeerWaker};
use super::{BoundListener, ListenConfig, RequestHandler};

pub(super) struct ListenTask<H> {
    pub(super) handler: H,
    /// Time at which the handler has work of its own to do.
    pub(super) handler_due: Option<Instant>,
    pub(super) listener: Option<Box<dyn Listener>>,
    pub(super) clock: Box<dyn Clock>,
    pub(super) shared: Arc<ListenWake>,
    pub(super) peers: BTreeMap<u64, IncomingPeer>,
    /// The `peers` whose request or proof of a key is being awaited, or has just been received.
    pub(super) half_open: HostShares<u64, IpAddr>,
    /// The `peers` that have been sent their rejection. They are closed before half-open ones.
    pub(super) rejected: HostShares<u64, IpAddr>,
    /// Whether accepting pauses while too many connections are half open.
    pub(super) pause: AcceptPause,
    /// The deadlines of `peers`.
    pub(super) deadlines: HandshakeDeadlines<u64>,
    /// Peers whose request waits for room at the handler, oldest first.
    pub(super) pending: VecDeque<u64>,
    pub(super) next: u64,
    /// Bounds the rate at which unauthorized peers are logged.
    pub(super) unauthorized: LogRate,
    pub(super) paused_until: Option<Instant>,
    /// `None`: peers are not refused for lack of descriptors; they try again by themselves.
    pub(super) spare: Option<Spare>,
    pub(super) stopped: bool,
    /// The reason why the listener closed by itself, until the handler has taken the report.
    pub(super) broken: Option<Error>,
    pub(super) config: ListenConfig,
    /// True if anything has moved since the last call of [`ProgressTask::has_moved`].
    pub(super) moved: bool,
}

impl<H: RequestHandler> ListenTask<H> {
    pub(super) fn new(bound: BoundListener, handler: H) -> Self {
        let (config, refuses) = (bound.config, handler.refuses_when_exhausted());
        ListenTask {
            handler,
            handler_due: None,
            listener: Some(bound.listener),
            clock: bound.clock,
            shared: bound.shared,
            peers: BTreeMap::new(),
            half_open: HostShares::new(config.half_open_max),
            rejected: HostShares::new(config.half_open_max),
            pause: AcceptPause::new(config.handshake_timeout),
            deadlines: HandshakeDeadlines::new(),
            pending: VecDeque::new(),
            next: 0,
            unauthorized: LogRate::default(),
            paused_until: None,
            spare: refuses.then(Spare::new),
            stopped: false,
            broken: None,
            config,
            moved: false,
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
            let now = self.clock.now();
            if !self.pending.is_empty() {
                return;
            }
            // All requests that have come are read by now: the half-open peers have not sent
            // theirs.
            let is_full = self.half_open.len() >= self.config.half_open_max;
            if is_full && self.pause.pauses(now) {
                return;
            }
            let Some(listener) = &mut self.listener else {
                return self.pause.end(now);
            };
            match listener.poll_accept(cx) {
                Poll::Pending => return self.pause.end(now),
                Poll::Ready(Ok(raw)) => {
                    let took_spare = self.spare.as_mut().is_some_and(|it| !it.renew());
                    self.begin(raw, took_spare);
                }
                Poll::Ready(Err(error)) if error.kind() == ErrorKind::LimitReached => {
                    if self.spare.as_mut().is_some_and(|it| it.give_up(now)) {
                        continue;
                    }
                    tracing::warn!(%error, "accepting pauses");
                    self.paused_until = Some(self.clock.now() + ACCEPT_BACKOFF);
                    return;
                }
                Poll::Ready(Err(error)) => return self.on_broken(error),
            }
        }
        cx.waker().wake_by_ref();
    }

    /// Closes the listener and keeps the error to be reported. If the transport is lost, the
    /// listener's peers end at their deadline.
    fn on_broken(&mut self, error: Error) {
        if self.listener.take().is_some() {
            tracing::warn!(%error, "the listener is broken and closes");
            self.shared.gone.store(true, Ordering::Release);
            self.broken = Some(error);
        }
    }

    fn begin(&mut self, raw: RawLink, took_spare: bool) {
        self.moved = true;
        self.shared.lock().stats.incoming += 1;
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
        let mut peer = IncomingPeer {
            id,
            host: host_of(link.peer_addr()),
            link,
            waker,
            deadline: None,
            took_spare,
            handshake: HandshakeState::ReadingRequest(Box::new(CmDecoder::new())),
        };
        self.deadlines.set(id, &mut peer.deadline, deadline);
        self.half_open.add(id, peer.host);
        self.peers.insert(id, peer);
        self.advance(id);
    }

    /// Closes connections if there are too many, the rejected ones first.
    fn make_room(&mut self) {
        while self.half_open.len() + self.rejected.len() > self.config.half_open_max {
            let rejected = self.rejected.evict();
            let Some(id) = rejected.or_else(|| self.half_open.evict()) else {
                return;
            };
            self.shared.lock().stats.evicted += u64::from(rejected.is_none());
            if let Some(peer) = self.peers.remove(&id) {
                let from = peer.link.peer_addr();
                tracing::debug!(%from, "a half-open connection is closed: there are too many");
                self.forget(peer);
            }
        }
    }

    /// Forgets a peer that is done here, and closes its connection if it still has one.
    fn forget(&mut self, mut peer: IncomingPeer) {
        self.deadlines.set(peer.id, &mut peer.deadline, None);
        self.half_open.remove(peer.id, peer.host);
        self.rejected.remove(peer.id, peer.host);
    }

    /// Steps one peer, and forgets it when it is done here.
    fn advance(&mut self, id: u64) {
        let Some(mut peer) = self.peers.remove(&id) else {
            return;
        };
        match self.step(&mut peer) {
            true => drop(self.peers.insert(id, peer)),
            false => self.forget(peer),
        }
        self.make_room();
    }

    /// Reports to the handler that the listener broke, as soon as it has room.
    fn report_broken(&mut self, cx: &mut Context<'_>) {
        if let Some(error) = &self.broken
            && self.handler.on_broken(error, cx)
        {
            self.broken = None;
        }
    }

    /// Passes complete requests to the handler, as far as it has room.
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
                HandshakeState::Done => self.forget(peer),
                _ => drop(self.peers.insert(id, peer)),
            }
            if self.pending.front() == Some(&id) {
                return;
            }
        }
    }

    /// Closes the listener, since its handle was dropped. Requests that were not passed on end with
    /// it.
    fn stop(&mut self) {
        self.listener = None;
        self.pending.clear();
        for (id, peer) in std::mem::take(&mut self.peers) {
            match peer.handshake {
                HandshakeState::Deciding { .. } | HandshakeState::Rejecting => {
                    self.peers.insert(id, peer);
                }
                _ => self.forget(peer),
            }
        }
    }

    /// Closes the listener because requests have no reader any more: connections are refused from
    /// now on, and requests that were not passed on are rejected.
    fn reject_all(&mut self) {
        tracing::info!("no handle of the event queue is left: the listener closes");
        // Before the first refusal, so that a refused peer finds the listener closed.
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
                HandshakeState::ReadingRequest(_) | HandshakeState::Pending { .. }
            ) {
                self.reject(&mut peer, Bytes::new());
            }
            self.peers.insert(id, peer);
        }
    }

    fn expire(&mut self, cx: &mut Context<'_>) -> Option<Instant> {
        let now = self.clock.now();
        while let Some(id) = self.deadlines.pop_due(now) {
            cx.waker().wake_by_ref(); // There is room for another.
            if let Some(mut peer) = self.peers.remove(&id) {
                peer.deadline = None;
                let is_rejected = matches!(peer.handshake, HandshakeState::Rejecting);
                self.shared.lock().stats.timed_out += u64::from(!is_rejected);
                let from = peer.link.peer_addr();
                tracing::debug!(%from, "a half-open connection is closed: it took too long");
                self.forget(peer);
            }
        }
        let first = self.deadlines.first();
        let others = [self.paused_until, self.handler_due, self.pause.due()];
        others.into_iter().flatten().chain(first).min()
    }
}

impl<H: RequestHandler> Future for ListenTask<H> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        // 1. Only this task drives the transport, which makes peers ready here and need not wake
        // the task.
        this.shared.lock().task = None;
        if let Poll::Ready(Err(lost)) = this.config.transport.poll_drive(cx) {
            this.on_broken(lost);
        }
        // 2. Each ready peer takes a step.
        let ready = {
            let mut ready = this.shared.lock();
            ready.task = Some(cx.waker().clone());
            std::mem::take(&mut ready.peers)
        };
        this.moved |= !ready.is_empty();
        for id in ready {
            this.advance(id);
        }
        emit_held();
        // 3. The handler does its own work; if requests have no reader, or the listener's handle
        // was dropped, the listener closes.
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
        // 4. Pass requests on, then accept, as long as the handler has room for requests.
        loop {
            this.pass_on_requests(cx);
            if !this.pending.is_empty() {
                // The requests wait for the handler, which wakes this task when it has room.
                this.pause.end(this.clock.now());
                break;
            }
            this.accept(cx);
            if this.pending.is_empty() {
                break;
            }
        }
        this.report_broken(cx);
        // 5. Deadlines: handshakes that took too long, pauses of accepting, the handler's own work.
        while let Some(at) = this.expire(cx) {
            let now = this.clock.now();
            if this.clock.poll_deadline(at, now, cx).is_pending() {
                break;
            }
            if this.paused_until.is_some_and(|until| until <= now) {
                this.paused_until = None;
                cx.waker().wake_by_ref();
            }
            let now = this.clock.now();
            if this.pause.handle_due(now) {
                cx.waker().wake_by_ref();
            }
            if this.handler_due.is_some_and(|due| due <= now) {
                this.handler_due = this.handler.poll(now, cx);
            }
        }
        let stopping = this.shared.stopping.load(Ordering::Acquire);
        if stopping && this.peers.is_empty() && this.handler.is_over() {
            return Poll::Ready(()); // The last rejection took too long, or the handler ended.
        }
        let (half_open, waiting) = (this.half_open.len(), this.pending.len());
        {
            let mut ready = this.shared.lock();
            ready.stats.half_open = half_open;
            ready.stats.waiting = waiting;
        }
        // 6. Park, unless something was submitted to the transport since.
        if !this.config.transport.try_park(cx.waker()) {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl<H: RequestHandler> ProgressTask for ListenTask<H> {
    fn is_due(&mut self) -> bool {
        let others = [self.paused_until, self.handler_due, self.pause.due()];
        let timers = others.into_iter().chain([self.deadlines.first()]);
        let next = timers.flatten().min();
        let transport = &self.config.transport;
        transport.has_completions() || next.is_some_and(|at| at <= self.clock.now())
    }

    fn has_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }
}

impl<H> Drop for ListenTask<H> {
    fn drop(&mut self) {
        self.shared.gone.store(true, Ordering::Release);
        self.listener = None;
        self.peers.clear();
        self.config.transport.shutdown();
    }
}
