//! Time for limits that a busy machine must not exceed by being busy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The time that this process has had: on a busy machine it is late for what the system's clock
/// says, and so is its driver.
pub struct Ticks(Arc<AtomicU32>);

impl Ticks {
    const TICK: Duration = Duration::from_millis(100);

    /// Counts from now on, in the current runtime.
    pub fn start() -> Ticks {
        let ticks = Arc::<AtomicU32>::default();
        let counted = Arc::clone(&ticks);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Self::TICK).await;
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        Ticks(ticks)
    }

    pub fn elapsed(&self) -> Duration {
        Self::TICK * self.0.load(Ordering::Relaxed)
    }
}
