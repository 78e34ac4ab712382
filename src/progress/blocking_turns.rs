//! Turns beside the driver, made by blocking threads while the driver goes on with other ports.
//! They are for ports whose memory only a device's owner copies, with copies that may block
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

/// What has become due for a port since its turn beside the driver began.
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

/// Turns beside the driver that have not ended, by port.
#[derive(Debug, Default)]
pub(super) struct BlockingTurns(HashMap<Key, Due>);

impl BlockingTurns {
    /// Returns where to note what is due for this port, if a turn of it has not ended.
    pub(super) fn under_way(&mut self, key: Key) -> Option<&mut Due> {
        self.0.get_mut(&key)
    }

    /// Begins a turn of a port that has none.
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

    /// Ends a turn; returns what has become due since it began.
    pub(super) fn end(&mut self, key: Key) -> Due {
        self.0.remove(&key).unwrap_or_default()
    }
}

/// How a turn beside the driver ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum TurnOutcome {
    /// No thread could be had for it.
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
    /// `None`: a seed decides what happens when, so the turn takes no time.
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
