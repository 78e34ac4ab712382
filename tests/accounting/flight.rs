//! Thousands of operations in all states, what is done to them, and how they end.

use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::pin::Pin;

use futures::FutureExt;
use tokio_fabric::testing::{Net, Peer, connect_endpoints};
use tokio_fabric::{
    Access, CompletionQueue, Endpoint, ErrorKind, MemoryRegion, RemoteRegion,
    buf::IoBufs,
    error::Phase,
    op::{Op, QueuedOp, Received},
};

pub const CONNECTIONS: usize = 6;
/// What an endpoint's contexts hold; as many again wait.
const DEEP: usize = 256;
/// More than a connection holds.
const LARGE: usize = 16 << 20;
const REGION_LEN: usize = 64 << 10;

type FailingFuture = Pin<Box<dyn Future<Output = Option<ErrorKind>>>>;

/// An operation of any type.
pub trait Flying {
    fn phase(&self) -> Option<Phase>;
    fn cancel(&self);
    /// Its end by its future; `None`: it went well, or the queue reports it.
    fn ending(self: Box<Self>) -> FailingFuture;
}

macro_rules! flying {
    ($($output:ty),+) => {$(
        impl<B: IoBufs + 'static> Flying for Op<B, $output> {
            fn phase(&self) -> Option<Phase> {
                Some(Op::phase(self))
            }

            fn cancel(&self) {
                Op::cancel(self);
            }

            fn ending(self: Box<Self>) -> FailingFuture {
                Box::pin((*self).map(|result| result.err().map(|failed| failed.kind())))
            }
        }
    )+};
}
flying!(usize, Received);

/// It has no phase of its own; its endpoint cancels it.
struct Queued<B: IoBufs>(Endpoint, QueuedOp<B>);

impl<B: IoBufs + 'static> Flying for Queued<B> {
    fn phase(&self) -> Option<Phase> {
        None
    }

    fn cancel(&self) {
        self.0.cancel(self.1.id());
    }

    fn ending(self: Box<Self>) -> FailingFuture {
        Box::pin(
            self.1
                .map(|result| result.err().map(|failed| failed.kind())),
        )
    }
}

/// What is done to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deed {
    Keep,
    Drop,
    Cancel,
    /// As good as `mem::forget` for the library; the test takes it back at the very end.
    Leak,
}

/// All that is in flight, on an engine that is about to go.
pub struct Flight {
    pub flying: Vec<Box<dyn Flying>>,
    pub queue: CompletionQueue,
    _us: Peer,
    _regions: Vec<MemoryRegion<Vec<u8>>>,
    _ends: Vec<(Endpoint, Endpoint)>,
    _them: Peer,
}

impl Flight {
    /// Posts some thousand operations, of all kinds, and waits until some are in each state.
    pub async fn start(net: &Net) -> Flight {
        let (us, them) = (net.peer().unwrap(), net.peer().unwrap());
        let queue = us.domain.completion_queue().size(64 * DEEP).open().unwrap();
        let mut flight = Flight {
            flying: Vec::new(),
            queue,
            _regions: Vec::new(),
            _ends: Vec::new(),
            _us: us.clone(),
            _them: them.clone(),
        };
        for number in 0..CONNECTIONS {
            // Between extended peers, messages without a receive are held back; plain ones block
            // what is behind them.
            flight.connection(&us, &them, number % 2 == 0).await;
        }
        let all = [
            Phase::Waiting,
            Phase::Queued,
            Phase::Moving,
            Phase::AwaitingPeer,
            Phase::Ended,
        ];
        while !all.iter().all(|phase| flight.phases().contains_key(phase)) {
            tokio::task::yield_now().await;
        }
        flight
    }

    /// How many operations are in each state.
    pub fn phases(&self) -> BTreeMap<Phase, usize> {
        let mut phases = BTreeMap::new();
        for phase in self.flying.iter().filter_map(|flying| flying.phase()) {
            *phases.entry(phase).or_default() += 1;
        }
        phases
    }

