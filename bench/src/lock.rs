//! What a lock costs that nothing else wants: the library is thread safe whatever an application
//! promises, and each of its locks is a mutex of the standard library's.

use std::hint::black_box;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::pin::{self, Cpus};
use crate::spread::Spread;

/// The time of so many is one sample.
const SAMPLE_LOCKS: u32 = 10_000;
const SAMPLES: usize = 20;

/// Nanoseconds to lock and unlock, on the client's processor.
pub fn nanoseconds(cpus: Cpus) -> f64 {
    let measuring = std::thread::spawn(move || {
        let _ = pin::to(&[cpus.client]);
        let lock = Mutex::new(0_u64);
        let sample = || {
            let since = Instant::now();
            for _ in 0..SAMPLE_LOCKS {
                let mut value = black_box(&lock)
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                *value += 1;
            }
            nanoseconds_each(since.elapsed())
        };
        Spread::of((0..SAMPLES).map(|_| sample())).map_or(f64::NAN, |spread| spread.median)
    });
    measuring.join().unwrap_or(f64::NAN)
}

fn nanoseconds_each(time: Duration) -> f64 {
    time.as_nanos() as f64 / f64::from(SAMPLE_LOCKS)
}
