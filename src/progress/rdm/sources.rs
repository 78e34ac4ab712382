//! The senders of a receive context, which its peer tables number.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use crate::id::PeerAddr;
use crate::limits::RDM_STRANGERS_MAX;
use crate::proto::SourceId;

/// The senders of one receive context, with their addresses and source ids. Each connectionless
/// endpoint of the context holds the peers that it knows. Completions read the addresses, even
/// those read after the endpoint is closed, so this holds no reference to an endpoint. Its lock is
/// taken last and alone.
#[derive(Debug, Default)]
pub(crate) struct SourceAddresses {
    senders: Mutex<Senders>,
}

#[derive(Debug, Default)]
struct Senders {
    by_address: HashMap<PeerAddr, Sender>,
    by_source: HashMap<SourceId, PeerAddr>,
    next_number: u64,
    /// Peers of closed endpoints, which are released in this order: their messages may still be
    /// unread.
    lingering: VecDeque<PeerAddr>,
}

#[derive(Debug)]
struct Sender {
    /// Its number among all senders; never reused.
    number: u64,
    /// One for each key that it had here, at most
    /// [`EP_AUTH_KEY_MAX`](crate::limits::EP_AUTH_KEY_MAX).
    sources: SmallVec<[SourceId; 1]>,
    holders: usize,
}

impl SourceAddresses {
    fn lock(&self) -> MutexGuard<'_, Senders> {
        self.senders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the address of this sender, unless it was forgotten.
    pub(crate) fn get(&self, source: SourceId) -> Option<PeerAddr> {
        self.lock().by_source.get(&source).copied()
    }

    /// Keeps the source ids of this peer until [`SourceAddresses::release`].
    pub(in crate::progress) fn hold(&self, peer: PeerAddr) {
        let mut senders = self.lock();
        let Senders {
            by_address,
            next_number,
            ..
        } = &mut *senders;
        let sender = by_address.entry(peer).or_insert_with(|| {
            let number = *next_number;
            *next_number += 1;
            Sender {
                number,
                sources: SmallVec::new(),
                holders: 0,
            }
        });
        sender.holders += 1;
    }

    /// Forgets the peer, unless another endpoint holds it.
    pub(in crate::progress) fn release(&self, peer: PeerAddr) {
        self.lock().release(peer);
    }

    /// Releases the peers of an endpoint that is closed, when those of enough other endpoints have
    /// followed.
    pub(super) fn release_later(&self, peers: impl Iterator<Item = PeerAddr>) {
        // Sorted, so that their order does not depend on hashes.
        let peers: BTreeSet<_> = peers.collect();
        let kept = RDM_STRANGERS_MAX.max(peers.len());
        let mut senders = self.lock();
        senders.lingering.extend(peers);
        while senders.lingering.len() > kept
            && let Some(peer) = senders.lingering.pop_front()
        {
            senders.release(peer);
        }
    }

    /// Returns the source id of this peer, which is held, with the key that has this number.
    pub(in crate::progress) fn source_of(&self, peer: PeerAddr, key: u16) -> SourceId {
        let mut senders = self.lock();
        let Senders {
            by_address,
            by_source,
            ..
        } = &mut *senders;
        let sender = by_address.get_mut(&peer).expect("the peer is held");
        let source = SourceId::of_peer(sender.number, key);
        if !sender.sources.contains(&source) {
            sender.sources.push(source);
            by_source.insert(source, peer);
        }
        source
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().by_source.len()
    }
}

impl Senders {
    fn release(&mut self, peer: PeerAddr) {
        let Some(sender) = self.by_address.get_mut(&peer) else {
            return;
        };
        sender.holders -= 1;
        if sender.holders == 0
            && let Some(sender) = self.by_address.remove(&peer)
        {
            for source in &sender.sources {
                self.by_source.remove(source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn peer(number: usize) -> PeerAddr {
        let [.., high, low] = number.to_be_bytes();
        SocketAddr::from(([10, 0, high, low], 1)).into()
    }

    /// A sender that two endpoints hold has one id, and is forgotten when both have released it.
    #[test]
    fn a_sender_is_kept_as_long_as_an_endpoint_holds_it() {
        let addresses = SourceAddresses::default();
        addresses.hold(peer(1));
        let source = addresses.source_of(peer(1), 0);
        addresses.hold(peer(1));
        assert_eq!(addresses.source_of(peer(1), 0), source);
        assert_ne!(addresses.source_of(peer(1), 7), source, "by another key");
        addresses.release(peer(1));
        assert_eq!(addresses.get(source), Some(peer(1)));
        addresses.release(peer(1));
        assert_eq!((addresses.get(source), addresses.len()), (None, 0));
        addresses.hold(peer(1));
        assert_ne!(
            addresses.source_of(peer(1), 0),
            source,
            "ids are not used again"
        );
    }

    /// The peers of an endpoint that is closed keep their names, however many they are, until
    /// others have followed; endpoints that come and go leave no more behind than that.
    #[test]
    fn senders_of_closed_endpoints_are_forgotten_in_time() {
        let addresses = SourceAddresses::default();
        let many = 2 * RDM_STRANGERS_MAX;
        let sources: Vec<_> = (0..many)
            .map(|number| {
                addresses.hold(peer(number));
                addresses.source_of(peer(number), 0)
            })
            .collect();
        addresses.release_later((0..many).map(peer));
        assert!(sources.iter().all(|it| addresses.get(*it).is_some()));
        for number in 0..10 * RDM_STRANGERS_MAX {
            addresses.hold(peer(number % (1 << 16)));
            addresses.source_of(peer(number % (1 << 16)), 0);
            addresses.release_later([peer(number % (1 << 16))].into_iter());
            assert!(addresses.len() <= many);
        }
        assert_eq!(addresses.len(), RDM_STRANGERS_MAX);
        assert_eq!(addresses.lock().by_address.len(), RDM_STRANGERS_MAX);
    }
}
