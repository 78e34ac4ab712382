//! Busy polling: for a while after the last activity the driver is polled again instead of parking
//! (`busy_poll`).

use std::time::{Duration, Instant};

use crate::limits::{SPIN_ROUNDS_MAX, SPIN_WINDOW};
use crate::slab::Key;

/// State that a spinning driver keeps from poll to poll.
pub(super) struct SpinState {
    /// How long the driver spins after the last activity.
    duration: Duration,
    until: Option<Instant>,
    /// The port that had the last turn.
    last_port: Option<Key>,
    /// True if the last poll found nothing.
    was_idle: bool,
    /// True if spinning within a poll last found something: the peer is on another processor.
    finds_at_once: bool,
    /// Polls in a row that found something, since the runtime's reactor was polled.
    rounds: u32,
}

impl SpinState {
    pub(super) fn new(duration: Duration) -> Self {
        SpinState {
            duration,
            until: None,
            last_port: None,
            was_idle: false,
            finds_at_once: false,
            rounds: 0,
        }
    }

    pub(super) fn had_turn(&mut self, key: Key) {
        self.last_port = Some(key);
    }

    pub(super) fn last_port(&self) -> Option<Key> {
        self.last_port
    }

    /// Returns the time until which this poll, which has found nothing so far, is to spin. `None`
    /// in the first such poll after a poll that found something, unless spinning was of use: the
    /// peer, or the task that is to answer, may need this processor.
    pub(super) fn window(&self) -> Option<Instant> {
        if self.until.is_none() || !(self.was_idle || self.finds_at_once) {
            return None;
        }
        Instant::now().checked_add(SPIN_WINDOW)
    }

    /// Notes whether spinning within a poll found something.
    pub(super) fn note_window(&mut self, found: bool) {
        self.finds_at_once = found;
    }

    /// Returns true if the runtime's reactor is to be polled before the next poll: while nothing
    /// comes, and otherwise every `SPIN_ROUNDS_MAX` polls, for other sockets. Polling the reactor
    /// is a system call.
    pub(super) fn is_reactor_due(&mut self) -> bool {
        self.rounds += 1;
        let is_due = self.was_idle || self.rounds >= SPIN_ROUNDS_MAX;
        if is_due {
            self.rounds = 0;
        }
        is_due
    }

    /// Returns whether to poll again after a poll. `active`: there was activity in it.
    pub(super) fn goes_on(&mut self, active: bool) -> bool {
        if self.duration.is_zero() {
            return false;
        }
        // Real time counts, whatever the backend's clock: spinning spends the processor's time.
        let now = Instant::now();
        self.was_idle = !active;
        if active {
            self.until = now.checked_add(self.duration);
        }
        if self.until.is_some_and(|until| now < until) {
            return true;
        }
        self.until = None;
        false
    }

    /// Yields the processor after a poll that found nothing: the thread that is to send the next
    /// bytes may need this processor.
    pub(super) fn yield_if_idle(&self) {
        if self.was_idle {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `busy_poll`: "How long the driver spins after the last activity before it sleeps."
    /// fi_domain(3): "progress threads cannot be blocked when communication is idle, which results
    /// in threads spinning in progress functions." These rest.
    #[test]
    fn it_goes_on_for_its_time_after_the_last_activity() {
        let mut spin = SpinState::new(Duration::from_secs(3600));
        assert!(!spin.goes_on(false), "there was no activity yet");
        assert!(spin.goes_on(true) && spin.goes_on(false) && spin.until.is_some());
        let mut spin = SpinState::new(Duration::from_nanos(1));
        spin.goes_on(true);
        std::thread::sleep(Duration::from_millis(1));
        assert!(!spin.goes_on(false) && spin.until.is_none());
        assert!(!SpinState::new(Duration::ZERO).goes_on(true));
    }

    /// One that waits for this very processor gets it before the driver spins within a poll; where
    /// spinning was of use, none does.
    #[test]
    fn it_spins_at_once_where_that_was_of_use() {
        let mut spin = SpinState::new(Duration::from_secs(3600));
        spin.goes_on(true);
        assert!(spin.window().is_none());
        spin.goes_on(false);
        assert!(spin.window().is_some());
        spin.note_window(true);
        spin.goes_on(true);
        assert!(spin.window().is_some());
        spin.note_window(false);
        spin.goes_on(true);
        assert!(spin.window().is_none());
    }

    /// Other sockets of the runtime have their turn, whatever one connection does.
    #[test]
    fn the_reactor_is_due_while_nothing_comes_and_now_and_then() {
        let mut spin = SpinState::new(Duration::from_secs(3600));
        spin.goes_on(true);
        for _ in 0..3 {
            let due: Vec<_> = (0..SPIN_ROUNDS_MAX)
                .map(|_| spin.is_reactor_due())
                .collect();
            assert_eq!(due.iter().filter(|it| **it).count(), 1, "{due:?}");
            assert!(due[due.len() - 1]);
        }
        spin.goes_on(false);
        assert!(spin.is_reactor_due() && spin.is_reactor_due());
    }
}
