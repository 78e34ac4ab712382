//! One side of a connection: posts whatever chance wants, does to it whatever chance wants, and
//! writes everything down.

#[path = "post.rs"]
mod post;

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;
use futures::Stream;
use tokio_fabric::testing::Peer;
use tokio_fabric::{
    Access, Completion, CompletionQueue, Counter, Domain, Endpoint, Event, EventQueue,
    MemoryRegion, RemoteRegion, Result,
    error::{OperationKind, Phase},
    op::OperationId,
};

use super::book::{Book, OpOutcome, OpTreatment};
use super::payload::{LEN_MAX, digest, name, noise, payload};
use super::pending::{Pending, PendingOutcome, joined};
use crate::common::seed::Random;

/// The remotely writable part of a region: places for writes that are checked, then one where
/// writes may overlap, which are not.
const SLOTS: usize = 32;
const SLOT_SIZE: usize = 4 << 10;
const SHARED_AT: usize = SLOTS * SLOT_SIZE;
/// The remotely readable part, full of noise.
const NOISE_AT: usize = SHARED_AT + LEN_MAX;
const NOISE_LEN: usize = LEN_MAX;
/// Destinations of reads into registered memory.
const LOCAL_AT: usize = NOISE_AT + NOISE_LEN;
const LOCAL_SLOTS: usize = 16;
pub const REGION_LEN: usize = LOCAL_AT + LOCAL_SLOTS * SLOT_SIZE;
/// Operations that are posted and have not ended.
const OUTSTANDING_MAX: usize = 40;
/// Receives among them: some are always there, and never so many that they fill their queue.
const RECEIVES_MIN: usize = 3;
const RECEIVES_MAX: usize = 14;
const RECEIVE_QUEUE_SIZE: usize = 64;
const TRANSMIT_QUEUE_SIZE: usize = 12;
const CONTEXT_SIZE: usize = 8;

/// The smallest receive. So many bytes are right even when a cut message, given back by a dropped
/// receive, is cut a second time.
const CUT_MIN: usize = 64;

const TRANSMITS: [OperationKind; 2] = [OperationKind::Send, OperationKind::Inject];

/// What a side does besides.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// Leaks futures of receives too; a message that such a receive takes is lost to the ledger.
    pub leaks_receives: bool,
}

/// What becomes of an operation that needs a place in a region until it ends.
enum RegionSlot {
    Remote(usize),
    Local(usize),
}

/// What an awaited operation is checked by.
struct Awaited {
    id: u64,
    pending: Pending,
    place: Option<RegionSlot>,
    /// Noise expected at this offset.
    noise_at: usize,
}

pub struct LedgerEndpoint {
    pub endpoint: Endpoint,
    pub events: EventQueue,
    pub region: MemoryRegion<Vec<u8>>,
    pub book: Book,
    transmits: CompletionQueue,
    receives: CompletionQueue,
    counters: [Counter; 4],
    remote: Option<RemoteRegion>,
    /// The peer's region itself, if it is in this process: what a write left there is looked at.
    peer_region: Option<MemoryRegion<Vec<u8>>>,
    awaited: Vec<Awaited>,
    /// Operations that report to a queue and have been accepted: their names, and places.
    queued: HashMap<u64, (OperationId, Option<RegionSlot>)>,
    live_receives: usize,
    /// Receives that are not in the book.
    extra_receives: u64,
    remote_slots: Vec<usize>,
    local_slots: Vec<usize>,
    next: u64,
    random: Random,
    habits: Habits,
}

/// A region for one side: writable places, noise, local places.
pub fn region(domain: &Domain) -> MemoryRegion<Vec<u8>> {
    let mut bytes = vec![0; REGION_LEN];
    bytes[NOISE_AT..NOISE_AT + NOISE_LEN].copy_from_slice(noise(0, NOISE_LEN));
    domain
        .register(bytes)
        .access(Access::all())
        .now()
        .expect("a region")
}

