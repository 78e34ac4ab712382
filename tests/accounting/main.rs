//! What is left in the process when thousands of operations are in flight and everything ends:
//! nothing. In a program of its own, and with one test at a time, since all memory is counted.

mod comings;
#[path = "../common/mod.rs"]
mod common;
#[allow(dead_code, reason = "what other programs need of it")]
mod counting;
mod flight;
mod idle;
mod steady;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use counting::{Counting, bytes_in_use, descriptors, ring_mappings};
use flight::{CONNECTIONS, Deed, Flight};
use tokio::runtime::{Builder, Runtime};
use tokio_fabric::testing::Net;
use tokio_fabric::{Backend, ErrorKind};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// All tests of this program count the same bytes.
static ALONE: Mutex<()> = Mutex::new(());

fn runtime(threads: usize) -> Runtime {
    match threads {
        0 => Builder::new_current_thread().enable_all().build().unwrap(),
        n => Builder::new_multi_thread()
            .worker_threads(n)
            .enable_all()
            .build()
            .unwrap(),
    }
}

/// When the operations are treated: while the engine works, and when its runtime has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Before,
    After,
}

/// One life of everything. Gives the count of operations, and the bytes that the leaked ones held
/// when all else was gone.
fn life(
    backend: Backend,
    threads: usize,
    when: When,
    rule: impl Fn(usize) -> Deed,
) -> (usize, isize) {
    let before = bytes_in_use();
    let ending = runtime(threads);
    let (count, mut flight, mut leaked) = ending.block_on(async {
        let mut flight = Flight::start(&Net::on(backend)).await;
        let count = flight.flying.len();
        let leaked = match when {
            When::Before => flight.treat(&rule),
            When::After => Vec::new(),
        };
        (count, flight, leaked)
    });
    drop(ending);
    if when == When::After {
        leaked = flight.treat(&rule);
    }
    let elsewhere = runtime(0);
    for flying in std::mem::take(&mut flight.flying) {
        let limited = async {
            let ending = flying.ending();
            tokio::time::timeout(Duration::from_secs(20), ending).await
        };
        let kind = elsewhere
            .block_on(limited)
            .expect("an operation without an end");
        // The peer's driver, of the same runtime, may be the first to go.
        let known = kind.is_none_or(|kind| {
            use ErrorKind::{Canceled, ConnectionReset, DriverGone, PeerClosed};
            [Canceled, ConnectionReset, DriverGone, PeerClosed].contains(&kind)
        });
        assert!(known, "{kind:?}");
    }
    drop((flight, elsewhere));
    let held = bytes_in_use() - before;
    for mut flying in leaked.drain(..) {
        // SAFETY: each is dropped here, once, and never seen again.
        unsafe { std::mem::ManuallyDrop::drop(&mut flying) };
    }
    drop(leaked);
    tokio_fabric::testing::drop_kept_memory();
    (count, held)
}

/// memory-model 7: "Driver drop: stop submitting, cancel, reap every completion, then free": with
/// thousands of operations in flight, in all states, whose futures were kept, dropped, cancelled or
/// leaked, every byte and every descriptor comes back.
#[test]
fn everything_comes_back_when_the_runtime_ends() {
    let _alone = ALONE.lock();
    // Tokio's locks keep parked threads in a table that is never freed, and grows with the most
    // threads that there have been at once: here, so that no later life makes it grow whose
    // predecessor's threads are slow to end.
    let crowd = runtime(16);
    crowd.block_on(async { tokio::time::sleep(Duration::from_millis(100)).await });
    drop(crowd);
    for backend in common::backends() {
        for threads in [0, 2] {
            // What is made once in the life of a process.
            life(backend, threads, When::Before, |_| Deed::Keep);
            for when in [When::Before, When::After] {
                for shift in 0..4 {
                    let deeds = [Deed::Keep, Deed::Drop, Deed::Cancel, Deed::Leak];
                    let rule = |number: usize| deeds[(number + shift) % 4];
                    let before = (bytes_in_use(), descriptors(), ring_mappings());
                    let (count, held) = life(backend, threads, when, rule);
                    // Other threads of the process, such as the one that shares memory, may be a
                    // moment behind.
                    let since = Instant::now();
                    let mut after;
                    loop {
                        after = (bytes_in_use(), descriptors(), ring_mappings());
                        if after == before || since.elapsed() > Duration::from_secs(10) {
                            break;
                        }
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    let place = format!("{backend}, {threads} threads, {when:?}, {shift}");
                    assert!(count > 800 * CONNECTIONS, "{place}: {count} in flight");
                    println!("{place}: {count} operations, leaked ones held {held} bytes");
                    assert_eq!(after, before, "{place}");
                }
            }
        }
    }
}
