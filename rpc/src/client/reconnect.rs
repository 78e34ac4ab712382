//! Reconnects a channel whose last connection takes no more calls.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::ChannelInner;
use crate::caught::{caught_async, log};
use crate::drive::close;
use crate::limits::{BACKOFF_MAX, BACKOFF_MIN};
use crate::status::{Code, Status};

/// Marks the channel as closed on drop, since no other connection will be made.
struct NoOther(Weak<ChannelInner>);

impl Drop for NoOther {
    fn drop(&mut self) {
        if let Some(channel) = self.0.upgrade() {
            channel.set_closed();
        }
    }
}

/// Keeps a channel connected, until the channel or its runtime ends.
pub(super) async fn keep_connected(channel: Weak<ChannelInner>) {
    let _ended = NoOther(Weak::clone(&channel));
    let (mut failures, mut connected) = (0, Instant::now());
    loop {
        let Some(connection) = channel.upgrade().map(|it| it.current()) else {
            return;
        };
        // The channel is not held while this task waits.
        while connection.with_machine(|machine| machine.is_open()) {
            connection.closing.notified().await;
            if channel.strong_count() == 0 {
                return;
            }
        }
        drop(connection);
        // A server that accepts connections only to end them is not asked again without a pause.
        if failures == 0 && connected.elapsed() < BACKOFF_MIN {
            failures = 1;
        }
        if failures > 0 {
            sleep(pause_after(failures)).await;
        }
        let Some(alive) = channel.upgrade() else {
            return;
        };
        if alive.is_closed() {
            return;
        }
        let connecting = ChannelInner::connect(&alive.hub, &alive.addresses);
        let connected_anew = caught_async("connecting", connecting).await;
        match connected_anew.unwrap_or_else(|| Err(Status::new(Code::Internal, ""))) {
            Ok(connection) => {
                (failures, connected) = (0, Instant::now());
                // The old connection is dropped without the lock.
                let mut last = None;
                let is_closed = {
                    let mut current = alive.current.lock().unwrap_or_else(PoisonError::into_inner);
                    // Checked under the lock: closing the channel also ends the connection that is
                    // current then.
                    let is_closed = alive.is_closed();
                    if !is_closed {
                        last = Some(std::mem::replace(&mut *current, Arc::clone(&connection)));
                    }
                    is_closed
                };
                drop(last);
                if is_closed {
                    return close(&connection.endpoint);
                }
                alive.counters.connect();
                alive.notify_changed();
            }
            Err(status) => {
                failures += 1;
                log(|| tracing::debug!(%status, failures, "no connection"));
            }
        }
    }
}

/// Returns the pause after this number of consecutive failures.
fn pause_after(failures: u32) -> Duration {
    let doubled = BACKOFF_MIN.saturating_mul(1 << (failures - 1).min(16));
    shorten_at_random(doubled.min(BACKOFF_MAX))
}

/// Shortens a pause by up to half.
pub(crate) fn shorten_at_random(pause: Duration) -> Duration {
    // Each `RandomState` has random keys of its own, which is random enough for a pause.
    let chance = RandomState::new().build_hasher().finish() % 1024;
    pause - pause.mul_f64(chance as f64 / 2048.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_differ() {
        for failures in 1..40 {
            let pause = pause_after(failures);
            assert!(pause >= BACKOFF_MIN / 2 && pause <= BACKOFF_MAX);
        }
        assert!(pause_after(1) <= BACKOFF_MIN);
        assert!(pause_after(30) >= BACKOFF_MAX / 2);
        let pauses: std::collections::HashSet<_> = (0..20).map(|_| pause_after(9)).collect();
        assert!(pauses.len() > 5);
    }
}
