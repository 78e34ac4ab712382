//! The connections of a channel: the current one, and the next when it takes no more calls.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tokio_fabric::Domain;

use super::connection::{ClientConnection, Reservation};
use crate::caught::{caught, caught_async, log};
use crate::drive::{Hub, close};
use crate::limits::{BACKOFF_MAX, BACKOFF_MIN, CALLS_PER_CONNECTION, CONNECT_TIMEOUT};
use crate::observe::ChannelCounters;
use crate::status::{Code, Result, Status};
use crate::wire::{Hello, Rejection};

pub(crate) struct ChannelInner {
    /// The connection that was made last.
    current: Mutex<Arc<ClientConnection>>,
    /// Notifies that another connection was made, or that none will be.
    changed: Notify,
    /// Whether no further connection will be made: the channel was closed, or its runtime has
    /// ended.
    is_closed: AtomicBool,
    pub(crate) deadline: Option<Duration>,
    pub(crate) counters: ChannelCounters,
    /// The server's addresses.
    addresses: Vec<SocketAddr>,
    /// Reads the messages and events of the connections.
    hub: Hub<ClientConnection>,
}

impl ChannelInner {
    pub(crate) fn current(&self) -> Arc<ClientConnection> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&current)
    }

    pub(crate) fn domain(&self) -> &Domain {
        &self.hub.domain
    }

    /// Waits until there is a connection that takes calls, or until none will be made any more.
    pub(crate) async fn ready(&self) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.is_closed() || self.current().with_machine(|machine| machine.is_open()) {
                return;
            }
            changed.await;
        }
    }

    /// Waits until a call would be sent at once, and reserves its room. `None`: this and all later
    /// calls would fail at once.
    pub(crate) async fn reserve(&self) -> Option<Reservation> {
        loop {
            self.ready().await;
            let connection = self.current();
            let mut freed = std::pin::pin!(connection.freed.notified());
            freed.as_mut().enable();
            let reservation = connection.reserve();
            if reservation.is_some() {
                return reservation;
            }
            if connection.with_machine(|machine| machine.is_open()) {
                freed.await;
            } else if self.is_closed() {
                return None;
            }
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Wakes the tasks that wait for a connection.
    pub(super) fn set_closed(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.notify_changed();
    }

    /// The wakers of the waiting tasks are the program's.
    fn notify_changed(&self) {
        caught("a waker", || self.changed.notify_waiters());
    }

    /// Connects to the first of the addresses that answers, and keeps connected to them.
    pub(super) async fn open(
        hub: Hub<ClientConnection>,
        addresses: Vec<SocketAddr>,
        deadline: Option<Duration>,
    ) -> Result<Arc<ChannelInner>> {
        let connection = ChannelInner::connect(&hub, &addresses).await?;
        let inner = Arc::new(ChannelInner {
            current: Mutex::new(connection),
            changed: Notify::new(),
            is_closed: AtomicBool::new(false),
            deadline,
            addresses,
            counters: ChannelCounters::default(),
            hub,
        });
        inner.counters.connect();
        tokio::spawn(keep_connected(Arc::downgrade(&inner)));
        Ok(inner)
    }

    /// Connects to the first of the addresses that answers.
    async fn connect(
        hub: &Hub<ClientConnection>,
        addresses: &[SocketAddr],
    ) -> Result<Arc<ClientConnection>> {
        let mut failed = Status::not_started(Code::Unavailable, "the name has no address");
        for address in addresses {
            match connect_to(hub, *address).await {
                Ok(connection) => return Ok(connection),
                Err(status) => failed = status,
            }
        }
        Err(failed)
    }
}

/// Notifies the task that reconnects.
impl Drop for ChannelInner {
    fn drop(&mut self) {
        self.current().closing.notify_one();
    }
}

async fn connect_to(
    hub: &Hub<ClientConnection>,
    address: SocketAddr,
) -> Result<Arc<ClientConnection>> {
    let endpoint = hub.endpoint(CALLS_PER_CONNECTION)?;
    let connection = ClientConnection::new(endpoint.clone());
    // Inserted first, so that messages that the server sends at once find the connection.
    hub.insert(endpoint.id(), &connection);
    let hello = Hello::default().encode();
    let connecting = endpoint.connect(address).timeout(CONNECT_TIMEOUT);
    let agreed = connecting
        .data(hello)
        .await
        .map_err(|error| Rejection::decode(error.data()).unwrap_or_else(|| error.into()));
    let agreed = agreed.and_then(|data| {
        if endpoint.peer_incarnation().is_none() {
            let what = "the peer lacks the library's extension, which calls rest on";
            return Err(Status::not_started(Code::Unavailable, what));
        }
        Hello::decode(&data).map_err(|error| Status::not_started(Code::Unavailable, error.0))
    });
    match agreed {
        Ok(server) => {
            connection.agree(&server);
            Ok(connection)
        }
        Err(status) => {
            hub.remove(endpoint.id());
            Err(status)
        }
    }
}

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
async fn keep_connected(channel: Weak<ChannelInner>) {
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
