//! The members of a set, and the choice of the member that gets the next call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::{BalanceStats, Picked};
use crate::client::Channel;
use crate::limits::{
    BALANCE_DRAWS, EJECTION, EJECTION_FAILURES, EJECTION_MAX, SLOW_START, SLOW_START_SHARE,
};
use crate::status::{Code, Status};

#[derive(Clone, Copy)]
pub(super) struct Settings {
    pub(super) slow_start: Duration,
    /// Consecutive failures that eject a member.
    pub(super) failures: u32,
    /// The time of a first ejection.
    pub(super) ejection: Duration,
}

/// The recent failures of a member's calls.
pub(super) struct Health {
    id: u64,
    /// Consecutive failures.
    failures: AtomicU32,
}

impl Health {
    pub(super) fn note_success(&self) {
        if self.failures.load(Ordering::Relaxed) > 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// Returns whether a call that ended with this status counts as a failure of its member.
    pub(super) fn is_failure(status: &Status) -> bool {
        matches!(
            status.code(),
            Code::DeadlineExceeded
                | Code::Overloaded
                | Code::ConnectionLost
                | Code::Internal
                | Code::HandlerPanicked
        )
    }
}

struct Member {
    channel: Channel,
    health: Arc<Health>,
    /// The channel's number of connections at the last check.
    connections: u64,
    /// The number of connections when a lost connection was last counted: a loss fails all calls of
    /// a connection, but counts once.
    lost: u64,
    share: Share,
    /// The end of the last ejection, and, below, whether the member has got no call since.
    ejected_until: Option<Instant>,
    was_ejected: bool,
    /// Ejections in a row.
    ejections: u32,
}

/// The share of calls that a member gets.
#[derive(Clone, Copy)]
enum Share {
    /// The member has not been connected yet.
    None,
    /// A share that grows from this time on.
    Growing(Instant),
    /// A full share, from this time on.
    Full(Instant),
}

impl Member {
    fn is_ejected(&self, now: Instant) -> bool {
        self.ejected_until.is_some_and(|until| now < until)
    }

    fn load(&self) -> usize {
        self.channel.inner().current().load()
    }
}

pub(super) struct Members {
    members: Vec<Member>,
    pub(super) settings: Settings,
    /// The state of the generator that draws members; the seed comes from the first member's
    /// domain.
    random: Option<u64>,
    ids: u64,
    ejections: u64,
}

impl Default for Members {
    fn default() -> Self {
        Members {
            members: Vec::new(),
            settings: Settings {
                slow_start: SLOW_START,
                failures: EJECTION_FAILURES,
                ejection: EJECTION,
            },
            random: None,
            ids: 0,
            ejections: 0,
        }
    }
}

impl Members {
    /// Adds a member, and returns its id.
    pub(super) fn insert(&mut self, channel: Channel, random: u64) -> u64 {
        self.random.get_or_insert(random);
        self.ids += 1;
        self.members.push(Member {
            channel,
            health: Arc::new(Health {
                id: self.ids,
                failures: AtomicU32::new(0),
            }),
            connections: 0,
            lost: 0,
            share: Share::None,
            ejected_until: None,
            was_ejected: false,
            ejections: 0,
        });
        self.ids
    }

    /// Removes a member; its outstanding calls continue.
    pub(super) fn remove(&mut self, id: u64) -> Option<Channel> {
        let at = self.members.iter().position(|it| it.health.id == id)?;
        Some(self.members.swap_remove(at).channel)
    }

    pub(super) fn channels(&self) -> Vec<Channel> {
        self.members.iter().map(|it| it.channel.clone()).collect()
    }

    pub(super) fn stats(&self, now: Instant) -> BalanceStats {
        let count = |is: &dyn Fn(&Member) -> bool| self.members.iter().filter(|it| is(it)).count();
        BalanceStats {
            members: self.members.len(),
            connected: count(&|it| it.channel.inner().is_open()),
            ejected: count(&|it| it.is_ejected(now)),
            ejections: self.ejections,
        }
    }

