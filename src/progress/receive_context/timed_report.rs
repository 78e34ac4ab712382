//! The report of a receive with a time limit.

use std::sync::{Arc, PoisonError};

use crate::progress::report::Report;
use crate::sync::{Mutex, MutexGuard};

/// The report of a receive with a time limit. The connection that brings the message and the timer
/// race for it; the one that takes it completes the receive.
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

    /// Runs `f` on the report, if it has not been taken.
    pub(in crate::progress) fn with<R>(&self, f: impl FnOnce(&mut Report) -> R) -> Option<R> {
        self.lock().as_mut().map(f)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.lock().is_none()
    }
}
