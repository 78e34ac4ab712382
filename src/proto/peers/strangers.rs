//! Peers that the application has not asked for: the limits on their number, and the table of
//! remembered ones.

use crate::id::PeerAddr;

use super::{Peers, host_of};

impl Peers {
    /// Removes a peer from the table.
    pub(super) fn forget(&mut self, at: PeerAddr) {
        self.recall(at);
        if let Some(peer) = self.peers.remove(&at) {
            if let Some(timer) = peer.timer {
                self.timers.remove(&(timer, at));
            }
            self.verifications -= usize::from(peer.verification.is_some());
            if peer.unsolicited {
                self.count_unsolicited(at, -1);
            }
        }
    }

    /// Retires a disconnected peer that cannot be dialled: the peer is remembered, but not counted,
    /// until there are too many retired peers.
    pub(super) fn retire(&mut self, at: PeerAddr) {
        let number = self.next_retired;
        let Some(peer) = self
            .peers
            .get_mut(&at)
            .filter(|peer| peer.retired.is_none())
        else {
            return;
        };
        self.next_retired += 1;
        peer.retired = Some(number);
        if let Some(timer) = peer.timer.take() {
            self.timers.remove(&(timer, at));
        }
        if peer.unsolicited {
            self.count_unsolicited(at, -1);
        }
        if let Some((_, evicted)) = self.retired.insert((number, at), host_of(at.socket)) {
            self.forget(evicted);
        }
    }

    /// Takes a retired peer back.
    pub(super) fn recall(&mut self, at: PeerAddr) {
        let Some(peer) = self.peers.get_mut(&at) else {
            return;
        };
        if let Some(number) = peer.retired.take() {
            let is_uninvited = peer.unsolicited;
            self.retired.remove((number, at), host_of(at.socket));
            if is_uninvited {
                self.count_unsolicited(at, 1);
            }
        }
    }

    /// True if one more unsolicited peer of this host may be accepted: if the host has fewer peers
    /// than there are free places. The peers of one host, however many ask, so leave room for those
    /// of other hosts.
    pub(super) fn has_room_for(&self, at: PeerAddr) -> bool {
        let of_host = self
            .unsolicited_of
            .get(&host_of(at.socket))
            .copied()
            .unwrap_or(0);
        let left = (self.settings.strangers_max).saturating_sub(self.unsolicited);
        self.closing.is_none() && of_host < left
    }

    pub(super) fn count_unsolicited(&mut self, at: PeerAddr, by: isize) {
        self.unsolicited = self.unsolicited.saturating_add_signed(by);
        let of_host = self.unsolicited_of.entry(host_of(at.socket)).or_default();
        *of_host = of_host.saturating_add_signed(by);
        if *of_host == 0 {
            self.unsolicited_of.remove(&host_of(at.socket));
        }
    }
}
