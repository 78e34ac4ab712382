//! Both ends in one process, to see what a second processor adds: pairs that share nothing, each in
//! a thread of its own; and the connections of one domain, with one driver and then with two, or
//! the contexts of scalable endpoints, one and then two, on a runtime of two threads.

use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};

use super::{fabric, say, streams};
use crate::job::{EndConfig, Job, Work};
use crate::pin;
use crate::subject::Kind;

/// So long a pair may take to connect.
const BEGINNING_MAX: Duration = Duration::from_secs(10);

/// Both stretches are measured so often, in turn: the processors' speed changes.
const ROUNDS: u32 = 3;

/// What the pairs of a stretch have done, and whether that is enough.
#[derive(Debug, Default)]
pub struct Tally {
    messages: AtomicU64,
    is_over: AtomicBool,
}

impl Tally {
    /// So many more. True when it is enough.
    pub fn add(&self, messages: u64) -> bool {
        self.messages.fetch_add(messages, Ordering::Relaxed);
        self.is_over.load(Ordering::Relaxed)
    }
}

pub fn run(kind: Kind, config: &EndConfig) -> Result<()> {
    let (mut one, mut two) = (Stretch::default(), Stretch::default());
    for _ in 0..ROUNDS {
        match config.job.work {
            Work::Pairs => {
                one += measured(config, |tally| {
                    on_processors(kind, &config.job, &[config.cpu], tally)
                })?;
                let cpus = [config.cpu, config.other_cpu];
                two += measured(config, |tally| {
                    on_processors(kind, &config.job, &cpus, tally)
                })?;
            }
            Work::Shards => {
                let cpus = [config.cpu, config.other_cpu];
                one += measured(config, |tally| {
                    on_drivers(kind, &config.job, &cpus, 1, tally)
                })?;
                two += measured(config, |tally| {
                    on_drivers(kind, &config.job, &cpus, 2, tally)
                })?;
            }
            Work::Contexts => {
                let cpus = [config.cpu, config.other_cpu];
                one += measured(config, |tally| {
                    of_contexts(kind, &config.job, &cpus, 1, tally)
                })?;
                two += measured(config, |tally| {
                    of_contexts(kind, &config.job, &cpus, 2, tally)
                })?;
            }
            work => bail!("{work} is no work of pairs"),
        }
    }
    say("one_per_s", one.per_second());
    say("two_per_s", two.per_second());
    Ok(())
}

/// What was done in which time.
#[derive(Debug, Default)]
struct Stretch {
    messages: u64,
    time: Duration,
}

impl AddAssign for Stretch {
    fn add_assign(&mut self, more: Stretch) {
        self.messages += more.messages;
        self.time += more.time;
    }
}

impl Stretch {
    fn per_second(&self) -> f64 {
        self.messages as f64 / self.time.as_secs_f64()
    }
}

type Threads = Vec<JoinHandle<Result<()>>>;

/// Lets what `start` starts warm up, measures it, and ends it.
fn measured(config: &EndConfig, start: impl FnOnce(Arc<Tally>) -> Threads) -> Result<Stretch> {
    let tally = Arc::new(Tally::default());
    let threads = start(Arc::clone(&tally));
    let until = Instant::now() + BEGINNING_MAX;
    while tally.messages.load(Ordering::Relaxed) == 0 && Instant::now() < until {
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(config.job.warm);
    let (before, begin) = (tally.messages.load(Ordering::Relaxed), Instant::now());
    thread::sleep(config.job.run);
    let messages = tally.messages.load(Ordering::Relaxed) - before;
    let time = begin.elapsed();
    tally.is_over.store(true, Ordering::Relaxed);
    for thread in threads {
        let ended = thread.join();
        ended.map_err(|_| anyhow!("the thread of a pair panicked"))??;
    }
    Ok(Stretch { messages, time })
}

/// Both ends of a pair in this task, until it is enough.
async fn pair(kind: Kind, job: Job, tally: Arc<Tally>) -> Result<()> {
    match kind {
        Kind::Fabric(how) => fabric::pair(how, job, tally).await,
        Kind::Tokio { .. } => streams::pair(job, tally).await,
        _ => bail!("this subject has no pairs"),
    }
}

/// A pair on each of these processors, in a thread of its own.
fn on_processors(kind: Kind, job: &Job, cpus: &[usize], tally: Arc<Tally>) -> Threads {
    let start = |&cpu: &usize| {
        let (job, tally) = (job.clone(), Arc::clone(&tally));
        thread::spawn(move || {
            pin::to(&[cpu])?;
            super::on_runtime(pair(kind, job, tally))
        })
    };
    cpus.iter().map(start).collect()
}

/// All connections of one domain per end with so many drivers, on a runtime with a thread for each
/// of these processors. Plain Tokio has a task for each connection, and no driver.
fn on_drivers(kind: Kind, job: &Job, cpus: &[usize], drivers: usize, tally: Arc<Tally>) -> Threads {
    let (job, tasks) = (job.clone(), cpus.len());
    on_threads(cpus, async move {
        match kind {
            Kind::Fabric(how) => fabric::pairs_of_domains(how, job, drivers, tasks, tally).await,
            _ => pair(kind, job, tally).await,
        }
    })
}

/// Endpoints with so many contexts, on such a runtime.
fn of_contexts(
    kind: Kind,
    job: &Job,
    cpus: &[usize],
    contexts: usize,
    tally: Arc<Tally>,
) -> Threads {
    let job = job.clone();
    on_threads(cpus, async move {
        match kind {
            Kind::Fabric(how) => fabric::all_to_all_of_contexts(how, job, contexts, tally).await,
            _ => bail!("this subject has no contexts"),
        }
    })
}

/// A runtime with a thread for each of these processors.
fn on_threads(cpus: &[usize], work: impl Future<Output = Result<()>> + Send + 'static) -> Threads {
    let cpus = cpus.to_vec();
    let run = move || {
        pin::to(&cpus)?;
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(cpus.len()).enable_all().build()?;
        runtime.block_on(work)
    };
    vec![thread::spawn(run)]
}
