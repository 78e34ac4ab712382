//! Who owns the memory of a registration cache, and when it is given back.

use super::shared;
use crate::common::caches::{plain, with_cache};
use crate::common::matrix::over_all_drivers;
use crate::common::on;
use tokio_fabric::{Backend, ErrorKind, Hints, buf::SharedBuffer, domain::DomainBind};

/// A shared buffer comes back when it has no other owner; idle registrations do not count.
#[test]
fn a_shared_buffer_is_given_back_to_its_last_owner() {
    with_cache(
        |cache| cache,
        |peer, cache| {
            let buffer = SharedBuffer::new(vec![5u8; 100]);
            let other = buffer.clone();
            let buffer = buffer.into_buffer().unwrap_err();
            drop(other);
            let used = cache.register(&buffer, 10..20).now().unwrap();
            let buffer = buffer.into_buffer().unwrap_err();
            used.write_at(0, &[6; 10]).unwrap();
            drop(used);
            drop(cache.register(&buffer, ..).now().unwrap());
            assert_eq!(peer.domain.region_count(), 1);
            let bytes: Vec<u8> = buffer.into_buffer().unwrap().downcast().unwrap();
            assert_eq!(peer.domain.region_count(), 0);
            assert_eq!((bytes[9], bytes[10], bytes[19], bytes[20]), (5, 6, 6, 5));
        },
    );
}

/// Every cache that a shared buffer was given to lets go of it with its last handle, in whatever
/// order they were asked, and whichever came and went meanwhile.
#[test]
fn every_cache_lets_go_of_a_shared_buffer() {
    with_cache(
        |cache| cache,
        |peer, first| {
            let second = plain(&peer).open().unwrap();
            for _ in 0..3 {
                let buffer = shared(100);
                for cache in [&first, &second, &first, &second, &second] {
                    drop(cache.register(&buffer, ..10).now().unwrap());
                    let gone = plain(&peer).open().unwrap();
                    drop(gone.register(&buffer, ..).now().unwrap());
                    drop(gone);
                    drop(cache.register(&buffer, 50..).now().unwrap());
                }
                assert_eq!((first.stats().count, second.stats().count), (2, 2));
                assert_eq!(peer.domain.region_count(), 4);
                drop(buffer);
                assert_eq!((first.stats().count, second.stats().count), (0, 0));
                assert_eq!(peer.domain.region_count(), 0);
            }
        },
    );
}

/// A cache keeps its domain from being closed only by what it has registered; without its handles
/// nothing idle is left.
#[test]
fn a_cache_ends_with_its_last_handle() {
    over_all_drivers(|net| async move {
        let peer = net.undriven(Hints::new(), DomainBind::empty());
        let cache = plain(&peer).open().unwrap();
        let buffer = shared(100);
        let used = cache.register(&buffer, 50..).now().unwrap();
        drop(cache.register(&buffer, ..20).now().unwrap());
        let busy = peer.domain.close().await.unwrap_err();
        assert!(busy.is_busy() && busy.to_string().contains("memory region"));
        let clone = cache.clone();
        drop(cache);
        assert_eq!(clone.stats().count, 2);
        drop(clone);
        assert_eq!(peer.domain.region_count(), 1);
        used.write_at(0, b"still").unwrap();
        drop(used);
        peer.domain.close().await.unwrap();
        let closed = peer.domain.cache().open().unwrap_err();
        assert_eq!(closed.kind(), ErrorKind::BadState);
    });
}

/// Many tasks ask for the same and for other ranges at once: the bounds hold, each has its bytes.
#[test]
fn many_threads_share_a_cache() {
    on(Backend::Loopback, |net| async move {
        let peer = net.peer().unwrap();
        let cache = plain(&peer).max_count(8).open().unwrap();
        let buffers: Vec<_> = (0..12u8)
            .map(|fill| SharedBuffer::new(vec![fill; 256]))
            .collect();
        std::thread::scope(|scope| {
            for thread in 0..4usize {
                let (cache, buffers) = (&cache, &buffers);
                scope.spawn(move || {
                    for round in 0..3000 {
                        let at = (round * 7 + thread * 5 + round / 11) % buffers.len();
                        let part = (round % 3) * 64;
                        let region = cache.register(&buffers[at], part..part + 64);
                        let region = region.now().unwrap();
                        let mut bytes = [0; 64];
                        region.clone().read_at(0, &mut bytes).unwrap();
                        assert_eq!(bytes, [at as u8; 64]);
                        assert!(cache.stats().count <= 8);
                    }
                });
            }
        });
        let stats = cache.stats();
        assert_eq!(stats.hits + stats.misses, 12_000);
        assert_eq!(
            (stats.idle_count, stats.count),
            (stats.count, peer.domain.region_count())
        );
    });
}