impl LedgerEndpoint {
    /// An idle endpoint of `peer`'s. `first` is the number of its first operation.
    pub fn open(peer: &Peer, first: u64, seed: u64, habits: Habits) -> Result<LedgerEndpoint> {
        let domain = &peer.domain;
        let events = peer.fabric.event_queue().open()?;
        let transmits = domain.completion_queue().size(TRANSMIT_QUEUE_SIZE).open()?;
        let receives = domain.completion_queue().size(RECEIVE_QUEUE_SIZE).open()?;
        let counters = [(); 4].map(|()| domain.counter().unwrap());
        let endpoint = domain
            .endpoint()
            .event_queue(&events)
            .transmit_queue(&transmits)
            .receive_queue(&receives)
            .send_counter(&counters[0])
            .receive_counter(&counters[1])
            .write_counter(&counters[2])
            .read_counter(&counters[3])
            .transmit_size(CONTEXT_SIZE)
            .receive_size(CONTEXT_SIZE)
            .open()?;
        Ok(LedgerEndpoint {
            endpoint,
            events,
            region: region(domain),
            book: Book::default(),
            transmits,
            receives,
            counters,
            remote: None,
            peer_region: None,
            awaited: Vec::new(),
            queued: HashMap::new(),
            live_receives: 0,
            extra_receives: 0,
            remote_slots: (0..SLOTS).collect(),
            local_slots: (0..LOCAL_SLOTS).collect(),
            next: first,
            random: Random(seed ^ first),
            habits,
        })
    }

    /// Where this side writes to and reads from.
    pub fn meet(&mut self, remote: RemoteRegion, peer_region: Option<MemoryRegion<Vec<u8>>>) {
        self.remote = Some(remote);
        self.peer_region = peer_region;
    }

    pub fn posted(&self) -> usize {
        self.book.entries.len()
    }

    /// Posts at random until so many operations were posted or the connection is lost. True if it
    /// still stands.
    pub async fn run(&mut self, operations: usize) -> bool {
        while self.posted() < operations {
            for _ in 0..self.random.within(1, 16) {
                if self.awaited.len() + self.queued.len() >= OUTSTANDING_MAX {
                    break;
                }
                if !self.post() {
                    return false;
                }
            }
            if self.random.chance(50) {
                tokio::task::yield_now().await;
            }
            for _ in 0..self.random.below(4) {
                self.touch();
            }
            let full = self.awaited.len() + self.queued.len() >= OUTSTANDING_MAX;
            // Receives alone are nothing to wait for: the other side may be waiting as well.
            let wait = self.transmits_left() > 0 && (full || self.random.chance(20));
            self.progress(wait).await;
            if full && !wait {
                tokio::task::yield_now().await;
            }
        }
        true
    }

