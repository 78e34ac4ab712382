//! One cell of the matrix: a survivor of ours, a victim, a step, and what came of it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio_fabric::ep::Liveness;
use tokio_fabric::testing::{Net, Peer};
use tokio_fabric::{
    Access, Backend, CompletionQueue, Endpoint, Error, ErrorKind, Event, EventQueue, Hints,
    MemoryRegion, PassiveEndpoint, RemoteRegion, Result, eq::ConnRequest, info::AuthKey,
};

use super::death::{self, Death, INTERVAL, PATIENCE, Protocol, QUIET, ROUNDS};
use super::greeting::KEY;
use super::ledger::Ledger;
use super::sockets::{Socket, comes};
use super::step::{Stage, Step, Victim};
use super::victim::{ORDER, REGION_LEN};
use crate::common::child::{PeerProcess, signal};

/// More than the sockets of a connection hold.
const LARGE: usize = 32 << 20;

/// What a victim that is stopped in it leaves of a handshake.
const HANDSHAKE: Duration = Duration::from_millis(1500);
/// One of this matrix.
pub type Cell = death::Cell<Step, Victim>;

impl Cell {
    /// Whether our side is to find out by itself.
    pub fn is_found(self) -> bool {
        let extended = self.protocol.is_extended();
        match (self.death, self.step) {
            (Death::Killed, _) => true,
            // The time for what is left to be sent, and an end that has come already.
            (_, step) if step == Step::OurClose || step.is_its_close() => true,
            // What we have accepted is a connection like any other.
            (_, Step::BeforeVerdict) if self.victim == Victim::Dials => extended,
            // What we do not read may hold its sign of life.
            (_, Step::Paused | Step::PausedFull) => false,
            (_, step) => extended || step.stage() == Stage::Handshake,
        }
    }

    /// Whether the deadline of the handshake ends it, which begins before the victim is stopped.
    fn ends_by_deadline(self) -> bool {
        self.death == Death::Stopped && self.step.stage() == Stage::Handshake
    }

    /// Whether something of ours has to be sent before its end comes to us: it stands in line
    /// behind what we do not read, and the extension's heartbeats go out by themselves.
    fn wants_a_nudge(self) -> bool {
        self.step == Step::PausedFull && self.protocol == Protocol::Plain
    }
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub cell: Cell,
    /// What was promised an end: operations, and a connect or accept that was under way.
    pub posted: usize,
    /// What had none within the time.
    pub missing: usize,
    /// From the death to the last end. `None`: there was nothing to end.
    pub time: Option<Duration>,
}

