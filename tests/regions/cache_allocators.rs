//! The registration cache beside allocators that map and unmap memory all the time: "No hidden
//! cache, no patched allocator": what the cache does is right whatever the allocator does, and
//! neither waits for the other. Each allocator is preloaded into a process of its own.

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

use crate::common::{alone::alone_with, left_out, seed::Random};

const ROUNDS: usize = 400;

/// Names the allocator that the process is to have: a part of its library's path.
const ALLOCATOR: &str = "TOKIO_FABRIC_ALLOCATOR";

#[test]
fn a_cache_works_with_the_systems_allocator() {
    with_allocator("libc", "");
}

#[test]
fn a_cache_works_with_jemalloc() {
    with_allocator("libjemalloc", "libjemalloc.so.2");
}

#[test]
fn a_cache_works_with_mimalloc() {
    let names = ["libmimalloc.so.3", "libmimalloc.so.2", "libmimalloc.so.2.0"];
    with_allocator("libmimalloc", &names.join(" "));
}

/// Runs [`a_process_with_an_allocator`] with the first of the libraries that is installed.
#[track_caller]
fn with_allocator(name: &str, libraries: &str) {
    let variables = [(ALLOCATOR, name), ("LD_PRELOAD", libraries)];
    let printed = alone_with("cache_allocators::a_process_with_an_allocator", &variables);
    if printed.contains(NOT_INSTALLED) {
        left_out(format_args!(
            "the registration cache beside {name}: {NOT_INSTALLED}"
        ));
    }
}

const NOT_INSTALLED: &str = "it is not installed";

/// The loader passes over a library that it does not find.
#[test]
#[ignore = "run by the others in a process of its own"]
fn a_process_with_an_allocator() {
    let name = std::env::var(ALLOCATOR).expect("its parent sets it");
    let maps = std::fs::read_to_string("/proc/self/maps").expect("readable for the process itself");
    if maps.contains(&name) {
        registrations_beside_an_allocator();
    } else {
        println!("{name}: {NOT_INSTALLED}");
    }
}

/// Three threads register memory of the allocator, by handles that share it and by addresses, and
/// free it; each finds its own bytes, and no thread waits without end: not for the allocator
/// while that waits for the system's events to be read.
fn registrations_beside_an_allocator() {
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

/// A thread that hangs cannot be failed, so the program is.
fn watchdog(done: &AtomicBool) {
    let started = Instant::now();
    while !done.load(Ordering::Acquire) {
        assert!(started.elapsed() < Duration::from_secs(300) || abort());
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

fn abort() -> bool {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "a registration hangs");
    std::process::abort()
}

fn work(cache: &RegistrationCache, seed: u64) {
    let mut random = Random(seed);
    let mut draw = |below: usize| random.below(below);
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
                // SAFETY: beyond this block only the cache uses the region, and gives no access to
                // it; the vector is not touched within.
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
