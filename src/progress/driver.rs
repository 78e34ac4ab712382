//! The driver: the one task, or thread, that makes a domain's progress.

use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use crate::error::Error;
use crate::slab::Key;
use crate::transport::Clock;

use super::budget::Budget;
use super::driven::Driven;
use super::engine::Engine;
use super::liveness::{HeartbeatTimer, PeerLiveness};
use super::spin::SpinState;

pub(super) struct Driver {
    engine: Arc<Engine>,
    clock: Box<dyn Clock>,
    /// Ports that are due, in the order in which they became ready.
    ready: VecDeque<Key>,
    /// Ports whose last turn spent the budget: those that have become ready meanwhile come first.
    cut: VecDeque<Key>,
    deadlines: BTreeSet<(Instant, Key)>,
    /// When which port has its next heartbeat.
    heartbeats: BTreeSet<(Instant, Key)>,
    /// Ports to be put there.
    enlisted: VecDeque<Key>,
    heartbeat_timer: HeartbeatTimer,
    peer_liveness: PeerLiveness,
    /// All ports have been told that the engine stops.
    stopping: bool,
    /// Why the transport is of no use any more.
    lost: Option<Error>,
    spin: SpinState,
}

/// What spinning within a poll has found.
enum SpinResult {
    Nothing,
    /// Bytes of a port, which has had its turn.
    Bytes,
    /// Something to be taken in by the transport.
    Completions,
}

impl Driver {
    pub(super) fn new(engine: Arc<Engine>, clock: Box<dyn Clock>, spin: SpinState) -> Self {
        Driver {
            engine,
            heartbeat_timer: HeartbeatTimer::new(clock.now()),
            clock,
            ready: VecDeque::new(),
            cut: VecDeque::new(),
            deadlines: BTreeSet::new(),
            heartbeats: BTreeSet::new(),
            enlisted: VecDeque::new(),
            peer_liveness: PeerLiveness::default(),
            stopping: false,
            lost: None,
            spin,
        }
    }

    fn port(&self, key: Key) -> Option<Arc<dyn Driven>> {
        self.engine.lock_ports().get(key).map(Arc::clone)
    }

    /// One turn of one port, within the budget of `poll`; drops it from the table when it is over.
    fn turn(&mut self, key: Key, poll: &mut Budget) {
        let Some(port) = self.port(key) else { return };
        let now = self.clock.now();
        let turned = port.turn(now, &*self.clock, poll);
        poll.spend(0);
        poll.tick(now);
        if turned.is_cut {
            self.cut.push_back(key);
        }
        if let Some(at) = turned.stale {
            self.deadlines.remove(&(at, key));
        }
        if let Some(at) = turned.alarm {
            self.deadlines.insert((at, key));
        }
        if turned.is_over {
            if let (Some(at), _) = port.before_heartbeat(now, &self.peer_liveness) {
                self.heartbeats.remove(&(at, key));
            }
            self.engine.lock_ports().remove(key);
        }
    }

    /// A heartbeat of a port, which has another as long as it wants.
    fn heartbeat(&mut self, key: Key, poll: &mut Budget) {
        poll.spend(0);
        let Some(port) = self.port(key) else { return };
        let now = self.clock.now();
        let (registered, must_turn) = port.before_heartbeat(now, &self.peer_liveness);
        if let Some(at) = registered {
            self.heartbeats.remove(&(at, key));
        }
        if must_turn {
            self.turn(key, poll);
        }
        let now = self.clock.now();
        poll.tick(now);
        if let Some(at) = port.heartbeat(now, self.heartbeat_timer, &mut self.peer_liveness) {
            self.heartbeats.insert((at, key));
        }
    }

    /// The first heartbeats of ports that asked for them. True if there are more.
    fn begin_heartbeats(&mut self) -> bool {
        let mut left = None;
        while let Some(key) = self.enlisted.pop_front() {
            let left = left.get_or_insert_with(|| Budget::of_poll(self.clock.now()));
            self.heartbeat(key, left);
            if left.is_spent() {
                return !self.enlisted.is_empty();
            }
        }
        false
    }

    /// Does what is due by now. True if there is more. It has a budget of its own, so that it gets
    /// on beside whatever is ready.
    fn fire_deadlines(&mut self, cx: &mut Context<'_>) -> bool {
        let mut left = None;
        loop {
            let (deadline, heartbeat) = (self.deadlines.first(), self.heartbeats.first());
            let Some(&(at, key)) = deadline.into_iter().chain(heartbeat).min() else {
                return false;
            };
            if self.clock.poll_deadline(at, cx).is_pending() {
                return false;
            }
            let left = left.get_or_insert_with(|| Budget::of_poll(self.clock.now()));
            if left.is_spent() {
                return true;
            }
            if self.deadlines.remove(&(at, key)) {
                self.turn(key, left);
            } else {
                self.heartbeats.remove(&(at, key));
                self.heartbeat(key, left);
            }
        }
    }

