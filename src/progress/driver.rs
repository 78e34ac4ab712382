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
//! A poll has a budget (`budget.rs`), which its turns share. Heartbeats and timers have separate
//! budgets: ports that are always ready cannot delay them, and they cannot delay the ports.
//!
//! `transport/run.rs` runs the driver: as a task on the current runtime; on a thread of its own, in
//! that thread's runtime (`epoll`, `loopback`) or ring (`io-uring`); or from the tasks that wait
//! for it (`sync/manual.rs`). While it spins (`spin.rs`) it is polled again without parking, after
//! the other tasks of its runtime.
//!
//! The driver ends when its runtime or its transport ends, when something in it panics (a waker,
//! the drop of a buffer), or after the last handle is dropped. Its drop takes everything back from
//! the links and ends every operation with `DriverGone`; later posts fail with the same error. A
//! thread drops its driver itself, since only that thread may use its ring.

use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use crate::error::Error;
use crate::log::emit_held;
use crate::slab::Key;
use crate::sync::ProgressTask;
use crate::transport::{Backend, Clock};

use super::blocking_turns::{BlockingTurns, TurnOutcome};
use super::budget::Budget;
use super::engine::{Engine, append};
use super::liveness::{HeartbeatTimer, NextHeartbeat, PeerLiveness};
use super::pollable::{NextTurn, Pollable, TurnResult};
use super::spin::SpinState;

pub(super) struct Driver {
    engine: Arc<Engine>,
    clock: Box<dyn Clock>,
    /// Ports that are ready, in the order in which they became so.
    ready: VecDeque<Key>,
    /// Ports that spent the budget in their last turn. Ports that became ready meanwhile come
    /// first.
    requeued: VecDeque<Key>,
    /// What is due for ports, and when.
    timers: BTreeSet<(Instant, Key, TimerKind)>,
    /// Ports that asked for heartbeats and have not had one since.
    new_heartbeats: VecDeque<Key>,
    heartbeat_timer: HeartbeatTimer,
    peer_liveness: PeerLiveness,
    /// True once the engine is stopping and all ports have begun to close.
    stopping: bool,
    /// The reason why the transport cannot be used any more.
    lost: Option<Error>,
    spin: SpinState,
    /// The port that is polled while the driver spins.
    polled: Option<Key>,
    blocking_turns: BlockingTurns,
    /// True for a ring: the transport makes ports ready within its own `poll_drive`, and must not
    /// wake the task that calls it.
    is_ring: bool,
    /// True with manual progress: the driver is polled on request, also by tasks that never yield
    /// to their runtime.
    is_manual: bool,
    /// True if anything has moved since the last call of [`ProgressTask::has_moved`].
    moved: bool,
}

/// What is due for a port at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TimerKind {
    /// The port must have a turn.
    Alarm,
    Heartbeat,
}

