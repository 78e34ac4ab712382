//! The listening side: a task of its own per passive or connectionless endpoint. It accepts, reads
//! connection requests under a deadline and a cap, tells its audience, and carries out verdicts.
//!
//! A request that has come in full waits here until the audience has room for it (ruling 8); while
//! one waits, nothing more is accepted. When too many requests are half open, the oldest is closed,
//! so that peers who connect and stay silent cannot keep others out.

mod events;

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::buf::{Frame, Payload};
use crate::eq::Verdict;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{Ticket, TicketHolder};
use crate::transport::{
    Clock, Link, Listener, Outcome, RawLink, Receive, Received, Runner, SendBatch, Transport,
};
use crate::wire::{ByteOrder, CmDecoded, CmDecoder, ControlFrame, ControlKind, Offer};

pub(crate) use events::EventAudience;

/// Connections accepted in one poll, so that a storm does not starve the requests already here.
const ACCEPTS_PER_POLL: usize = 64;
/// How long accepting pauses when the process has no descriptor left.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// How long a rejected peer may take to read its rejection.
const REJECT_TIMEOUT: Duration = Duration::from_secs(2);

/// What a listener is opened with.
pub(crate) struct ListenConfig {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) address: SocketAddr,
    pub(crate) half_open_max: usize,
    pub(crate) handshake_timeout: Duration,
}

impl ListenConfig {
    fn handover(&self, raw: RawLink, asked: Asked) -> Handover {
        Handover {
            raw,
            asked,
            timeout: self.handshake_timeout,
        }
    }
}

/// Who is told of requests, and decides. All of it runs in the listener's task.
pub(crate) trait Audience: Send + Unpin + 'static {
    /// A request has come in full.
    fn tell(&mut self, asking: &Asking<'_>, now: Instant, cx: &mut Context<'_>) -> Told;

    /// The connection of the request that [`Told::Accept`] was the answer to; `None`: it broke.
    fn hand_over(&mut self, handover: Option<Handover>, now: Instant);

    /// The listener broke. False: there is no room to be told; it asks again in its next poll.
    fn broken(&mut self, error: &Error, cx: &mut Context<'_>) -> bool;

    /// Work of the audience's own, in each poll of the task; tells when it is due next.
    fn poll(&mut self, _now: Instant, _cx: &mut Context<'_>) -> Option<Instant> {
        None
    }

    /// True once the task may end, as far as the audience is concerned.
    fn is_over(&self) -> bool {
        true
    }
}

/// A request that has come in full.
pub(crate) struct Asking<'a> {
    /// Where the peer comes from.
    pub(crate) peer: SocketAddr,
    /// Where it found us.
    pub(crate) local: SocketAddr,
    pub(crate) data: &'a Bytes,
    /// Its offer, if it is one of a connected endpoint's.
    pub(crate) offer: Option<Offer>,
}

/// What the audience says to a request.
pub(crate) enum Told {
    /// It has no room for it now, and wakes the task when it has.
    NoRoom,
    /// The verdict will be here.
    Later(TicketHolder<Verdict>),
    /// No, with this data (256 bytes at most).
    Reject(Bytes),
    /// Yes: [`Audience::hand_over`] takes the connection now.
    Accept,
}

/// An accepted connection on its way from the listener to a domain.
pub(crate) struct Handover {
    pub(crate) raw: RawLink,
    pub(crate) asked: Asked,
    /// How long what is left of the handshake may take.
    pub(crate) timeout: Duration,
}

/// What a connection request says to whoever accepts it, beside the application's data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) order: ByteOrder,
    pub(crate) offer: Option<Offer>,
}

/// Takes a request's ticket to `accept` and returns where the connection will arrive. `None`: the
/// listener is gone.
pub(crate) fn accept_ticket(ticket: Ticket<Verdict>) -> Option<oneshot::Receiver<Handover>> {
    let (sender, receiver) = oneshot::channel::<Handover>();
    let erased: Box<dyn Any + Send> = Box::new(sender);
    ticket
        .decide(Verdict::Accept(erased))
        .is_ok()
        .then_some(receiver)
}

/// The handle of a listening task; dropping it closes the listener. Requests already told remain
/// open to be accepted.
#[derive(Debug)]
pub(crate) struct Listening {
    local_addr: SocketAddr,
    shared: Arc<Shared>,
}

