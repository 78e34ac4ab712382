//! The connections of a channel: the current one, and its replacement once it takes no more calls.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tokio_fabric::Domain;

use super::backoff::{Backoff, shorten};
use super::connect::Connector;
use super::connection::{ClientConnection, RUNTIME_ENDED, Reservation};
use crate::caught::{caught, caught_async, log};
use crate::drive::{close, spawn};
use crate::limits::{BACKOFF_JITTER, CALLS_PER_CONNECTION, REFUSED_PAUSE_MIN};
use crate::observe::{ChannelCounters, ChannelStats};
use crate::status::{Code, Result, Started, Status};

pub(crate) struct ChannelInner {
    /// The connection that was made last. Before the first connection: a placeholder that has
    /// ended.
    current: Mutex<Arc<ClientConnection>>,
    /// Notifies waiting tasks that another connection was made, that the first attempt has failed,
    /// or that no connection will be made.
    changed: Notify,
    /// Whether no further connection will be made: the channel was closed, or its runtime has
    /// ended.
    is_closed: AtomicBool,
    /// Whether the first attempt to connect has ended.
    has_tried: AtomicBool,
    pub(crate) deadline: Option<Duration>,
    pub(crate) counters: ChannelCounters,
    pub(super) connector: Arc<Connector>,
    backoff: Backoff,
    /// Wakes the connecting task so that it connects now.
    hurry: Arc<Hurry>,
}

/// A request that a channel connects now, without waiting for its pause or its first call.
#[derive(Default)]
struct Hurry {
    is_wished: AtomicBool,
    notify: Notify,
}

impl Hurry {
    fn wish(&self) {
        self.is_wished.store(true, Ordering::Release);
        self.notify.notify_one();
    }

    /// Waits until a connection is requested.
    async fn wished(&self) {
        while !self.is_wished.swap(false, Ordering::AcqRel) {
            self.notify.notified().await;
        }
    }
}