/// Result of spinning within a poll.
enum SpinResult {
    Nothing,
    /// A port had bytes, and has had its turn.
    Bytes,
    /// The transport has completions.
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
            timers: BTreeSet::new(),
            new_heartbeats: VecDeque::new(),
            peer_liveness: PeerLiveness::default(),
            stopping: false,
            lost: None,
            spin,
            polled: None,
            blocking_turns: BlockingTurns::default(),
            moved: false,
        }
    }

    fn port(&self, key: Key) -> Option<Arc<dyn Pollable>> {
        self.engine.lock_ports().get(key).map(Arc::clone)
    }

    fn all_ports(&self) -> Vec<Key> {
        self.engine.lock_ports().keys()
    }

    /// Gives one port a turn, which begins now.
    fn turn(&mut self, key: Key, budget: &mut Budget) {
        let now = self.clock.now();
        self.turn_at(now, key, budget);
    }

    /// Gives one port a turn, within the budget, and removes the port from the table if it has
    /// ended. Returns the time at which the turn ended: the next turn may begin then.
    fn turn_at(&mut self, now: Instant, key: Key, budget: &mut Budget) -> Instant {
        let Some(port) = self.port(key) else {
            return now;
        };
        // With manual progress the turn runs here: the task that polls the driver may block on
        // copies.
        if self.engine.copies_block() && !self.is_manual {
            match self.blocking_turns.under_way(key) {
                Some(due) => due.turn = true,
                None => self.blocking_turns.begin(&self.engine, key, port, now),
            }
            budget.spend_step();
            return now;
        }
        let turned = port.turn(now, &*self.clock, budget);
        self.turned_at(now, key, &*port, turned, budget)
    }

    /// Accounts for a turn that began at `now` and has ended. Returns the time at which it ended.
    fn turned_at(
        &mut self,
        now: Instant,
        key: Key,
        port: &dyn Pollable,
        turned: TurnResult,
        budget: &mut Budget,
    ) -> Instant {
        budget.spend_step();
        // A turn that moved anything has read the clock meanwhile.
        let ended = match budget.ticked_since(now) {
            Some(ended) => ended,
            None => self.clock.now(),
        };
        budget.tick(ended);
        let took = ended.saturating_duration_since(now).as_nanos() as u64; // Up to 585 years.
        let counts = &self.engine.counts;
        add(&counts.turn_time, took);
        let longest = counts.longest_turn.load(Ordering::Relaxed).max(took);
        counts.longest_turn.store(longest, Ordering::Relaxed);
        self.turned(key, port, turned);
        ended
    }

    /// Applies the result of a turn: its alarms, and when the port's next turn is.
    fn turned(&mut self, key: Key, port: &dyn Pollable, turned: TurnResult) {
        add(&self.engine.counts.turns, 1);
        add(&self.engine.counts.completions, turned.completions);
        if let Some(at) = turned.stale_alarm {
            self.timers.remove(&(at, key, TimerKind::Alarm));
        }
        if let Some(at) = turned.alarm {
            self.timers.insert((at, key, TimerKind::Alarm));
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
            self.timers.remove(&(at, key, TimerKind::Heartbeat));
        }
    }

    /// Handles the blocking turns that have ended, and the work that became due for their ports
    /// meanwhile. Returns false if a turn has panicked: the driver then ends, as after a panic in a
    /// turn of its own.
    fn finish_blocking_turns(&mut self, budget: &mut Budget) -> bool {
        for (key, turned) in self.engine.take_turned() {
            let mut due = self.blocking_turns.end(key);
            let Some(port) = self.port(key) else { continue };
            match turned {
                TurnOutcome::Over(turned) => self.turned(key, &*port, turned),
                // The next poll tries it again.
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

    /// Gives a port its heartbeat, and registers the next one if the port wants it. `had_turn`: the
    /// port has just had a turn, as when the heartbeat became due during a blocking turn.
    fn heartbeat(&mut self, key: Key, had_turn: bool, budget: &mut Budget) {
        budget.spend_step();
        let Some(port) = self.port(key) else { return };
        for had_turn in [false, true].into_iter().skip(usize::from(had_turn)) {
            if let Some(due) = self.blocking_turns.under_way(key) {
                due.heartbeat = true;
                return;
            }
            let now = self.clock.now();
            budget.tick(now);
            let peers = &mut self.peer_liveness;
            match port.heartbeat(now, self.heartbeat_timer, peers, had_turn) {
                NextHeartbeat::AfterTurn => self.turn(key, budget),
                NextHeartbeat::At(next) => {
                    let next = next.map(|at| (at, key, TimerKind::Heartbeat));
                    self.timers.extend(next);
                    return;
                }
            }
        }
    }

    /// Step 3: gives ports that asked for heartbeats their first one. Returns true if some ports
    /// are left.
    fn begin_heartbeats(&mut self) -> bool {
        let mut budget = None;
        while let Some(key) = self.new_heartbeats.pop_front() {
            let budget = budget.get_or_insert_with(|| Budget::of_poll(self.clock.now()));
            if let Some(due) = self.blocking_turns.under_way(key) {
                due.new_heartbeat = true;
                continue;
            }
            // A heartbeat that is registered at a longer interval is replaced.
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

    /// Step 4: gives each ready port a turn, as far as the budget goes. The clock is read once per
    /// turn: the next turn begins when the last has ended.
    fn turns(&mut self, mut now: Instant, budget: &mut Budget) -> Instant {
        while !budget.is_spent()
            && let Some(key) = self.ready.pop_front()
        {
            self.spin.had_turn(key);
            if self.polled.is_some_and(|polled| polled != key) {
                self.set_polled(None);
            }
            now = self.turn_at(now, key, budget);
        }
        now
    }

    /// Step 5: visits all ports if a region was closed or the engine stops.
    fn visit_all_ports(&mut self, budget: &mut Budget) {
        if self.engine.take_regions_changed() {
            for key in self.all_ports() {
                if let Some(due) = self.blocking_turns.under_way(key) {
                    due.regions = true;
                } else if self.port(key).is_some_and(|port| port.regions_changed()) {
                    self.turn(key, budget);
                }
            }
        }
        // Done once: no port is opened in a domain that is closed.
        if self.engine.is_stopping() && !self.stopping {
            self.stopping = true;
            for key in self.all_ports() {
                if let Some(due) = self.blocking_turns.under_way(key) {
                    due.close = true;
                } else if let Some(port) = self.port(key) {
                    port.begin_close(); // This makes the port ready.
                }
            }
        }
    }

    /// Step 6: fires the alarms and heartbeats that are due by now. Returns true if some are left.
    fn fire_timers(&mut self, now: Instant, cx: &mut Context<'_>) -> bool {
        let mut budget = None;
        loop {
            let Some(&(at, key, kind)) = self.timers.first() else {
                return false;
            };
            if self.clock.poll_deadline(at, now, cx).is_pending() {
                return false;
            }
            let budget = budget.get_or_insert_with(|| Budget::of_poll(self.clock.now()));
            if budget.is_spent() {
                return true;
            }
            self.timers.pop_first();
            match kind {
                TimerKind::Alarm => self.turn(key, budget),
                TimerKind::Heartbeat => self.heartbeat(key, false, budget),
            }
        }
    }

    /// Returns true if nothing is left to do; from then on the engine and the transport wake the
    /// driver.
    fn try_park(&self, cx: &Context<'_>) -> bool {
        self.ready.is_empty()
            && self.requeued.is_empty()
            && self.engine.try_park(cx.waker(), self.stopping)
            && self.engine.transport.try_park(cx.waker())
    }

    /// Returns the port that had the last turn; mostly it has the next turn too.
    fn last_port(&self) -> Option<(Key, Arc<dyn Pollable>)> {
        let key = self.spin.last_port()?;
        Some((key, self.port(key)?))
    }

    /// Polls the port's socket. If the socket has anything, the port has a turn that begins at
    /// `now`.
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

    /// Sets the port that the driver polls while it spins. All other ports are woken by their
    /// peers.
    #[inline]
    fn set_polled(&mut self, polled: Option<Key>) {
        if self.polled != polled {
            self.replace_polled(polled);
        }
    }

    #[inline(never)]
    fn replace_polled(&mut self, polled: Option<Key>) {
        for (key, is_polled) in [(self.polled, false), (polled, true)] {
            if let Some(port) = key.and_then(|key| self.port(key)) {
                port.set_polled(is_polled);
            }
        }
        self.polled = polled;
    }

    /// Spins for a moment before the runtime polls other tasks. Polls the transport, and the port
    /// that had the last turn: that port has another turn if anything has come for it.
    fn spin(&mut self, active: bool, budget: &mut Budget) -> SpinResult {
        let Some(until) = self.spin.window().filter(|_| !active) else {
            return SpinResult::Nothing;
        };
        let last = self.last_port().filter(|_| !self.engine.copies_block());
        self.set_polled(last.as_ref().map(|(key, _)| *key));
        let result = loop {
            if self.engine.transport.has_completions() {
                break SpinResult::Completions;
            }
            if let Some((key, port)) = &last {
                let now = self.clock.now();
                if self.try_turn(now, *key, &**port, budget).is_some() {
                    break SpinResult::Bytes;
                }
            }
            std::hint::spin_loop();
            if until <= Instant::now() {
                break SpinResult::Nothing;
            }
        };
        let found = !matches!(result, SpinResult::Nothing);
        self.spin.note_window(found);
        result
    }

    /// Makes the runtime poll the driver again at once, if the driver spins.
    fn poll_again(&mut self, active: bool, cx: &mut Context<'_>) {
        if !self.spin.goes_on(active) {
            self.set_polled(None);
            return;
        }
        // A driver that is polled again anyway need not be woken, which may cost a system call.
        self.engine.driver_is_awake();
        self.spin.yield_if_idle();
        match self.spin.is_reactor_due() {
            true => self.yield_to_runtime(cx),
            // The driver is polled after the tasks that it has woken.
            false => cx.waker().wake_by_ref(),
        }
    }

    /// Makes the runtime poll the driver after its other tasks and its reactor. A driver that only
    /// woke itself would be polled dozens of times before them. With manual progress the runtime
    /// may not run while tasks ask for turns, so the driver wakes its waker instead.
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
        add(&this.engine.counts.wakes, 1);
        if this.is_ring {
            this.engine.driver_is_awake();
        }
        loop {
            // 1. The transport processes completions of the kernel, which makes ports ready.
            let driven = this.engine.transport.poll_drive(cx);
            emit_held();
            match driven {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => {
                    budget.spend_step();
                    active = true;
                }
                // The drop of the driver ends all operations with this error of the transport.
                Poll::Ready(Err(error)) => {
                    this.lost = Some(error);
                    return Poll::Ready(());
                }
            }
            // 2. Ports that have become ready come before ports that spent the last budget.
            this.engine
                .take_ready(&mut this.ready, &mut this.new_heartbeats);
            append(&mut this.ready, &mut this.requeued);
            if this.engine.copies_block() && !this.finish_blocking_turns(&mut budget) {
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
            // 7. Park if nothing is left, or spin if `busy_poll` is set.
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
                // A transport does not park while the kernel refuses its submissions for lack of
                // memory.
                budget.spend_step();
            }
            if budget.is_spent() || is_more_due {
                // The port is not polled while other work is due.
                this.set_polled(None);
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
            // Count what the turn leaves to the driver as due.
            is_due |= turned.next != NextTurn::WhenWoken || turned.alarm.is_some();
        }
        is_due || self.timers.first().is_some_and(|(at, ..)| *at <= now)
    }

    fn has_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }
}

impl Drop for Driver {
    /// Ends everything that is still bound to this engine, so that nothing is awaited indefinitely
    /// (ruling 11). The runtime is ending, the driver has panicked, its transport is lost, or the
    /// last handle was dropped.
    fn drop(&mut self) {
        let (engine, lost) = (Arc::clone(&self.engine), self.lost.take());
        let is_asked = engine.is_stopping();
        caught(|| log_end(&engine.span, lost.as_ref(), is_asked));
        if is_asked {
            // Dropped first: once the end is known the application may close the event queue.
            caught(|| engine.drop_end_report());
        }
        caught(|| engine.set_gone(lost.unwrap_or_else(Engine::gone_error)));
        for key in self.all_ports() {
            let port = self.port(key);
            caught(|| port.iter().for_each(|port| port.driver_gone()));
            // The port may hold the last reference to objects of the application: dropped after
            // unlocking.
            let listed = engine.lock_ports().remove(key);
            caught(|| drop((port, listed)));
        }
        engine.transport.shutdown();
        caught(|| engine.report_end());
    }
}

/// Adds to a count that only the driver changes.
fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

/// Runs one step of the driver's end. Whatever made the driver panic (a waker, a subscriber, the
/// drop of a buffer) may panic again, and must not keep the other steps from running.
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
