//! One small call after the other, alone and then beside large ones over the same connection.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use super::super::say;
use super::{Caller, TIME_MAX_NS};
use crate::job::EndConfig;

/// Bytes of a large answer of a library that has no other way, and how many are under way.
pub const PIECE: usize = 1 << 20;
pub const PIECES: usize = 4;

/// Measures; each call of a bulk caller moves `bulk` bytes.
pub async fn drive<C: Caller, B: Caller>(
    config: &EndConfig,
    mut small: C,
    bulk_callers: Vec<B>,
    bulk: usize,
) -> Result<()> {
    let (warm, run) = (config.job.warm, config.job.run);
    // Callers' numbers differ, and are theirs by the remainder.
    let step = bulk_callers.len() as u64 + 1;
    let mut number = 0;
    let mut calls = async |time: Duration, phase: Option<&str>| -> Result<()> {
        let mut times = Histogram::<u64>::new_with_bounds(1, TIME_MAX_NS, 3)?;
        let begin = Instant::now();
        while begin.elapsed() < time {
            let since = Instant::now();
            small.call(number).await?;
            number += step;
            times.saturating_record(u64::try_from(since.elapsed().as_nanos())?);
        }
        if let Some(phase) = phase {
            say(&format!("{phase}_p50_ns"), times.value_at_quantile(0.5));
            say(&format!("{phase}_p99_ns"), times.value_at_quantile(0.99));
        }
        Ok(())
    };
    calls(warm, None).await?;
    calls(run, Some("idle")).await?;
    let (moved, mut has_moved) = tokio::sync::mpsc::unbounded_channel();
    let begin = Instant::now();
    let mut transfers = JoinSet::new();
    for (at, mut caller) in bulk_callers.into_iter().enumerate() {
        let moved = moved.clone();
        transfers.spawn(async move {
            let mut number = at as u64 + 1;
            while caller.call(number).await.is_ok() && moved.send(Instant::now()).is_ok() {
                number += step;
            }
        });
    }
    drop(moved);
    calls(warm, None).await?;
    calls(run, Some("beside")).await?;
    // One at least, which may take longer than all this.
    let mut last = has_moved.recv().await.context("a transfer failed")?;
    let mut count = 1;
    while let Ok(at) = has_moved.try_recv() {
        (last, count) = (at, count + 1);
    }
    if transfers.try_join_next().is_some() {
        bail!("a transfer failed");
    }
    say("bulk_bytes", count * bulk);
    say("bulk_ns", (last - begin).as_nanos());
    Ok(())
}
