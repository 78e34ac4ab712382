//! A port: one endpoint's connection as handles and driver share it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock, Weak};
use std::task::{Poll, Wake, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::buf::{Payload, Stage};
use crate::cntr::Counter;
use crate::cq::{CompletionQueue, CqSlot};
use crate::eq::EventSlot;
use crate::error::{Error, ErrorKind, OperationKind, Phase, Result};
use crate::id::{Context, EndpointId};
use crate::proto::{Connection, End, Lifecycle, OpKey, Post, Sizes, Withdrawn};
use crate::slab::Key;
use crate::sync::{Lock, WakeList};
use crate::transport::Link;

use super::engine::Engine;
use super::listen::Handover;
use super::report::{OpCell, Report};

/// Sizes of a port's queues.
pub(crate) type PortSizes = Sizes;

/// The counters an endpoint is bound to, by what they count (`fi_ep_bind(3)`).
#[derive(Clone, Debug, Default)]
pub(crate) struct CounterSet {
    pub(crate) send: Option<Counter>,
    pub(crate) receive: Option<Counter>,
    pub(crate) read: Option<Counter>,
    pub(crate) write: Option<Counter>,
    pub(crate) remote_read: Option<Counter>,
    pub(crate) remote_write: Option<Counter>,
}

impl CounterSet {
    /// Those that are bound.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Counter> {
        let all = [
            &self.send,
            &self.receive,
            &self.read,
            &self.write,
            &self.remote_read,
            &self.remote_write,
        ];
        all.into_iter().flatten()
    }

    pub(super) fn of(&self, operation: OperationKind) -> Option<&Counter> {
        match operation {
            OperationKind::Send | OperationKind::Inject => self.send.as_ref(),
            OperationKind::Receive => self.receive.as_ref(),
            OperationKind::Read => self.read.as_ref(),
            OperationKind::Write => self.write.as_ref(),
            OperationKind::RemoteRead => self.remote_read.as_ref(),
            OperationKind::RemoteWrite => self.remote_write.as_ref(),
            _ => None,
        }
    }
}

/// What an endpoint is bound to.
#[derive(Debug)]
pub(crate) struct Bindings {
    /// Takes completions that nobody posted.
    pub(crate) receive_queue: CompletionQueue,
    pub(crate) counters: CounterSet,
    /// Slots for Connected and Shutdown, reserved when the endpoint is opened (ruling 8).
    pub(crate) connected: Option<EventSlot>,
    pub(crate) shutdown: Option<EventSlot>,
    /// The context of the endpoint, in its Shutdown event.
    pub(crate) context: Option<Context>,
}

/// A post: its operation, and, when it waits for room and reports to a queue, the cell that tells
/// of its acceptance.
#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) key: OpKey,
    pub(crate) waiting: Option<Arc<OpCell>>,
}

/// How the beginning of a connection went, for whoever awaits it.
#[derive(Debug, Default)]
pub(super) struct Establishing {
    pub(super) result: Option<Result<Bytes>>,
    pub(super) waker: Option<Waker>,
}

/// How a port goes out of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Closing {
    No,
    /// Asked by this side: what is queued is sent first.
    Flushing,
    /// Everything submitted is being taken back from the link.
    Draining,
    /// Operations have ended; what the peer still sends is read and dropped, so that closing does
    /// not reset the connection under our last bytes.
    Lingering,
    /// Nothing is left to do.
    Over,
}