    async fn connection(&mut self, us: &Peer, them: &Peer, extended: bool) {
        let a = us.domain.endpoint().extension(extended);
        let a = a.completion_queue(&self.queue);
        let a = a.transmit_size(DEEP).receive_size(DEEP).open().unwrap();
        // It keeps nothing, so that everything behind the first message waits.
        let b = them.domain.endpoint().unexpected_bytes(0).open().unwrap();
        connect_endpoints(&a, &b, &them.fabric).await.unwrap();
        let mut regions = Vec::new();
        for peer in [us, them] {
            let region = peer.domain.register(vec![0; REGION_LEN]);
            regions.push(region.access(Access::all()).await.unwrap());
        }
        let ended = a.recv(vec![0; 100]).post().unwrap();
        b.send("some end well").delivery_complete().await.unwrap();
        self.flying.push(Box::new(ended));
        self.awaiting(&a, regions[1].remote()).await;
        self.queued(&a, &regions[0], regions[1].remote());
        self.receives(&a);
        self._regions.extend(regions);
        self._ends.push((a, b));
    }

    /// What the peer has and does not answer; then what does not all fit the connection.
    async fn awaiting(&mut self, a: &Endpoint, remote: RemoteRegion) {
        let sends = (0..8).map(|n| a.send(vec![n; 100]).delivery_complete().post().unwrap());
        let sends: Vec<_> = sends.collect();
        let read = a.read(vec![0; REGION_LEN], remote).post().unwrap();
        while read.phase() < Phase::AwaitingPeer {
            tokio::task::yield_now().await;
        }
        for send in sends {
            self.flying.push(Box::new(send));
        }
        self.flying.push(Box::new(read));
        let large = a.send(vec![0; LARGE]).post().unwrap();
        self.flying.push(Box::new(large));
    }

    /// More than the context holds, behind what moves; from memory of all sorts.
    fn queued(&mut self, a: &Endpoint, region: &MemoryRegion<Vec<u8>>, remote: RemoteRegion) {
        for number in 0..2 * DEEP {
            let slice = || region.slice(..1000).unwrap();
            let there = remote.slice(..1000).unwrap();
            let context = number as u64;
            self.flying.push(match number % 6 {
                0 => Box::new(a.send(vec![1; 1000]).post().unwrap()),
                1 => Box::new(a.write(slice(), there).post().unwrap()),
                2 => Box::new(a.read(slice(), there).post().unwrap()),
                3 => Box::new(a.send([vec![1; 10], vec![2; 20]]).imm(1).post().unwrap()),
                4 => {
                    let send = a.send(bytes::Bytes::from(vec![3; 500])).queue(context);
                    Box::new(Queued(a.clone(), send.post().unwrap()))
                }
                _ => {
                    let write = a.write(vec![4; 1000], there).queue(context);
                    Box::new(Queued(a.clone(), write.post().unwrap()))
                }
            });
        }
    }

    fn receives(&mut self, a: &Endpoint) {
        for number in 0..DEEP + DEEP / 4 {
            self.flying.push(match number % 3 {
                0 => {
                    let receive = a.recv(vec![0; 200]).queue(number as u64);
                    Box::new(Queued(a.clone(), receive.post().unwrap()))
                }
                _ => Box::new(a.recv(vec![0; 200]).post().unwrap()),
            });
        }
    }

    /// Does to each operation what the rule says. Gives the leaked ones.
    pub fn treat(&mut self, rule: impl Fn(usize) -> Deed) -> Vec<ManuallyDrop<Box<dyn Flying>>> {
        let mut leaked = Vec::new();
        for (number, flying) in std::mem::take(&mut self.flying).into_iter().enumerate() {
            match rule(number) {
                Deed::Keep => self.flying.push(flying),
                Deed::Drop => drop(flying),
                Deed::Cancel => {
                    flying.cancel();
                    self.flying.push(flying);
                }
                Deed::Leak => leaked.push(ManuallyDrop::new(flying)),
            }
        }
        leaked
    }
}