    /// Reserves room for a call at a member. `None`: no member has room.
    pub(super) fn pick(&mut self, now: Instant) -> Option<Picked> {
        let count = self.members.len();
        for _ in 0..BALANCE_DRAWS {
            if count < 2 {
                break;
            }
            let one = self.draw(count);
            let other = (one + 1 + self.draw(count - 1)) % count;
            let (one_load, other_load) = (self.members[one].load(), self.members[other].load());
            let order = match one_load <= other_load {
                true => [one, other],
                false => [other, one],
            };
            for at in order {
                if self.is_due(at, now)
                    && let Some(picked) = self.reserve(at)
                {
                    return Some(picked);
                }
            }
        }
        // Any member that has room; an ejected member only if no other member has.
        let first = if count > 1 { self.draw(count) } else { 0 };
        let all = || (first..count).chain(0..first);
        let kept = all().find_map(|at| match self.members[at].is_ejected(now) {
            true => None,
            false => self.reserve(at),
        });
        kept.or_else(|| all().find_map(|at| self.reserve(at)))
    }

    fn reserve(&self, at: usize) -> Option<Picked> {
        let member = &self.members[at];
        Some(Picked {
            reserved: member.channel.inner().current().reserve()?,
            channel: member.channel.clone(),
            health: Arc::clone(&member.health),
        })
    }

    /// Returns whether a drawn member may get the call: it is not ejected, and a random draw is
    /// within its share.
    fn is_due(&mut self, at: usize, now: Instant) -> bool {
        let member = &mut self.members[at];
        if member.is_ejected(now) {
            return false;
        }
        let connections = member.channel.stats().connections;
        let is_new = std::mem::replace(&mut member.connections, connections) != connections;
        let returned = member.ejected_until.unwrap_or(now);
        if std::mem::take(&mut member.was_ejected) || is_new {
            let since = if is_new { now } else { returned };
            self.members[at].share = match self.has_other_for_long(at, now) {
                true => Share::Growing(since),
                false => Share::Full(since),
            };
        }
        let Share::Growing(since) = self.members[at].share else {
            return true;
        };
        let (grown, slow_start) = (now - since, self.settings.slow_start);
        if grown >= slow_start {
            self.members[at].share = Share::Full(now);
            return true;
        }
        let share = grown.as_secs_f64() / slow_start.as_secs_f64();
        self.draw_unit() < share.max(SLOW_START_SHARE)
    }

    /// Returns whether another connected member has had its full share for at least the slow-start
    /// time: members that begin together do not wait for each other.
    fn has_other_for_long(&self, at: usize, now: Instant) -> bool {
        let is_long = |since: Instant| now - since >= self.settings.slow_start;
        self.members.iter().enumerate().any(|(other, member)| {
            let is_full = matches!(member.share, Share::Full(since) if is_long(since));
            other != at && is_full && member.channel.inner().is_open()
        })
    }

    /// Counts a failure of a member, and ejects the member if it has too many.
    pub(super) fn note_failure(&mut self, health: &Health, status: &Status, now: Instant) {
        let ejected = self.members.iter().filter(|it| it.is_ejected(now)).count();
        let may_eject = 2 * (ejected + 1) <= self.members.len();
        let Some(member) = self.members.iter_mut().find(|it| it.health.id == health.id) else {
            return;
        };
        if status.code() == Code::ConnectionLost {
            let connections = member.channel.stats().connections;
            if std::mem::replace(&mut member.lost, connections) == connections {
                return;
            }
        }
        let failures = health
            .failures
            .fetch_add(1, Ordering::Relaxed)
            .saturating_add(1);
        // Calls that were made before the ejection may still fail.
        if failures < self.settings.failures || !may_eject || member.is_ejected(now) {
            return;
        }
        health.failures.store(0, Ordering::Relaxed);
        let is_in_a_row = member
            .ejected_until
            .is_some_and(|it| now - it < EJECTION_MAX);
        member.ejections = if is_in_a_row { member.ejections + 1 } else { 0 };
        let doubled = 1_u32.checked_shl(member.ejections).unwrap_or(u32::MAX);
        let time = self.settings.ejection.saturating_mul(doubled);
        let most = EJECTION_MAX.max(self.settings.ejection);
        member.ejected_until = now.checked_add(time.min(most)).or(Some(now + EJECTION_MAX));
        member.was_ejected = true;
        self.ejections += 1;
    }

    /// Draws a number below `count`, which is at least 1.
    fn draw(&mut self, count: usize) -> usize {
        (self.draw_unit() * count as f64) as usize % count
    }

    /// Draws a number of at least 0 and less than 1 (SplitMix64).
    fn draw_unit(&mut self) -> f64 {
        let state = self.random.get_or_insert(0);
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}