/// Our side, before it has a connection.
struct Survivor {
    cell: Cell,
    /// What the victim is to know besides.
    variables: Vec<(&'static str, String)>,
    /// Of the handshake, if the cell ends by it.
    deadline: Duration,
    peer: Peer,
    queue: CompletionQueue,
    endpoint: Endpoint,
    region: MemoryRegion<Vec<u8>>,
    listener: PassiveEndpoint,
    requests: EventQueue,
    ledger: Ledger,
}

/// Plays the cell. Panics where a rule is broken, save that what does not end is counted. On a busy
/// machine the deadline of a handshake may pass before the victim has come to its step: then the
/// cell is played again, with a longer one.
pub async fn play(cell: Cell) -> Outcome {
    let mut deadline = HANDSHAKE;
    loop {
        match play_once(cell, deadline).await {
            Some(outcome) => return outcome,
            None => deadline *= 2,
        }
        assert!(deadline < PATIENCE, "{cell:?} is not reached");
    }
}

/// `None`: the victim has not come to its step before this deadline of a handshake.
async fn play_once(cell: Cell, deadline: Duration) -> Option<Outcome> {
    let mut us = Survivor::open(cell, deadline).await;
    let dial = match cell.victim {
        Victim::Dials => us.listener.local_addr().to_string(),
        Victim::Listens => "none".to_owned(),
    };
    let order = (ORDER, format!("{} {:?} {dial}", cell.step, cell.protocol));
    let variables = [vec![order], us.variables.clone()].concat();
    let mut victim = PeerProcess::spawn("kill_matrix::the_victim", &variables);
    let request = match cell.victim {
        Victim::Dials => us.meet_a_dialer().await,
        Victim::Listens => {
            let address = victim.line().await.parse().expect("its address");
            us.dial(address).await;
            None
        }
    };
    if cell.step.stage() == Stage::Connected {
        us.post_everything(cell.step);
    }
    let theirs: SocketAddr = victim.line().await.parse().expect("its address");
    if !us.await_step(theirs).await {
        return None;
    }
    if cell.step == Step::OurClose {
        let endpoint = us.endpoint.clone();
        let closing = async move { endpoint.shutdown().await };
        us.ledger.spawn("our close", closing);
        tokio::task::yield_now().await; // It has begun.
    }
    let died = Instant::now();
    match cell.death {
        Death::Killed => signal(victim.id(), libc::SIGKILL),
        Death::Stopped => victim.stop(),
    }
    let accepted = request.is_some();
    if let Some(request) = request {
        let accepting = us.endpoint.accept(request).into_future();
        us.ledger.spawn("accept", accepting);
    }
    if !cell.is_found() {
        us.nothing_happens().await;
        signal(victim.id(), libc::SIGKILL);
    }
    if cell.wants_a_nudge() {
        let nudge = us.endpoint.send("anybody there?").post().unwrap();
        us.ledger.add("nudge", nudge);
    }
    let last = match us.ledger.posted() {
        0 => us.let_go(theirs).await,
        _ if accepted => us.accept_the_dead().await,
        _ => us.collect().await,
    };
    let time = last.map(|last| last.saturating_duration_since(died));
    Some(Outcome {
        cell,
        posted: us.ledger.posted(),
        missing: us.ledger.missing(),
        time: time.filter(|_| cell.is_found()),
    })
}

/// A network in which this is spoken, and what its victims are to know of it.
pub fn net(backend: Backend, protocol: Protocol) -> (Net, Vec<(&'static str, String)>) {
    let net = Net::on(backend);
    #[cfg(feature = "tls")]
    if protocol.is_secure() {
        use crate::common::tls::{Node, VARIABLE};
        let node = Node::new();
        return (net.tls(node.config()), vec![(VARIABLE, node.to_text())]);
    }
    assert!(!protocol.is_secure(), "the feature is off");
    (net, Vec::new())
}

/// Opens something that may need a ring: the kernel takes the memory of the rings of earlier cells
/// back a while after they are closed, and all programs of a user share the limit.
async fn patiently<T>(mut open: impl FnMut() -> Result<T>) -> T {
    let begun = Instant::now();
    loop {
        match open() {
            Ok(opened) => return opened,
            Err(error) if begun.elapsed() > PATIENCE => panic!("{error}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

impl Survivor {
    async fn open(cell: Cell, deadline: Duration) -> Survivor {
        let (net, variables) = net(cell.backend, cell.protocol);
        let net = match cell.step.is_of_sharing() {
            true => net.local_after(0),
            false => net,
        };
        let hints = match cell.protocol.is_keyed() {
            true => Hints::new().domain(|domain| domain.auth_key(AuthKey::new(KEY))),
            false => Hints::new(),
        };
        let peer = patiently(|| Peer::of(net.fabric_with(hints.clone())?)).await;
        let queue = peer.domain.completion_queue().open().unwrap();
        // Who only receives is watched as closely as the rest.
        // A victim answers no probe, and some steps take it a while on a busy machine.
        let interval = match cell.step.is_of_sharing() {
            true => INTERVAL * 5,
            false => INTERVAL,
        };
        let liveness = Liveness::default().interval(interval).rounds(ROUNDS);
        let liveness = liveness.idle_interval(interval);
        let endpoint = peer.domain.endpoint().completion_queue(&queue);
        let mut endpoint = endpoint.liveness(liveness);
        if matches!(cell.step, Step::Paused | Step::PausedFull) {
            endpoint = endpoint.unexpected_bytes(0);
        }
        let region = peer.domain.register(vec![0; REGION_LEN as usize]);
        let requests = peer.fabric.event_queue().open().unwrap();
        let listening = || {
            let listener = peer.fabric.passive_endpoint(&requests);
            match cell.ends_by_deadline() {
                true => listener.handshake_timeout(deadline),
                false => listener,
            }
        };
        Survivor {
            cell,
            variables,
            deadline,
            endpoint: endpoint.open().unwrap(),
            region: region.access(Access::all()).await.unwrap(),
            listener: patiently(|| listening().listen_at(([127, 0, 0, 1], 0).into())).await,
            peer,
            queue,
            requests,
            ledger: Ledger::default(),
        }
    }

    /// Accepts a victim that has come to be accepted. Gives the request of one that has not.
    async fn meet_a_dialer(&mut self) -> Option<ConnRequest> {
        let step = self.cell.step;
        if step < Step::BeforeVerdict {
            return None;
        }
        let event = tokio::time::timeout(PATIENCE, self.requests.next()).await;
        let Ok(Some(Event::ConnRequest(request))) = event else {
            panic!("{event:?} instead of a request");
        };
        if step == Step::BeforeVerdict {
            return Some(request);
        }
        let accepting = self.endpoint.accept(request);
        let region = self.region.remote().to_bytes();
        let accepting = accepting.data(region).into_future();
        if step.stage() == Stage::Connected {
            accepting.await.expect("it is there");
        } else {
            self.ledger.spawn("accept", accepting);
            self.post_receives();
        }
        None
    }

    /// Dials a victim; it may die before the connection is established.
    async fn dial(&mut self, address: SocketAddr) {
        let step = self.cell.step;
        let mut connecting = self.endpoint.connect(address);
        if self.cell.ends_by_deadline() {
            connecting = connecting.timeout(self.deadline);
        }
        let region = self.region.remote().to_bytes();
        let connecting = connecting.data(region).into_future();
        if step.stage() == Stage::Connected {
            connecting.await.expect("it accepts");
        } else {
            self.ledger.add("connect", connecting);
            self.post_receives();
        }
    }

    fn post_receives(&mut self) {
        let receive = self.endpoint.recv(vec![0; 1 << 20]).post().unwrap();
        self.ledger.add("receive", receive);
        let vector = self.endpoint.recv([vec![0; 100], vec![0; 10]]);
        let queued = vector.queue(self.ledger.next()).post().unwrap();
        self.ledger.queue("receive", queued);
    }

    /// Operations of all kinds that the step allows, in both ways to complete.
    fn post_everything(&mut self, step: Step) {
        let (endpoint, remote) = (self.endpoint.clone(), RemoteRegion::new(0, 1 << 30, 0x5EED));
        let at = |len: u64| remote.slice(..len).unwrap();
        if step.has_receives() {
            self.post_receives();
        }
        if !step.has_transmits() {
            return;
        }
        let ledger = &mut self.ledger;
        match step {
            Step::WriteUnread => {
                let write = endpoint.write(vec![1; LARGE], at(LARGE as u64));
                ledger.add("large write", write.post().unwrap());
            }
            _ if step.fills_the_socket() && step != Step::ReadUnread || step.fills_the_ring() => {
                let send = endpoint.send(vec![1; LARGE]);
                ledger.add("large send", send.post().unwrap());
            }
            _ => {}
        }
        // The standard set: none of it ends without the peer.
        let send = endpoint.send("acked").imm(7).delivery_complete();
        ledger.add("send", send.post().unwrap());
        let send = endpoint.send("acked").delivery_complete();
        ledger.queue("send", send.queue(ledger.next()).post().unwrap());
        let read = endpoint.read(vec![0; 1 << 20], at(1 << 20));
        ledger.add("read", read.post().unwrap());
        let read = endpoint.read([vec![0; 5], vec![0; 5]], at(10));
        ledger.queue("read", read.queue(ledger.next()).post().unwrap());
        let write = endpoint.write(vec![1; 10], at(10)).delivery_complete();
        ledger.add("write", write.post().unwrap());
        let write = endpoint
            .write(vec![1; 10], at(10))
            .imm(1)
            .delivery_complete();
        ledger.queue("write", write.queue(ledger.next()).post().unwrap());
        if step.fills_the_socket() && step != Step::ReadUnread {
            let _ = endpoint.inject(b"not reported");
            for _ in 0..300 {
                let waiting = endpoint.send(vec![0; 20]).post().unwrap();
                ledger.add("waiting send", waiting);
            }
        }
    }

    /// Until our side has come to the step, too: it has taken what the victim sent, or can send no
    /// more. `false`: the deadline of the handshake has passed before.
    async fn await_step(&self, theirs: SocketAddr) -> bool {
        let cell = self.cell;
        let there = || {
            let ours = match cell.victim {
                Victim::Dials => Some(self.listener.local_addr()),
                // Over TLS it is not known before the session is.
                Victim::Listens => self.endpoint.local_addr(),
            };
            Socket::find(ours, theirs).is_some_and(|socket| match cell.step {
                Step::Paused | Step::PausedFull => socket.unread > 0,
                _ if cell.step.fills_the_socket() => socket.to_send > 0 || socket.state != 1,
                _ => socket.unread == 0,
            })
        };
        let may_pass = cell.ends_by_deadline();
        let is_there = comes(if may_pass { self.deadline } else { PATIENCE }, there).await;
        assert!(is_there || may_pass, "{cell:?} is not reached");
        is_there
    }

    /// A peer that is stopped looks like one that is slow: nothing fails, nothing is reported.
    async fn nothing_happens(&mut self) {
        let (queue, events) = (&self.queue, &self.peer.events);
        self.ledger.collect(queue, events, QUIET).await;
        let failed = self.ledger.ended.iter().find(|ended| ended.error.is_some());
        assert!(failed.is_none(), "{:?}: {failed:?}", self.cell);
        assert_eq!(self.ledger.over, None, "{:?}", self.cell);
    }

    /// The end of all that was posted, and of the connection.
    async fn collect(&mut self) -> Option<Instant> {
        self.ledger
            .collect(&self.queue, &self.peer.events, PATIENCE)
            .await;
        let errors = self.ledger.ended.iter();
        let errors = errors.filter_map(|ended| Some((ended.what, ended.error.as_ref()?)));
        for (what, error) in errors.chain(self.ledger.lost.iter().map(|error| ("end", error))) {
            assert!(self.is_typed(error), "{what}: {error}");
            assert!(self.has_due_kind(error), "{what}: {error}");
        }
        let late = self
            .endpoint
            .send("late")
            .await
            .expect_err("the connection is gone");
        let error = late.error();
        // We have closed, whatever the peer did.
        let closed = self.cell.step == Step::OurClose && error.kind() == ErrorKind::BadState;
        // A failed attempt has reported its reason, and the endpoint can try again.
        let in_handshake = self.cell.step.stage() == Stage::Handshake;
        let idle = in_handshake && error.kind() == ErrorKind::NotConnected;
        assert!(
            closed || idle || self.is_typed(error),
            "posting says why, too: {late}"
        );
        self.ledger.last()
    }

    /// Whether the error says that the peer is lost, or its time is up, or that we closed.
    fn is_typed(&self, error: &Error) -> bool {
        let late = self.cell.death == Death::Stopped && error.is_timed_out();
        late || error.is_connection_lost() || error.is_canceled()
    }

    /// TLS distinguishes an end that the peer has announced from one that anyone could have made:
    /// without close_notify the connection counts as reset.
    fn has_due_kind(&self, error: &Error) -> bool {
        let Cell { step, death, .. } = self.cell;
        let is_killed = death == Death::Killed;
        let due = match step {
            _ if !self.cell.protocol.is_secure() => return true,
            Step::ItsTruncation => ErrorKind::ConnectionReset,
            // A death may come before what was announced is read.
            Step::ItsClose | Step::ItsCloseNotify if !is_killed => ErrorKind::PeerClosed,
            Step::ItsClose | Step::ItsCloseNotify | Step::OurClose => return true,
            _ if is_killed && step >= Step::BeforeHello => ErrorKind::ConnectionReset,
            _ => return true,
        };
        error.kind() == due
    }

    /// What was accepted has died meanwhile: the accept fails, or the connection ends at once.
    async fn accept_the_dead(&mut self) -> Option<Instant> {
        while self.ledger.missing() > 0 {
            let limit = Duration::from_millis(50);
            let (queue, events) = (&self.queue, &self.peer.events);
            self.ledger.collect(queue, events, limit).await;
        }
        // No event, if the request was gone before it was accepted.
        let failed = self.ledger.ended[0].error.is_some();
        if !failed || self.ledger.over.is_some() {
            let (queue, events) = (&self.queue, &self.peer.events);
            self.ledger.collect(queue, events, PATIENCE).await;
            assert!(self.ledger.over.is_some(), "the end was not reported");
        }
        self.ledger.last()
    }

    /// No operation depends on it: the listener drops what it holds, reports nothing, and goes on.
    async fn let_go(&self, theirs: SocketAddr) -> Option<Instant> {
        let ours = self.listener.local_addr();
        let gone = comes(PATIENCE, || !Socket::is_held(ours, theirs)).await;
        assert!(gone, "the listener holds a dead connection");
        let at = Instant::now();
        assert!(
            self.requests.is_empty(),
            "a request that was never whole is reported"
        );
        let other = self.peer.domain.endpoint().open().unwrap();
        let connecting = other.connect(ours).into_future();
        let accepting = async {
            match self.requests.next().await {
                Some(Event::ConnRequest(request)) => request.accept(&self.peer.domain).await,
                other => panic!("{other:?} instead of the next request"),
            }
        };
        let both = async { tokio::join!(connecting, accepting) };
        let (connected, accepted) = tokio::time::timeout(PATIENCE, both).await.expect("a hang");
        assert!(
            connected.is_ok() && accepted.is_ok(),
            "the next connection fails"
        );
        Some(at)
    }
}
