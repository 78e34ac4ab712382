//! A port: one endpoint's connection as handles and driver share it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Wake, Waker};
use std::time::Instant;

use bytes::Bytes;

use crate::buf::{Payload, Stage};
use crate::cntr::Counter;
use crate::cq::{CompletionQueue, CqSlot, Sources};
use crate::eq::{EventSlot, WeakEventQueue};
use crate::error::{Error, ErrorKind, OperationKind, Phase, Result};
use crate::id::{EndpointId, UserContext};
use crate::mr::AuthSecret;
use crate::proto::{Connection, Lifecycle, OFFERED, OpKey, Sizes, Terms};
use crate::random::RandomSource;
use crate::slab::Key;
use crate::sync::{Lock, MutexGuard, WakeList};
use crate::transport::Link;
use crate::wire::{Capabilities, Hello, Nonce};

use super::arming::{PeerStream, RecvState, SendState};
use super::commit::Commit;
use super::deadlines::Deadlines;
use super::driven::Driven;
use super::ended::{EndState, Ends};
use super::engine::Engine;
use super::leftovers;
use super::liveness::{Liveness, PortLiveness};
use super::rdm::{Moved, RdmAttachment};
use super::report::{OpCell, Report};
use super::shutdown::Shutdown;

/// Sizes of a port's queues.
pub(crate) type PortSizes = Sizes;

/// What an endpoint offers its peer beyond the plain protocol.
#[derive(Clone, Debug)]
pub(crate) struct Extending {
    /// False: nothing.
    pub(crate) offered: bool,
    /// Refused operations the connection lives through; 0: the first one ends it.
    pub(crate) refusals_max: u32,
    /// When a silent peer counts as dead.
    pub(crate) liveness: Liveness,
    /// What the peer has to prove, and is proven; `None`: nothing.
    pub(crate) auth_key: Option<AuthSecret>,
}

impl Default for Extending {
    fn default() -> Self {
        Extending {
            offered: true,
            refusals_max: 0,
            liveness: Liveness::default(),
            auth_key: None,
        }
    }
}

impl Extending {
    pub(super) fn terms(&self, engine: &Engine) -> Terms {
        Terms {
            capabilities: if self.offered {
                OFFERED
            } else {
                Capabilities::empty()
            },
            incarnation: engine.incarnation(),
            refusals_max: self.refusals_max,
            asks_after_ms: self.liveness.asks_after_ms(),
        }
    }
}

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
    /// Itself, in as much room as it takes.
    pub(crate) fn boxed(self) -> Option<Box<Self>> {
        let counts = self.all().next().is_some();
        counts.then(|| Box::new(self))
    }

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
            OperationKind::Read | OperationKind::FetchAtomic => self.read.as_ref(),
            OperationKind::Write | OperationKind::Atomic => self.write.as_ref(),
            OperationKind::RemoteRead => self.remote_read.as_ref(),
            OperationKind::RemoteWrite => self.remote_write.as_ref(),
            _ => None,
        }
    }
}

/// What an endpoint is bound to.
pub(crate) struct Bindings {
    /// Takes completions that nobody posted.
    pub(crate) receive_queue: CompletionQueue,
    /// `None`: nothing is counted.
    pub(crate) counters: Option<Box<CounterSet>>,
    /// Knows who sent what was received, if completions are to tell (`FI_SOURCE`).
    pub(crate) sources: Option<Arc<dyn Sources>>,
    /// Peers' accesses are counted for the regions too (`FI_RMA_EVENT`).
    pub(crate) rma_events: bool,
    /// Slots for Connected and Shutdown, reserved when the endpoint is opened (ruling 8).
    pub(crate) connected: Option<EventSlot>,
    pub(crate) shutdown: Option<EventSlot>,
    /// Where these slots are of, for those of the attempts that follow one that failed.
    pub(crate) events: Option<WeakEventQueue>,
    /// The context of the endpoint, in its Shutdown event.
    pub(crate) context: Option<UserContext>,
}

impl Bindings {
    pub(super) fn counter(&self, operation: OperationKind) -> Option<&Counter> {
        self.counters.as_ref()?.of(operation)
    }

