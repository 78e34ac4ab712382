//! The listening side: a task of its own per passive or connectionless endpoint. It accepts, reads
//! connection requests under a deadline and a cap, tells its audience, and carries out verdicts.
//!
//! A request that has come in full waits here until the audience has room for it (ruling 8); while
//! one waits, nothing more is accepted. When too many connections are half open, the oldest of the
//! host that has the most is closed, so that peers who connect and stay silent keep nobody else
//! out.
//! What is half open: nobody has been told of it but by way of a rejection, or a key is still to be
//! proven.

mod events;
mod half_open;

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
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
use crate::proto::{Challenge, Challenged, HostShares, ProvenKey, host_of};
use crate::sync::{Ticket, TicketHolder};
use crate::transport::{
    Clock, Link, Listener, Outcome, RawLink, Receive, Received, Runner, SendBatch, Transport,
};
use crate::wire::{ByteOrder, CmDecoded, CmDecoder, ControlFrame, ControlKind, Offer};

pub(crate) use events::EventAudience;
use half_open::Deadlines;

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
    fn handover(&self, raw: RawLink, asked: Asked, proven: Option<ProvenKey>) -> Handover {
        Handover {
            raw,
            asked,
            proven,
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

    /// True once nobody hears requests any more, so that the task stops listening; until then the
    /// task is woken when that changes.
    fn is_gone(&mut self, _cx: &mut Context<'_>) -> bool {
        false
    }

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
    pub(crate) order: ByteOrder,
    /// Its offer, if it is one of a connected endpoint's.
    pub(crate) offer: Option<Offer>,
    /// It has proven the key that [`Told::Challenge`] asked for.
    pub(crate) is_proven: bool,
}

/// What the audience says to a request.
pub(crate) enum Told {
    /// It has no room for it now, and wakes the task when it has.
    NoRoom,
    /// The verdict will be here.
    Later(TicketHolder<Verdict>),
    /// No, with this data (256 bytes at most).
    Reject(Bytes),
    /// First the key: these bytes go out, and [`Audience::tell`] is called again if it is proven.
    Challenge(Box<Challenge>, Vec<u8>),
    /// Yes: [`Audience::hand_over`] takes the connection now.
    Accept,
}

/// An accepted connection on its way from the listener to a domain.
pub(crate) struct Handover {
    pub(crate) raw: RawLink,
    pub(crate) asked: Asked,
    /// The key, if the peer has proven it already; our response has gone out then.
    pub(crate) proven: Option<ProvenKey>,
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
    /// Listens. What comes waits for [`BoundListener::start`].
    pub(crate) fn bind(config: ListenConfig) -> Result<(Listening, BoundListener)> {
        let address = config.address;
        let listener =
            (config.transport.listen(address)).map_err(|error| error.listening_at(address))?;
        let shared = Arc::new(Shared::default());
        let listening = Listening {
            local_addr: listener.local_addr(),
            shared: Arc::clone(&shared),
        };
        let bound = BoundListener {
            clock: config.transport.clock()?,
            listener,
            shared,
            config,
        };
        Ok((listening, bound))
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.shared.gone.load(Ordering::Acquire)
    }

    /// Closes the listener, as dropping this does.
    pub(crate) fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.wake();
    }
}

/// A listener whose requests nobody answers yet.
pub(crate) struct BoundListener {
    listener: Box<dyn Listener>,
    clock: Box<dyn Clock>,
    shared: Arc<Shared>,
    config: ListenConfig,
}