impl Listening {
    /// Listens; `audience` is made when the address is known.
    pub(crate) fn open<A: Audience>(
        config: ListenConfig,
        runner: Runner,
        audience: impl FnOnce(SocketAddr) -> A,
    ) -> Result<Listening> {
        let listener = config.transport.listen(config.address)?;
        let local_addr = listener.local_addr();
        let clock = config.transport.clock()?;
        let shared = Arc::new(Shared::default());
        let task = ListenTask {
            audience: audience(local_addr),
            audience_due: None,
            listener: Some(listener),
            clock,
            shared: Arc::clone(&shared),
            peers: BTreeMap::new(),
            order: VecDeque::new(),
            whole: VecDeque::new(),
            next: 0,
            paused_until: None,
            broken: None,
            config,
        };
        runner.start("fabric-listener", task)?;
        Ok(Listening { local_addr, shared })
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.shared.gone.load(Ordering::Acquire)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.wake();
    }
}

#[derive(Debug, Default)]
struct Shared {
    stopping: AtomicBool,
    gone: AtomicBool,
    ready: Mutex<ReadyPeers>,
}

#[derive(Debug, Default)]
struct ReadyPeers {
    peers: Vec<u64>,
    task: Option<Waker>,
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, ReadyPeers> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        let task = self.lock().task.take();
        if let Some(task) = task {
            task.wake();
        }
    }
}

/// Wakes the listening task for one peer.
struct PeerWaker {
    shared: Weak<Shared>,
    peer: u64,
}

impl Wake for PeerWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(shared) = self.shared.upgrade() {
            shared.lock().peers.push(self.peer);
            shared.wake();
        }
    }
}

/// A peer between its TCP connection and its verdict.
struct Peer {
    link: Box<dyn Link>,
    waker: Waker,
    deadline: Option<Instant>,
    stage: PeerStage,
}

enum PeerStage {
    /// Its request is being read.
    HalfOpen(Box<CmDecoder>),
    /// Its request waits for room at the audience.
    Whole { data: Bytes, asked: Asked },
    /// The audience has been told and decides.
    Told {
        holder: TicketHolder<Verdict>,
        asked: Asked,
    },
    /// Its rejection is on its way.
    Rejected,
    /// Its connection is the audience's.
    HandedOver,
}

struct ListenTask<A> {
    audience: A,
    /// When the audience has work of its own to do.
    audience_due: Option<Instant>,
    listener: Option<Box<dyn Listener>>,
    clock: Box<dyn Clock>,
    shared: Arc<Shared>,
    /// In the order of their arrival.
    peers: BTreeMap<u64, Peer>,
    /// Half-open peers, oldest first (may name peers that have moved on).
    order: VecDeque<u64>,
    /// Peers whose request waits for room, oldest first.
    whole: VecDeque<u64>,
    next: u64,
    paused_until: Option<Instant>,
    /// Why the listener closed by itself, until the audience has been told.
    broken: Option<Error>,
    config: ListenConfig,
}

impl<A: Audience> ListenTask<A> {
    fn accept(&mut self, cx: &mut Context<'_>) {
        if let Some(until) = self.paused_until {
            if self.clock.now() < until {
                return;
            }
            self.paused_until = None;
        }
        for _ in 0..ACCEPTS_PER_POLL {
            if !self.whole.is_empty() {
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
                Poll::Ready(Err(error)) => {
                    tracing::warn!(%error, "the listener is broken and closes");
                    self.listener = None;
                    self.shared.gone.store(true, Ordering::Release);
                    self.broken = Some(error);
                    return;
                }
            }
        }
        cx.waker().wake_by_ref();
    }

    fn begin(&mut self, raw: RawLink) {
        let id = self.next;
        self.next += 1;
        let waker = Waker::from(Arc::new(PeerWaker {
            shared: Arc::downgrade(&self.shared),
            peer: id,
        }));
        let mut link = match self.config.transport.adopt(raw, waker.clone()) {
            Ok(link) => link,
            Err(error) => {
                tracing::debug!(%error, "an accepted connection was lost");
                return;
            }
        };
        link.receive(Receive::Stage);
        let deadline = self.clock.now().checked_add(self.config.handshake_timeout);
        let stage = PeerStage::HalfOpen(Box::new(CmDecoder::new()));
        self.peers.insert(
            id,
            Peer {
                link,
                waker,
                deadline,
                stage,
            },
        );
        self.order.push_back(id);
        self.evict();
        self.advance(id);
    }