/// Everything of a port that its lock guards.
pub(super) struct PortState {
    pub(super) machine: Connection<Report>,
    pub(super) link: Option<Box<dyn Link>>,
    pub(super) receive_armed: bool,
    pub(super) watching: bool,
    /// The peer's end was told while reading was paused.
    pub(super) peer_finished: bool,
    /// The armed receive lands in a region that peers reach.
    pub(super) region_armed: bool,
    /// The batch that is out reads from such a region.
    pub(super) region_out: bool,
    /// Received bytes that the machine has not taken yet.
    pub(super) stage: Option<Stage>,
    pub(super) bindings: Bindings,
    pub(super) unasked: VecDeque<CqSlot>,
    pub(super) establishing: Establishing,
    pub(super) connect_context: Option<Context>,
    pub(super) ended: bool,
    pub(super) end_wakers: Vec<Waker>,
    pub(super) closing: Closing,
    /// A time limit that the driver turns into a deadline: only it has the backend's clock.
    pub(super) timeout: Option<Duration>,
    pub(super) deadline: Option<Instant>,
    /// A post was sent inline since the driver last ran; the next is gathered.
    pub(super) inline_spent: bool,
    pub(super) peer: Option<SocketAddr>,
    pub(super) local: Option<SocketAddr>,
    pub(super) linger_left: usize,
    /// Buffers that nobody asks for any more, to be dropped once the lock is released: they are the
    /// user's, and their drop may run the user's code.
    pub(super) leftovers: Vec<Payload>,
    /// Wakers to wake once the lock is released.
    pub(super) wakes: WakeList,
}

/// One endpoint's connection.
pub(crate) struct Port {
    id: EndpointId,
    pub(super) engine: Arc<Engine>,
    pub(super) state: Lock<PortState>,
    pub(super) waker: Waker,
    wake_state: Arc<PortWaker>,
}

/// Puts its port on the engine's ready list, once per turn.
struct PortWaker {
    engine: Weak<Engine>,
    key: OnceLock<Key>,
    queued: AtomicBool,
}

impl Wake for PortWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let Some(&key) = self.key.get() else { return };
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(engine) = self.engine.upgrade() {
            engine.make_ready(key);
        }
    }
}

impl Port {
    /// A port without a connection, known to the engine.
    pub(crate) fn open(
        engine: &Arc<Engine>,
        sizes: PortSizes,
        bindings: impl FnOnce(EndpointId) -> Result<Bindings>,
    ) -> Result<Arc<Port>> {
        engine.check_alive()?;
        let id = EndpointId::next();
        let wake_state = Arc::new(PortWaker {
            engine: Arc::downgrade(engine),
            key: OnceLock::new(),
            queued: AtomicBool::new(false),
        });
        let state = PortState {
            machine: Connection::new(sizes),
            link: None,
            receive_armed: false,
            watching: false,
            peer_finished: false,
            region_armed: false,
            region_out: false,
            stage: None,
            bindings: bindings(id)?,
            unasked: VecDeque::new(),
            establishing: Establishing::default(),
            connect_context: None,
            ended: false,
            end_wakers: Vec::new(),
            closing: Closing::No,
            timeout: None,
            deadline: None,
            inline_spent: false,
            peer: None,
            local: None,
            linger_left: LINGER_BYTES_MAX,
            leftovers: Vec::new(),
            wakes: WakeList::new(),
        };
        let port = Arc::new(Port {
            id,
            engine: Arc::clone(engine),
            state: Lock::new(engine.lock_kind, state),
            waker: Waker::from(Arc::clone(&wake_state)),
            wake_state,
        });
        let key = engine.lock_ports().insert(Arc::clone(&port));
        port.wake_state
            .key
            .set(key)
            .expect("the key is set once, here");
        // The driver may have ended between the check and the insertion; then nobody drains the
        // table any more.
        if engine.is_gone() {
            engine.lock_ports().remove(key);
            return Err(Engine::gone_error());
        }
        Ok(port)
    }

    pub(crate) fn id(&self) -> EndpointId {
        self.id
    }

    pub(super) fn is_queued_no_more(&self) {
        self.wake_state.queued.store(false, Ordering::Release);
    }

