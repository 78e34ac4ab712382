//! Address ranges in the registration cache: what reports that their memory has gone.

use std::ptr::with_exposed_provenance_mut;
use std::sync::Arc;

use crate::common::caches::{passed, plain, with_cache};
use crate::common::left_out;
use crate::common::matrix::over_all_drivers;
use crate::common::pages::{PAGE, Pages};
use tokio_fabric::testing::connect;
use tokio_fabric::{ErrorKind, buf::AddressRange, mr::CacheWatch};

/// An address range is found again as long as it is mapped, and not when it was unmapped, moved or
/// emptied meanwhile, though the same address is in use again.
#[test]
fn the_system_reports_that_an_address_range_has_gone() {
    over_all_drivers(|net| async move {
        let (peer, other) = (net.peer().unwrap(), net.peer().unwrap());
        let (here, there) = connect(&peer, &other).await.unwrap();
        let cache = match plain(&peer).watch(CacheWatch::System).open() {
            Ok(cache) => cache,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported);
                assert_eq!(plain(&peer).open().unwrap().watch(), CacheWatch::Caller);
                left_out("address ranges watched by the system (userfaultfd)");
                return;
            }
        };
        assert_eq!(cache.watch(), plain(&peer).open().unwrap().watch());
        let len = 16 * PAGE;
        let mut pages = Pages::new(16);
        for round in 0..50u8 {
            let place = with_exposed_provenance_mut(pages.address());
            let region = cache.register(&pages.range(0, len), ..).await.unwrap();
            region.write_at(100, &[round; 50]).unwrap();
            let slice = region.slice(100..150).unwrap();
            assert_eq!(passed(&here, &there, slice).await, [round; 50]);
            drop(region);
            let range = pages.range(0, len);
            let again = cache.register(&range, 100..200).now().unwrap();
            assert_eq!((again.len(), again.registered_len()), (100, len));
            drop(again);
            let before = cache.stats();
            assert_eq!(
                (before.hits, before.misses),
                (u64::from(round) + 1, u64::from(round) + 1)
            );
            match round % 3 {
                // In one step, since other tests map memory too.
                0 => pages.map_again(0, 16),
                1 => {
                    // SAFETY: the pages are the test's own; their bytes become zero.
                    let done = unsafe { libc::madvise(place, PAGE, libc::MADV_DONTNEED) };
                    assert_eq!(done, 0);
                }
                _ => {
                    let mut elsewhere = Pages::new(16);
                    let there = with_exposed_provenance_mut(elsewhere.address());
                    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                    // SAFETY: both mappings are the test's own; the first replaces the second.
                    let moved = unsafe { libc::mremap(place, len, len, flags, there) };
                    assert_eq!(moved, there);
                    std::mem::swap(&mut pages, &mut elsewhere);
                    // Nothing is there any more.
                    std::mem::forget(elsewhere);
                }
            }
        }
        assert_eq!(cache.stats().forgotten, 49);
        assert_eq!(peer.domain.region_count(), 1);
        drop(cache);
        assert_eq!(peer.domain.region_count(), 0);
    });
}

/// Where the system does not report it, the caller does.
#[test]
fn the_caller_reports_that_an_address_range_has_gone() {
    with_cache(
        |cache| cache.watch(CacheWatch::Caller),
        |peer, cache| {
            let pages = Pages::new(16);
            let range = pages.range(0, 16 * PAGE);
            let key = cache.register(&range, ..4096).now().unwrap().key();
            let same = cache.register(&range, 10..20).now().unwrap();
            assert_eq!((same.key(), cache.watch()), (key, CacheWatch::Caller));
            drop(same);
            assert_eq!(cache.forget(&range, 4095..).unwrap(), 1);
            assert_eq!((cache.stats().count, peer.domain.region_count()), (0, 0));
            let wraps = unsafe {
                // SAFETY: it is refused.
                AddressRange::new(with_exposed_provenance_mut(pages.address()), usize::MAX)
            };
            let refused = cache.register(&wraps, 0..8).now().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        },
    );
}

/// Mappings of files are not watched by the system, so they are not kept.
#[test]
fn what_the_system_does_not_watch_is_not_kept() {
    with_cache(
        |cache| cache,
        |peer, cache| {
            if cache.watch() != CacheWatch::System {
                return;
            }
            let file = tempfile::tempfile().unwrap();
            file.set_len(8192).unwrap();
            let pages = Pages::of_file(&file, 2);
            let region = cache.register(&pages.range(0, 8192), ..).now().unwrap();
            region.write_at(0, b"works").unwrap();
            // Newer kernels watch what is on a tmpfs; then it is kept, until it is unmapped.
            let kept = cache.stats().count;
            assert_eq!(kept as u64 + cache.stats().untracked, 1);
            assert_eq!(peer.domain.region_count(), 1);
            drop(region);
            assert_eq!(peer.domain.region_count(), kept);
            drop(pages);
            let another = Arc::<[u8]>::from([0u8; 8]);
            drop(cache.register(&another, ..).now().unwrap());
            assert_eq!(peer.domain.region_count(), 1);
        },
    );
}
