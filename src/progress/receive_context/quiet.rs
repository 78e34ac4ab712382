//! The memory that a context keeps for what may come is given back when nothing has come for long.

use std::time::{Duration, Instant};

use super::State;

/// How long nothing comes before that.
const QUIET: Duration = Duration::from_secs(5);

/// Whether anything goes on. While nothing does there is no timer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Quiet {
    /// Nothing is kept for what may come, since so much had come.
    Resting(u64),
    /// The driver is told to look.
    #[default]
    Stirred,
    /// So much had come when it last looked; it looks again then.
    Busy(u64, Instant),
}

impl State {
    /// True if the driver is to look, since something has come after a long time.
    pub(super) fn is_stirred(&mut self) -> bool {
        match self.quiet {
            Quiet::Resting(seen) if seen != self.matcher.activity() => {
                self.quiet = Quiet::Stirred;
                true
            }
            _ => false,
        }
    }

    /// The driver looks; tells when to look again.
    pub(super) fn rest(&mut self, now: Instant) -> Option<Instant> {
        let activity = self.matcher.activity();
        self.quiet = match self.quiet {
            Quiet::Resting(seen) if seen == activity => self.quiet,
            Quiet::Busy(seen, at) if seen == activity && at <= now => {
                self.give_memory_back();
                Quiet::Resting(activity)
            }
            Quiet::Busy(seen, at) if seen == activity => Quiet::Busy(seen, at),
            // As long as something comes the time is not begun anew each time.
            Quiet::Busy(seen, at) if at > now => Quiet::Busy(seen, at),
            _ => Quiet::Busy(activity, now.checked_add(QUIET)?),
        };
        match self.quiet {
            Quiet::Busy(_, at) => Some(at),
            _ => None,
        }
    }

    fn give_memory_back(&mut self) {
        self.matcher.shrink();
        self.ops.shrink();
        self.backlog.shrink_to_fit();
        self.starved.shrink_to_fit();
        self.ports.shrink_to_fit();
    }
}