    /// Reserves a slot for the Connected of another attempt, if that of the last has told of its
    /// failure (ruling 8).
    pub(super) fn reserve_connected(&mut self) -> Result<()> {
        let events = self.events.as_ref().and_then(WeakEventQueue::upgrade);
        if let (None, Some(events)) = (&self.connected, events) {
            let full = || {
                let message = "the event queue has no place free for the Connected of another try";
                Error::new(ErrorKind::Again, message)
            };
            self.connected = Some(events.try_reserve().ok_or_else(full)?);
        }
        Ok(())
    }
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

/// Everything of a port that its lock guards.
pub(super) struct PortState {
    pub(super) machine: Connection<Report>,
    pub(super) link: Option<Box<dyn Link>>,
    pub(super) recv: RecvState,
    pub(super) send: SendState,
    pub(super) peer_stream: PeerStream,
    /// A peer's write that is being made persistent.
    pub(super) committing: Option<Arc<Commit>>,
    /// Received bytes that the machine has not taken yet.
    pub(super) stage: Option<Stage>,
    pub(super) bindings: Bindings,
    pub(super) unasked: VecDeque<CqSlot>,
    pub(super) establishing: Establishing,
    pub(super) connect_context: Option<UserContext>,
    pub(super) end: EndState,
    /// As it should.
    pub(super) ended_in_order: bool,
    pub(super) shutdown: Shutdown,
    /// A post was sent inline since the driver last ran; the next is gathered.
    pub(super) inline_spent: bool,
    /// Posts came faster than they went out, so that several frames shared the last batch.
    pub(super) bursts: bool,
    pub(super) liveness: PortLiveness,
    /// When which operation ends at the latest.
    pub(super) deadlines: Deadlines,
    /// The driver has a turn of this port on its list for then.
    pub(super) alarm: Option<Instant>,
    /// And it need not have that any more.
    pub(super) stale_alarm: Option<Instant>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) local: Option<SocketAddr>,
    pub(super) kind: PortKind,
    /// Grows with whatever goes over the connection.
    pub(super) activity: u64,
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
    /// What both sides of its connection have proven once it is up.
    auth_key: Option<AuthSecret>,
    pub(super) wake_state: Arc<PortWaker>,
    pub(super) moved: Moved,
    /// Turns it has had.
    #[cfg(test)]
    pub(super) turns: std::sync::atomic::AtomicU64,
}

/// What kind of endpoint a port belongs to: where ports differ. Chosen when the port is made, as
/// the [`Connection`]'s receives are; an enum, so that the driver, which has ports of both kinds,
/// need not know.
pub(super) enum PortKind {
    /// A connected one (`FI_EP_MSG`): the port is the endpoint's only one.
    Msg,
    /// A connectionless one (`FI_EP_RDM`), which has a port for each peer.
    Rdm(Box<RdmAttachment>),
}

/// What a port is made of by whoever opens it.
pub(super) struct PortParts {
    pub(super) machine: Connection<Report>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) kind: PortKind,
}

/// Puts its port on the engine's ready list, once per turn.
pub(super) struct PortWaker {
    engine: Weak<Engine>,
    key: OnceLock<Key>,
    queued: AtomicBool,
}

impl PortWaker {
    pub(super) fn new(engine: &Arc<Engine>) -> Arc<Self> {
        Arc::new(PortWaker {
            engine: Arc::downgrade(engine),
            key: OnceLock::new(),
            queued: AtomicBool::new(false),
        })
    }

    /// Makes the port known to the engine; once.
    pub(super) fn enter(&self, engine: &Engine, port: Arc<dyn Driven>) -> Result<()> {
        let key = engine.lock_ports().insert(port);
        self.key.set(key).expect("the key is set once, here");
        // The driver may have ended between the check and the insertion; then nobody drains the
        // table any more.
        if engine.is_gone() {
            engine.lock_ports().remove(key);
            return Err(engine.why_gone());
        }
        Ok(())
    }

    /// The port has its turn.
    pub(super) fn is_queued_no_more(&self) {
        self.queued.store(false, Ordering::Release);
    }

    /// The driver has it in its queue still.
    pub(super) fn is_queued_again(&self) {
        self.queued.store(true, Ordering::Release);
    }
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

impl Ends for Port {
    fn with_end<R>(&self, run: impl FnOnce(&mut EndState) -> R) -> R {
        run(&mut self.lock("end").end)
    }
}

impl Port {
    /// A port without a connection, known to the engine; `id` is its endpoint's.
    pub(crate) fn open(
        engine: &Arc<Engine>,
        id: EndpointId,
        sizes: PortSizes,
        extending: Extending,
        bindings: Bindings,
    ) -> Result<Arc<Port>> {
        let terms = extending.terms(engine);
        Port::open_with(engine, id, extending, bindings, |_| PortParts {
            machine: Connection::new(sizes, terms),
            peer: None,
            kind: PortKind::Msg,
        })
    }

