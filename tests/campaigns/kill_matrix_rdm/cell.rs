//! One cell of the matrix: a survivor of ours, a victim, a step, and what came of it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio_fabric::testing::Peer;
use tokio_fabric::{
    Access, CompletionQueue, Error, ErrorKind, RdmEndpoint, RemoteRegion, av::FabricAddr,
    ep::Liveness,
};

use super::keys::{self, Keys};
use super::step::{Step, Victim};
use super::victim::{AWAITED, LARGE, ORDER};
use crate::common::child::{PeerProcess, signal};
use crate::kill_matrix::cell::net;
use crate::kill_matrix::death::{self, Death, INTERVAL, PATIENCE, QUIET, ROUNDS};
use crate::kill_matrix::ledger::Ledger;

/// More than the sockets of a connection hold.
const HUGE: usize = 32 << 20;
/// How long a victim may stay out of reach that is to die before it is reached.
const DEADLINE: Duration = Duration::from_millis(1500);
/// One of this matrix.
pub type Cell = death::Cell<Step, Victim>;

/// An address of this machine for one cell alone. Who has died is dialled again for a while, and
/// may not find one of another cell at the same port.
fn own_host() -> Ipv4Addr {
    static CELLS: AtomicU16 = AtomicU16::new(0);
    let [high, low] = CELLS.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    Ipv4Addr::new(127, 1, high, low)
}

impl Cell {
    /// Whether our side is to find out by itself.
    fn is_found(self) -> bool {
        let extended = self.protocol.is_extended();
        self.death == Death::Killed || self.step.is_before() || extended
    }

    /// Whether a connection ends without close_notify: to TLS that is no end in order.
    fn is_cut_within_tls(self) -> bool {
        let is_connected = self.step > Step::TieTheirs;
        let is_killed = self.death == Death::Killed && self.step != Step::CloseNotify;
        let is_cut = is_connected && is_killed || self.step == Step::Truncation;
        self.protocol.is_secure() && is_cut
    }
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub cell: Cell,
    /// Operations that are bound to the victim.
    pub posted: usize,
    /// What had no end within the time.
    pub missing: usize,
    /// From the death to the last end. `None`: it was not for us to find.
    pub time: Option<Duration>,
}

/// Panics where a rule is broken, save that what does not end is counted.
pub async fn play(cell: Cell) -> Outcome {
    let (net, known) = net(cell.backend, cell.protocol);
    let peer = match cell.protocol.is_keyed() {
        true => keys::peer(&net),
        false => net.peer().expect("a peer"),
    };
    let keys = cell.protocol.is_keyed().then(|| Keys::new(&peer));
    let queue = peer.domain.completion_queue().open().expect("a queue");
    let x = open(cell, &peer, &queue, keys.as_ref());
    let neighbour = keys.as_ref().map(|keys| keys.neighbour(&net, &x));
    let registering = peer.domain.register(vec![0; LARGE]).access(Access::REMOTE);
    let region = registering.await.expect("a region");
    let RemoteRegion { addr, key, .. } = region.remote();
    let Cell {
        step,
        victim: role,
        protocol,
        ..
    } = cell;
    let order = format!(
        "{step:?} {role:?} {protocol:?} {} {addr} {key}",
        x.local_addr()
    );
    let variables = [vec![(ORDER, order)], known].concat();
    let mut victim = PeerProcess::spawn("kill_matrix_rdm::the_victim", &variables);
    let there: SocketAddr = victim.line().await.parse().expect("its address");
    let c = match &keys {
        Some(keys) => keys.insert_victim(there),
        None => x.insert(there).expect("room for an address"),
    };
    if protocol.is_keyed() && role == Victim::Dials {
        let _known = TcpStream::connect(there).await.expect("the victim listens");
        victim.line().await;
    }
    let mut ledger = Ledger::default();
    // There are no events of connections; all that is waited for are operations.
    ledger.over = Some(Instant::now());
    let bystander = x
        .recv_tagged(vec![0; 8], 1234)
        .from(c)
        .post()
        .expect("room");
    post_everything(&x, c, step, &mut ledger);
    let said = tokio::time::timeout(PATIENCE, victim.line()).await;
    assert_eq!(said.as_deref(), Ok("there"), "{cell:?} is not reached");
    if let Some(neighbour) = &neighbour {
        neighbour.talk(&x).await;
    }
    let died = Instant::now();
    match cell.death {
        Death::Killed => signal(victim.id(), libc::SIGKILL),
        Death::Stopped => victim.stop(),
    }
    if !cell.is_found() {
        ledger.collect(&queue, &peer.events, QUIET).await;
        let failed = ledger.ended.iter().find(|ended| ended.error.is_some());
        assert!(failed.is_none(), "{cell:?}: {failed:?}");
        signal(victim.id(), libc::SIGKILL);
    }
    ledger.collect(&queue, &peer.events, PATIENCE).await;
    for ended in &ledger.ended {
        if let Some(error) = &ended.error {
            let silent = cell.death == Death::Stopped && error.is_timed_out();
            assert!(
                silent || is_typed(error),
                "{cell:?}: {}: {error}",
                ended.what
            );
            let is_cut = cell.is_cut_within_tls();
            assert!(
                !is_cut || error.kind() == ErrorKind::ConnectionReset,
                "{cell:?}: {}: {error}",
                ended.what
            );
        }
    }
    if let Some(neighbour) = &neighbour {
        neighbour.talk(&x).await;
    }
    assert!(
        bystander.cancel(),
        "{cell:?}: a receive is no connection's until it is matched"
    );
    Outcome {
        cell,
        posted: ledger.posted(),
        missing: ledger.missing(),
        time: cell.is_found().then(|| {
            let last = ledger.last().expect("something was posted");
            last.saturating_duration_since(died)
        }),
    }
}

