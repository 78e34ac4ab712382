//! One cell of the matrix: a survivor of ours, a victim, a step, and what came of it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio_fabric::testing::{Net, Peer};
use tokio_fabric::{
    Access, Backend, CompletionQueue, ConnRequest, Endpoint, Event, EventQueue, MemoryRegion,
    PassiveEndpoint, RemoteRegion,
};

use crate::child::PeerProcess;
use crate::ledger::Ledger;
use crate::sockets::{Socket, comes};
use crate::step::{Protocol, Stage, Step, Victim};
use crate::victim::{ORDER, REGION_LEN};

/// Whatever a machine under load needs for what does not depend on the victim.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// More than the sockets of a connection hold.
const LARGE: usize = 32 << 20;

/// How the victim dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// `kill -9`.
    Killed,
    /// `SIGSTOP`: it holds its sockets, and does nothing.
    Stopped,
}

/// Where, and as whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    pub step: Step,
    pub victim: Victim,
    pub protocol: Protocol,
    pub backend: Backend,
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
    peer: Peer,
    queue: CompletionQueue,
    endpoint: Endpoint,
    region: MemoryRegion,
    listener: PassiveEndpoint,
    requests: EventQueue,
    ledger: Ledger,
}

/// Plays the cell. Panics where a rule is broken, save that what does not end is counted.
pub async fn play(cell: Cell, death: Death) -> Outcome {
    let mut us = Survivor::open(cell).await;
    let dial = match cell.victim {
        Victim::Dials => us.listener.local_addr().to_string(),
        Victim::Listens => "nobody".to_owned(),
    };
    let order = (ORDER, format!("{} {} {dial}", cell.step, cell.protocol));
    let mut victim = PeerProcess::spawn("the_victim", &[order]);
    let request = match cell.victim {
        Victim::Dials => us.meet_a_dialer(cell.step).await,
        Victim::Listens => {
            let address = victim.line().await.parse().expect("its address");
            us.dial(cell.step, address).await;
            None
        }
    };
    if cell.step.stage() == Stage::Connected {
        us.post_everything(cell.step);
    }
    let theirs: SocketAddr = victim.line().await.parse().expect("its address");
    us.await_step(cell, theirs).await;
    if cell.step == Step::OurClose {
        let endpoint = us.endpoint.clone();
        us.ledger
            .spawn("our close", async move { endpoint.shutdown().await });
        tokio::task::yield_now().await; // It has begun.
    }
    let died = Instant::now();
    match death {
        Death::Killed => signal(victim.id(), libc::SIGKILL),
        Death::Stopped => signal(victim.id(), libc::SIGSTOP),
    }
    if cell.step == Step::PausedFull {
        // Its end stands in line behind what we do not read; only what we send finds it gone.
        us.ledger
            .add("nudge", us.endpoint.send("anybody there?").post().unwrap());
    }
    let last = match request {
        Some(request) => us.accept_the_dead(request).await,
        None if us.ledger.posted() > 0 => us.settle().await,
        None => us.let_go(theirs).await,
    };
    Outcome {
        cell,
        posted: us.ledger.posted(),
        missing: us.ledger.missing(),
        time: last.map(|last| last.saturating_duration_since(died)),
    }
}

/// Signals a process of ours that has not been waited for.
pub fn signal(process: i32, signal: i32) {
    // SAFETY: a plain system call, which touches no memory of this process.
    let answer = unsafe { libc::kill(process, signal) };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
}

impl Survivor {
    async fn open(cell: Cell) -> Survivor {
        let peer = Net::on(cell.backend).peer().unwrap();
        let queue = peer.domain.completion_queue().open().unwrap();
        let mut endpoint = peer.domain.endpoint().completion_queue(&queue);
        if matches!(cell.step, Step::Paused | Step::PausedFull) {
            endpoint = endpoint.unexpected_bytes(0);
        }
        let region = peer.domain.register(vec![0; REGION_LEN as usize]);
        let requests = peer.fabric.event_queue().open().unwrap();
        let listener = peer.fabric.passive_endpoint(&requests);
        Survivor {
            endpoint: endpoint.open().unwrap(),
            region: region.access(Access::all()).await.unwrap(),
            listener: listener.listen_at(([127, 0, 0, 1], 0).into()).unwrap(),
            peer,
            queue,
            requests,
            ledger: Ledger::default(),
        }
    }

