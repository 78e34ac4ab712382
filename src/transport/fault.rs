//! A transport that makes another transport misbehave, in a way that a seed reproduces: short sends
//! and receives, late outcomes, connections cut at an exact byte.
//!
//! Each link draws from its own generators, one per purpose, seeded by the plan's seed and the
//! link's number: connecting and accepted links are counted separately, each in the order in which
//! they are made. So the faults of one link do not depend on how other links are scheduled.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

mod datagrams;

use datagrams::FaultDatagrams;

use super::wrapped::leave_to_inner;
use super::{
    Clock, DatagramOptions, DatagramSocket, Doorbell, IoSizes, KeepAliveConfig, Link, LinkStats,
    Listener, LocalParts, Outcome, RawLink, Receive, Received, SendBatch, Submitted, TrafficMark,
    Transport,
};
use crate::error::Result;
use crate::identity::PeerIdentity;
use crate::random::SplitMix;

/// Faults to inject, and the seed that reproduces them.
///
/// `Debug` shows the seed: a failing test prints its plan, and the plan reproduces the failure.
/// Pass it to [`Net::faults`](crate::testing::Net::faults).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::{FaultPlan, Net};
///
/// let net = Net::new(7).faults(FaultPlan::seeded(7).short_io(0.5));
/// let (a, b) = net.pair().await?;
/// a.send(vec![1; 4096]).await?; // In small pieces.
/// assert_eq!(b.recv(vec![0; 4096]).await?.1, [1; 4096]);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct FaultPlan {
    seed: u64,
    short_io: f64,
    delay: Option<RangeInclusive<Duration>>,
    cut_after_bytes: Option<RangeInclusive<u64>>,
    lose: f64,
    duplicate: f64,
    reorder: f64,
}

impl FaultPlan {
    /// A plan without faults; the methods below add them.
    pub fn seeded(seed: u64) -> Self {
        FaultPlan {
            seed,
            short_io: 0.0,
            delay: None,
            cut_after_bytes: None,
            lose: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
        }
    }

    /// The probability, 0 to 1, that a send or a receive transfers only a few bytes. Default: 0.
    #[must_use]
    pub fn short_io(mut self, probability: f64) -> Self {
        self.short_io = probability.clamp(0.0, 1.0);
        self
    }

    /// How long the completion of each send, receive and connect is delayed. Default: no delay.
    #[must_use]
    pub fn delay(mut self, range: RangeInclusive<Duration>) -> Self {
        self.delay = Some(range);
        self
    }

    /// The number of bytes, in both directions together, after which a connection is reset.
    /// Default: never.
    #[must_use]
    pub fn cut_after_bytes(mut self, range: RangeInclusive<u64>) -> Self {
        self.cut_after_bytes = Some(range);
        self
    }

    /// The probability, 0 to 1, that a datagram is lost. Default: 0.
    #[must_use]
    pub fn lose(mut self, probability: f64) -> Self {
        self.lose = probability.clamp(0.0, 1.0);
        self
    }

    /// The probability, 0 to 1, that a datagram is delivered twice. Default: 0.
    #[must_use]
    pub fn duplicate(mut self, probability: f64) -> Self {
        self.duplicate = probability.clamp(0.0, 1.0);
        self
    }

    /// The probability, 0 to 1, that a datagram is delayed until the next one of its socket has
    /// overtaken it. Default: 0.
    #[must_use]
    pub fn reorder(mut self, probability: f64) -> Self {
        self.reorder = probability.clamp(0.0, 1.0);
        self
    }

    /// The seed of the plan, for a test to print.
    pub fn seed(&self) -> u64 {
        self.seed
    }
}

/// Maximum length of an operation that is made short. Some of these operations end within a header.
const SHORT_MAX: u64 = 40;

/// The plan of a network, which may change while its connections are active.
#[derive(Clone, Debug)]
pub(crate) struct Faults(Arc<Current>);

#[derive(Debug)]
struct Current {
    plan: Mutex<FaultPlan>,
    /// Number of changes.
    version: AtomicU64,
}

