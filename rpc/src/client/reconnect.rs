//! Reconnects a channel whose last connection takes no more calls.

use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_fabric::Domain;

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
            let Some(random) = channel.upgrade().map(|it| random_of(it.domain())) else {
                return;
            };
            sleep(pause_after(failures, random)).await;
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
fn pause_after(failures: u32, random: u64) -> Duration {
    let doubled = BACKOFF_MIN.saturating_mul(1 << (failures - 1).min(16));
    shorten(doubled.min(BACKOFF_MAX), random)
}

/// Draws the number that shortens a pause, from the domain, whose seed a test may have chosen.
pub(crate) fn random_of(domain: &Domain) -> u64 {
    // Without random numbers all pauses are of their full length.
    domain.random_number().unwrap_or(0)
}

/// Shortens a pause by up to half, as this random number says.
pub(crate) fn shorten(pause: Duration, random: u64) -> Duration {
    pause - pause.mul_f64((random % 1024) as f64 / 2048.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_differ() {
        for random in [0, 7, 1023, u64::MAX] {
            for failures in 1..40 {
                let pause = pause_after(failures, random);
                assert!(pause >= BACKOFF_MIN / 2 && pause <= BACKOFF_MAX);
            }
            assert!(pause_after(1, random) <= BACKOFF_MIN);
            assert!(pause_after(30, random) >= BACKOFF_MAX / 2);
        }
        let pauses: std::collections::HashSet<_> = (0..20).map(|at| pause_after(9, at)).collect();
        assert_eq!(pauses.len(), 20);
    }
}
