//! The driver: the one task, or thread, that makes a domain's progress.
//!
//! ```text
//!            1 completions  2 ready list  3 heartbeats  4 turns  5 regions, stop  6 timers
//!   woken ──▶ poll_drive ──▶ take_ready ──▶ begin ──────▶ port ──────▶ all ports ──▶ fire ──┐
//!     ▲           ▲                                                                         │
//!     │           └── something is left, and the budget is not spent ───────────────────────┤
//!     └── 7 park, spin, or yield to the runtime ◀────────────────────────────────────────────┘
//! ```
//!
//! A poll has a budget (`budget.rs`), which its turns share. Heartbeats and timers have budgets of
//! their own, so that they get on beside ports that are always ready, and ports beside them.
//!
//! `transport/run.rs` runs it: as a task on the current runtime; on a thread of its own, in a
//! runtime of that thread's (`epoll`, `loopback`) or in its ring (`io-uring`); or by those who wait
//! (`sync/manual.rs`). While it spins (`spin.rs`) it is polled again without parking, after the
//! other tasks of its runtime.
//!
//! The driver ends with its runtime, by a panic (a waker's, a buffer's drop), with its transport,
//! or after the last handle. Its drop takes everything back from the links and ends every operation
//! with `DriverGone`; later posts get the same. A thread drops its driver itself, since only that
//! thread may ask its ring for anything.

use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use crate::error::Error;
use crate::log::emit_held;
use crate::slab::Key;
use crate::sync::ProgressTask;
use crate::transport::{Backend, Clock};

use super::aside::{AsideTurns, TurnOutcome};
use super::budget::Budget;
use super::engine::{DriverCounts, Engine, append};
use super::liveness::{HeartbeatTimer, NextHeartbeat, PeerLiveness};
use super::pollable::{NextTurn, Pollable, TurnResult};
use super::spin::SpinState;

pub(super) struct Driver {
    engine: Arc<Engine>,
    clock: Box<dyn Clock>,
    /// Ports that are due, in the order in which they became ready.
    ready: VecDeque<Key>,
    /// Ports whose last turn spent the budget: those that have become ready meanwhile come first.
    requeued: VecDeque<Key>,
    /// When which port must have a turn.
    alarms: BTreeSet<(Instant, Key)>,
    /// When which port has its next heartbeat.
    heartbeats: BTreeSet<(Instant, Key)>,
    /// Ports that asked for heartbeats, and have had none since.
    new_heartbeats: VecDeque<Key>,
    heartbeat_timer: HeartbeatTimer,
    peer_liveness: PeerLiveness,
    /// The engine stops, and all ports have begun to close.
    stopping: bool,
    /// Why the transport is of no use any more.
    lost: Option<Error>,
    spin: SpinState,
    aside: AsideTurns,
    /// The transport makes ports ready within its `poll_drive`, which is not to wake who polls it.
    is_ring: bool,
    /// Its polls are asked for, also by tasks that never yield to their runtime.
    is_manual: bool,
    /// Something has moved since [`ProgressTask::has_moved`] was last asked.
    moved: bool,
    counts: DriverCounts,
}

/// What spinning within a poll has found.
enum SpinResult {
    Nothing,
    /// Bytes of a port, which has had its turn.
    Bytes,
    /// Completions for the transport.
    Completions,
}

impl Driver {
    pub(super) fn new(
        engine: Arc<Engine>,
        clock: Box<dyn Clock>,
        spin: SpinState,
        is_manual: bool,
    ) -> Self {
        Driver {
            is_manual,
            is_ring: engine.transport.backend() == Backend::IoUring,
            engine,
            heartbeat_timer: HeartbeatTimer::new(clock.now()),
            clock,
            ready: VecDeque::new(),
            requeued: VecDeque::new(),
            alarms: BTreeSet::new(),
            heartbeats: BTreeSet::new(),
            new_heartbeats: VecDeque::new(),
            peer_liveness: PeerLiveness::default(),
            stopping: false,
            lost: None,
            spin,
            aside: AsideTurns::default(),
            moved: false,
            counts: DriverCounts::default(),
        }
    }

    fn port(&self, key: Key) -> Option<Arc<dyn Pollable>> {
        self.engine.lock_ports().get(key).map(Arc::clone)
    }

    fn all_ports(&self) -> Vec<Key> {
        self.engine.lock_ports().keys()
    }

    /// One turn of one port, which begins now.
    fn turn(&mut self, key: Key, budget: &mut Budget) {
        let now = self.clock.now();
        self.turn_at(now, key, budget);
    }

