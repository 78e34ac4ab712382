//! Eight peers at work in whatever region is published, and one whose regions are taken away.

use std::net::SocketAddr;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_fabric::testing::{Net, Peer};
use tokio_fabric::{Backend, Endpoint, Event, Failed, RemoteRegion, ep::OnRefusal, error::Refusal};

use super::stalled::Stalled;
use crate::common::peers;

pub const PEERS: usize = 8;
/// Of them, those that stop in the middle of a payload; they need sockets.
const STALLED: usize = 2;

/// What becomes of a connection whose peer was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalEffect {
    /// It is closed, without a word: all that libfabric's protocol can say.
    Plain,
    /// The peer gets the refusal, and closes the connection.
    Disconnect,
    /// The peer gets the refusal, and goes on.
    Continue,
}

/// The region of a round.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub round: usize,
    pub remote: RemoteRegion,
}

/// Where the scene is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Round {
    pub target: Option<Target>,
    /// Rounds whose regions have been revoked.
    pub revoked: usize,
}

/// A peer has been refused in a round; what it had done before.
#[derive(Clone, Copy, Debug)]
pub struct Refused {
    pub round: usize,
    pub done: usize,
}

/// The scene, with its peers at work until it is dropped.
pub struct Arena {
    pub target: Peer,
    initiator: Peer,
    rounds: watch::Sender<Round>,
    refused: mpsc::UnboundedReceiver<Refused>,
    /// Rounds in which a peer has stalled, or has done its first operation.
    stalling: mpsc::UnboundedReceiver<usize>,
    working: mpsc::UnboundedReceiver<usize>,
    stalled: usize,
    tasks: JoinSet<()>,
}

impl Arena {
    pub async fn set(net: &Net, manner: RefusalEffect) -> Arena {
        // Where they run at the same time, several drivers have peers in the region.
        let drivers = match Handle::current().runtime_flavor() {
            RuntimeFlavor::CurrentThread => 1,
            _ => 3,
        };
        let (target, initiator) = (peers::sharded(net, drivers), net.peer().unwrap());
        let (listener, requests) = peers::listener(&target);
        let address = listener.local_addr();
        let mut tasks = JoinSet::new();
        let server = target.clone();
        tasks.spawn(async move {
            let _listener = listener;
            let mut ends: Vec<Endpoint> = Vec::new();
            while let Some(Event::ConnRequest(request)) = requests.next().await {
                let endpoint = open(&server, manner);
                // A peer that gives up while it waits is none of our business.
                if endpoint.accept(request).await.is_ok() {
                    ends.retain(Endpoint::is_connected);
                    ends.push(endpoint);
                }
            }
        });
        let rounds = watch::Sender::new(Round::default());
        let (refusals, refused) = mpsc::unbounded_channel();
        let (stalls, stalling) = mpsc::unbounded_channel();
        let (works, working) = mpsc::unbounded_channel();
        let stalled = match net.backend() {
            Backend::Loopback => 0,
            _ => STALLED,
        };
        for number in 0..PEERS - stalled {
            let us = initiator.clone();
            let (rounds, refusals) = (rounds.subscribe(), refusals.clone());
            let hammer = Hammer {
                us,
                manner,
                address,
                number,
                rounds,
                works: works.clone(),
                refusals,
            };
            tasks.spawn(hammer.work());
        }
        for _ in 0..stalled {
            let (rounds, stalls) = (rounds.subscribe(), stalls.clone());
            let stalling = Stalled::new(address, manner);
            tasks.spawn(stalling.work(rounds, stalls, refusals.clone()));
        }
        Arena {
            target,
            initiator,
            rounds,
            refused,
            stalling,
            working,
            stalled,
            tasks,
        }
    }

    /// Lets the peers at a region; waits until those that stall have stalled.
    pub async fn publish(&mut self, target: Target) {
        self.rounds.send_modify(|round| round.target = Some(target));
        for _ in 0..self.stalled {
            let round = self.stalling.recv().await;
            assert_eq!(round, Some(target.round), "of this round");
        }
    }

    /// Waits until all others have done something in this round.
    pub async fn work(&mut self, number: usize) {
        let mut left = PEERS - self.stalled;
        while left > 0 {
            let round = self.working.recv().await.expect("the peers are at work");
            // Some may be left of rounds in which this was not awaited.
            left -= usize::from(round == number);
        }
    }