    pub(super) fn lock(&self, purpose: &'static str) -> PortGuard<'_> {
        PortGuard {
            state: Some(self.state.lock(purpose)),
        }
    }

    // Connection management.

    /// Starts the active side.
    pub(crate) fn connect(
        &self,
        to: SocketAddr,
        from: Option<SocketAddr>,
        data: &[u8],
        context: Option<Context>,
        timeout: Duration,
    ) -> Result<()> {
        let mut state = self.lock("connect");
        self.engine.check_alive()?;
        check_idle(&state)?;
        let link = self
            .engine
            .transport
            .connect(to, from, self.waker.clone())?;
        state.peer = Some(to);
        state.link = Some(link);
        state.connect_context = context;
        state.timeout = Some(timeout);
        state.machine.begin_connect(data);
        drop(state);
        self.waker.wake_by_ref();
        Ok(())
    }

    /// Takes over an accepted connection and answers its request.
    pub(crate) fn accept(
        &self,
        handover: Handover,
        data: &[u8],
        context: Option<Context>,
        timeout: Duration,
    ) -> Result<()> {
        let mut state = self.lock("accept");
        self.engine.check_alive()?;
        check_idle(&state)?;
        let link = self
            .engine
            .transport
            .adopt(handover.raw, self.waker.clone())?;
        state.peer = Some(link.peer_addr());
        state.local = Some(link.local_addr());
        state.link = Some(link);
        state.connect_context = context;
        state.timeout = Some(timeout);
        state.machine.begin_accept(data, handover.order);
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
        state.establishing.waker = Some(waker.clone());
        Poll::Pending
    }

    /// The last handle of the endpoint has gone: it closes in order, and nobody is told
    /// (`fi_close`).
    pub(crate) fn abandon(&self) {
        self.lock("abandon").bindings.shutdown = None;
        self.begin_close();
    }

    /// Begins the orderly end of this side: what is queued goes out, then everything ends.
    pub(crate) fn begin_close(&self) {
        let mut state = self.lock("begin close");
        if state.closing != Closing::No {
            return;
        }
        state.closing = Closing::Flushing;
        state.timeout = None;
        state.deadline = None;
        drop(state);
        self.waker.wake_by_ref();
    }

    /// Ready once all operations have ended and the connection with them.
    pub(crate) fn poll_ended(&self, waker: &Waker) -> Poll<()> {
        let mut state = self.lock("poll ended");
        if state.ended {
            return Poll::Ready(());
        }
        if !state.end_wakers.iter().any(|held| held.will_wake(waker)) {
            state.end_wakers.push(waker.clone());
        }
        Poll::Pending
    }

    // Posting.

    /// Posts an operation. The first one on an idle connection since the driver ran is sent within
    /// this call; others are gathered (ruling 5).
    pub(crate) fn post(
        &self,
        post: Post,
        report: Report,
        wait: bool,
        more: bool,
    ) -> Result<Posted, (Error, Payload)> {
        let mut state = self.lock("post");
        let is_receive = post.is_receive();
        let idle = state.machine.is_transmit_idle();
        let paused = state.machine.is_read_paused();
        let key = match state.post(self, post, report, wait) {
            Ok(key) => key,
            Err((error, payload)) => {
                let error = match state.peer {
                    Some(peer) => error.with_peer(peer),
                    None => error,
                };
                return Err((error, payload));
            }
        };
        if is_receive {
            if paused || state.stage.is_some() {
                self.waker.wake_by_ref();
            }
        } else if idle && !state.inline_spent && !more {
            state.inline_spent = true;
            self.transmit(&mut state);
        } else if state.machine.is_transmit_gathered() {
            if self.transmit(&mut state) && paused {
                self.waker.wake_by_ref(); // Sent answers let reading go on.
            }
        } else {
            self.waker.wake_by_ref();
        }
        let mut cell = None;
        if state.machine.phase(key) == Some(Phase::Waiting)
            && let Some(Report::Queue { waiting, .. }) = state.machine.token_mut(key)
        {
            cell = Some(Arc::clone(waiting.insert(OpCell::new())));
        }
        self.settle(&mut state);
        Ok(Posted { key, waiting: cell })
    }

    /// Asks an operation to end early.
    pub(crate) fn cancel(&self, key: OpKey) -> Withdrawn {
        let mut state = self.lock("cancel");
        let withdrawn = state.machine.cancel(key);
        self.settle(&mut state);
        withdrawn
    }

    /// The future of an operation is dropped (ruling 4).
    pub(crate) fn detach(&self, key: OpKey, cell: &OpCell) {
        let mut state = self.lock("detach");
        match state.machine.detach(key) {
            Withdrawn::Ended => {}
            Withdrawn::Running => {
                if let Some(report) = state.machine.token_mut(key) {
                    *report = Report::Nowhere;
                }
            }
            Withdrawn::Gone => {
                if let Some(End {
                    operation,
                    result,
                    len,
                    overflow,
                    data,
                    payload,
                }) = cell.take()
                {
                    let arrived = operation == OperationKind::Receive
                        && result
                            .map_or_else(|error| error.kind() == ErrorKind::Truncated, |()| true);
                    if arrived {
                        state.machine.give_back(payload, len, overflow, data);
                    } else {
                        state.leftovers.push(payload);
                    }
                }
            }
        }
        self.settle(&mut state);
    }

    /// Whoever waited for the acceptance of a queued operation goes away: it is withdrawn if it
    /// still waits.
    pub(crate) fn withdraw_waiting(&self, key: OpKey, cell: &OpCell) {
        let mut state = self.lock("withdraw");
        if state.machine.phase(key) == Some(Phase::Waiting) && !cell.has_ended() {
            state.machine.cancel(key);
            self.waker.wake_by_ref(); // Those behind it may have all they wait for.
        }
        self.settle(&mut state);
    }

    /// Publishes what a call of the application's has ended, and leaves to the driver what follows
    /// from it: room for those who wait, the end of a connection that turned out to be broken.
    fn settle(&self, state: &mut PortState) {
        self.publish(state);
        let broken = state.closing == Closing::No && state.machine.fault().is_some();
        if broken || state.machine.wants_admission() {
            self.waker.wake_by_ref();
        }
    }

    // Getters.

    pub(crate) fn phase(&self, key: OpKey) -> Phase {
        self.lock("phase")
            .machine
            .phase(key)
            .unwrap_or(Phase::Ended)
    }

    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        self.lock("peer address").peer
    }

    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.lock("local address").local
    }

    pub(crate) fn lifecycle(&self) -> Lifecycle {
        self.lock("lifecycle").machine.lifecycle()
    }

    pub(crate) fn unexpected_bytes(&self) -> usize {
        self.lock("unexpected bytes").machine.unexpected_bytes()
    }
}