    /// One turn of one port, within the budget; removes the port from the table when it has ended.
    /// Returns when it is over, which is when the next may begin.
    fn turn_at(&mut self, now: Instant, key: Key, budget: &mut Budget) -> Instant {
        let Some(port) = self.port(key) else {
            return now;
        };
        // Who drives by hand waits for the copies as for all the rest.
        if self.engine.copies_block() && !self.is_manual {
            match self.aside.under_way(key) {
                Some(due) => due.turn = true,
                None => self.aside.begin(&self.engine, key, port, now),
            }
            budget.spend_step();
            return now;
        }
        let turned = port.turn(now, &*self.clock, budget);
        self.turned_at(now, key, &*port, turned, budget)
    }

    /// A turn that began then is over. Returns when it was.
    fn turned_at(
        &mut self,
        now: Instant,
        key: Key,
        port: &dyn Pollable,
        turned: TurnResult,
        budget: &mut Budget,
    ) -> Instant {
        budget.spend_step();
        // What moves looks at the clock when it has.
        let ended = match budget.ticked_since(now) {
            Some(ended) => ended,
            None => self.clock.now(),
        };
        budget.tick(ended);
        let took = ended.saturating_duration_since(now).as_nanos() as u64; // Of 585 years.
        self.counts.turn_time += took;
        self.counts.longest_turn = self.counts.longest_turn.max(took);
        self.turned(key, port, turned);
        ended
    }

    /// What a turn leaves to the driver.
    fn turned(&mut self, key: Key, port: &dyn Pollable, turned: TurnResult) {
        self.counts.turns += 1;
        self.counts.completions += turned.completions;
        if let Some(at) = turned.stale_alarm {
            self.alarms.remove(&(at, key));
        }
        if let Some(at) = turned.alarm {
            self.alarms.insert((at, key));
        }
        match turned.next {
            NextTurn::WhenWoken => {}
            NextTurn::Requeued => self.requeued.push_back(key),
            NextTurn::Never => {
                self.remove_heartbeat(key, port);
                self.engine.lock_ports().remove(key);
            }
        }
    }

    fn remove_heartbeat(&mut self, key: Key, port: &dyn Pollable) {
        if let Some(at) = port.next_heartbeat() {
            self.heartbeats.remove(&(at, key));
        }
    }

    /// Takes the turns in that were made beside the driver, and does what has become due since.
    /// False: one has panicked, and everything ends, as by a turn of the driver's own.
    fn end_asides(&mut self, budget: &mut Budget) -> bool {
        for (key, turned) in self.engine.take_turned() {
            let mut due = self.aside.end(key);
            let Some(port) = self.port(key) else { continue };
            match turned {
                TurnOutcome::Over(turned) => self.turned(key, &*port, turned),
                // It is tried again, with the next poll.
                TurnOutcome::NotBegun => due.turn = true,
                TurnOutcome::Panicked => return false,
            }
            if due.close {
                port.begin_close();
            }
            if due.heartbeat {
                self.heartbeat(key, true, budget);
            }
            if due.new_heartbeat {
                self.new_heartbeats.push_back(key);
            }
            if due.turn || due.regions && port.regions_changed() {
                self.ready.push_back(key);
            }
        }
        true
    }

    /// A heartbeat of a port, which has another as long as it wants. `had_turn`: it comes behind a
    /// turn, as one must that is due while a turn is under way.
    fn heartbeat(&mut self, key: Key, had_turn: bool, budget: &mut Budget) {
        budget.spend_step();
        let Some(port) = self.port(key) else { return };
        for had_turn in [false, true].into_iter().skip(usize::from(had_turn)) {
            if let Some(due) = self.aside.under_way(key) {
                due.heartbeat = true;
                return;
            }
            let now = self.clock.now();
            budget.tick(now);
            let peers = &mut self.peer_liveness;
            match port.heartbeat(now, self.heartbeat_timer, peers, had_turn) {
                NextHeartbeat::AfterTurn => self.turn(key, budget),
                NextHeartbeat::At(next) => {
                    self.heartbeats.extend(next.map(|at| (at, key)));
                    return;
                }
            }
        }
    }

    /// Step 3: the first heartbeats of ports that asked for them. True if there are more.
    fn begin_heartbeats(&mut self) -> bool {
        let mut budget = None;
        while let Some(key) = self.new_heartbeats.pop_front() {
            let budget = budget.get_or_insert_with(|| Budget::of_poll(self.clock.now()));
            if let Some(due) = self.aside.under_way(key) {
                due.new_heartbeat = true;
                continue;
            }
            // One that is registered at a longer interval gives way.
            if let Some(port) = self.port(key) {
                self.remove_heartbeat(key, &*port);
            }
            self.heartbeat(key, false, budget);
            if budget.is_spent() {
                return !self.new_heartbeats.is_empty();
            }
        }
        false
    }