    /// Spins for a moment, before the runtime polls others: on the ring, and on the port that had
    /// the last turn, which has one if there is anything.
    fn spin(&mut self, active: bool, poll: &mut Budget) -> SpinResult {
        let Some(until) = self.spin.window().filter(|_| !active) else {
            return SpinResult::Nothing;
        };
        let last = self.spin.last_port();
        let port = last.and_then(|key| Some((key, self.port(key)?)));
        while !self.engine.transport.look() {
            if let Some((key, port)) = &port
                && port.try_link()
            {
                self.turn(*key, poll);
                return SpinResult::Bytes;
            }
            std::hint::spin_loop();
            if until <= Instant::now() {
                return SpinResult::Nothing;
            }
        }
        SpinResult::Completions
    }

    /// Nothing is left to do: sees to it that the driver is polled again at once, if it spins.
    fn poll_again(&mut self, active: bool, cx: &mut Context<'_>) {
        if !self.spin.goes_on(active) {
            return;
        }
        // Who looks again by itself need not be woken, which may cost a system call.
        self.engine.driver_is_awake();
        self.spin.yield_if_idle();
        come_back(cx);
    }

    fn all_ports(&self) -> Vec<Key> {
        self.engine.lock_ports().keys()
    }
}

/// Has the driver polled again, after the other tasks of the runtime and a look of its at the
/// reactor: merely woken, it would be polled dozens of times before that.
fn come_back(cx: &mut Context<'_>) {
    let _ = pin!(tokio::task::yield_now()).poll(cx);
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut left = Budget::of_poll(this.clock.now());
        let mut active = false;
        loop {
            match this.engine.transport.poll_drive(cx) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => {
                    left.spend(0);
                    active = true;
                }
                // Everything ends with that, as the driver is dropped.
                Poll::Ready(Err(error)) => {
                    this.lost = Some(error);
                    return Poll::Ready(());
                }
            }
            this.engine.take_ready(&mut this.ready, &mut this.enlisted);
            this.ready.append(&mut this.cut);
            let mut is_more_due = this.begin_heartbeats();
            let found = !this.ready.is_empty();
            active |= found;
            while !left.is_spent()
                && let Some(key) = this.ready.pop_front()
            {
                this.spin.had_turn(key);
                this.turn(key, &mut left);
            }
            if this.engine.take_regions_changed() {
                for key in this.all_ports() {
                    if this.port(key).is_some_and(|port| port.regions_changed()) {
                        this.turn(key, &mut left);
                    }
                }
            }
            // Once: no port is opened in a domain that is closed.
            if this.engine.is_stopping() && !this.stopping {
                this.stopping = true;
                for key in this.all_ports() {
                    if let Some(port) = this.port(key) {
                        port.begin_close(); // Which makes it ready.
                    }
                }
            }
            is_more_due |= this.fire_deadlines(cx);
            if this.engine.is_stopping() && this.engine.lock_ports().len() == 0 {
                return Poll::Ready(());
            }
            let is_done = this.ready.is_empty()
                && this.cut.is_empty()
                && !is_more_due
                && this.engine.may_rest(cx.waker(), this.stopping)
                && this.engine.transport.rest(cx.waker());
            if is_done {
                match this.spin(active, &mut left) {
                    SpinResult::Completions => {
                        active = true;
                        continue;
                    }
                    SpinResult::Nothing => this.poll_again(active, cx),
                    SpinResult::Bytes => this.poll_again(true, cx),
                }
                return Poll::Pending;
            }
            if !found {
                // A kernel that takes nothing, for want of memory, is not asked for ever.
                left.spend(0);
            }
            if left.is_spent() || is_more_due {
                come_back(cx);
                return Poll::Pending;
            }
        }
    }
}

impl Drop for Driver {
    /// The runtime is ending, the driver has panicked, its transport is lost, or the last handle
    /// has gone: everything still bound to this engine ends now, so that nobody waits for ever
    /// (ruling 11).
    fn drop(&mut self) {
        let why = self.lost.take().unwrap_or_else(Engine::gone_error);
        self.engine.set_gone(why);
        for key in self.all_ports() {
            // Whoever made the driver panic (a waker, a buffer's drop) may do it again; the other
            // ports have to be told all the same.
            let ended = catch_unwind(AssertUnwindSafe(|| {
                if let Some(port) = self.port(key) {
                    port.driver_gone();
                }
                // It may be the last to hold what applications gave it: dropped after unlocking.
                let port = self.engine.lock_ports().remove(key);
                drop(port);
            }));
            if ended.is_err() {
                tracing::error!("ending a connection of a driver that is gone panicked");
            }
        }
        self.engine.transport.driver_gone();
    }
}
