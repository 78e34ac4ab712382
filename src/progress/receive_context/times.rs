//! Receives that end when their time has passed.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::progress::report::Report;
use crate::proto::OpKey;
use crate::sync::{Mutex, MutexGuard};

/// Until so many are kept, nobody looks which of them have ended long since.
const KEPT_MIN: usize = 64;

/// Where a receive with a time limit reports. Whoever takes it tells the end: the connection that
/// brings the message, or the clock.
#[derive(Debug)]
pub(crate) struct TimedReport {
    report: Mutex<Option<Report>>,
}

impl TimedReport {
    pub(super) fn new(report: Report) -> Arc<Self> {
        Arc::new(TimedReport {
            report: Mutex::new(Some(report)),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Report>> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The report, once.
    pub(crate) fn take(&self) -> Option<Report> {
        self.lock().take()
    }

    /// Looks at the report, if nobody has taken it.
    pub(in crate::progress) fn with<R>(&self, look: impl FnOnce(&mut Report) -> R) -> Option<R> {
        self.lock().as_mut().map(look)
    }

    fn has_ended(&self) -> bool {
        self.lock().is_none()
    }
}

/// The times of receives. One that ends leaves its time behind; those are dropped when they make up
/// half of what is kept.
#[derive(Debug, Default)]
pub(super) struct Times {
    /// Posted since the driver last ran, which alone has the backend's clock (ruling 12).
    fresh: Vec<(OpKey, Duration, Arc<TimedReport>)>,
    kept: BTreeMap<(Instant, OpKey), Arc<TimedReport>>,
    kept_max: usize,
}

impl Times {
    pub(super) fn add(&mut self, key: OpKey, timeout: Duration, report: Arc<TimedReport>) {
        self.fresh.push((key, timeout, report));
    }

    /// The times of what was posted begin now.
    pub(super) fn start(&mut self, now: Instant) {
        for (key, timeout, report) in self.fresh.drain(..) {
            // A time beyond what the clock can count never comes.
            if let Some(at) = now.checked_add(timeout) {
                self.kept.insert((at, key), report);
            }
        }
        if self.kept.len() > self.kept_max {
            self.kept.retain(|_, report| !report.has_ended());
            self.kept_max = KEPT_MIN.max(2 * self.kept.len());
        }
    }

    /// The earliest.
    pub(super) fn first(&self) -> Option<Instant> {
        self.kept.first_key_value().map(|((at, _), _)| *at)
    }

    pub(super) fn pop_due(&mut self, now: Instant) -> Option<(OpKey, Arc<TimedReport>)> {
        if self.first()? > now {
            return None;
        }
        let ((_, key), report) = self.kept.pop_first()?;
        Some((key, report))
    }
}