    /// The same, of parts that are made when its waker is there.
    pub(super) fn open_with(
        engine: &Arc<Engine>,
        id: EndpointId,
        extending: Extending,
        bindings: Bindings,
        parts: impl FnOnce(&Waker) -> PortParts,
    ) -> Result<Arc<Port>> {
        engine.check_alive()?;
        let wake_state = PortWaker::new(engine);
        let waker = Waker::from(Arc::clone(&wake_state));
        let PortParts {
            mut machine,
            peer,
            kind,
        } = parts(&waker);
        demand_key(&mut machine, extending.auth_key.as_ref(), &engine.random)?;
        let state = PortState {
            machine,
            link: None,
            recv: RecvState::Idle,
            send: SendState::Idle,
            peer_stream: PeerStream::Open,
            committing: None,
            stage: None,
            bindings,
            unasked: VecDeque::new(),
            establishing: Establishing::default(),
            connect_context: None,
            end: EndState::default(),
            ended_in_order: false,
            shutdown: Shutdown::new(),
            inline_spent: false,
            bursts: false,
            liveness: PortLiveness::new(extending.liveness, id.spread(engine.incarnation())),
            deadlines: Deadlines::default(),
            alarm: None,
            stale_alarm: None,
            peer,
            local: None,
            kind,
            activity: 0,
            leftovers: Vec::new(),
            wakes: WakeList::new(),
        };
        let port = Arc::new(Port {
            id,
            engine: Arc::clone(engine),
            state: Lock::new(state),
            waker,
            auth_key: extending.auth_key,
            wake_state,
            moved: Moved::default(),
            #[cfg(test)]
            turns: std::sync::atomic::AtomicU64::new(0),
        });
        let driven: Arc<dyn Driven> = Arc::clone(&port) as _;
        port.wake_state.enter(engine, driven)?;
        Ok(port)
    }

    pub(crate) fn id(&self) -> EndpointId {
        self.id
    }

    /// The port's name in its engine.
    pub(crate) fn key(&self) -> Key {
        let key = self.wake_state.key.get();
        *key.expect("a port that was opened has its key")
    }

    /// The key without which it has no peer.
    pub(crate) fn auth_key(&self) -> Option<&AuthSecret> {
        self.auth_key.as_ref()
    }

    /// Asks the driver for this port's heartbeats from now on.
    pub(super) fn enlist(&self) {
        if let Some(&key) = self.wake_state.key.get() {
            self.engine.enlist(key);
        }
    }

    pub(super) fn lock(&self, purpose: &'static str) -> PortGuard<'_> {
        PortGuard {
            state: Some(self.state.lock(purpose)),
        }
    }

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

    /// What the peer said of itself; `None` before it is connected, and of a plain peer.
    pub(crate) fn peer_hello(&self) -> Option<Hello> {
        self.lock("peer").machine.peer_hello().copied()
    }

    pub(crate) fn unexpected_bytes(&self) -> usize {
        self.lock("unexpected bytes").machine.unexpected_bytes()
    }
}

/// An attempt at a connection begins, which takes proving this key, if there is one.
pub(super) fn demand_key(
    machine: &mut Connection<Report>,
    key: Option<&AuthSecret>,
    random: &RandomSource,
) -> Result<()> {
    if let Some(key) = key {
        let mut nonce: Nonce = [0; 32];
        random.fill(&mut nonce, "an endpoint with a key")?;
        machine.demand_key(key.clone(), nonce);
    }
    Ok(())
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
            if state.wakes.is_empty()
                && state.leftovers.is_empty()
                && matches!(state.kind, PortKind::Msg)
            {
                return; // The usual case of a post.
            }
            let wakes = std::mem::take(&mut state.wakes);
            let leftovers = std::mem::replace(&mut state.leftovers, leftovers::empty());
            let shared = match &mut state.kind {
                PortKind::Msg => None,
                PortKind::Rdm(rdm) => Some(rdm.receives.take_aftermath()),
            };
            drop(state);
            drop(wakes);
            leftovers::drop_all(leftovers);
            drop(shared);
        }
    }
}

impl std::fmt::Debug for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Port")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