    /// Step 4: a turn for each port that is ready, as far as the budget goes. The clock is read
    /// once per turn: where one ends the next begins.
    fn turns(&mut self, mut now: Instant, budget: &mut Budget) -> Instant {
        while !budget.is_spent()
            && let Some(key) = self.ready.pop_front()
        {
            self.spin.had_turn(key);
            now = self.turn_at(now, key, budget);
        }
        now
    }

    /// Step 5: what concerns every port. A region was closed, or the engine stops.
    fn visit_all_ports(&mut self, budget: &mut Budget) {
        if self.engine.take_regions_changed() {
            for key in self.all_ports() {
                if let Some(due) = self.aside.under_way(key) {
                    due.regions = true;
                } else if self.port(key).is_some_and(|port| port.regions_changed()) {
                    self.turn(key, budget);
                }
            }
        }
        // Once: no port is opened in a domain that is closed.
        if self.engine.is_stopping() && !self.stopping {
            self.stopping = true;
            for key in self.all_ports() {
                if let Some(due) = self.aside.under_way(key) {
                    due.close = true;
                } else if let Some(port) = self.port(key) {
                    port.begin_close(); // Which makes it ready.
                }
            }
        }
    }

    /// Step 6: alarms and heartbeats that are due by now. True if there are more.
    fn fire_timers(&mut self, now: Instant, cx: &mut Context<'_>) -> bool {
        let mut budget = None;
        loop {
            let (alarm, heartbeat) = (self.alarms.first(), self.heartbeats.first());
            let Some(&(at, key)) = alarm.into_iter().chain(heartbeat).min() else {
                return false;
            };
            if self.clock.poll_deadline(at, now, cx).is_pending() {
                return false;
            }
            let budget = budget.get_or_insert_with(|| Budget::of_poll(self.clock.now()));
            if budget.is_spent() {
                return true;
            }
            if self.alarms.remove(&(at, key)) {
                self.turn(key, budget);
            } else {
                self.heartbeats.remove(&(at, key));
                self.heartbeat(key, false, budget);
            }
        }
    }

    /// True if nothing is left to do: the engine, and then the transport, wake the driver from here
    /// on.
    fn try_park(&self, cx: &Context<'_>) -> bool {
        self.ready.is_empty()
            && self.requeued.is_empty()
            && self
                .engine
                .try_park(cx.waker(), self.stopping, &self.counts)
            && self.engine.transport.try_park(cx.waker())
    }

    /// The port that had the last turn, and most often has the next one too.
    fn last_port(&self) -> Option<(Key, Arc<dyn Pollable>)> {
        let key = self.spin.last_port()?;
        Some((key, self.port(key)?))
    }

    /// Tries the port's socket. If there is anything it has a turn, which begins now.
    fn try_turn(
        &mut self,
        now: Instant,
        key: Key,
        port: &dyn Pollable,
        budget: &mut Budget,
    ) -> Option<TurnResult> {
        let turned = port.try_turn(now, &*self.clock, budget)?;
        self.turned_at(now, key, port, turned, budget);
        Some(turned)
    }

    /// Spins for a moment before the runtime polls other tasks: on the transport, and on the port
    /// that had the last turn, which has another if there is anything for it.
    fn spin(&mut self, active: bool, budget: &mut Budget) -> SpinResult {
        let Some(until) = self.spin.window().filter(|_| !active) else {
            return SpinResult::Nothing;
        };
        let last = self.last_port().filter(|_| !self.engine.copies_block());
        while !self.engine.transport.has_completions() {
            if let Some((key, port)) = &last {
                let now = self.clock.now();
                if self.try_turn(now, *key, &**port, budget).is_some() {
                    return SpinResult::Bytes;
                }
            }
            std::hint::spin_loop();
            if until <= Instant::now() {
                return SpinResult::Nothing;
            }
        }
        SpinResult::Completions
    }

    /// Has the driver polled again at once, if it spins.
    fn poll_again(&mut self, active: bool, cx: &mut Context<'_>) {
        if !self.spin.goes_on(active) {
            return;
        }
        // A driver that is polled again anyway need not be woken, which may cost a system call.
        self.engine.driver_is_awake();
        self.spin.yield_if_idle();
        self.yield_to_runtime(cx);
    }

