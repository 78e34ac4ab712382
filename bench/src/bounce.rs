//! The bounce test: two pinned threads hand one cache line to and fro. It measures how far the two
//! processors are from each other at this moment, which on a virtual machine may change.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::pin::{self, Cpus};
use crate::spread::Spread;

const HOPS: u64 = 20_000;
/// The time of so many hops is one sample. The median of them all forgives that others run between.
const SAMPLE_HOPS: u64 = 500;
/// When the processors are busy with others, rather a poor figure than a long wait.
const LIMIT: Duration = Duration::from_millis(200);

/// Nanoseconds per hop; not a number if none was measured.
pub fn nanoseconds(cpus: Cpus) -> f64 {
    let line = AtomicU64::new(0);
    let until = Instant::now() + LIMIT;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = pin::to(&[cpus.server]);
            play(&line, 1, until);
        });
        let player = scope.spawn(|| {
            let _ = pin::to(&[cpus.client]);
            play(&line, 0, until)
        });
        let samples = player.join().unwrap_or_default();
        Spread::of(samples).map_or(f64::NAN, |spread| spread.median)
    })
}

/// Waits for the own turns (numbers of this parity), and hands on. Gives the samples.
fn play(line: &AtomicU64, parity: u64, until: Instant) -> Vec<f64> {
    let mut samples = Vec::new();
    let mut since = Instant::now();
    for turn in (parity..HOPS).step_by(2) {
        let mut spins = 0_u32;
        while line.load(Ordering::Acquire) != turn {
            std::hint::spin_loop();
            spins += 1;
            if spins.is_multiple_of(1 << 14) && Instant::now() > until {
                return samples;
            }
        }
        line.store(turn + 1, Ordering::Release);
        if (turn - parity).is_multiple_of(SAMPLE_HOPS) && turn > parity {
            samples.push(since.elapsed().as_nanos() as f64 / SAMPLE_HOPS as f64);
            since = Instant::now();
        }
    }
    samples
}
