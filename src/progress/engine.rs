//! The engine of a domain: the state that handles and the driver share.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::mr::MrTable;
use crate::random::RandomSource;
use crate::slab::{Key, Slab};
use crate::stats::DriverStats;
use crate::sync::{Lock, Notify, WaiterKey, Waiters, WakeList};
use crate::transport::{Executor, Transport};

use super::blocking_turns::TurnOutcome;
use super::driver::Driver;
use super::end_report::EndReport;
use super::liveness::spread;
use super::local::LocalConfig;
use super::pollable::Pollable;
use super::port::Port;
use super::ready::ReadyList;
use super::spin::SpinState;

pub(crate) struct EngineConfig {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) regions: Arc<Lock<MrTable>>,
    pub(crate) random: RandomSource,
    /// Runs the driver.
    pub(crate) executor: Executor,
    /// How long the driver spins after the last activity.
    pub(crate) busy_poll: Duration,
    /// Configuration of shared memory for connections, the same for all engines of a domain.
    pub(crate) local: LocalConfig,
    /// The domain's span.
    pub(crate) span: tracing::Span,
}

/// State shared by the driver, the ports and the handles of one domain.
pub(crate) struct Engine {
    pub(super) transport: Arc<dyn Transport>,
    pub(super) regions: Arc<Lock<MrTable>>,
    /// True if peers must prove the keys of their accesses (`FI_MR_RAW`).
    pub(super) demands_tags: bool,
    /// The source of this engine's random numbers.
    pub(super) random: RandomSource,
    pub(super) local: LocalConfig,
    /// The domain's span: the spans of its connections are within it.
    pub(super) span: tracing::Span,
    /// Number by which peers distinguish this domain from earlier ones of the process; not 0.
    incarnation: u64,
    pub(super) ports: Mutex<Slab<Arc<dyn Pollable>>>,
    pub(super) ready: Arc<ReadyList>,
    pub(super) counts: DriverCounts,
    stopping: AtomicBool,
    /// The reason why nothing makes progress any more, once the driver has ended.
    gone: OnceLock<Error>,
    /// Wakers of the tasks of connectionless endpoints, which call [`Engine::poll_gone`] in each
    /// poll and hold no future in between.
    gone_waiters: Mutex<Waiters>,
    /// Wakes futures that wait for the driver's end, and forgets futures that are dropped.
    ended: Notify,
    /// The slot in which the end of the driver is reported.
    end_report: Mutex<Option<EndReport>>,
    /// True if a region was revoked or closed: kernel operations on it must be cancelled.
    regions_changed: AtomicBool,
    /// True if copies of device memory may block.
    copies_block: AtomicBool,
    /// Number of ports that have been opened.
    ports_opened: AtomicU64,
}

/// Counts kept by the driver, which alone changes them.
#[derive(Debug, Default)]
pub(super) struct DriverCounts {
    pub(super) wakes: AtomicU64,
    pub(super) turns: AtomicU64,
    pub(super) completions: AtomicU64,
    /// In nanoseconds.
    pub(super) turn_time: AtomicU64,
    pub(super) longest_turn: AtomicU64,
}

impl Engine {
    /// Starts the engine's driver.
    pub(crate) fn start(config: EngineConfig) -> Result<Arc<Self>> {
        let clock = config.transport.open_clock()?;
        let demands_tags = config.regions.lock("open").demands_tags();
        let engine = Arc::new(Engine {
            transport: config.transport,
            demands_tags,
            regions: config.regions,
            incarnation: config.random.number("a domain")?.max(1),
            random: config.random,
            local: config.local,
            span: config.span,
            ports: Mutex::new(Slab::new()),
            ready: Arc::default(),
            counts: DriverCounts::default(),
            stopping: AtomicBool::new(false),
            gone: OnceLock::new(),
            gone_waiters: Mutex::default(),
            ended: Notify::default(),
            end_report: Mutex::default(),
            regions_changed: AtomicBool::new(false),
            copies_block: AtomicBool::new(false),
            ports_opened: AtomicU64::new(0),
        });
        let spin = SpinState::new(config.busy_poll);
        let is_manual = matches!(config.executor, Executor::Manual(_));
        let driver = Driver::new(Arc::clone(&engine), clock, spin, is_manual);
        config.executor.start("fabric-driver", driver)?;
        Ok(engine)
    }

    /// Returns the connection with this key ([`Port::key`], as bits).
    pub(crate) fn port(&self, name: u64) -> Option<Arc<Port>> {
        let pollable = self.lock_ports().get(Key::from_bits(name)).cloned();
        pollable?.connection()
    }

    pub(crate) fn stats(&self) -> DriverStats {
        let ports = self.lock_ports().len();
        let counted = |count: &AtomicU64| count.load(Ordering::Relaxed);
        DriverStats {
            wakes: counted(&self.counts.wakes),
            turns: counted(&self.counts.turns),
            completions: counted(&self.counts.completions),
            turn_time: Duration::from_nanos(counted(&self.counts.turn_time)),
            longest_turn: Duration::from_nanos(counted(&self.counts.longest_turn)),
            ports,
        }
    }