    /// Closes the oldest half-open peers while there are too many.
    fn evict(&mut self) {
        let half_open = |peer: &Peer| matches!(peer.stage, PeerStage::HalfOpen(_));
        self.order
            .retain(|id| self.peers.get(id).is_some_and(half_open));
        while self.order.len() > self.config.half_open_max {
            if let Some(oldest) = self.order.pop_front() {
                self.peers.remove(&oldest);
            }
        }
    }

    /// Looks at one peer; drops it when it has nothing more to do here.
    fn advance(&mut self, id: u64) {
        let Some(mut peer) = self.peers.remove(&id) else {
            return;
        };
        if self.step(id, &mut peer) {
            self.peers.insert(id, peer);
        }
    }

    /// One step of a peer. `false`: it is done, or broken; its connection closes.
    fn step(&mut self, id: u64, peer: &mut Peer) -> bool {
        while let Some(outcome) = peer.link.poll_outcome() {
            match (outcome, &mut peer.stage) {
                (Outcome::Received(Received::Stage(bytes)), PeerStage::HalfOpen(decoder)) => {
                    match decoder.feed(&bytes) {
                        Err(_) => return false,
                        Ok(CmDecoded::Need(_)) => peer.link.receive(Receive::Stage),
                        Ok(CmDecoded::Frame {
                            frame,
                            order,
                            consumed,
                        }) => {
                            // Only a request may come, and nothing after it before our answer.
                            if frame.kind() != ControlKind::Request || consumed != bytes.len() {
                                return false;
                            }
                            peer.deadline = None;
                            let offer = frame.offer();
                            peer.stage = PeerStage::Whole {
                                data: frame.into_data(),
                                asked: Asked { order, offer },
                            };
                            peer.link.watch();
                            self.whole.push_back(id);
                        }
                    }
                }
                (Outcome::Sent { batch, result }, PeerStage::Rejected) => {
                    let SendBatch { frames, .. } = batch;
                    let (Ok(sent), Some(mut frame)) = (result, frames.into_iter().next()) else {
                        return false;
                    };
                    frame.advance(sent);
                    if frame.remaining() == 0 {
                        // The peer reads the rejection, then our end; its own end lets us close
                        // without resetting the connection under it.
                        peer.link.finish();
                        peer.link.receive(Receive::Stage);
                    } else {
                        peer.link.send(SendBatch {
                            frames: [frame].into(),
                            leases: Vec::new(),
                        });
                    }
                }
                _ => return false,
            }
        }
        self.judge(peer)
    }

    /// Carries out the audience's verdict once there is one.
    fn judge(&mut self, peer: &mut Peer) -> bool {
        let PeerStage::Told { holder, asked } = &mut peer.stage else {
            return true;
        };
        let asked = *asked;
        let verdict = match holder.poll_verdict(&mut Context::from_waker(&peer.waker)) {
            Poll::Pending => return true,
            Poll::Ready(verdict) => verdict,
        };
        let data = match verdict {
            Some(Verdict::Accept(sender)) => {
                if let Ok(sender) = sender.downcast::<oneshot::Sender<Handover>>() {
                    peer.link.cancel_receive();
                    if let Some(raw) = peer.link.take_raw() {
                        // An acceptor that has gone away meanwhile drops it, which closes it.
                        let _ = sender.send(self.config.handover(raw, asked));
                    }
                }
                return false;
            }
            Some(Verdict::Reject(data)) => data,
            None => Bytes::new(),
        };
        self.reject(peer, data);
        true
    }

    fn reject(&self, peer: &mut Peer, data: Bytes) {
        let frame = ControlFrame::new(ControlKind::Reject, data)
            .expect("the data was checked by who decided");
        let frame = Frame::new(&[], Payload::from_vec(frame.encode()), u64::MAX);
        peer.stage = PeerStage::Rejected;
        peer.deadline = Some(self.clock.now() + REJECT_TIMEOUT);
        peer.link.cancel_receive();
        peer.link.send(SendBatch {
            frames: [frame].into(),
            leases: Vec::new(),
        });
        peer.waker.wake_by_ref();
    }

