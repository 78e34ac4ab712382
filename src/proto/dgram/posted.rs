//! Posted receives of a datagram endpoint: for any peer's datagrams, or for one peer's. If several
//! receives match a datagram, the one that was posted first gets it.
//!
//! Receives that have ended leave stale keys behind. Stale keys are dropped when they come to the
//! front, or when they make up half of the keys, so that each costs a constant on average.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use crate::limits::STALE_ENTRIES_MIN;
use crate::proto::op::OpKey;

/// Keys of receives in order, each with its post number.
type Line = VecDeque<(u64, OpKey)>;

#[derive(Debug, Default)]
pub(super) struct DatagramReceives {
    anyone: Line,
    choosy: HashMap<SocketAddr, Line>,
    next: u64,
    stale: usize,
}

/// Drops stale keys at the front, and returns the first live one.
fn front(line: &mut Line, live: &impl Fn(OpKey) -> bool) -> Option<(u64, OpKey)> {
    while let Some(&(number, key)) = line.front() {
        if live(key) {
            return Some((number, key));
        }
        line.pop_front();
    }
    None
}

impl DatagramReceives {
    /// Posts a receive for this peer's datagrams; `None`: for any peer's.
    pub(super) fn push(&mut self, key: OpKey, from: Option<SocketAddr>) {
        let number = self.next;
        self.next += 1;
        let line = match from {
            None => &mut self.anyone,
            Some(peer) => self.choosy.entry(peer).or_default(),
        };
        line.push_back((number, key));
    }

    /// Takes the first receive for a datagram from this source.
    pub(super) fn take(&mut self, from: SocketAddr, live: impl Fn(OpKey) -> bool) -> Option<OpKey> {
        let anyone = front(&mut self.anyone, &live);
        let choosy = self.choosy.get_mut(&from);
        let of_peer = choosy.and_then(|line| front(line, &live));
        let (_, key) = anyone.into_iter().chain(of_peer).min()?;
        if anyone.is_some_and(|(_, first)| first == key) {
            self.anyone.pop_front();
        } else if let Some(line) = self.choosy.get_mut(&from) {
            line.pop_front();
            if line.is_empty() {
                self.choosy.remove(&from);
            }
        }
        Some(key)
    }

    /// Returns the receives for the next datagrams of any sender, at most `max`; they stay posted.
    /// Returns none while a receive takes only one peer's datagrams.
    pub(super) fn first_of_anyone(
        &mut self,
        max: usize,
        live: impl Fn(OpKey) -> bool,
    ) -> Vec<OpKey> {
        self.choosy.retain(|_, line| front(line, &live).is_some());
        if !self.choosy.is_empty() || front(&mut self.anyone, &live).is_none() {
            return Vec::new();
        }
        let keys = self.anyone.iter().map(|(_, key)| *key);
        keys.filter(|key| live(*key)).take(max).collect()
    }

    /// Accounts for a posted receive that has ended without being taken.
    pub(super) fn withdrawn(&mut self, live: impl Fn(OpKey) -> bool) {
        self.stale += 1;
        let kept = self.anyone.len() + self.choosy.values().map(Line::len).sum::<usize>();
        if self.stale < STALE_ENTRIES_MIN.max(kept / 2) {
            return;
        }
        self.stale = 0;
        self.anyone.retain(|(_, key)| live(*key));
        self.choosy.retain(|_, line| {
            line.retain(|(_, key)| live(*key));
            !line.is_empty()
        });
    }
}