    /// Accepts a victim that has come to be accepted. Gives the request of one that has not.
    async fn meet_a_dialer(&mut self, step: Step) -> Option<ConnRequest> {
        if step < Step::BeforeVerdict {
            return None;
        }
        let told = tokio::time::timeout(PATIENCE, self.requests.next()).await;
        let Ok(Some(Event::ConnRequest(request))) = told else {
            panic!("{told:?} instead of a request");
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
    async fn dial(&mut self, step: Step, address: SocketAddr) {
        let connecting = self.endpoint.connect(address);
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
            _ if step.fills_the_socket() && step != Step::ReadUnread => {
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
            let _ = endpoint.inject(b"nobody is told of this");
            for _ in 0..300 {
                let waiting = endpoint.send(vec![0; 20]).post().unwrap();
                ledger.add("waiting send", waiting);
            }
        }
    }

    /// Until our side has come to the step, too: it has taken what the victim sent, or can send no
    /// more.
    async fn await_step(&self, cell: Cell, theirs: SocketAddr) {
        let Some(ours) = self.address(cell.victim, theirs) else {
            return;
        };
        let there = || {
            Socket::find(ours, theirs).is_some_and(|socket| match cell.step {
                Step::Paused | Step::PausedFull => socket.unread > 0,
                _ if cell.step.fills_the_socket() => socket.to_send > 0 || socket.state != 1,
                _ => socket.unread == 0,
            })
        };
        assert!(comes(PATIENCE, there).await, "{cell:?} is not reached");
    }

    /// Our end's address of the connection, if there is one.
    fn address(&self, victim: Victim, _theirs: SocketAddr) -> Option<SocketAddr> {
        match victim {
            Victim::Dials => Some(self.listener.local_addr()),
            Victim::Listens => self.endpoint.local_addr(),
        }
    }

    /// The end of all that was posted, and of the connection.
    async fn settle(&mut self) -> Option<Instant> {
        self.ledger
            .settle(&self.queue, &self.peer.events, PATIENCE)
            .await;
        for ended in &self.ledger.ended {
            if let Some(error) = &ended.error {
                let typed = error.is_connection_lost() || error.is_canceled();
                assert!(typed, "{}: {error}", ended.what);
            }
        }
        let late = self
            .endpoint
            .send("late")
            .await
            .expect_err("the connection is gone");
        let typed = late.error().is_connection_lost() || late.error().is_canceled();
        assert!(typed, "posting tells why, too: {late}");
        self.ledger.last()
    }

    /// Accepts what has died meanwhile: that fails, or the connection ends at once.
    async fn accept_the_dead(&mut self, request: ConnRequest) -> Option<Instant> {
        let accepting = self.endpoint.accept(request).into_future();
        self.ledger.add("accept", accepting);
        while self.ledger.missing() > 0 {
            let limit = Duration::from_millis(50);
            self.ledger
                .settle(&self.queue, &self.peer.events, limit)
                .await;
        }
        if self.ledger.ended[0].error.is_none() || self.ledger.over.is_some() {
            self.ledger
                .settle(&self.queue, &self.peer.events, PATIENCE)
                .await;
            assert!(self.ledger.over.is_some(), "nobody tells of the end");
        }
        self.ledger.last()
    }

    /// No operation depends on it: the listener gives up what it holds, tells nobody, and goes on.
    async fn let_go(&self, theirs: SocketAddr) -> Option<Instant> {
        let ours = self.listener.local_addr();
        let gone = comes(PATIENCE, || !Socket::is_held(ours, theirs)).await;
        assert!(gone, "the listener holds a dead connection");
        let at = Instant::now();
        assert!(
            self.requests.is_empty(),
            "a request that was never whole is told"
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