impl ChannelInner {
    pub(crate) fn current(&self) -> Arc<ClientConnection> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&current)
    }

    pub(crate) fn domain(&self) -> &Domain {
        &self.connector.hub.domain
    }

    /// Returns the runtime in which the channel connects.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.connector.hub.runtime
    }

    /// Waits until a connection takes calls, until the channel will connect no more, or until the
    /// server refuses this client.
    pub(crate) async fn ready(&self) {
        self.wait_until(&|| self.is_refused()).await;
    }

    /// Like [`ready`](Self::ready), but returns once the first attempt to connect has failed.
    pub(crate) async fn tried(&self) {
        self.wait_until(&|| self.has_tried()).await;
    }

    async fn wait_until(&self, is_enough: &impl Fn() -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.is_closed() || self.is_open() || is_enough() {
                return;
            }
            self.connect_at_first();
            changed.await;
        }
    }

    /// Waits until a call would be sent at once, and reserves room for the call. `None`: the
    /// channel is closed, or `is_enough` holds.
    pub(crate) async fn reserve(&self, is_enough: impl Fn() -> bool) -> Option<Reservation> {
        loop {
            self.wait_until(&is_enough).await;
            let connection = self.current();
            let mut freed = std::pin::pin!(connection.freed.notified());
            freed.as_mut().enable();
            let reservation = connection.reserve();
            if reservation.is_some() {
                return reservation;
            }
            if connection.with_machine(|machine| machine.is_open()) {
                freed.await;
            } else if self.is_closed() || is_enough() {
                return None;
            }
        }
    }

    /// Returns the address and the name of the server of `connection`, or else of the current
    /// connection, for errors.
    pub(super) fn server(
        &self,
        connection: Option<&ClientConnection>,
    ) -> (Option<SocketAddr>, Option<String>) {
        let of = |connection: &ClientConnection| connection.endpoint.peer_addr();
        let address = connection.and_then(of).or_else(|| of(&self.current()));
        let known = || self.connector.known().first().copied();
        let name = self.connector.target.name().map(str::to_owned);
        (address.or_else(known), name)
    }

    pub(super) fn stats(&self) -> ChannelStats {
        ChannelStats {
            connections_lost: self.connector.losses.load(Ordering::Relaxed),
            ..self.counters.snapshot()
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Returns whether the current connection takes calls, now or later.
    pub(crate) fn is_open(&self) -> bool {
        self.current().with_machine(|machine| machine.is_open())
    }

    /// Returns whether the first attempt to connect has ended.
    pub(crate) fn has_tried(&self) -> bool {
        self.has_tried.load(Ordering::Acquire)
    }

    /// Returns whether the server refused this client at the last attempt to connect.
    pub(crate) fn is_refused(&self) -> bool {
        let is_refusal = |why: &Status| why.code() == Code::Unauthenticated;
        let current = self.current();
        current.with_machine(|machine| machine.why_ended().is_some_and(is_refusal))
    }

    /// Makes a lazy channel connect, if it has not begun to.
    pub(crate) fn connect_at_first(&self) {
        if !self.has_tried() {
            self.hurry.wish();
        }
    }

    /// Makes the channel connect now, if it is not connected.
    pub(super) fn reconnect_now(&self) {
        if !self.is_open() {
            self.hurry.wish();
        }
    }

    /// Looks the name up again, and moves to another address if the name has lost the present
    /// address.
    pub(super) async fn refresh(&self) -> Result<()> {
        let addresses = self.connector.look_up().await?;
        let last = self.current();
        let peer = last.endpoint.peer_addr();
        if !last.with_machine(|machine| machine.is_open()) {
            if self.has_tried() {
                self.hurry.wish();
            }
            return Ok(());
        }
        if peer.is_some_and(|peer| addresses.contains(&peer)) {
            return Ok(());
        }
        let connection = self.connector.connect_to_any(&addresses).await?;
        if self.replace(&connection) {
            last.retire();
        }
        Ok(())
    }

    /// Wakes the tasks that wait for a connection.
    pub(super) fn set_closed(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.notify_changed();
    }

    /// Runs the program's wakers, which may panic.
    fn notify_changed(&self) {
        caught("a waker", || self.changed.notify_waiters());
    }

    /// Connects to the first of the target's addresses that answers, and keeps connected.
    pub(super) async fn open(
        connector: Connector,
        backoff: Backoff,
        deadline: Option<Duration>,
    ) -> Result<Arc<ChannelInner>> {
        let connection = connector.connect().await?;
        let inner = ChannelInner::new(connector, backoff, deadline, connection, true);
        inner.counters.connect();
        Ok(inner)
    }

    /// Connects at the first use, and keeps connected from then on.
    pub(super) fn open_lazily(
        connector: Connector,
        backoff: Backoff,
        deadline: Option<Duration>,
    ) -> Result<Arc<ChannelInner>> {
        let endpoint = connector.hub.endpoint(CALLS_PER_CONNECTION)?;
        let none = ClientConnection::new(endpoint, &connector.losses);
        let status = Status::not_started(Code::Unavailable, "not connected yet");
        none.with_machine(|machine| machine.handle_end(&status, &mut Vec::new()));
        let inner = ChannelInner::new(connector, backoff, deadline, none, false);
        Ok(inner)
    }

    fn new(
        connector: Connector,
        backoff: Backoff,
        deadline: Option<Duration>,
        current: Arc<ClientConnection>,
        has_tried: bool,
    ) -> Arc<ChannelInner> {
        let inner = Arc::new(ChannelInner {
            current: Mutex::new(current),
            changed: Notify::new(),
            is_closed: AtomicBool::new(false),
            has_tried: AtomicBool::new(has_tried),
            deadline,
            counters: ChannelCounters::default(),
            connector: Arc::new(connector),
            backoff,
            hurry: Arc::default(),
        });
        spawn(keep_connected(Arc::downgrade(&inner)));
        inner
    }

    /// Makes a connection the current one. Returns false if the channel was closed meanwhile; then
    /// the connection is closed too.
    fn replace(&self, connection: &Arc<ClientConnection>) -> bool {
        // The old connection is dropped without the lock.
        let mut last = None;
        {
            let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
            // Checked under the lock, since closing the channel also ends its current connection.
            if !self.is_closed() {
                last = Some(std::mem::replace(&mut *current, Arc::clone(connection)));
            }
        }
        if last.is_none() {
            close(&connection.endpoint);
            return false;
        }
        self.counters.connect();
        self.has_tried.store(true, Ordering::Release);
        self.notify_changed();
        true
    }

    /// Records that an attempt has failed: calls fail with this reason from now on.
    fn note_failure(&self, status: &Status) {
        let is_refusal = status.code() == Code::Unauthenticated;
        let why = match status.code() {
            Code::Unavailable | Code::Unauthenticated => {
                status.clone().with_started(Started::NotStarted)
            }
            // The server rejected the connection; it refused no call.
            _ => Status::not_started(Code::Unavailable, status.reason()),
        };
        self.current().with_machine(|machine| machine.explain(&why));
        if !self.has_tried.swap(true, Ordering::AcqRel) || is_refusal {
            self.notify_changed();
        }
    }
}

/// Notifies the task that reconnects.
impl Drop for ChannelInner {
    fn drop(&mut self) {
        self.current().closing.notify_one();
        self.hurry.wish();
    }
}

/// Marks the channel as closed on drop, since no other connection will be made.
struct CloseOnDrop(Weak<ChannelInner>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let Some(channel) = self.0.upgrade() {
            if !channel.is_closed() {
                let status = Status::not_started(Code::Unavailable, RUNTIME_ENDED);
                let connection = channel.current();
                connection.with_machine(|machine| machine.explain(&status));
            }
            channel.set_closed();
        }
    }
}

