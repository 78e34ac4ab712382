//! Calls and their answers, `window` of them under way over one connection, each in a task of its
//! own. With `bulk`, each answer brings so many bytes more: in the answer itself where that is all
//! there is, by an RMA write before the answer where there is one.

mod cancel;
mod drain;
pub mod fabric;
pub mod layer;
mod mixed;
mod overload;
pub mod plain;
pub mod ruapc;
pub mod tarpc;
pub mod tonic;

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use tokio::task::JoinSet;
use tokio_fabric::local;

use super::meter::Meter;
use super::{payload, say};
use crate::job::{EndConfig, Job, Work};

/// A call that took longer counts as this long.
const TIME_MAX_NS: u64 = 10_000_000_000;

/// Bytes of a small request and of its answer, where a library takes values: one that needs no
/// memory of its own, so that what is allocated is the library's.
const SMALL: usize = 64;

/// What the callers of a run count together.
#[derive(Debug)]
struct Calls {
    meter: Meter,
    times: Histogram<u64>,
}

impl Calls {
    /// A call that began then has its answer. True at the end of the measurement.
    fn add(&mut self, since: Instant) -> bool {
        if self.meter.is_measuring() {
            let time = since.elapsed().as_nanos();
            self.times
                .saturating_record(u64::try_from(time).unwrap_or(TIME_MAX_NS));
        }
        if !self.meter.add(1) {
            return false;
        }
        for (name, quantile) in [("p50_ns", 0.5), ("p99_ns", 0.99), ("p999_ns", 0.999)] {
            say(name, self.times.value_at_quantile(quantile));
        }
        true
    }
}

/// One of the callers: it calls, again and again, with a number that no other call has.
pub trait Caller: Send + 'static {
    fn call(&mut self, number: u64) -> impl Future<Output = Result<()>> + Send;
}

/// Lets all of them call until it is enough.
async fn drive<C: Caller>(config: &EndConfig, callers: Vec<C>) -> Result<()> {
    let calls = Arc::new(Mutex::new(Calls {
        meter: Meter::new(config),
        times: Histogram::new_with_bounds(1, TIME_MAX_NS, 3)?,
    }));
    let mut tasks = JoinSet::new();
    let count = callers.len() as u64;
    for (at, mut caller) in callers.into_iter().enumerate() {
        let calls = Arc::clone(&calls);
        let calling = async move {
            let mut number = at as u64;
            loop {
                let since = Instant::now();
                caller.call(number).await?;
                number += count;
                if calls.lock().expect("no caller panics").add(since) {
                    return Ok(());
                }
            }
        };
        // On the thread of a local future, beside its driver.
        match local::is_here() {
            true => tasks.spawn_local(calling),
            false => tasks.spawn(calling),
        };
    }
    tasks.join_next().await.context("one caller at least")??
}

/// Lets as many callers of the job's work call as it has. They are made with their place and the
/// bytes of their requests.
async fn call<C: Caller>(config: &EndConfig, caller: impl Fn(usize, usize) -> C) -> Result<()> {
    let job = &config.job;
    match job.work {
        Work::RpcMixed => {
            let bulk = (1..=mixed::PIECES).map(|at| caller(at, job.size + BULK_MARK));
            mixed::drive(config, caller(0, job.size), bulk.collect(), mixed::PIECE).await
        }
        _ => {
            let callers = (0..job.window).map(|at| caller(at, job.size));
            drive(config, callers.collect()).await
        }
    }
}

/// How many callers there are. The remainder of a call's number by this is its caller's place.
fn callers(job: &Job) -> usize {
    match job.work {
        Work::RpcMixed => mixed::PIECES + 1,
        _ => job.window,
    }
}

/// A request that is longer by so much asks for bulk, where small calls are made too.
const BULK_MARK: usize = size_of::<u64>();

/// Bytes that the answer to a request of this length brings besides.
fn bulk_of(job: &Job, request_len: usize) -> usize {
    match job.work {
        Work::RpcMixed if request_len > job.size => mixed::PIECE,
        Work::RpcMixed => 0,
        _ => job.bulk,
    }
}

/// A request, or an answer without bulk: its number, and nothing.
fn message(number: u64, size: usize) -> Vec<u8> {
    let mut message = payload(size.max(size_of::<u64>()));
    stamp(&mut message, number);
    message
}

fn stamp(message: &mut [u8], number: u64) {
    message[..size_of::<u64>()].copy_from_slice(&number.to_le_bytes());
}

/// The number of a message.
///
/// # Errors
/// It is too short to have one.
fn number_of(message: &[u8]) -> Result<u64> {
    let number = message.first_chunk().context("a message of few bytes")?;
    Ok(u64::from_le_bytes(*number))
}

/// # Errors
/// This answers another call.
fn check(answer: &[u8], number: u64) -> Result<()> {
    let found = number_of(answer)?;
    anyhow::ensure!(found == number, "the answer to {number} is of {found}");
    Ok(())
}