    /// Tells the audience that the listener broke, once there is room.
    fn tell_broken(&mut self, cx: &mut Context<'_>) {
        if let Some(error) = &self.broken
            && self.audience.broken(error, cx)
        {
            self.broken = None;
        }
    }

    /// Tells the audience of whole requests, as far as it has room.
    fn tell(&mut self, cx: &mut Context<'_>) {
        while let Some(&id) = self.whole.front() {
            let Some(mut peer) = self.peers.remove(&id) else {
                self.whole.pop_front();
                continue;
            };
            if self.tell_of(&mut peer, cx) {
                self.whole.pop_front();
            }
            match peer.stage {
                PeerStage::HandedOver => {}
                _ => drop(self.peers.insert(id, peer)),
            }
            if self.whole.front() == Some(&id) {
                return;
            }
        }
    }

    /// Tells of one peer. False: there is no room.
    fn tell_of(&mut self, peer: &mut Peer, cx: &mut Context<'_>) -> bool {
        let PeerStage::Whole { data, asked } = &peer.stage else {
            return true;
        };
        let (asked, now) = (*asked, self.clock.now());
        let asking = Asking {
            peer: peer.link.peer_addr(),
            local: peer.link.local_addr(),
            data,
            offer: asked.offer,
        };
        match self.audience.tell(&asking, now, cx) {
            Told::NoRoom => return false,
            Told::Later(holder) => {
                peer.stage = PeerStage::Told { holder, asked };
                // Registers for the verdict.
                peer.waker.wake_by_ref();
            }
            Told::Reject(data) => self.reject(peer, data),
            Told::Accept => {
                peer.link.cancel_receive();
                let raw = peer.link.take_raw();
                let handover = raw.map(|raw| self.config.handover(raw, asked));
                self.audience.hand_over(handover, now);
                peer.stage = PeerStage::HandedOver;
            }
        }
        true
    }

    fn expire(&mut self) -> Option<Instant> {
        let now = self.clock.now();
        self.peers
            .retain(|_, peer| peer.deadline.is_none_or(|deadline| deadline > now));
        let first = self.peers.values().filter_map(|peer| peer.deadline).min();
        let others = [self.paused_until, self.audience_due];
        others.into_iter().flatten().chain(first).min()
    }
}

impl<A: Audience> Future for ListenTask<A> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        // This task alone drives its transport. It goes first, since it makes peers ready.
        let _ = this.config.transport.poll_drive(cx);
        let ready = {
            let mut ready = this.shared.lock();
            ready.task = Some(cx.waker().clone());
            std::mem::take(&mut ready.peers)
        };
        for id in ready {
            this.advance(id);
        }
        this.audience_due = this.audience.poll(this.clock.now(), cx);
        if this.shared.stopping.load(Ordering::Acquire) {
            this.listener = None;
            // Requests that nobody was told of end with the listener.
            this.peers.retain(|_, peer| {
                matches!(peer.stage, PeerStage::Told { .. } | PeerStage::Rejected)
            });
            this.whole.clear();
            if this.peers.is_empty() && this.audience.is_over() {
                return Poll::Ready(());
            }
        }
        loop {
            this.tell(cx);
            if !this.whole.is_empty() {
                break; // There is no room; when there is, this task is woken.
            }
            this.accept(cx);
            if this.whole.is_empty() {
                break;
            }
        }
        this.tell_broken(cx);
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
            if this.audience_due.is_some_and(|due| due <= now) {
                this.audience_due = this.audience.poll(now, cx);
            }
        }
        let stopping = this.shared.stopping.load(Ordering::Acquire);
        if stopping && this.peers.is_empty() && this.audience.is_over() {
            return Poll::Ready(()); // The last rejection took too long, or the audience ended.
        }
        if !this.config.transport.rest(cx.waker()) {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl<A> Drop for ListenTask<A> {
    fn drop(&mut self) {
        self.shared.gone.store(true, Ordering::Release);
        self.listener = None;
        self.peers.clear();
        self.config.transport.driver_gone();
    }
}