/// Keeps a channel connected, until the channel or its runtime ends.
async fn keep_connected(channel: Weak<ChannelInner>) {
    let _ended = CloseOnDrop(Weak::clone(&channel));
    let Some((hurry, has_tried)) = channel
        .upgrade()
        .map(|it| (Arc::clone(&it.hurry), it.has_tried()))
    else {
        return;
    };
    // A lazy channel connects when it is used for the first time.
    if !has_tried {
        hurry.wished().await;
    }
    let (mut failures, mut connected) = (0, has_tried.then(Instant::now));
    let mut has_warned = false;
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
        let is_current = |it: &ChannelInner| Arc::ptr_eq(&connection, &it.current());
        if channel.upgrade().is_some_and(|it| !is_current(&it)) {
            // The channel has moved to another address.
            (failures, connected) = (0, Some(Instant::now()));
            continue;
        }
        drop(connection);
        let Some((backoff, random)) = channel
            .upgrade()
            .map(|it| (it.backoff, random_of(it.domain())))
        else {
            return;
        };
        // Pause before reconnecting to a server that accepts connections only to end them.
        let is_short = |at: Instant| backoff.is_within_first(at.elapsed());
        if failures == 0 && connected.is_some_and(is_short) {
            failures = 1;
        }
        if failures > 0 {
            let mut pause = backoff.pause_after(failures, random);
            if channel.upgrade().is_some_and(|it| it.is_refused()) {
                pause = pause.max(shorten(REFUSED_PAUSE_MIN, BACKOFF_JITTER, random));
            }
            if timeout(pause, hurry.wished()).await.is_ok() {
                failures = 0;
            }
        }
        let connecting = channel.upgrade().filter(|it| !it.is_closed());
        let Some(connector) = connecting.map(|it| Arc::clone(&it.connector)) else {
            return;
        };
        let connected_anew = caught_async("connecting", connector.connect()).await;
        let Some(alive) = channel.upgrade() else {
            return;
        };
        match connected_anew.unwrap_or_else(|| Err(Status::new(Code::Internal, ""))) {
            Ok(connection) => {
                (failures, connected) = (0, Some(Instant::now()));
                has_warned = false;
                if !alive.replace(&connection) {
                    return;
                }
            }
            Err(status) => {
                failures = failures.saturating_add(1);
                log(|| match std::mem::replace(&mut has_warned, true) {
                    false => tracing::warn!(%status, "no connection: connecting is tried again"),
                    true => tracing::debug!(%status, failures, "no connection"),
                });
                alive.note_failure(&status);
            }
        }
    }
}

/// Draws the random number that shortens a pause. A test may have chosen the domain's seed.
pub(crate) fn random_of(domain: &Domain) -> u64 {
    // Without random numbers, pauses have their full length.
    domain.random_number().unwrap_or(0)
}
