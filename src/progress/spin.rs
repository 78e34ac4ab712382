//! Looking again rather than sleeping, for a while after the last activity (`busy_poll`).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::slab::Key;

/// How long one poll of a driver that has found nothing goes on looking by itself. Coming round
/// through the runtime takes almost a microsecond, so that a look for every three misses less than
/// one for each; other tasks of the runtime wait no longer than this.
const DWELL: Duration = Duration::from_micros(3);

/// Polls in a row that found nothing, after which the processor is offered to others. The offer
/// takes half a microsecond of a half round trip of four, and mostly nobody wants it.
const VAIN_MAX: u32 = 8;

/// An offer of the processor that takes longer was accepted.
const OFFER: Duration = Duration::from_micros(5);

/// What a driver that spins remembers from poll to poll.
pub(super) struct Spin {
    duration: Duration,
    /// The reactor may be in the hands of another thread: sockets are tried without its word.
    pub(super) looks: bool,
    until: Option<Instant>,
    /// The ports that are looked at next.
    pub(super) round: VecDeque<Key>,
    /// Who had the last turn.
    last: Option<Key>,
    /// It had the one before, too.
    is_steady: bool,
    /// Polls in a row that found nothing.
    vain: u32,
    /// Whoever was offered the processor last has taken it.
    is_wanted: bool,
}

impl Spin {
    pub(super) fn new(duration: Duration, looks: bool) -> Self {
        Spin {
            duration,
            looks,
            until: None,
            round: VecDeque::new(),
            last: None,
            is_steady: false,
            vain: 0,
            is_wanted: false,
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.until.is_some()
    }

    /// A port has its turn.
    pub(super) fn had_turn(&mut self, key: Key) {
        self.is_steady = self.last == Some(key);
        self.last = Some(key);
    }

    /// Until when to go on looking in this poll, which has found nothing so far: not in the first
    /// one, since tasks may be at work that something was found for, and not while others want
    /// the processor.
    pub(super) fn dwells_until(&self) -> Option<Instant> {
        if self.until.is_none() || self.vain == 0 || self.is_wanted {
            return None;
        }
        Instant::now().checked_add(DWELL)
    }

    /// The one port at work, if there is one: with more of them, asking the reactor about all
    /// costs less than asking each.
    pub(super) fn favourite(&self) -> Option<Key> {
        self.last.filter(|_| self.is_steady)
    }

    /// Whether to look again, after a poll in which there was any activity or none.
    pub(super) fn goes_on(&mut self, active: bool) -> bool {
        if self.duration.is_zero() {
            return false;
        }
        // A processor's time is spent, so real time counts, whatever the clock of the backend.
        let now = Instant::now();
        if active {
            self.vain = 0;
            self.until = now.checked_add(self.duration);
        } else {
            self.vain = self.vain.saturating_add(1);
        }
        if self.until.is_some_and(|until| now < until) {
            return true;
        }
        self.until = None;
        false
    }

    /// Offers the processor: whoever is to send what this waits for may be waiting for this very
    /// one. At each poll in vain once somebody has taken it, else now and then.
    pub(super) fn give_way(&mut self) {
        let is_due = self.vain.is_multiple_of(VAIN_MAX) || self.is_wanted;
        if self.vain == 0 || !is_due {
            return;
        }
        let offered = Instant::now();
        std::thread::yield_now();
        self.is_wanted = offered.elapsed() > OFFER;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::Slab;

    /// `busy_poll`: "How long the driver spins after the last activity before it sleeps."
    #[test]
    fn it_goes_on_for_its_time_after_the_last_activity() {
        let mut spin = Spin::new(Duration::from_secs(3600), false);
        assert!(!spin.goes_on(false), "there was no activity yet");
        assert!(spin.goes_on(true) && spin.goes_on(false) && spin.is_on());
        let mut spin = Spin::new(Duration::from_nanos(1), false);
        spin.goes_on(true);
        std::thread::sleep(Duration::from_millis(1));
        assert!(!spin.goes_on(false) && !spin.is_on());
        assert!(!Spin::new(Duration::ZERO, false).goes_on(true));
    }

    /// Tasks that something was found for run before the driver looks on by itself.
    #[test]
    fn it_dwells_only_after_a_poll_in_vain() {
        let mut spin = Spin::new(Duration::from_secs(3600), false);
        spin.goes_on(true);
        assert!(spin.dwells_until().is_none());
        spin.goes_on(false);
        assert!(spin.dwells_until().is_some());
        spin.is_wanted = true;
        assert!(spin.dwells_until().is_none(), "others want the processor");
    }

    /// With several connections at work the reactor is asked, which knows of all.
    #[test]
    fn its_favourite_is_the_one_port_at_work() {
        let mut ports = Slab::new();
        let (a, b) = (ports.insert(()), ports.insert(()));
        let mut spin = Spin::new(Duration::from_secs(3600), false);
        spin.had_turn(a);
        assert_eq!(spin.favourite(), None);
        spin.had_turn(a);
        assert_eq!(spin.favourite(), Some(a));
        spin.had_turn(b);
        assert_eq!(spin.favourite(), None);
    }
}
