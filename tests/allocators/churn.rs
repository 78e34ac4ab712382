//! A registration cache beside an allocator that maps and unmaps memory all the time: for test
//! programs with one global allocator each.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio_fabric::{
    Backend,
    buf::{AddressRange, SharedBuffer},
    domain::RegistrationCache,
    mr::{CacheWatch, CachedRegion},
    testing::Net,
};

const ROUNDS: usize = 400;

/// Three threads register memory of the allocator, by handles that share it and by addresses, and
/// free it; each finds its own bytes, and nobody waits for ever: not for the allocator while it
/// waits for the system to be listened to.
pub fn registrations_beside_an_allocator() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _inside = runtime.enter();
    let peer = Net::on(Backend::Loopback).peer().expect("a peer");
    let builder = peer.domain.cache().max_count(64).merge_regions(false);
    let cache = builder.max_size(usize::MAX).open().expect("a cache");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| watchdog(&done));
        let workers: Vec<_> = (0..3)
            .map(|seed| {
                let cache = &cache;
                scope.spawn(move || work(cache, seed))
            })
            .collect();
        for worker in workers {
            worker.join().expect("no worker panics");
        }
        done.store(true, Ordering::Release);
    });
    let stats = cache.stats();
    assert!(
        stats.count <= 64 && stats.hits > 0 && stats.misses > 0,
        "{stats:?}"
    );
    if cache.watch() == CacheWatch::System {
        assert!(stats.forgotten > 0, "no free was noticed: {stats:?}");
    }
    cache.clear();
    assert_eq!((cache.stats().count, peer.domain.region_count()), (0, 0));
}

/// A thread that waits for ever cannot be failed, so the program is.
fn watchdog(done: &AtomicBool) {
    let started = Instant::now();
    while !done.load(Ordering::Acquire) {
        assert!(started.elapsed() < Duration::from_secs(300) || abort());
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

fn abort() -> bool {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "a registration waits for ever");
    std::process::abort()
}

fn work(cache: &RegistrationCache, seed: u64) {
    let mut state = seed * 2 + 1;
    let mut draw = |below: usize| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    for round in 0..ROUNDS {
        let fill = round as u8;
        let len = match draw(3) {
            0 => 1 + draw(10_000),
            1 => 1 + draw(300_000),
            _ => 1 << 20,
        };
        let mut bytes = vec![fill; len];
        match draw(3) {
            0 => {
                let shared = SharedBuffer::new(bytes);
                used(cache.register(&shared, ..).now(), fill);
                used(cache.register(&shared, len / 2..).now(), fill);
            }
            1 => {
                let frozen = Bytes::from(bytes);
                used(cache.register(&frozen, ..).now(), fill);
                used(cache.register(&frozen.slice(len / 2..), ..).now(), fill);
            }
            _ => {
                // SAFETY: nobody uses the region beyond this block but the cache, which lets nobody
                // get at it; the vector is not touched within.
                let range = unsafe { AddressRange::new(bytes.as_mut_ptr(), len) };
                used(cache.register(&range, ..).now(), fill);
                used(cache.register(&range, len / 2..).now(), fill);
                drop(bytes);
            }
        }
    }
}

fn used(region: tokio_fabric::Result<CachedRegion>, fill: u8) {
    let region = region.expect("a registration");
    let mut bytes = vec![!fill; region.len().min(100)];
    region.read_at(0, &mut bytes).expect("within");
    assert!(
        bytes.iter().all(|byte| *byte == fill),
        "not the bytes of this memory"
    );
}
