//! Tokio's time as a [`Clock`], for backends that live in the process: a paused runtime pauses
//! them.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::runtime::Handle;
use tokio::time::Sleep;

use super::Clock;

/// The time of one Tokio runtime. The timer is made at the first deadline and reused.
pub(super) struct TokioClock {
    runtime: Handle,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl TokioClock {
    pub(super) fn new(runtime: Handle) -> Self {
        TokioClock {
            runtime,
            sleep: None,
        }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Instant {
        // Whether time is paused is a property of the runtime, which is found through the thread.
        let _runtime = self.runtime.enter();
        tokio::time::Instant::now().into_std()
    }

    fn poll_deadline(&mut self, at: Instant, _now: Instant, cx: &mut Context<'_>) -> Poll<()> {
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