/// The port's lock, held. Released before the wakers collected under it are woken.
pub(super) struct PortGuard<'a> {
    state: Option<MutexGuard<'a, PortState>>,
}

impl Deref for PortGuard<'_> {
    type Target = PortState;

    fn deref(&self) -> &PortState {
        self.state.as_deref().expect("held until dropped")
    }
}

impl DerefMut for PortGuard<'_> {
    fn deref_mut(&mut self) -> &mut PortState {
        self.state.as_deref_mut().expect("held until dropped")
    }
}

impl Drop for PortGuard<'_> {
    fn drop(&mut self) {
        if let Some(mut state) = self.state.take() {
            let wakes = std::mem::take(&mut state.wakes);
            let leftovers = std::mem::take(&mut state.leftovers);
            drop(state);
            drop(wakes);
            drop(leftovers);
        }
    }
}

/// Bytes of a dying connection that are read and dropped before it is closed all the same.
pub(super) const LINGER_BYTES_MAX: usize = 16 << 20;

fn check_idle(state: &PortState) -> Result<()> {
    match (state.machine.lifecycle(), state.closing) {
        (Lifecycle::Idle, Closing::No) => Ok(()),
        (Lifecycle::Closed, _) | (_, Closing::Flushing | Closing::Draining) => {
            Err(Error::new(ErrorKind::BadState, "the endpoint is closed"))
        }
        _ => Err(Error::new(ErrorKind::AlreadyConnected, "")),
    }
}

impl std::fmt::Debug for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Port")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
