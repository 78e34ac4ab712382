//! The unread changes of one reader of the peer feed: one record per peer, into which later changes
//! of the same peer coalesce. A pure structure, without locks and wakers.
//!
//! Memory is bounded by construction. A record of a peer that is up belongs to one of the
//! endpoint's connections. If the reader has read that a peer is up, and the peer is down, its
//! record belongs to one of the peers that were up at the same time, since records are read in the
//! order in which they began. Records of peers that came and went unread, which strangers can fill,
//! are bounded per host.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use crate::error::Error;
use crate::id::PeerAddr;
use crate::limits::RDM_UNREAD_STRANGERS_MAX;
use crate::proto::{HostShares, host_of};

/// How the state of a peer of a connectionless endpoint has changed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::rdm::PeerEventKind;
/// use tokio_fabric::testing::Net;
///
/// let (a, b) = Net::loopback().rdm_pair()?;
/// let mut peers = b.endpoint.peers();
/// a.endpoint.send("hello", a.other).await?;
/// while let Some(event) = peers.next().await {
///     match event.kind {
///         PeerEventKind::Up => a.endpoint.shutdown().await?,
///         PeerEventKind::Restarted => println!("{} has lost its state", event.peer),
///         PeerEventKind::Down { error: None } => break, // Gracefully.
///         other => panic!("{other:?}"),
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PeerEventKind {
    /// The peer is connected. A second `Up` without a [`Down`](Self::Down) in between means that
    /// the connection was lost or closed and opened again before the first `Up` was read.
    Up,
    /// The peer is connected, as another [incarnation](crate::rdm::PeerEvent::incarnation), which
    /// knows nothing of the previous one.
    Restarted,
    /// The peer is no longer connected, or could not be reached.
    Down {
        /// The reason. `None`: the connection ended in order, and no operation of this side waited
        /// for the peer: the connection was [idle](crate::rdm::IdlePolicy), or either side
        /// disconnected it or closed its endpoint. If the end has failed an operation, the reason
        /// is that failure.
        error: Option<Error>,
    },
}

/// An unread change of one peer.
#[derive(Clone, Debug)]
pub(crate) struct PeerChange {
    pub(crate) peer: PeerAddr,
    pub(crate) kind: PeerEventKind,
    /// The incarnation that the peer reported.
    pub(crate) incarnation: Option<u32>,
}

/// The unread changes of one reader.
#[derive(Debug)]
pub(super) struct PeerChanges {
    records: HashMap<PeerAddr, Record>,
    /// The peers that have a record, in the order in which the records began.
    order: BTreeMap<u64, PeerAddr>,
    /// Records of peers that came and went before the reader read of them.
    strangers: HostShares<(u64, PeerAddr), IpAddr>,
    next_number: u64,
}

#[derive(Debug)]
struct Record {
    number: u64,
    kind: PeerEventKind,
    incarnation: Option<u32>,
    /// True if the record covers two incarnations or more: a peer that is up at the end of the
    /// record has restarted.
    restarted: bool,
    /// True if the reader has not read that the peer was up.
    is_new: bool,
}

impl Record {
    /// Returns true if it may be evicted: the reader has never read of this peer.
    fn is_stranger(&self) -> bool {
        self.is_new && matches!(self.kind, PeerEventKind::Down { .. })
    }

    /// Coalesces the next change of the same peer.
    fn coalesce(&mut self, kind: PeerEventKind, incarnation: Option<u32>) {
        let lives = self.incarnation.zip(incarnation);
        self.restarted |= matches!(kind, PeerEventKind::Restarted)
            || lives.is_some_and(|(before, now)| before != now);
        self.kind = match kind {
            PeerEventKind::Up if self.restarted => PeerEventKind::Restarted,
            kind => kind,
        };
        // A peer that could not be reached has reported no incarnation.
        self.incarnation = match self.kind {
            PeerEventKind::Down { .. } => incarnation.or(self.incarnation),
            _ => incarnation,
        };
    }
}

impl Default for PeerChanges {
    fn default() -> Self {
        PeerChanges::with_strangers_max(RDM_UNREAD_STRANGERS_MAX)
    }
}

impl PeerChanges {
    fn with_strangers_max(max: usize) -> Self {
        PeerChanges {
            records: HashMap::new(),
            order: BTreeMap::new(),
            strangers: HostShares::new(max),
            next_number: 0,
        }
    }

    /// Records a change of a peer, in O(log n) of the number of records.
    pub(super) fn push(&mut self, change: PeerChange) {
        let PeerChange {
            peer,
            kind,
            incarnation,
        } = change;
        let Some(record) = self.records.get_mut(&peer) else {
            let number = self.next_number;
            self.next_number += 1;
            let record = Record {
                number,
                restarted: matches!(kind, PeerEventKind::Restarted),
                // Otherwise the reader knows the peer, or its own application asked for it.
                is_new: matches!(kind, PeerEventKind::Up),
                kind,
                incarnation,
            };
            self.records.insert(peer, record);
            self.order.insert(number, peer);
            return;
        };
        let was_stranger = record.is_stranger();
        record.coalesce(kind, incarnation);
        let key = (record.number, peer);
        match (was_stranger, record.is_stranger()) {
            (true, false) => drop(self.strangers.remove(key, host_of(peer.socket))),
            (false, true) => {
                if let Some((number, evicted)) = self.strangers.insert(key, host_of(peer.socket)) {
                    self.records.remove(&evicted);
                    self.order.remove(&number);
                }
            }
            _ => {}
        }
    }

