//! Blocking turns: turns that blocking threads run while the driver goes on with other ports. A
//! domain uses them once it has functions for device memory whose copies may block
//! (`HmemOps::may_block`).
//!
//! ```text
//!   driver ──begin──▶ blocking thread: Port::turn ──turned──▶ ready list ──▶ driver: end
//!      └── what becomes due for the port meanwhile is noted, since all of it takes the port's lock
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::slab::Key;
use crate::transport::Clock;

use super::blocking::run_blocking_or_task;
use super::budget::Budget;
use super::engine::Engine;
use super::pollable::{Pollable, TurnResult};

/// Work that has become due for a port since its blocking turn began.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Due {
    pub(super) turn: bool,
    pub(super) heartbeat: bool,
    /// The port asked for heartbeats.
    pub(super) new_heartbeat: bool,
    /// A region was closed.
    pub(super) regions: bool,
    /// The engine stops.
    pub(super) close: bool,
}

/// Blocking turns that have not ended, by port.
#[derive(Debug, Default)]
pub(super) struct BlockingTurns(HashMap<Key, Due>);

impl BlockingTurns {
    /// Returns the record of the work that is due for this port, if a blocking turn of it runs.
    pub(super) fn under_way(&mut self, key: Key) -> Option<&mut Due> {
        self.0.get_mut(&key)
    }

    /// Begins a blocking turn of a port that has none running.
    pub(super) fn begin(
        &mut self,
        engine: &Arc<Engine>,
        key: Key,
        port: Arc<dyn Pollable>,
        now: Instant,
    ) {
        self.0.insert(key, Due::default());
        let report = TurnReport {
            engine: Arc::clone(engine),
            key,
            turned: TurnOutcome::NotBegun,
        };
        let is_seeded = engine.random.is_seeded();
        run_blocking_or_task(is_seeded, move || {
            // The closure captures the report as a whole, not its fields.
            let mut report = report;
            report.turned = TurnOutcome::Panicked;
            let clock = RunningClock {
                began: now,
                since: (!is_seeded).then(Instant::now),
            };
            let mut budget = Budget::of_poll(now);
            report.turned = TurnOutcome::Over(port.turn(now, &clock, &mut budget));
        });
    }

    /// Ends a turn; returns the work that has become due since it began.
    pub(super) fn end(&mut self, key: Key) -> Due {
        self.0.remove(&key).unwrap_or_default()
    }
}

/// The outcome of a blocking turn.
#[derive(Clone, Copy, Debug)]
pub(super) enum TurnOutcome {
    /// The runtime had no thread for the turn.
    NotBegun,
    Panicked,
    Over(TurnResult),
}

/// Reports the end of a turn when dropped, also after a panic.
struct TurnReport {
    engine: Arc<Engine>,
    key: Key,
    turned: TurnOutcome,
}

impl Drop for TurnReport {
    fn drop(&mut self) {
        self.engine.turned(self.key, self.turned);
    }
}

/// The driver's time, continued from the moment at which the turn began.
struct RunningClock {
    began: Instant,
    /// `None`: the run is seeded, so the turn takes no time.
    since: Option<Instant>,
}

impl Clock for RunningClock {
    fn now(&self) -> Instant {
        self.began + self.since.map_or(Duration::ZERO, |it| it.elapsed())
    }

    fn poll_deadline(&mut self, _at: Instant, _: Instant, _cx: &mut Context<'_>) -> Poll<()> {
        unreachable!("a turn waits for no deadline")
    }
}
