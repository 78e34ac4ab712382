//! Tokio's time as a [`Clock`], for backends within the process: a paused runtime pauses them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::runtime::Handle;
use tokio::time::Sleep;

use super::Clock;
use super::manual::RuntimeLife;

/// The time of one Tokio runtime. The timer is made for the first deadline and reused.
pub(super) struct TokioClock {
    runtime: Handle,
    /// Set if the clock may be polled outside of the runtime, and so after the runtime's end.
    life: Option<Arc<RuntimeLife>>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl TokioClock {
    pub(super) fn new(runtime: Handle, life: Option<Arc<RuntimeLife>>) -> Self {
        TokioClock {
            runtime,
            life,
            sleep: None,
        }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Instant {
        // Whether time is paused is a property of the runtime, which Tokio finds through the
        // thread.
        let _runtime = self.runtime.enter();
        tokio::time::Instant::now().into_std()
    }

    fn poll_deadline(&mut self, at: Instant, _now: Instant, cx: &mut Context<'_>) -> Poll<()> {
        // Tokio panics when a timer of an ended runtime is polled. The clock's users are being
        // dropped then. The guard keeps the runtime alive while the clock is polled.
        let _alive = match self.life.as_ref().map(|life| life.alive()) {
            Some(None) => return Poll::Pending,
            alive => alive,
        };
        let _runtime = self.runtime.enter();
        let at = tokio::time::Instant::from_std(at);
        let sleep = self
            .sleep
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        if sleep.deadline() != at {
            sleep.as_mut().reset(at);
        }
        sleep.as_mut().poll(cx)
    }
}