    /// Has the driver polled again after the other tasks of the runtime and its reactor: merely
    /// woken, it would be polled dozens of times before that. A runtime may not run while turns are
    /// asked for: then the next one goes on.
    fn yield_to_runtime(&self, cx: &mut Context<'_>) {
        match self.is_manual {
            true => cx.waker().wake_by_ref(),
            false => _ = pin!(tokio::task::yield_now()).poll(cx),
        }
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut now = this.clock.now();
        let mut budget = Budget::of_poll(now);
        let mut active = false;
        this.counts.wakes += 1;
        if this.is_ring {
            this.engine.driver_is_awake();
        }
        loop {
            // 1. The transport takes in what the kernel has completed, which makes ports ready.
            let driven = this.engine.transport.poll_drive(cx);
            emit_held();
            match driven {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => {
                    budget.spend_step();
                    active = true;
                }
                // Everything ends with that, as the driver is dropped.
                Poll::Ready(Err(error)) => {
                    this.lost = Some(error);
                    return Poll::Ready(());
                }
            }
            // 2. Ports that have become ready come before those that spent the last budget.
            this.engine
                .take_ready(&mut this.ready, &mut this.new_heartbeats, &this.counts);
            append(&mut this.ready, &mut this.requeued);
            if this.engine.copies_block() && !this.end_asides(&mut budget) {
                this.lost = Some(Engine::gone_error());
                return Poll::Ready(());
            }
            // 3 to 6, each within a budget.
            let mut is_more_due = this.begin_heartbeats();
            let found = !this.ready.is_empty();
            active |= found;
            this.moved |= active;
            now = this.turns(now, &mut budget);
            this.visit_all_ports(&mut budget);
            is_more_due |= this.fire_timers(now, cx);
            if this.engine.is_stopping() && this.engine.lock_ports().len() == 0 {
                return Poll::Ready(());
            }
            // 7. Park if nothing is left, or spin if that is asked for.
            if !is_more_due && this.try_park(cx) {
                match this.spin(active, &mut budget) {
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
                // A transport whose kernel takes nothing, for want of memory, never parks.
                budget.spend_step();
            }
            if budget.is_spent() || is_more_due {
                this.yield_to_runtime(cx);
                return Poll::Pending;
            }
        }
    }
}

impl ProgressTask for Driver {
    fn is_due(&mut self) -> bool {
        let now = self.clock.now();
        let mut is_due = self.engine.transport.has_completions();
        if let Some((key, port)) = self.last_port()
            && let Some(turned) = self.try_turn(now, key, &*port, &mut Budget::of_poll(now))
        {
            self.moved = true;
            self.engine.publish_counts(&self.counts);
            // What the turn leaves to the driver.
            is_due |= turned.next != NextTurn::WhenWoken || turned.alarm.is_some();
        }
        let timers = [self.alarms.first(), self.heartbeats.first()];
        is_due || timers.into_iter().flatten().any(|(at, _)| *at <= now)
    }

    fn has_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }
}

impl Drop for Driver {
    /// The runtime is ending, the driver has panicked, its transport is lost, or the last handle
    /// has gone: everything still bound to this engine ends now, so that nothing is awaited
    /// indefinitely (ruling 11).
    fn drop(&mut self) {
        let (engine, lost) = (Arc::clone(&self.engine), self.lost.take());
        let is_asked = engine.is_stopping();
        caught(|| log_end(&engine.span, lost.as_ref(), is_asked));
        if is_asked {
            // Before anybody learns that it has ended, and closes the event queue.
            caught(|| engine.drop_end_report());
        }
        caught(|| engine.set_gone(lost.unwrap_or_else(Engine::gone_error)));
        for key in self.all_ports() {
            let port = self.port(key);
            caught(|| port.iter().for_each(|port| port.driver_gone()));
            // It may be the last to hold what applications gave it: dropped after unlocking.
            let listed = engine.lock_ports().remove(key);
            caught(|| drop((port, listed)));
        }
        engine.transport.shutdown();
        caught(|| engine.report_end());
    }
}

/// A step of the driver's end: what made the driver panic (a waker, a subscriber, a buffer's drop)
/// may do it again, and the other steps are done all the same.
fn caught(step: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(step)).is_err() {
        // The subscriber may be what panics.
        let log = || tracing::error!("a step of a driver's end panicked");
        let _ = catch_unwind(log);
    }
}

fn log_end(span: &tracing::Span, lost: Option<&Error>, is_asked: bool) {
    match lost {
        Some(error) => tracing::error!(parent: span, %error, "the driver has lost its backend"),
        None if is_asked => tracing::info!(parent: span, "domain closed"),
        None => tracing::info!(parent: span, "the driver ends before its domain"),
    }
}