    /// Takes the record that has been unread the longest.
    pub(super) fn pop(&mut self) -> Option<PeerChange> {
        let (number, peer) = self.order.pop_first()?;
        let record = self.records.remove(&peer)?;
        if record.is_stranger() {
            self.strangers.remove((number, peer), host_of(peer.socket));
        }
        Some(PeerChange {
            peer,
            kind: record.kind,
            incarnation: record.incarnation,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use proptest::prelude::*;

    use super::*;
    use crate::error::ErrorKind;

    fn at(host: u8, port: u16) -> PeerAddr {
        SocketAddr::from(([10, 0, 0, host], port)).into()
    }

    fn change(peer: PeerAddr, kind: PeerEventKind, incarnation: Option<u32>) -> PeerChange {
        PeerChange {
            peer,
            kind,
            incarnation,
        }
    }

    fn down(number: Option<u64>) -> PeerEventKind {
        let error = |number: u64| Error::new(ErrorKind::ConnectionReset, number.to_string());
        PeerEventKind::Down {
            error: number.map(error),
        }
    }

    fn text(change: &PeerChange) -> String {
        format!("{change:?}")
    }

    /// Returns all changes of one peer since it was last read, coalesced in the plainest way.
    fn expected(unread: &[PeerChange]) -> PeerChange {
        let last = unread.last().expect("something is unread").clone();
        let lives: Vec<u32> = unread.iter().filter_map(|it| it.incarnation).collect();
        let restarted = unread
            .iter()
            .any(|it| matches!(it.kind, PeerEventKind::Restarted))
            || lives.windows(2).any(|two| two[0] != two[1]);
        match last.kind {
            PeerEventKind::Down { .. } => PeerChange {
                incarnation: lives.last().copied(),
                ..last
            },
            _ if restarted => change(last.peer, PeerEventKind::Restarted, last.incarnation),
            _ => last,
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Comes(u8, u32),
        Goes(u8, bool),
        IsUnreachable(u8),
        Read,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..4u8, 1..4u32).prop_map(|(peer, life)| Step::Comes(peer, life)),
            3 => (0..4u8, any::<bool>()).prop_map(|(peer, lost)| Step::Goes(peer, lost)),
            1 => (0..4u8).prop_map(Step::IsUnreachable),
            2 => Just(Step::Read),
        ]
    }

    proptest! {
        /// In every order of changes and reads: one record per peer, first come first read; the
        /// last state is read with its last reason, and a restart is not lost.
        #[test]
        fn unread_changes_coalesce_per_peer(steps in prop::collection::vec(step(), 0..120)) {
            let mut changes = PeerChanges::default();
            let mut unread: Vec<(PeerAddr, Vec<PeerChange>)> = Vec::new();
            let mut lives = [None; 4];
            for (number, step) in steps.into_iter().enumerate() {
                let happens = match step {
                    Step::Comes(peer, life) => {
                        let kind = match lives[usize::from(peer)] {
                            None => PeerEventKind::Up,
                            Some(held) if held == life => continue,
                            Some(_) => PeerEventKind::Restarted,
                        };
                        lives[usize::from(peer)] = Some(life);
                        change(at(peer, 1), kind, Some(life))
                    }
                    Step::Goes(peer, lost) => match lives[usize::from(peer)].take() {
                        None => continue,
                        life => change(at(peer, 1), down(lost.then_some(number as u64)), life),
                    },
                    Step::IsUnreachable(peer) => match lives[usize::from(peer)] {
                        None => change(at(peer, 1), down(Some(number as u64)), None),
                        Some(_) => continue,
                    },
                    Step::Read => {
                        let read = changes.pop();
                        let first = (!unread.is_empty()).then(|| unread.remove(0));
                        let first = first.map(|(_, unread)| expected(&unread));
                        prop_assert_eq!(read.as_ref().map(text), first.as_ref().map(text));
                        continue;
                    }
                };
                changes.push(happens.clone());
                match unread.iter_mut().find(|(peer, _)| *peer == happens.peer) {
                    Some((_, unread)) => unread.push(happens),
                    None => unread.push((happens.peer, vec![happens])),
                }
                prop_assert_eq!(changes.records.len(), unread.len());
                prop_assert_eq!(changes.order.len(), unread.len());
            }
        }
    }

    /// Peers that come and go unread take bounded memory, of which one host with many takes only
    /// what other hosts leave; a peer that was read to be up is read to be down, however many come
    /// and go.
    #[test]
    fn a_storm_of_strangers_costs_one_host_its_own_records() {
        const MAX: usize = 8;
        let mut changes = PeerChanges::with_strangers_max(MAX);
        let came_and_went = |changes: &mut PeerChanges, peer| {
            changes.push(change(peer, PeerEventKind::Up, Some(1)));
            changes.push(change(peer, down(None), Some(1)));
        };
        let known = at(1, 1);
        changes.push(change(known, PeerEventKind::Up, Some(1)));
        assert_eq!(changes.pop().map(|it| it.peer), Some(known));
        changes.push(change(known, down(Some(0)), Some(1)));
        came_and_went(&mut changes, at(2, 1));
        for port in 1..1_000 {
            came_and_went(&mut changes, at(3, port));
            assert!(changes.records.len() <= MAX + 1);
        }
        // It is up again: its record must not be evicted.
        changes.push(change(at(2, 1), PeerEventKind::Up, Some(1)));
        for port in 1..1_000 {
            came_and_went(&mut changes, at(4, port));
        }
        let read: Vec<_> = std::iter::from_fn(|| changes.pop()).collect();
        assert_eq!(read[0].peer, known);
        assert_eq!(read[1].peer, at(2, 1));
        assert!(matches!(read[1].kind, PeerEventKind::Up));
        assert_eq!(read.len(), MAX + 2);
        assert_eq!(changes.strangers.len(), 0);
        assert!(changes.records.is_empty() && changes.order.is_empty());
    }
}
