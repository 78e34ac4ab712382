//! The senders of a receive context, which its peer tables number.

use std::collections::{HashMap, VecDeque};
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

    /// Releases the peers of an endpoint that is closed, when enough others have followed.
    pub(super) fn release_later(&self, peers: impl Iterator<Item = PeerAddr>) {
        let mut senders = self.lock();
        senders.lingering.extend(peers);
        while senders.lingering.len() > RDM_STRANGERS_MAX
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