    /// Asks the driver to close everything and end. Called when the last handle is dropped.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wake_driver();
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Returns true once the driver has ended, mostly with its runtime: nothing makes progress any
    /// more (ruling 11).
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.get().is_some()
    }

    pub(super) fn set_gone(&self, why: Error) {
        let _ = self.gone.set(why);
        let mut wakes = WakeList::new();
        self.lock_gone_waiters().take_all(&mut wakes);
        // Done before `wakes` is dropped: if one of these wakers panics, unwinding drops the list,
        // which wakes the others.
        self.ended.notify_waiters();
    }

    /// Ready, with the reason, once the driver has ended; until then `waker` is registered. The
    /// caller keeps `key`, and ends with [`Engine::forget_gone`].
    pub(super) fn poll_gone(&self, key: &mut Option<WaiterKey>, waker: &Waker) -> Poll<Error> {
        if !self.is_gone() {
            let stale = self.lock_gone_waiters().register(key, waker);
            drop(stale);
        }
        // Read last: `set_gone` takes the wakers after it has set the reason.
        match self.gone.get() {
            Some(error) => Poll::Ready(error.clone()),
            None => Poll::Pending,
        }
    }

    /// Forgets a caller of [`Engine::poll_gone`].
    pub(super) fn forget_gone(&self, key: &mut Option<WaiterKey>) {
        let stale = self.lock_gone_waiters().remove(key);
        drop(stale);
    }

    fn lock_gone_waiters(&self) -> std::sync::MutexGuard<'_, Waiters> {
        self.gone_waiters
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lock_end_report(&self) -> std::sync::MutexGuard<'_, Option<EndReport>> {
        self.end_report
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the driver has ended.
    pub(crate) async fn wait_gone(&self) {
        let ended = self.ended.notified();
        if !self.is_gone() {
            ended.await;
        }
    }

    pub(crate) fn gone_error() -> Error {
        Error::new(ErrorKind::DriverGone, "the domain's driver has ended")
    }

    /// Returns the reason why the driver ended.
    pub(super) fn why_gone(&self) -> Error {
        self.gone.get().cloned().unwrap_or_else(Engine::gone_error)
    }

    pub(crate) fn check_alive(&self) -> Result<()> {
        match self.gone.get() {
            Some(error) => Err(error.clone()),
            None => self.transport.check_up(),
        }
    }

    /// Returns the position of the next port's idle heartbeats within their interval, from 0 to 1.
    /// Depends only on the domain's random numbers and the ports opened so far: tests do not
    /// influence each other.
    pub(super) fn next_spread(&self) -> f64 {
        let number = self.ports_opened.fetch_add(1, Ordering::Relaxed);
        spread(number, self.incarnation)
    }

    /// Returns the number by which peers distinguish this domain from earlier ones of the process;
    /// not 0.
    pub(crate) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub(crate) fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    /// Makes the driver look for operations on regions that were closed.
    pub(crate) fn nudge_for_regions(&self) {
        self.regions_changed.store(true, Ordering::Release);
        self.wake_driver();
    }

    pub(super) fn take_regions_changed(&self) -> bool {
        self.regions_changed.load(Ordering::Acquire)
            && self.regions_changed.swap(false, Ordering::AcqRel)
    }

    pub(super) fn lock_ports(&self) -> std::sync::MutexGuard<'_, Slab<Arc<dyn Pollable>>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the driver begin a port's heartbeats.
    pub(super) fn register_heartbeat(&self, port: Key) {
        self.ready
            .wake_driver_for(|ready| ready.new_heartbeats.push_back(port));
    }

    fn wake_driver(&self) {
        self.ready.wake_driver_for(|_| ());
    }

    /// Forgets the driver's waker: the driver is awake, and takes the ready ports before it parks.
    pub(super) fn driver_is_awake(&self) {
        self.ready.lock().driver = None;
    }

    /// Moves the ports that are ready now to the end of `into`, and those that asked for heartbeats
    /// to the end of `heartbeats`. Forgets the driver's waker: the driver is awake, and calls this
    /// again before it parks.
    pub(super) fn take_ready(&self, into: &mut VecDeque<Key>, heartbeats: &mut VecDeque<Key>) {
        let mut ready = self.ready.lock();
        append(into, &mut ready.ports);
        append(heartbeats, &mut ready.new_heartbeats);
        ready.driver = None;
    }

    /// Notes that copies of device memory may block from now on: blocking threads run the turns.
    pub(crate) fn set_copies_block(&self) {
        self.copies_block.store(true, Ordering::Release);
    }

    #[inline]
    pub(super) fn copies_block(&self) -> bool {
        self.copies_block.load(Ordering::Acquire)
    }

    /// Reports that a blocking turn has ended.
    pub(super) fn turned(&self, port: Key, result: TurnOutcome) {
        self.ready
            .wake_driver_for(|ready| ready.turned.push((port, result)));
    }

    /// Takes the blocking turns that have ended.
    pub(super) fn take_turned(&self) -> Vec<(Key, TurnOutcome)> {
        std::mem::take(&mut self.ready.lock().turned)
    }

    /// Registers the driver's waker, unless a port is ready. Returns true if the driver has nothing
    /// to do. `knows_of_stop`: the driver knows already that the engine stops.
    pub(super) fn try_park(&self, driver: &Waker, knows_of_stop: bool) -> bool {
        {
            let mut ready = self.ready.lock();
            let is_due = !ready.ports.is_empty() || !ready.turned.is_empty();
            if is_due || !ready.new_heartbeats.is_empty() {
                return false;
            }
            ready.driver = Some(driver.clone());
        }
        // Read last: a thread that sets one of these flags takes the waker afterwards.
        let regions_changed = self.regions_changed.load(Ordering::Acquire);
        !regions_changed && (knows_of_stop || !self.is_stopping())
    }
}

/// Moves all elements of `from` to the end of `into`, which is mostly empty.
#[inline]
pub(super) fn append<T>(into: &mut VecDeque<T>, from: &mut VecDeque<T>) {
    match into.is_empty() {
        _ if from.is_empty() => {}
        true => std::mem::swap(into, from),
        false => into.append(from),
    }
}

debug_fields!(Engine, self =>
    backend: self.transport.backend(), ports: self.lock_ports().len(), gone: self.is_gone()
);