impl BoundListener {
    /// Starts the task that lets `audience` answer requests.
    pub(crate) fn start(self, runner: Runner, audience: impl Audience) -> Result<()> {
        let task = ListenTask {
            audience,
            audience_due: None,
            listener: Some(self.listener),
            clock: self.clock,
            shared: self.shared,
            peers: BTreeMap::new(),
            half_open: HostShares::new(self.config.half_open_max),
            deadlines: Deadlines::new(),
            whole: VecDeque::new(),
            next: 0,
            paused_until: None,
            stopped: false,
            broken: None,
            config: self.config,
        };
        runner.start("fabric-listener", task)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.stop();
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
    id: u64,
    host: IpAddr,
    link: Box<dyn Link>,
    waker: Waker,
    /// Changed by [`Deadlines::set`] only.
    deadline: Option<Instant>,
    stage: PeerStage,
}

enum PeerStage {
    /// Its request is being read.
    HalfOpen(Box<CmDecoder>),
    /// Its request waits for room at the audience.
    Whole { request: Whole },
    /// It is to prove its key, and then it is told again.
    Challenged {
        challenge: Box<Challenge>,
        request: Whole,
        /// The challenge has been sent.
        is_sent: bool,
    },
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

/// A request that has come in full.
struct Whole {
    data: Bytes,
    asked: Asked,
    proven: Option<ProvenKey>,
}

struct ListenTask<A> {
    audience: A,
    /// When the audience has work of its own to do.
    audience_due: Option<Instant>,
    listener: Option<Box<dyn Listener>>,
    clock: Box<dyn Clock>,
    shared: Arc<Shared>,
    peers: BTreeMap<u64, Peer>,
    /// Those of `peers` that no audience decides about.
    half_open: HostShares<u64, IpAddr>,
    /// The deadlines of `peers`.
    deadlines: Deadlines<u64>,
    /// Peers whose request waits for room, oldest first.
    whole: VecDeque<u64>,
    next: u64,
    paused_until: Option<Instant>,
    stopped: bool,
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
                Poll::Ready(Err(error)) => return self.broke(error),
            }
        }
        cx.waker().wake_by_ref();
    }

    /// Listens no more; the audience is told. Peers on a lost transport go at their deadline.
    fn broke(&mut self, error: Error) {
        if self.listener.take().is_some() {
            tracing::warn!(%error, "the listener is broken and closes");
            self.shared.gone.store(true, Ordering::Release);
            self.broken = Some(error);
        }
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
        let mut peer = Peer {
            id,
            host: host_of(link.peer_addr()),
            link,
            waker,
            deadline: None,
            stage: PeerStage::HalfOpen(Box::new(CmDecoder::new())),
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
    fn count_half_open(&mut self, id: u64, host: IpAddr) -> bool {
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

    /// One step of a peer. `false`: it is done, or broken; its connection closes.
    fn step(&mut self, peer: &mut Peer) -> bool {
        while let Some(outcome) = peer.link.poll_outcome() {
            match (outcome, &mut peer.stage) {
                (Outcome::Received(Received::Stage(bytes)), PeerStage::HalfOpen(decoder)) => {
                    match decoder.feed(&bytes) {
                        Err(error) => return self.ends_for(peer, &error.into()),
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
                            let asked = Asked {
                                order,
                                offer: frame.offer(),
                            };
                            self.is_whole(
                                peer,
                                Whole {
                                    data: frame.into_data(),
                                    asked,
                                    proven: None,
                                },
                            );
                        }
                    }
                }
                (Outcome::Sent { batch, result }, PeerStage::Challenged { is_sent, .. }) => {
                    let SendBatch { frames, .. } = batch;
                    let (Ok(sent), Some(mut frame)) = (result, frames.into_iter().next()) else {
                        return false;
                    };
                    frame.advance(sent);
                    match frame.remaining() {
                        0 => *is_sent = true,
                        _ => peer.link.send(SendBatch {
                            frames: [frame].into(),
                            leases: Vec::new(),
                        }),
                    }
                }
                (
                    Outcome::Received(Received::Stage(bytes)),
                    PeerStage::Challenged {
                        challenge,
                        request,
                        is_sent,
                    },
                ) => match challenge.feed(&bytes) {
                    Err(error) => return self.ends_for(peer, &error),
                    Ok(Challenged::Need) => peer.link.receive(Receive::Stage),
                    // Who answers what was not sent does not know what it answers.
                    Ok(_) if !*is_sent => return false,
                    Ok(Challenged::Refused(frame)) => self.send_last(peer, frame),
                    Ok(Challenged::Proven(key)) => {
                        let request = Whole {
                            data: std::mem::take(&mut request.data),
                            asked: request.asked,
                            proven: Some(key),
                        };
                        self.is_whole(peer, request);
                    }
                },
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

    /// The request has come in full, and waits for the audience.
    fn is_whole(&mut self, peer: &mut Peer, request: Whole) {
        self.deadlines.set(peer.id, &mut peer.deadline, None);
        peer.stage = PeerStage::Whole { request };
        peer.link.watch();
        self.whole.push_back(peer.id);
    }

    /// The peer's connection closes for what it sent.
    fn ends_for(&self, peer: &Peer, error: &Error) -> bool {
        let from = peer.link.peer_addr();
        tracing::debug!(%from, %error, "a connection that is no request is closed");
        false
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
                        let _ = sender.send(self.config.handover(raw, asked, None));
                    }
                }
                return false;
            }
            Some(Verdict::Reject(data)) => data,
            None => Bytes::new(),
        };
        self.reject(peer, data);
        self.count_half_open(peer.id, peer.host)
    }

    fn reject(&mut self, peer: &mut Peer, data: Bytes) {
        let frame = ControlFrame::new(ControlKind::Reject, data)
            .expect("the data was checked by who decided");
        self.send_last(peer, frame.encode());
    }

    /// Sends what the peer gets last. The connection then counts as half open, if it did not.
    fn send_last(&mut self, peer: &mut Peer, frame: Vec<u8>) {
        let frame = Frame::new(&[], Payload::from_vec(frame), u64::MAX);
        peer.stage = PeerStage::Rejected;
        let deadline = self.clock.now() + REJECT_TIMEOUT;
        self.deadlines
            .set(peer.id, &mut peer.deadline, Some(deadline));
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
                PeerStage::HandedOver => self.forget(peer),
                _ => drop(self.peers.insert(id, peer)),
            }
            if self.whole.front() == Some(&id) {
                return;
            }
        }
    }

    /// Tells of one peer. False: there is no room.
    fn tell_of(&mut self, peer: &mut Peer, cx: &mut Context<'_>) -> bool {
        let PeerStage::Whole { request } = &mut peer.stage else {
            return true;
        };
        let (asked, now) = (request.asked, self.clock.now());
        let asking = Asking {
            peer: peer.link.peer_addr(),
            local: peer.link.local_addr(),
            data: &request.data,
            order: asked.order,
            offer: asked.offer,
            is_proven: request.proven.is_some(),
        };
        match self.audience.tell(&asking, now, cx) {
            Told::NoRoom => return false,
            Told::Later(holder) => {
                self.half_open.remove(peer.id, peer.host);
                peer.stage = PeerStage::Told { holder, asked };
                // Registers for the verdict.
                peer.waker.wake_by_ref();
            }
            Told::Challenge(challenge, bytes) => {
                let request = Whole {
                    data: std::mem::take(&mut request.data),
                    asked,
                    proven: None,
                };
                peer.stage = PeerStage::Challenged {
                    challenge,
                    request,
                    is_sent: false,
                };
                let deadline = now.checked_add(self.config.handshake_timeout);
                self.deadlines.set(peer.id, &mut peer.deadline, deadline);
                let frame = Frame::new(&[], Payload::from_vec(bytes), u64::MAX);
                peer.link.send(SendBatch {
                    frames: [frame].into(),
                    leases: Vec::new(),
                });
                peer.link.receive(Receive::Stage);
                peer.waker.wake_by_ref();
            }
            Told::Reject(data) if request.proven.is_none() => self.reject(peer, data),
            // Our response has gone out: the end of the connection has to do.
            Told::Reject(_) => peer.stage = PeerStage::HandedOver,
            Told::Accept => {
                let proven = request.proven.take();
                peer.link.cancel_receive();
                let raw = peer.link.take_raw();
                let handover = raw.map(|raw| self.config.handover(raw, asked, proven));
                self.audience.hand_over(handover, now);
                peer.stage = PeerStage::HandedOver;
            }
        }
        true
    }

    /// The handle is gone: requests that nobody was told of end with the listener.
    fn stop(&mut self) {
        self.listener = None;
        self.whole.clear();
        for (id, peer) in std::mem::take(&mut self.peers) {
            match peer.stage {
                PeerStage::Told { .. } | PeerStage::Rejected => {
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
        self.whole.clear();
        let ids: Vec<_> = self.peers.keys().copied().collect();
        for id in ids {
            let Some(mut peer) = self.peers.remove(&id) else {
                continue;
            };
            if matches!(peer.stage, PeerStage::HalfOpen(_) | PeerStage::Whole { .. }) {
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
        let others = [self.paused_until, self.audience_due];
        others.into_iter().flatten().chain(first).min()
    }
}

impl<A: Audience> Future for ListenTask<A> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        // This task alone drives its transport. It goes first, since it makes peers ready.
        if let Poll::Ready(Err(lost)) = this.config.transport.poll_drive(cx) {
            this.broke(lost);
        }
        let ready = {
            let mut ready = this.shared.lock();
            ready.task = Some(cx.waker().clone());
            std::mem::take(&mut ready.peers)
        };
        for id in ready {
            this.advance(id);
        }
        this.audience_due = this.audience.poll(this.clock.now(), cx);
        if this.listener.is_some() && this.audience.is_gone(cx) {
            this.reject_all();
        }
        if this.shared.stopping.load(Ordering::Acquire) {
            if !std::mem::replace(&mut this.stopped, true) {
                this.stop();
            }
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
