//! The timing of peers: attempts, pauses, deadlines and idle checks.

use std::time::{Duration, Instant};

use crate::id::PeerAddr;
use crate::limits::{RDM_IDLE_CHECKS, RDM_RECONNECT_PAUSE_MAX, RDM_RECONNECT_PAUSE_MIN};

use super::state::PeerState;
use super::{Command, GiveUp, Peers};

impl Peers {
    /// Does what is due for a peer, and sets its timer for the next event.
    pub(super) fn update(&mut self, at: PeerAddr, now: Instant) {
        let deadline = self.deadline_of(at);
        if deadline.is_some_and(|deadline| deadline <= now) {
            return self.give_up(at, GiveUp::Deadline, now);
        }
        let Some(peer) = self.peers.get_mut(&at) else {
            return;
        };
        if let Some(verification) = peer.verification
            && verification.until <= now
        {
            self.commands.push_back(Command::EndVerification {
                attempt: verification.attempt,
            });
            self.end_verification(at, verification.attempt);
            return self.count_failed_verification(at, now);
        }
        let is_wanted = peer.wanted.is_some();
        match peer.state {
            PeerState::Accepting { attempt, .. }
                if peer.unproven_part_ends().is_some_and(|end| end <= now) =>
            {
                let is_last = peer.end_unproven_part(now);
                if is_last {
                    peer.contested = true;
                    self.commands
                        .push_back(Command::Retract { peer: at, attempt });
                }
            }
            // The peer's address is being dialled already.
            PeerState::Disconnected { .. } if peer.verification.is_some() => {}
            PeerState::Disconnected { .. } if is_wanted && peer.undialable => {
                return self.give_up(at, GiveUp::Undialable, now);
            }
            PeerState::Disconnected { until } if until <= now => {
                if is_wanted {
                    self.dial(at);
                } else if !peer.undialable {
                    return self.forget(at);
                } else {
                    return self.retire(at);
                }
            }
            PeerState::Up {
                attempt,
                idle_check_at: Some(idle_check_at),
                ..
            } if idle_check_at <= now => {
                self.commands
                    .push_back(Command::CheckIdle { peer: at, attempt });
                self.schedule_idle_check(at, now);
            }
            _ => {}
        }
        self.set_timer(at, now);
    }

    pub(super) fn dial(&mut self, at: PeerAddr) {
        let attempt = self.new_attempt();
        if let Some(peer) = self.peers.get_mut(&at) {
            peer.go(PeerState::Dialling {
                attempt,
                is_self_accepted: false,
            });
            self.commands.push_back(Command::Dial { peer: at, attempt });
        }
    }

    /// Ends the operations that wait for the peer. For an operation that is posted later, attempts
    /// begin anew, after a pause.
    pub(super) fn give_up(&mut self, at: PeerAddr, why: GiveUp, now: Instant) {
        let Some(peer) = self.peers.get_mut(&at) else {
            return;
        };
        let was_wanted = peer.wanted.take().is_some();
        peer.rejections = 0;
        let ends = !matches!(peer.state, PeerState::Up { .. } | PeerState::Ending { .. });
        if was_wanted {
            self.commands.push_back(Command::GiveUp { peer: at, why });
        }
        if ends {
            self.pause(at, now);
        } else {
            self.set_timer(at, now);
        }
    }

    /// Disconnects the peer, and begins no attempt during a pause.
    pub(super) fn pause(&mut self, at: PeerAddr, now: Instant) {
        // Jitter between half of the pause and all of it, so that two peers do not collide again
        // and again.
        let share = 0.5 + 0.5 * self.random();
        if let Some(peer) = self.peers.get_mut(&at) {
            let pause = pause_after(peer.failures.saturating_sub(1));
            let until = now + pause.mul_f64(share);
            peer.go(PeerState::Disconnected { until });
        }
        self.set_timer(at, now);
    }

    /// Returns when a wanted peer is given up.
    pub(super) fn deadline_of(&self, at: PeerAddr) -> Option<Instant> {
        let since = self.peers.get(&at)?.wanted?;
        let deadline = since.checked_add(self.settings.connect_deadline);
        deadline.into_iter().chain(self.closing).min()
    }

    pub(super) fn schedule_idle_check(&mut self, at: PeerAddr, now: Instant) {
        let idle = self.settings.idle;
        if let Some(peer) = self.peers.get_mut(&at)
            && let PeerState::Up { idle_check_at, .. } = &mut peer.state
        {
            *idle_check_at = idle.and_then(|idle| {
                now.checked_add((idle / RDM_IDLE_CHECKS).max(RDM_RECONNECT_PAUSE_MIN))
            });
        }
    }

    pub(super) fn set_timer(&mut self, at: PeerAddr, now: Instant) {
        let deadline = self.deadline_of(at);
        let Some(peer) = self.peers.get_mut(&at) else {
            return;
        };
        let of_state = match peer.state {
            PeerState::Disconnected { until }
                if peer.retired.is_none() && peer.verification.is_none() =>
            {
                Some(until.max(now))
            }
            PeerState::Up { idle_check_at, .. } => idle_check_at,
            PeerState::Accepting { .. } => peer.unproven_part_ends(),
            _ => None,
        };
        let of_verification = peer.verification.map(|it| it.until);
        let timer = of_state
            .into_iter()
            .chain(deadline)
            .chain(of_verification)
            .min();
        if timer == peer.timer {
            return;
        }
        if let Some(old) = std::mem::replace(&mut peer.timer, timer) {
            self.timers.remove(&(old, at));
        }
        self.timers.extend(timer.map(|timer| (timer, at)));
    }

    /// Returns a random number in [0, 1) (SplitMix64).
    pub(super) fn random(&mut self) -> f64 {
        self.rng_state = self.rng_state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.rng_state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Returns the pause after this many failures in a row, before jitter.
pub(super) fn pause_after(failures: u32) -> Duration {
    let pause = RDM_RECONNECT_PAUSE_MIN.saturating_mul(1 << failures.min(16));
    pause.min(RDM_RECONNECT_PAUSE_MAX)
}
