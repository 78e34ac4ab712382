//! Registers buffers and takes them back, over and over: alone, without a peer.

use std::time::Instant;

use anyhow::{Result, bail};
use hdrhistogram::Histogram;
use tokio_fabric::{
    Domain, EventQueue, Fabric, Hints,
    buf::{MappedBuffer, SharedBuffer},
    domain::{DomainBind, RegistrationCache},
};

use super::super::meter::Meter;
use super::super::say;
use crate::job::{EndConfig, Work};
use crate::subject;
use crate::sys::addresses;

/// Between two looks at the clock, which takes as long as a registration.
const BATCH: usize = 64;
/// Calls that are timed one by one, after the rest.
const TIMED: usize = 1 << 13;
/// A call that took longer counts as this long.
const TIME_MAX_NS: u64 = 1_000_000_000;
/// Under way at once where registrations take time.
const AT_ONCE: usize = 16;

/// Registers what is there, takes it back, and registers it again: written where it is used, as the
/// same loop is in C, since a buffer that is handed through further functions is moved by each.
macro_rules! over_and_over {
    ($config:expr, $register:expr, $region:ident => $deregister:expr) => {{
        let mut meter = Meter::new($config);
        loop {
            for _ in 0..BATCH {
                let $region = $register;
                $deregister;
            }
            if meter.add(BATCH as u64) {
                break;
            }
        }
        let mut times = Times::new()?;
        for _ in 0..TIMED {
            let begin = Instant::now();
            let $region = $register;
            let made = Instant::now();
            $deregister;
            times.add(begin, made);
        }
        times.report();
        Ok(())
    }};
}

pub async fn register(how: subject::Fabric, config: EndConfig) -> Result<()> {
    let side = DomainSetup::open(how, config.job.work)?;
    match config.job.work {
        Work::CacheHit => side.hit(&config),
        Work::CacheMiss => side.miss(&config),
        Work::RegisterFaulted => side.many(&config).await,
        Work::RegisterRange => side.range(&config).await,
        Work::RegisterAwaited => side.awaited(&config).await,
        _ if config.job.window > 1 => side.vector(&config).await,
        _ => side.one_by_one(&config).await,
    }
}

struct DomainSetup {
    domain: Domain,
    /// A domain does not keep its queue.
    _events: EventQueue,
}

impl DomainSetup {
    fn open(how: subject::Fabric, work: Work) -> Result<DomainSetup> {
        let hints = Hints::new().backend(how.backend);
        let fabric = Fabric::open(hints)?;
        let domain = fabric.domain().driver(how.driver).open()?;
        let events = fabric.event_queue().open()?;
        if matches!(work, Work::RegisterAwaited | Work::RegisterFaulted) {
            domain.bind(&events, DomainBind::REG_MR)?;
        }
        Ok(DomainSetup {
            domain,
            _events: events,
        })
    }

    async fn one_by_one(&self, config: &EndConfig) -> Result<()> {
        let mut buffer = MappedBuffer::new(config.job.size)?;
        over_and_over!(
            config,
            self.domain.register(buffer).now()?,
            region => buffer = region.deregister().await?
        )
    }

    async fn awaited(&self, config: &EndConfig) -> Result<()> {
        let mut buffer = MappedBuffer::new(config.job.size)?;
        over_and_over!(
            config,
            self.domain.register(buffer).lazily().await?,
            region => buffer = region.deregister().await?
        )
    }

    async fn range(&self, config: &EndConfig) -> Result<()> {
        let range = addresses(config.job.size)?;
        over_and_over!(
            config,
            self.domain.register(range.clone()).now()?,
            region => { region.deregister().await?; }
        )
    }

    async fn vector(&self, config: &EndConfig) -> Result<()> {
        let each = config.job.size / config.job.window;
        let buffers = (0..config.job.window).map(|_| MappedBuffer::new(each));
        let mut buffers: Vec<_> = buffers.collect::<Result<_, _>>()?;
        over_and_over!(
            config,
            self.domain.register(buffers).now()?,
            region => buffers = region.deregister().await?
        )
    }

    /// Several under way, since each waits for a worker.
    async fn many(&self, config: &EndConfig) -> Result<()> {
        let mut all = Vec::new();
        for _ in 0..AT_ONCE {
            all.push(MappedBuffer::new(config.job.size)?);
        }
        let mut meter = Meter::new(config);
        let mut times = Times::new()?;
        loop {
            let begin = Instant::now();
            let under_way: Vec<_> = all
                .drain(..)
                .map(|buffer| self.domain.register(buffer).into_future())
                .collect();
            for registration in under_way {
                let region = registration.await?;
                let made = Instant::now();
                all.push(region.deregister().await?);
                times.add(begin, made);
            }
            if meter.add(AT_ONCE as u64) {
                break;
            }
        }
        times.report();
        Ok(())
    }

    fn hit(&self, config: &EndConfig) -> Result<()> {
        let cache = self.domain.cache().open()?;
        let buffer = SharedBuffer::new(MappedBuffer::new(config.job.size)?);
        ask(config, &cache, &[buffer])
    }

    fn miss(&self, config: &EndConfig) -> Result<()> {
        let cache = self.domain.cache().max_count(1).open()?;
        let buffer = || MappedBuffer::new(config.job.size).map(SharedBuffer::new);
        ask(config, &cache, &[buffer()?, buffer()?])?;
        match cache.stats().hits {
            0 => Ok(()),
            _ => bail!("a miss was none"),
        }
    }
}

/// Asks a cache for all of each buffer in turn, with rights for this process alone.
fn ask(config: &EndConfig, cache: &RegistrationCache, buffers: &[SharedBuffer]) -> Result<()> {
    let mut next = buffers.iter().cycle();
    let mut meter = Meter::new(config);
    loop {
        for buffer in next.by_ref().take(BATCH) {
            drop(cache.register(buffer, ..).now()?);
        }
        if meter.add(BATCH as u64) {
            break;
        }
    }
    let mut times = Times::new()?;
    for buffer in next.take(TIMED) {
        let begin = Instant::now();
        let region = cache.register(buffer, ..).now()?;
        let made = Instant::now();
        drop(region);
        times.add(begin, made);
    }
    times.report();
    Ok(())
}

/// What single calls took, with the one look at the clock that ends each.
struct Times {
    register: Histogram<u64>,
    deregister: Histogram<u64>,
}

impl Times {
    fn new() -> Result<Times> {
        Ok(Times {
            register: Histogram::new_with_bounds(1, TIME_MAX_NS, 3)?,
            deregister: Histogram::new_with_bounds(1, TIME_MAX_NS, 3)?,
        })
    }

    fn add(&mut self, begin: Instant, made: Instant) {
        let took = (made - begin).as_nanos() as u64;
        self.register.saturating_record(took);
        let took = made.elapsed().as_nanos() as u64;
        self.deregister.saturating_record(took);
    }

    fn report(&self) {
        say("p50_ns", self.register.value_at_quantile(0.5));
        say("p99_ns", self.register.value_at_quantile(0.99));
        say("end_p50_ns", self.deregister.value_at_quantile(0.5));
    }
}