impl Faults {
    pub(crate) fn new(plan: FaultPlan) -> Self {
        Faults(Arc::new(Current {
            plan: Mutex::new(plan),
            version: AtomicU64::new(0),
        }))
    }

    /// Changes the plan for all links and sockets from now on.
    pub(crate) fn set(&self, plan: FaultPlan) {
        *self.0.plan.lock().unwrap_or_else(PoisonError::into_inner) = plan;
        self.0.version.fetch_add(1, Ordering::Release);
    }

    fn version(&self) -> u64 {
        self.0.version.load(Ordering::Acquire)
    }

    fn plan(&self) -> FaultPlan {
        let plan = self.0.plan.lock();
        plan.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Injects the faults of a plan into another transport's links.
pub(super) struct FaultInjector {
    inner: Arc<dyn Transport>,
    faults: Faults,
    connected: AtomicU64,
    adopted: AtomicU64,
    opened: AtomicU64,
}

impl FaultInjector {
    pub(super) fn new(inner: Arc<dyn Transport>, faults: Faults) -> Self {
        FaultInjector {
            inner,
            faults,
            connected: AtomicU64::new(0),
            adopted: AtomicU64::new(0),
            opened: AtomicU64::new(0),
        }
    }

    fn wrap(&self, inner: Box<dyn Link>, number: u64, waker: Waker) -> Result<Box<dyn Link>> {
        let mut link = FaultLink {
            inner,
            transport: Arc::clone(&self.inner),
            number,
            plan: self.faults.plan(),
            version: self.faults.version(),
            faults: self.faults.clone(),
            sends: SplitMix(0),
            receives: SplitMix(0),
            delays: SplitMix(0),
            clock: None,
            waker,
            late: VecDeque::new(),
            wanted: IoSizes::default(),
            drawn: IoSizes::default(),
            uncut: None,
        };
        link.begin_plan()?;
        Ok(Box::new(link))
    }
}

impl Transport for FaultInjector {
    leave_to_inner!();

    fn may_localize(&self) -> bool {
        self.inner.may_localize()
    }

    fn watch_bell(&self, bell: OwnedFd, waker: Waker) -> Result<Box<dyn Doorbell>> {
        self.inner.watch_bell(bell, waker)
    }

    fn listen(&self, address: SocketAddr) -> Result<Box<dyn Listener>> {
        self.inner.listen(address)
    }

    fn connect(
        &self,
        to: SocketAddr,
        from: Option<SocketAddr>,
        waker: Waker,
    ) -> Result<Box<dyn Link>> {
        let number = 2 * self.connected.fetch_add(1, Ordering::Relaxed);
        let inner = self.inner.connect(to, from, waker.clone())?;
        self.wrap(inner, number, waker)
    }

    fn adopt(&self, raw: RawLink, waker: Waker) -> Result<Box<dyn Link>> {
        let number = 2 * self.adopted.fetch_add(1, Ordering::Relaxed) + 1;
        let inner = self.inner.adopt(raw, waker.clone())?;
        self.wrap(inner, number, waker)
    }

    fn open_datagrams(
        &self,
        options: &DatagramOptions,
        waker: Waker,
    ) -> Result<Box<dyn DatagramSocket>> {
        let inner = self.inner.open_datagrams(options, waker)?;
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        let faults = self.faults.clone();
        Ok(Box::new(FaultDatagrams::new(inner, faults, number)))
    }
}

debug_fields!(FaultInjector, self => plan: self.faults.plan(), inner: self.inner);

struct FaultLink {
    inner: Box<dyn Link>,
    /// Opens clocks for plans with delays.
    transport: Arc<dyn Transport>,
    number: u64,
    faults: Faults,
    /// The plan in use, and its version in the network.
    plan: FaultPlan,
    version: u64,
    sends: SplitMix,
    receives: SplitMix,
    delays: SplitMix,
    /// Opened by the first plan with delays.
    clock: Option<Box<dyn Clock>>,
    waker: Waker,
    /// Outcomes that are withheld, in the order of their times.
    late: VecDeque<(Instant, Outcome)>,
    /// The bounds that the user of this link asked for.
    wanted: IoSizes,
    /// The bounds drawn by chance, until the next operation of that direction ends.
    drawn: IoSizes,
    /// Number of bytes until the cut.
    uncut: Option<u64>,
}

impl FaultLink {
    /// Draws all random values that the plan needs, from its own seed.
    fn begin_plan(&mut self) -> Result<()> {
        let mut seeds = SplitMix(self.plan.seed ^ SplitMix(self.number).next());
        if self.plan.delay.is_some() && self.clock.is_none() {
            self.clock = Some(self.transport.open_clock()?);
        }
        let cut = self.plan.cut_after_bytes.as_ref();
        self.uncut = cut.map(|range| seeds.within(*range.start(), *range.end()));
        self.sends = SplitMix(seeds.next());
        self.receives = SplitMix(seeds.next());
        self.delays = SplitMix(seeds.next());
        self.draw_send();
        self.draw_receive();
        self.apply();
        Ok(())
    }

    /// Adopts the network's plan if it has changed. Withheld outcomes stay withheld.
    fn follow_plan(&mut self) {
        let version = self.faults.version();
        if version == self.version {
            return;
        }
        self.version = version;
        self.plan = self.faults.plan();
        if let Err(error) = self.begin_plan() {
            tracing::warn!(%error, "a plan with delays goes without them");
        }
    }

    fn draw_send(&mut self) {
        self.drawn.send = size(&mut self.sends, self.plan.short_io);
    }

    fn draw_receive(&mut self) {
        self.drawn.receive = size(&mut self.receives, self.plan.short_io);
    }

    /// Sets the present bounds of the inner link. No operation goes past the cut, since each poll
    /// moves bytes of one operation at most.
    fn apply(&mut self) {
        let uncut = self.uncut.map_or(usize::MAX, |left| {
            usize::try_from(left).unwrap_or(usize::MAX).max(1)
        });
        self.inner.set_io_sizes(IoSizes {
            send: self.drawn.send.min(self.wanted.send).min(uncut),
            receive: self.drawn.receive.min(self.wanted.receive).min(uncut),
        });
    }

    /// Accounts for an outcome of the inner link: draws again for its direction, and cuts the
    /// connection if this was its last byte.
    fn account(&mut self, outcome: &Outcome) {
        let moved = match outcome {
            Outcome::Sent { result, .. } => {
                self.draw_send();
                *result.as_ref().unwrap_or(&0)
            }
            Outcome::Received(received) => {
                self.draw_receive();
                match received {
                    Received::Stage(stage) => stage.len(),
                    Received::Direct { len, .. } => *len,
                    _ => 0,
                }
            }
            _ => 0,
        };
        if let Some(left) = &mut self.uncut {
            *left = left.saturating_sub(moved as u64);
            if *left == 0 {
                self.uncut = None;
                self.inner.reset();
            }
        }
        self.apply();
    }

    /// Withholds an outcome of the inner link for the plan's delay, or returns it if there is no
    /// delay. No outcome overtakes another.
    fn withhold(&mut self, outcome: Outcome) -> Option<Outcome> {
        self.account(&outcome);
        let last = self.late.back().map(|(at, _)| *at);
        let due = match (&self.plan.delay, &self.clock) {
            (Some(range), Some(clock)) => Some(clock.now() + duration(&mut self.delays, range)),
            _ => None,
        };
        match last.into_iter().chain(due).max() {
            Some(at) => self.late.push_back((at, outcome)),
            None => return Some(outcome),
        }
        None
    }

    /// Returns the oldest withheld outcome if it is due; otherwise registers the waker for its
    /// time.
    fn next_due(&mut self) -> Option<Outcome> {
        let (at, _) = self.late.front()?;
        let clock = self.clock.as_mut()?;
        let mut cx = Context::from_waker(&self.waker);
        let now = clock.now();
        match clock.poll_deadline(*at, now, &mut cx) {
            Poll::Ready(()) => self.late.pop_front().map(|(_, outcome)| outcome),
            Poll::Pending => None,
        }
    }
}

impl Link for FaultLink {
    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    fn peer_addr(&self) -> SocketAddr {
        self.inner.peer_addr()
    }

    fn send(&mut self, batch: Box<SendBatch>) {
        self.follow_plan();
        self.inner.send(batch);
    }

    fn cancel_send(&mut self) {
        self.inner.cancel_send();
    }

    fn receive(&mut self, receive: Receive) {
        self.inner.receive(receive);
    }

    fn cancel_receive(&mut self) {
        self.inner.cancel_receive();
    }

    fn submitted(&self) -> Submitted {
        let mut submitted = self.inner.submitted();
        for (_, outcome) in &self.late {
            match outcome {
                Outcome::Sent { .. } => submitted.send = true,
                Outcome::Received(_) => submitted.receive = true,
                Outcome::PeerGone(_) => submitted.watch = true,
                Outcome::Connected | Outcome::Failed(_) => {}
            }
        }
        // A receive has taken the place of the watch.
        submitted.watch &= !submitted.receive;
        submitted
    }

    fn watch(&mut self) {
        self.inner.watch();
    }

    fn poll_outcome(&mut self) -> Option<Outcome> {
        self.follow_plan();
        loop {
            if let Some(outcome) = self.next_due() {
                return Some(outcome);
            }
            let outcome = self.inner.poll_outcome()?;
            if let Some(outcome) = self.withhold(outcome) {
                return Some(outcome);
            }
        }
    }

    fn try_receive(&mut self) -> Option<Outcome> {
        let outcome = self.inner.try_receive()?;
        self.withhold(outcome).or_else(|| self.next_due())
    }

    fn finish(&mut self) {
        self.inner.finish();
    }

    fn reset(&mut self) {
        self.inner.reset();
    }

    fn unread_bytes(&self) -> usize {
        self.inner.unread_bytes()
    }

    fn stats(&self) -> Option<LinkStats> {
        self.inner.stats()
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.inner.socket()
    }

    fn set_keep_alive(&mut self, keep_alive: KeepAliveConfig) -> bool {
        self.inner.set_keep_alive(keep_alive)
    }

    fn set_traffic(&mut self, mark: TrafficMark) -> Result<()> {
        self.inner.set_traffic(mark)
    }

    fn take_raw(&mut self) -> Option<RawLink> {
        self.inner.take_raw()
    }

    fn localize(&mut self, parts: LocalParts, transport: &dyn Transport) -> Result<()> {
        self.inner.localize(parts, transport)
    }

    fn set_polled(&mut self, polled: bool) {
        self.inner.set_polled(polled);
    }

    fn shrink(&mut self) {
        self.inner.shrink();
    }

    fn is_local(&self) -> bool {
        self.inner.is_local()
    }

    fn peer_identity(&self) -> Option<PeerIdentity> {
        self.inner.peer_identity()
    }

    fn set_io_sizes(&mut self, sizes: IoSizes) {
        self.wanted = sizes;
        self.apply();
    }
}

/// Draws how many bytes an operation may move: a few with this probability, otherwise all it can.
fn size(random: &mut SplitMix, short_io: f64) -> usize {
    if random.chance(short_io) {
        random.within(1, SHORT_MAX) as usize
    } else {
        IoSizes::default().send
    }
}

fn duration(random: &mut SplitMix, range: &RangeInclusive<Duration>) -> Duration {
    let nanos = |at: &Duration| u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(random.within(nanos(range.start()), nanos(range.end())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_sizes_are_short() {
        let mut random = SplitMix(7);
        for _ in 0..1000 {
            assert!((1..=SHORT_MAX as usize).contains(&size(&mut random, 1.0)));
        }
    }

    #[test]
    fn a_plan_shows_its_seed() {
        let plan = FaultPlan::seeded(4711).short_io(0.5);
        assert!(format!("{plan:?}").contains("seed: 4711"));
        assert_eq!(plan.seed(), 4711);
    }
}