    /// Takes whatever has ended; `wait`: until something has.
    pub async fn progress(&mut self, wait: bool) {
        poll_fn(|cx| {
            let mut ended = false;
            let mut at = 0;
            while at < self.awaited.len() {
                match self.awaited[at].pending.poll(cx) {
                    Poll::Pending => at += 1,
                    Poll::Ready(outcome) => {
                        let awaited = self.awaited.swap_remove(at);
                        self.on_outcome(awaited, outcome);
                        ended = true;
                    }
                }
            }
            while let Poll::Ready(completion) = Pin::new(&mut self.transmits).poll_next(cx) {
                self.completed(completion.expect("the queue is open"));
                ended = true;
            }
            while let Poll::Ready(completion) = Pin::new(&mut self.receives).poll_next(cx) {
                self.completed(completion.expect("the queue is open"));
                ended = true;
            }
            if ended || !wait {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    /// Whatever is awaited or queued and is not a receive.
    pub fn transmits_left(&self) -> usize {
        let futures = self
            .awaited
            .iter()
            .filter(|awaited| self.is_transmit(awaited.id))
            .count();
        futures
            + self
                .queued
                .keys()
                .filter(|id| self.is_transmit(**id))
                .count()
    }

    pub fn left(&self) -> usize {
        self.awaited.len() + self.queued.len()
    }

    fn is_transmit(&self, id: u64) -> bool {
        self.book.entries[&id].kind != OperationKind::Receive
    }

    /// Keeps some receives posted. False if the connection is lost.
    pub fn keep_receiving(&mut self) -> bool {
        while self.live_receives < RECEIVES_MIN {
            if !self.post_receive() {
                return false;
            }
        }
        true
    }

    /// Asks all receives to end early and waits for their ends, then takes the messages that were
    /// kept for receives to come.
    pub async fn stop_receiving(&mut self) {
        for awaited in &self.awaited {
            self.endpoint.cancel(awaited.pending.id());
        }
        for (operation, _) in self.queued.values() {
            self.endpoint.cancel(*operation);
        }
        while self.left() > 0 {
            self.progress(true).await;
        }
        while self.endpoint.unexpected_bytes() > 0 && self.take_unexpected().await {}
    }

    /// Takes a message that came before its receive. False if there is none and will be none.
    async fn take_unexpected(&mut self) -> bool {
        let buffers = vec![BytesMut::zeroed(LEN_MAX)];
        let Ok(op) = self.endpoint.recv(buffers).post() else {
            return false;
        };
        self.extra_receives += 1;
        match op.await {
            Ok((got, buffers)) => self.message(OpOutcome::Done, got.data, &buffers[0][..got.len]),
            Err(failed) => {
                let (error, buffers) = failed.into_parts();
                let buffers = buffers.expect("the runtime lives");
                self.message(OpOutcome::of(error.kind()), None, &buffers[0][..CUT_MIN]);
            }
        }
        true
    }

    /// Cancels, drops or leaks one operation, whatever its state.
    fn touch(&mut self) {
        if self.random.chance(10) {
            let accepted = self.queued.values().next();
            accepted.map(|(operation, _)| self.endpoint.cancel(*operation));
        }
        if self.awaited.is_empty() {
            return;
        }
        let at = self.random.below(self.awaited.len());
        let awaited = &self.awaited[at];
        let (id, phase, queued) = (
            awaited.id,
            awaited.pending.phase(),
            awaited.pending.is_queued(),
        );
        let is_receive = awaited.pending.is_receive();
        match self.random.below(100) {
            0..40 => {
                let stopped = self.endpoint.cancel(awaited.pending.id());
                self.book
                    .touch(if queued { "cancel queued" } else { "cancel" }, phase);
                assert!(!(stopped && phase == Phase::Ended), "{id:#x} had ended");
            }
            40..80 => {
                self.book
                    .touch(if queued { "drop queued" } else { "drop" }, phase);
                self.let_go(at, OpTreatment::Dropped);
            }
            80..90 if !is_receive || self.habits.leaks_receives => {
                self.book
                    .touch(if queued { "leak queued" } else { "leak" }, phase);
                self.book.leaked_receives += usize::from(is_receive);
                self.let_go(at, OpTreatment::Leaked);
            }
            _ => {}
        }
    }

    /// Parts with an operation's future. Its place stays taken: no report says when it is free.
    fn let_go(&mut self, at: usize, fate: OpTreatment) {
        let Awaited { id, pending, .. } = self.awaited.swap_remove(at);
        let entry = self.book.entries.get_mut(&id).expect("it was posted");
        entry.fate = fate;
        self.live_receives -= usize::from(entry.kind == OperationKind::Receive);
        match fate {
            OpTreatment::Leaked => std::mem::forget(pending),
            _ => drop(pending),
        }
    }

    fn on_outcome(&mut self, awaited: Awaited, outcome: PendingOutcome) {
        let Awaited {
            id,
            place,
            noise_at,
            pending,
        } = awaited;
        let ended = match outcome {
            PendingOutcome::Accepted(Ok(())) => {
                // Its completion may be in the queue already.
                self.queued.insert(id, (pending.id(), place));
                return;
            }
            PendingOutcome::Accepted(Err(kind))
            | PendingOutcome::Out(Err(kind))
            | PendingOutcome::Read(Err(kind)) => OpOutcome::of(kind),
            PendingOutcome::Out(Ok(len)) => {
                assert_eq!(len, self.book.entries[&id].len);
                OpOutcome::Done
            }
            PendingOutcome::Read(Ok(bytes)) => {
                assert_eq!(
                    digest(&bytes),
                    digest(noise(noise_at, self.book.entries[&id].len)),
                    "{id:#x}"
                );
                self.book.compared += 1;
                OpOutcome::Done
            }
            PendingOutcome::Receive(result, data, mut bytes) => {
                if result.is_err() {
                    bytes.truncate(CUT_MIN);
                }
                let ended = result.map_or_else(OpOutcome::of, |_| OpOutcome::Done);
                self.message(ended, data, &bytes);
                ended
            }
        };
        self.ended(id, ended, place);
    }

    fn completed(&mut self, mut completion: Completion) {
        let buffers = completion.take_buffers();
        if completion.operation == OperationKind::RemoteWrite {
            let id = completion
                .data
                .expect("it is the data that makes it complete");
            assert!(self.book.remote_data.insert(id), "{id:#x} came twice");
            return;
        }
        let id = completion.context.0;
        let ended = match &completion.result {
            Ok(()) => OpOutcome::Done,
            Err(failed) => OpOutcome::of(failed.error.kind()),
        };
        if completion.operation == OperationKind::Receive {
            let mut bytes = joined(&buffers);
            bytes.truncate(completion.len);
            self.message(ended, completion.data, &bytes);
        }
        let place = match self.queued.remove(&id) {
            Some((_, place)) => place,
            // Its completion overtook the word of its acceptance, or its handle was let go.
            None => match self.awaited.iter().position(|awaited| awaited.id == id) {
                Some(at) => self.awaited.swap_remove(at).place,
                None => {
                    assert_ne!(
                        self.book.entries[&id].fate,
                        OpTreatment::Kept,
                        "{id:#x} was not awaited"
                    );
                    self.book.end(id, ended);
                    return;
                }
            },
        };
        self.ended(id, ended, place);
    }

    fn ended(&mut self, id: u64, ended: OpOutcome, place: Option<RegionSlot>) {
        self.book.end(id, ended);
        if ended == OpOutcome::TimedOut {
            *self.book.touched.entry(("time out", "any")).or_default() += 1;
        }
        let entry = &self.book.entries[&id];
        self.live_receives -= usize::from(entry.kind == OperationKind::Receive);
        match place {
            Some(RegionSlot::Remote(slot)) => {
                if let (OpOutcome::Done, true, Some(region)) =
                    (ended, entry.acked, &self.peer_region)
                {
                    let mut there = vec![0; entry.len];
                    region
                        .read_at(slot * SLOT_SIZE, &mut there)
                        .expect("in the region");
                    assert_eq!(
                        digest(&there),
                        digest(&payload(id, entry.len)),
                        "write {id:#x}"
                    );
                    self.book.compared += 1;
                }
                // One that may still be on its way keeps its place.
                if ended == OpOutcome::Canceled || (ended == OpOutcome::Done && entry.acked) {
                    self.remote_slots.push(slot);
                }
            }
            // The system may still write to it.
            Some(RegionSlot::Local(_)) if ended == OpOutcome::TimedOut => {}
            Some(RegionSlot::Local(slot)) => self.local_slots.push(slot),
            None => {}
        }
    }

    /// A message came: checks it against what its sender must have sent.
    fn message(&mut self, ended: OpOutcome, data: Option<u64>, bytes: &[u8]) {
        if !matches!(ended, OpOutcome::Done | OpOutcome::Cut) {
            return;
        }
        let Some((id, len)) = name(bytes) else {
            assert!(bytes.is_empty(), "only empty messages have no name");
            return;
        };
        assert!(len <= LEN_MAX, "{id:#x} has become {len} bytes long");
        let sent = payload(id, len);
        match ended {
            OpOutcome::Done => assert_eq!(len, bytes.len(), "{id:#x}"),
            _ => assert!(len > bytes.len(), "{id:#x}"),
        }
        assert_eq!(
            digest(bytes),
            digest(&sent[..bytes.len()]),
            "message {id:#x}"
        );
        assert!(
            data.is_none_or(|data| data == id),
            "{id:#x} has the data of another"
        );
        assert!(self.book.received.insert(id), "{id:#x} came twice");
        self.book.compared += 1;
    }

    /// After the end of the connection: takes the last messages and closes the account. Every
    /// operation was counted once, every kept one has reported its end once, every buffer is free.
    pub async fn close_account(&mut self) {
        while self.left() > 0 {
            self.progress(true).await;
        }
        self.progress(false).await;
        while self.take_unexpected().await {}
        let counted = |at: usize| self.counters[at].read() + self.counters[at].read_error();
        assert_eq!(
            counted(0),
            self.book.posted(&TRANSMITS),
            "sends and injects"
        );
        let receives = self.book.posted(&[OperationKind::Receive]) + self.extra_receives;
        assert_eq!(counted(1), receives, "receives");
        assert_eq!(
            counted(2),
            self.book.posted(&[OperationKind::Write]),
            "writes"
        );
        assert_eq!(
            counted(3),
            self.book.posted(&[OperationKind::Read]),
            "reads"
        );
        // The driver frees what dropped operations leave after it has let go of the connection,
        // which another thread may see first.
        for _ in 0..1000 {
            if self.book.all_freed() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.book.balance();
    }

    /// The one Connected event, first, and the one Shutdown, last.
    pub fn check_events(&self) {
        assert!(matches!(
            self.events.try_next(),
            Some(Event::Connected { .. })
        ));
        assert!(matches!(
            self.events.try_next(),
            Some(Event::Shutdown { .. })
        ));
        assert!(self.events.try_next().is_none(), "events after Shutdown");
    }
}