fn open(cell: Cell, peer: &Peer, queue: &CompletionQueue, keys: Option<&Keys>) -> RdmEndpoint {
    let liveness = Liveness::default().interval(INTERVAL).rounds(ROUNDS);
    let liveness = liveness.idle_interval(INTERVAL);
    // Below all ports that the system chooses for the victim, or above them.
    let ports = match cell.step {
        Step::TieOurs => 61_000..=65_535,
        Step::TieTheirs => 20_000..=30_000,
        _ => 0..=0,
    };
    let host = own_host();
    let opened = ports.into_iter().find_map(|port| {
        let builder = peer.domain.rdm_endpoint().completion_queue(queue);
        let builder = builder.liveness(liveness).rendezvous_min(1000);
        let builder = match cell.step <= Step::TieTheirs {
            true => builder.connect_deadline(DEADLINE),
            false => builder,
        };
        let builder = match keys {
            Some(keys) => builder.address_vector(&keys.vector),
            None => builder,
        };
        builder.listen_at((host, port).into()).open().ok()
    });
    opened.expect("a port is free")
}

/// Operations of all kinds, in both ways to complete, and what the step needs.
fn post_everything(x: &RdmEndpoint, c: FabricAddr, step: Step, ledger: &mut Ledger) {
    let remote = RemoteRegion::new(0, 1 << 30, 0x5EED);
    let at = |len: usize| remote.slice(..len as u64).expect("within it");
    match step {
        Step::HalfMessage => {
            // One for any peer's messages would outlive this one.
            let receive = x.recv(vec![0; LARGE]).from(c);
            ledger.add("receive", receive.post().expect("room"));
        }
        _ if step.has_bound_receive() => {
            let receive = x.recv_tagged(vec![0; LARGE], AWAITED).from(c);
            ledger.add("tagged receive", receive.post().expect("room"));
        }
        Step::RtsUnanswered | Step::DataUnread => {
            let send = x.send_tagged(vec![1; HUGE], c, 5);
            ledger.add("large tagged send", send.post().expect("room"));
        }
        _ if step.has_large_write() => {
            let write = x.write(vec![1; HUGE], c, at(HUGE));
            ledger.add("large write", write.post().expect("room"));
        }
        _ => {}
    }
    // The standard set: none of it ends without the peer.
    let send = x.send("acked", c).imm(7).delivery_complete();
    ledger.add("send", send.post().expect("room"));
    let send = x.send("acked", c).delivery_complete().queue(ledger.next());
    ledger.queue("send", send.post().expect("room"));
    let send = x.send_tagged("acked", c, 3).delivery_complete();
    ledger.add("tagged send", send.post().expect("room"));
    let read = x.read(vec![0; 1 << 20], c, at(1 << 20));
    ledger.add("read", read.post().expect("room"));
    let read = x.read(vec![0; 10], c, at(10)).queue(ledger.next());
    ledger.queue("read", read.post().expect("room"));
    let write = x.write(vec![1; 10], c, at(10)).delivery_complete();
    ledger.add("write", write.post().expect("room"));
    let write = x.write(vec![1; 10], c, at(10)).imm(1).delivery_complete();
    let write = write.queue(ledger.next()).post();
    ledger.queue("write", write.expect("room"));
}

/// Whether the error says that the peer is lost, or never was reached.
fn is_typed(error: &Error) -> bool {
    error.is_connection_lost() || error.kind() == ErrorKind::Unreachable
}