    /// The region is revoked: waits until each peer has been refused. Gives what all had done.
    pub async fn refusals(&mut self, round: usize) -> usize {
        self.rounds.send_modify(|rounds| rounds.revoked = round + 1);
        let mut done = 0;
        for _ in 0..PEERS {
            let refused = tokio::select! {
                refused = self.refused.recv() => refused.expect("the peers are at work"),
                ended = self.tasks.join_next() => panic!("a peer has ended: {ended:?}"),
            };
            assert_eq!(refused.round, round);
            done += refused.done;
        }
        // No other task reads the queues that the domains are bound to.
        for peer in [&self.target, &self.initiator] {
            while peer.events.try_next().is_some() {}
        }
        done
    }

    pub async fn clear(mut self) {
        self.tasks.shutdown().await;
    }
}

/// The region of this round, or of a later one. `None`: the scene is over.
pub async fn begun(rounds: &mut watch::Receiver<Round>, at_least: usize) -> Option<Target> {
    let begun = rounds.wait_for(|round| round.target.is_some_and(|t| t.round >= at_least));
    begun.await.ok()?.target
}

/// This round's region has been revoked. `false`: the scene is over.
pub async fn over(rounds: &mut watch::Receiver<Round>, number: usize) -> bool {
    let over = rounds.wait_for(|round| round.revoked > number);
    over.await.is_ok()
}

fn open(peer: &Peer, manner: RefusalEffect) -> Endpoint {
    let builder = peer.domain.endpoint();
    let builder = match manner {
        RefusalEffect::Plain => builder.extension(false),
        RefusalEffect::Disconnect => builder,
        RefusalEffect::Continue => builder.on_refusal(OnRefusal::Continue { limit: 1 }),
    };
    builder.open().unwrap()
}

/// Copied from and to staging buffers, and received straight into the region.
const LENS: [usize; 5] = [100, 3000, 17 << 10, 600, 1000];

/// Writes and reads each region that is published until it refuses.
struct Hammer {
    us: Peer,
    manner: RefusalEffect,
    address: SocketAddr,
    number: usize,
    rounds: watch::Receiver<Round>,
    works: mpsc::UnboundedSender<usize>,
    refusals: mpsc::UnboundedSender<Refused>,
}

impl Hammer {
    async fn work(mut self) {
        let mut connection = None;
        let mut buffer = vec![self.number as u8; LENS[self.number % LENS.len()]];
        let mut next = 0;
        loop {
            let endpoint = match connection.take() {
                Some(endpoint) => endpoint,
                None => self.connect().await,
            };
            let Some(target) = begun(&mut self.rounds, next).await else {
                return;
            };
            let (done, failed) = self.until_refused(&endpoint, target, buffer).await;
            if self.manner == RefusalEffect::Plain {
                assert!(failed.error().is_connection_lost(), "{failed}");
            } else {
                let reason = failed.error().refusal();
                assert_eq!(reason, Some(Refusal::Revoked), "{failed}");
            }
            connection = (self.manner == RefusalEffect::Continue).then_some(endpoint);
            buffer = failed.into_parts().1.expect("the engine lives");
            let round = target.round;
            next = round + 1;
            if self.refusals.send(Refused { round, done }).is_err() {
                return;
            }
        }
    }

    async fn connect(&self) -> Endpoint {
        let endpoint = open(&self.us, self.manner);
        endpoint.connect(self.address).await.expect("a listener");
        endpoint
    }

    /// How much was done, and how it ended.
    async fn until_refused(
        &self,
        endpoint: &Endpoint,
        Target { round, remote }: Target,
        mut buffer: Vec<u8>,
    ) -> (usize, Failed<Vec<u8>>) {
        for done in 0.. {
            let len = buffer.len() as u64;
            let at = (round + done) as u64 * 512 % (remote.len - len + 1);
            let range = remote.slice(at..at + len).expect("within it");
            let ended = if (self.number + done).is_multiple_of(2) {
                endpoint.write(buffer, range).delivery_complete().await
            } else {
                endpoint.read(buffer, range).await
            };
            match ended {
                Ok((_, back)) => buffer = back,
                Err(failed) => return (done, failed),
            }
            if done == 0 {
                let _ = self.works.send(round);
            }
            // In one thread the others would wait for as much as the driver does in a turn.
            tokio::task::yield_now().await;
        }
        unreachable!("a region that is never revoked")
    }
}
