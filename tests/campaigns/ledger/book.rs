//! The ledger: every posted operation, and every end that was seen of it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio_fabric::{
    ErrorKind,
    error::{OperationKind, Phase},
};

/// What the campaign did with an operation it had posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpTreatment {
    /// Its end is awaited, whether or not it was asked to end early.
    Kept,
    /// Its future was dropped.
    Dropped,
    /// Its future was leaked.
    Leaked,
}

/// How an operation ended, as far as the ledger cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpOutcome {
    Done,
    /// A receive that got the first bytes of a longer message.
    Cut,
    /// It never started.
    Canceled,
    /// Its own time passed, in whatever state it was.
    TimedOut,
    /// The connection ended first.
    Lost,
}

impl OpOutcome {
    /// Sorts an error. Anything that is not one of the typed reasons an operation may end by is a
    /// failure of the test.
    pub fn of(kind: ErrorKind) -> OpOutcome {
        match kind {
            ErrorKind::Truncated => OpOutcome::Cut,
            ErrorKind::Canceled => OpOutcome::Canceled,
            ErrorKind::TimedOut => OpOutcome::TimedOut,
            ErrorKind::PeerClosed | ErrorKind::ConnectionReset => OpOutcome::Lost,
            other => panic!("an operation ended as {other:?}"),
        }
    }
}

/// One posted operation.
#[derive(Debug)]
pub struct Entry {
    pub kind: OperationKind,
    /// Reports to a completion queue.
    pub queued: bool,
    pub fate: OpTreatment,
    /// Ends seen; one, by the end of the connection, for all that are kept.
    pub ends: Vec<OpOutcome>,
    /// Delivery-complete was asked for.
    pub acked: bool,
    /// It carries CQ data for the peer's queue.
    pub data: bool,
    pub len: usize,
    /// Buffers given, and how many of them were freed since.
    pub buffers: usize,
    pub freed: Arc<AtomicUsize>,
}

/// What was done to operations, by what, and in which state they were.
pub type Touched = BTreeMap<(&'static str, &'static str), usize>;

/// The ledger of one side of one connection.
#[derive(Debug, Default)]
pub struct Book {
    pub entries: HashMap<u64, Entry>,
    /// Messages that came, by the sender's number.
    pub received: HashSet<u64>,
    /// Remote CQ data that came with writes.
    pub remote_data: HashSet<u64>,
    pub touched: Touched,
    pub leaked_receives: usize,
    /// Messages and reads whose digest was compared.
    pub compared: usize,
}

impl Book {
    pub fn post(&mut self, id: u64, entry: Entry) {
        assert!(
            self.entries.insert(id, entry).is_none(),
            "numbers are used once"
        );
    }

    /// Notes an end.
    #[track_caller]
    pub fn end(&mut self, id: u64, ended: OpOutcome) {
        let entry = self
            .entries
            .get_mut(&id)
            .unwrap_or_else(|| panic!("{id:#x} was never posted"));
        entry.ends.push(ended);
        assert_eq!(entry.ends.len(), 1, "{id:#x} ended twice: {entry:?}");
    }

    pub fn touch(&mut self, what: &'static str, phase: Phase) {
        let phase = match phase {
            Phase::Waiting => "waiting",
            Phase::Queued => "queued",
            Phase::Moving => "moving",
            Phase::AwaitingPeer => "awaiting peer",
            Phase::Ended => "ended",
            other => panic!("{other:?} is new to this test"),
        };
        *self.touched.entry((what, phase)).or_default() += 1;
    }

    pub fn posted(&self, kinds: &[OperationKind]) -> u64 {
        self.entries
            .values()
            .filter(|entry| kinds.contains(&entry.kind))
            .count() as u64
    }

    /// All memory that was not leaked on purpose has come back.
    pub fn all_freed(&self) -> bool {
        self.entries
            .values()
            .filter(|entry| entry.fate != OpTreatment::Leaked)
            .all(|entry| entry.freed.load(Ordering::Relaxed) == entry.buffers)
    }

    /// The connection is over: everything has ended once, and all memory has come back.
    pub fn balance(&self) {
        for (id, entry) in &self.entries {
            let expected = match (entry.fate, entry.queued) {
                (OpTreatment::Kept, _) => 1..=1,
                // Its end shows in the queue only if it had been accepted before.
                (OpTreatment::Dropped | OpTreatment::Leaked, true) => 0..=1,
                (OpTreatment::Dropped | OpTreatment::Leaked, false) => 0..=0,
            };
            assert!(
                expected.contains(&entry.ends.len()),
                "{id:#x} has other ends: {entry:?}"
            );
            if entry.fate != OpTreatment::Leaked {
                let freed = entry.freed.load(Ordering::Relaxed);
                assert_eq!(
                    freed, entry.buffers,
                    "{id:#x} holds on to memory: {entry:?}"
                );
            }
        }
    }

    /// What this side sent against what the other has got. `whole`: the connection ended in
    /// order, so that nothing may be missing.
    pub fn compare(&self, peer: &Book, whole: bool) {
        let mut missing = 0;
        for (id, entry) in &self.entries {
            let (came, may_be_lost) = match entry.kind {
                OperationKind::Send | OperationKind::Inject if entry.len > 0 => {
                    (peer.received.contains(id), true)
                }
                OperationKind::Write if entry.data => (peer.remote_data.contains(id), false),
                _ => continue,
            };
            match entry.ends.first() {
                Some(OpOutcome::Done) if (whole || entry.acked) && !came => {
                    let excused = may_be_lost && peer.leaked_receives > 0;
                    assert!(excused, "{id:#x} is lost: {entry:?}");
                    missing += 1;
                }
                Some(OpOutcome::Canceled) if whole => {
                    assert!(!came, "{id:#x} was cancelled, yet came")
                }
                _ => {}
            }
        }
        assert!(
            missing <= peer.leaked_receives,
            "{missing} messages are lost"
        );
        for id in peer.received.iter().chain(&peer.remote_data) {
            assert!(
                self.entries.contains_key(id),
                "{id:#x} came, but was never sent"
            );
        }
    }
}
