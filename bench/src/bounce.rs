//! The bounce test: two pinned threads hand one cache line to and fro. It tells how far the two
//! processors are from each other at this moment, which on a virtual machine may change.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::pin::{self, Cpus};

const HOPS: u64 = 20_000;
/// When the processors are busy with others, rather no figure than a long wait.
const LIMIT: Duration = Duration::from_millis(200);

/// Nanoseconds per hop.
pub fn nanoseconds(cpus: Cpus) -> f64 {
    let line = AtomicU64::new(0);
    let started = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = pin::to(cpus.server);
            started.store(1, Ordering::Release);
            play(&line, 1, Instant::now() + LIMIT);
        });
        let player = scope.spawn(|| {
            let _ = pin::to(cpus.client);
            while started.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            let begin = Instant::now();
            let hops = play(&line, 0, begin + LIMIT);
            begin.elapsed().as_nanos() as f64 / hops.max(1) as f64
        });
        player.join().unwrap_or(f64::NAN)
    })
}

/// Waits for the own turns (numbers of this parity), and hands on. Gives the hops seen.
fn play(line: &AtomicU64, parity: u64, until: Instant) -> u64 {
    let mut turn = parity;
    while turn < HOPS {
        let mut spins = 0_u32;
        while line.load(Ordering::Acquire) != turn {
            std::hint::spin_loop();
            spins += 1;
            if spins.is_multiple_of(1 << 14) && Instant::now() > until {
                return turn;
            }
        }
        line.store(turn + 1, Ordering::Release);
        turn += 2;
    }
    turn
}
