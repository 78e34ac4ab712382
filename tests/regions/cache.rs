//! The registration cache (`fi_mr(3)`, "memory registration cache").

mod owners;

use std::sync::Arc;

use crate::common::caches::{passed, plain, with_cache};
use crate::common::matrix::{Opens, over_all_drivers};
use crate::common::on;
use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use std::future::IntoFuture;
use tokio_fabric::testing::{Net, connect};
use tokio_fabric::{
    Access, Backend, ErrorKind, Hints, RemoteRegion,
    buf::{MappedBuffer, SharedBuffer},
    domain::{DomainBind, RegistrationCache},
    info::MrMode,
    mr::CachedRegion,
};

fn shared(len: usize) -> SharedBuffer {
    SharedBuffer::new(vec![0u8; len])
}

/// Hits, misses, evictions.
fn counts(cache: &RegistrationCache) -> (u64, u64, u64) {
    let stats = cache.stats();
    (stats.hits, stats.misses, stats.evictions)
}

/// fi_mr(3): "avoids the overhead of registering and unregistering a data buffer with each
/// transfer."
#[test]
fn a_registration_outlives_its_use_and_is_found_again() {
    over_all_drivers(|net| async move {
        let (peer, other) = (net.peer().unwrap(), net.peer().unwrap());
        let (here, there) = connect(&peer, &other).await.unwrap();
        let cache = plain(&peer).open().unwrap();
        let buffer = shared(1 << 16);
        let mut keys = Vec::new();
        for round in 0..20u8 {
            buffer.write_at(4096, &[round; 4096]).unwrap();
            let region = cache.register(&buffer, 4096..8192).await.unwrap();
            assert_eq!((region.len(), region.access()), (4096, Access::LOCAL));
            keys.push(region.key());
            let bytes = passed(&here, &there, region.slice(..).unwrap()).await;
            assert_eq!(bytes, [round; 4096]);
            // The other way, into the same registration.
            there.send(vec![!round; 10]).await.unwrap();
            let into = region.slice(5..15).unwrap();
            here.recv(into).await.unwrap();
            let mut bytes = [0; 10];
            buffer.read_at(4101, &mut bytes).unwrap();
            assert_eq!(bytes, [!round; 10]);
        }
        keys.dedup();
        assert_eq!((keys.len(), counts(&cache)), (1, (19, 1, 0)));
        assert_eq!(peer.domain.region_count(), 1);
        // Part of what is registered is registered.
        drop(cache.register(&buffer, 5000..6000).now().unwrap());
        assert_eq!(counts(&cache), (20, 1, 0));
        drop(cache.register(&buffer, 8000..9000).now().unwrap());
        assert_eq!(counts(&cache), (20, 2, 0));
    });
}

/// fi_mr(3): "if hardware requires the FI_MR_LOCAL mode bit described above, but this is not
/// supported by the application"
#[test]
fn a_cache_meets_mr_local_for_buffers_that_come_and_go() {
    over_all_drivers(|net| async move {
        let hints = Hints::new().domain(|domain| domain.required_mr_mode(MrMode::LOCAL));
        let (peer, other) = (
            net.peer_with(hints, DomainBind::empty()),
            net.peer().unwrap(),
        );
        let (here, there) = connect(&peer, &other).await.unwrap();
        let cache = plain(&peer).open().unwrap();
        let bytes = Bytes::from(vec![7u8; 1000]);
        let refused = here.send(bytes.clone()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        for part in [0..500, 500..1000, 0..1000, 20..30] {
            let region = cache.register(&bytes, part.clone()).await.unwrap();
            let got = passed(&here, &there, region.slice(..).unwrap()).await;
            assert_eq!(got, bytes[part]);
        }
        assert_eq!(counts(&cache), (1, 3, 0));
    });
}

/// fi_mr(3): `FI_MR_CACHE_MAX_SIZE`, environment variable.
/// fi_mr(3): "This defines the total number of bytes for all memory regions that may be tracked by
/// the cache."
/// fi_mr(3): "reduce the amount of memory that is not actively being used as part of a data
/// transfer that is registered"
#[test]
fn no_more_bytes_are_tracked_than_allowed() {
    with_cache(
        |cache| cache.max_size(10_000),
        |peer, cache| {
            assert_eq!(cache.max_size(), Some(10_000));
            let buffer = shared(100_000);
            for at in 0..20 {
                let start = at * 5000;
                drop(cache.register(&buffer, start..start + 4000).now().unwrap());
                assert!(cache.stats().size <= 10_000);
            }
            assert_eq!((cache.stats().size, cache.stats().count), (8000, 2));
            assert_eq!(cache.stats().evictions, 18);
            assert_eq!(peer.domain.region_count(), 2);
            // What is in use stays, and what has no room is not kept.
            let used = cache.register(&buffer, 0..9000).now().unwrap();
            let more = cache.register(&buffer, 20_000..22_000).now().unwrap();
            let large = cache.register(&buffer, 50_000..70_000).now().unwrap();
            assert_eq!((used.len(), more.len(), large.len()), (9000, 2000, 20_000));
            assert_eq!((cache.stats().size, cache.stats().untracked), (9000, 2));
            assert_eq!(peer.domain.region_count(), 3);
            drop((more, large));
            assert_eq!(peer.domain.region_count(), 1);
        },
    );
}

/// fi_mr(3): `FI_MR_CACHE_MAX_COUNT`, environment variable.
/// fi_mr(3): "This defines the total number of memory regions that may be registered with the
/// cache."
/// fi_mr(3): "reduce the number of regions that are registered, regardless of their size, which are
/// not actively being used"
#[test]
fn the_least_recently_used_makes_room() {
    with_cache(
        |cache| cache.max_count(3),
        |peer, cache| {
            assert_eq!(cache.max_count(), 3);
            let buffers: Vec<_> = (0..5).map(|_| shared(100)).collect();
            let touch = |at: usize| drop(cache.register(&buffers[at], ..).now().unwrap());
            for at in [0, 1, 2] {
                touch(at);
            }
            // 0 is used again, so 1 is the oldest, then 2.
            touch(0);
            touch(3);
            assert_eq!(counts(&cache), (1, 4, 1));
            touch(0);
            touch(2);
            assert_eq!(counts(&cache), (3, 4, 1), "1 went");
            touch(1);
            assert_eq!(counts(&cache), (3, 5, 2), "3 went");
            assert_eq!((cache.stats().count, peer.domain.region_count()), (3, 3));
            // Those in use never go.
            let used: Vec<_> = [0, 1, 2]
                .map(|at| cache.register(&buffers[at], ..).now().unwrap())
                .into();
            let fourth = cache.register(&buffers[4], ..).now().unwrap();
            assert_eq!(cache.stats().untracked, 1);
            assert_eq!((cache.stats().count, peer.domain.region_count()), (3, 4));
            drop((used, fourth));
            assert_eq!(
                (cache.stats().idle_count, peer.domain.region_count()),
                (3, 3)
            );
            assert_eq!(cache.clear(), 3);
            assert_eq!((cache.stats().size, peer.domain.region_count()), (0, 0));
        },
    );
}

/// fi_mr(3): "Setting this to zero will disable registration caching."
#[test]
fn a_count_of_zero_turns_caching_off() {
    with_cache(
        |cache| cache.max_count(0),
        |peer, cache| {
            let buffer = shared(100);
            let first = cache.register(&buffer, ..).now().unwrap();
            let second = cache.register(&buffer, ..).now().unwrap();
            assert_ne!(first.key(), second.key());
            assert_eq!(peer.domain.region_count(), 2);
            drop((first, second));
            assert_eq!(peer.domain.region_count(), 0);
            assert_eq!(counts(&cache), (0, 2, 0));
            assert_eq!(cache.stats().count, 0);
        },
    );
}

/// fi_mr(3): `FI_MR_CACHE_MERGE_REGIONS`, environment variable.
/// fi_mr(3): "memory regions that are adjacent or overlapping will be merged into a single larger
/// region."
/// fi_mr(3): "Merging regions reduces the total cache size and the number of regions managed by the
/// cache."
#[test]
fn adjacent_and_overlapping_regions_are_merged_when_asked() {
    let ranges = [0..100, 100..200, 150..300, 400..500, 290..410];
    for merge in [false, true] {
        with_cache(
            |cache| cache.merge_regions(merge),
            |peer, cache| {
                assert_eq!(cache.merges_regions(), merge);
                let buffer = shared(1000);
                for range in ranges.clone() {
                    let region = cache.register(&buffer, range.clone()).now().unwrap();
                    region
                        .write_at(0, &vec![range.start as u8; range.len()])
                        .unwrap();
                    let mut bytes = vec![0; range.len()];
                    buffer.read_at(range.start, &mut bytes).unwrap();
                    assert_eq!(bytes, vec![range.start as u8; range.len()]);
                }
                let stats = cache.stats();
                let expected = if merge { (1, 500) } else { (5, 570) };
                assert_eq!((stats.count, stats.size), expected);
                assert_eq!(peer.domain.region_count(), expected.0);
                let all = cache.register(&buffer, 0..500).now().unwrap();
                assert_eq!(cache.stats().hits, u64::from(merge));
                assert_eq!(all.registered_len(), 500);
                // Not beyond what it touches.
                drop(cache.register(&buffer, 502..510).now().unwrap());
                assert_eq!(cache.stats().count, 2);
            },
        );
    }
}

/// Pieces of different owners that lie side by side are one region, each with its own bytes; what
/// is in use meanwhile stays valid to its end.
#[test]
fn merged_regions_keep_all_their_owners_and_those_in_use_go_on() {
    over_all_drivers(|net| async move {
        let (peer, other) = (net.peer().unwrap(), net.peer().unwrap());
        let (here, there) = connect(&peer, &other).await.unwrap();
        let cache = plain(&peer).merge_regions(true).open().unwrap();
        let bytes: Vec<u8> = (0..=255).collect();
        let all = Bytes::from(bytes.clone());
        let parts: Vec<_> = (0..8).map(|at| all.slice(at * 32..(at + 1) * 32)).collect();
        drop(all);
        let first = cache.register(&parts[0], ..).await.unwrap();
        let slice = first.slice(..).unwrap();
        for part in &parts[1..] {
            drop(cache.register(part, ..).await.unwrap());
        }
        assert_eq!((cache.stats().count, cache.stats().size), (1, 256));
        // The first one's registration was replaced; it is whole until it is let go.
        assert_eq!(peer.domain.region_count(), 2);
        let got = passed(&here, &there, slice).await;
        assert_eq!(got, bytes[..32]);
        drop(first);
        assert_eq!(peer.domain.region_count(), 1);
        let part = cache.register(&parts[3], 8..).await.unwrap();
        drop(parts);
        assert_eq!(part.registered_len(), 256);
        let got = passed(&here, &there, part.slice(..).unwrap()).await;
        assert_eq!(got, bytes[104..128]);
    });
}

/// Memory that others only read and memory that may be written to never share a registration, not
/// even where one begins at the other's end: each is what it was alone.
#[tokio::test]
async fn read_only_and_writable_neighbours_are_not_merged() {
    let peer = Net::loopback().peer().unwrap();
    let cache = plain(&peer).merge_regions(true).open().unwrap();
    let mut whole = BytesMut::from(&[7u8; 128][..]);
    let bytes = whole.split_off(64).freeze();
    let shared = SharedBuffer::new(whole);
    for _ in 0..2 {
        let read_only = cache.register(&bytes, ..).access(Access::SEND).now();
        let read_only = read_only.unwrap();
        let writable = cache.register(&shared, ..).access(Access::SEND).now();
        writable.unwrap().write_at(0, &[8; 64]).unwrap();
        let refused = read_only.write_at(0, &[9]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AccessDenied);
        assert_eq!(read_only.registered_len(), 64);
    }
    assert_eq!(counts(&cache), (2, 2, 0));
    assert_eq!(bytes[..], [7; 64]);
}

/// The registration of memory goes when its owner lets go of it: what is mapped there next is not
/// what was registered, and the old key gives no access to it.
#[test]
fn memory_that_is_unmapped_and_mapped_again_is_not_found() {
    over_all_drivers(|net| async move {
        let (peer, other) = (net.peer().unwrap(), net.peer().unwrap());
        let (_here, there) = connect(&peer, &other).await.unwrap();
        let cache = plain(&peer).open().unwrap();
        let len = 1 << 20;
        let access = Access::LOCAL | Access::REMOTE;
        let map = || {
            let mapped = MappedBuffer::new(len).unwrap();
            (mapped.as_ptr().addr(), SharedBuffer::new(mapped))
        };
        let (mut same, mut rounds) = (0, 0);
        // The system likes to give the same place again.
        while same < 3 {
            rounds += 1;
            assert!(rounds < 1000, "no place was given twice");
            let (place, old) = map();
            old.write_at(0, b"old").unwrap();
            let region = cache.register(&old, ..).access(access).await.unwrap();
            let remote = region.remote();
            drop((region, old));
            assert_eq!(peer.domain.region_count(), 0, "gone with its memory");
            let (again, new) = map();
            if again != place {
                continue;
            }
            same += 1;
            let misses = cache.stats().misses;
            let region = cache.register(&new, ..).access(access).await.unwrap();
            assert_eq!(cache.stats().misses, misses + 1);
            assert_ne!(region.key(), remote.key);
            let mut bytes = [1; 3];
            region.read_at(0, &mut bytes).unwrap();
            assert_eq!(bytes, [0; 3]);
        }
        assert_eq!(cache.stats().hits, 0);
        // An old key is no key.
        let (_, buffer) = map();
        let region = cache.register(&buffer, ..).access(access).await.unwrap();
        let remote = region.remote();
        drop((region, buffer));
        there
            .write(vec![6; 8], remote.slice(0..8).unwrap())
            .await
            .ok();
        let after = there.write(vec![6; 8], remote.slice(0..8).unwrap());
        assert!(after.delivery_complete().await.is_err());
    });
}

/// A registration without handles gives no access: neither to a peer by its key nor to an
/// operation by a slice of it; the next request opens it again.
#[test]
fn a_registration_without_a_handle_is_closed_to_everybody() {
    over_all_drivers(|net| async move {
        let (peer, other) = (net.peer().unwrap(), net.peer().unwrap());
        let cache = plain(&peer).open().unwrap();
        let buffer = shared(4096);
        let access = Access::LOCAL | Access::REMOTE;
        let region = cache.register(&buffer, ..).access(access).await.unwrap();
        let (remote, slice) = (region.remote(), region.slice(..).unwrap());
        let clone = region.clone();
        drop(region);
        let (here, there) = connect(&peer, &other).await.unwrap();
        let write = |bytes: &'static [u8]| there.write(bytes, remote.slice(0..4).unwrap());
        write(b"open").delivery_complete().await.unwrap();
        drop(clone);
        let refused = here.send(slice).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BadState, "{refused}");
        write(b"shut").delivery_complete().await.unwrap_err();
        let mut bytes = [0; 4];
        buffer.read_at(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"open");
        let again = cache.register(&buffer, ..).access(access).await.unwrap();
        assert_eq!((again.remote(), cache.stats().hits), (remote, 1));
        let (_here, there) = connect(&peer, &other).await.unwrap();
        let write = there.write(b"anew".to_vec(), remote.slice(0..4).unwrap());
        write.delivery_complete().await.unwrap();
        again.read_at(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"anew");
    });
}

/// A peer's key opens what was asked for and no more: registrations with rights for peers serve the
/// very same range only, and other rights are another registration.
#[test]
fn peers_get_no_more_than_was_asked_for() {
    with_cache(
        |cache| cache,
        |_, cache| {
            let buffer = shared(4096);
            let remote = |range: std::ops::Range<usize>| -> CachedRegion {
                let register = cache.register(&buffer, range);
                register.access(Access::REMOTE_READ).now().unwrap()
            };
            let (all, part) = (remote(0..4096), remote(1024..2048));
            assert_ne!(all.key(), part.key());
            assert_eq!(part.registered_len(), 1024);
            assert_eq!(remote(1024..2048).key(), part.key());
            let local = cache.register(&buffer, 0..4096).now().unwrap();
            assert!(local.remote().access.is_empty());
            assert_ne!(local.key(), all.key());
            assert_eq!(counts(&cache), (1, 3, 0));
            let RemoteRegion { len, access, .. } = part.remote();
            assert_eq!((len, access), (1024, Access::REMOTE_READ));
        },
    );
}

/// Memory whose unmapping is not reported is released when only the cache has it: a program that
/// makes new buffers without end does not keep them all.
#[test]
fn memory_that_only_the_cache_has_is_let_go() {
    with_cache(
        |cache| cache,
        |peer, cache| {
            let kept = Bytes::from(vec![1; 1000]);
            drop(cache.register(&kept, ..).now().unwrap());
            let counted: Arc<[u8]> = vec![2; 1000].into();
            drop(cache.register(&counted, ..).now().unwrap());
            for round in 0..1000 {
                let passing = Bytes::from(vec![round as u8; 1000]);
                drop(cache.register(&passing, ..).now().unwrap());
                let passing: Arc<[u8]> = vec![3; 500].into();
                drop(cache.register(&passing, ..).now().unwrap());
                assert!(cache.stats().count < 60, "{:?}", cache.stats());
            }
            assert_eq!(cache.stats().evictions, 0);
            assert!(peer.domain.region_count() < 60);
            let hits = cache.stats().hits;
            drop(cache.register(&kept, ..).now().unwrap());
            drop(cache.register(&counted, ..).now().unwrap());
            assert_eq!(cache.stats().hits, hits + 2);
            // By size too: few, and large.
            for _ in 0..20 {
                let large = Bytes::from(vec![0; 1 << 20]);
                drop(cache.register(&large, ..).now().unwrap());
                assert!(cache.stats().idle_size < 5 << 20, "{:?}", cache.stats());
            }
        },
    );
}

/// An owner may say himself that a range changes.
#[test]
fn an_owners_notice_is_heeded() {
    with_cache(
        |cache| cache,
        |peer, cache| {
            let (buffer, other) = (shared(1000), shared(1000));
            let used = cache.register(&buffer, 0..500).now().unwrap();
            drop(cache.register(&buffer, 400..1000).now().unwrap());
            drop(cache.register(&other, ..).now().unwrap());
            assert_eq!(cache.forget(&buffer, 450..460).unwrap(), 2);
            assert_eq!((cache.stats().count, peer.domain.region_count()), (1, 2));
            assert_eq!(cache.stats().forgotten, 2);
            drop(used);
            assert_eq!(peer.domain.region_count(), 1);
            drop(cache.register(&buffer, 0..500).now().unwrap());
            assert_eq!(counts(&cache), (0, 4, 0));
            let outside = cache.forget(&buffer, 450..1001).unwrap_err();
            assert_eq!(outside.kind(), ErrorKind::InvalidArgument);
        },
    );
}

/// Regions that must be bound or refreshed by themselves are not shared; raw keys are, with the
/// address of the range.
#[test]
fn caches_are_for_domains_whose_regions_need_nothing_else() {
    on(Backend::Loopback, |net| async move {
        for mode in [MrMode::ENDPOINT, MrMode::MMU_NOTIFY] {
            let hints = Hints::new().domain(|domain| domain.required_mr_mode(mode));
            let peer = net.peer_with(hints, DomainBind::empty());
            let refused = peer.domain.cache().open().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        }
        let hints =
            Hints::new().domain(|domain| domain.required_mr_mode(MrMode::RAW | MrMode::VIRT_ADDR));
        let peer = net.peer_with(hints, DomainBind::empty());
        let cache = plain(&peer).open().unwrap();
        let buffer = shared(4096);
        let all = cache.register(&buffer, ..).now().unwrap();
        let part = cache.register(&buffer, 100..200).now().unwrap();
        let ((base, key), (address, same)) = (all.raw_key(), part.raw_key());
        assert!(base + 100 == address && key == same);
        assert_eq!(part.remote().addr, address);
    });
}

/// Requests that cannot be met say why, and cache nothing.
#[test]
fn what_cannot_be_registered_is_refused() {
    with_cache(
        |cache| cache,
        |peer, cache| {
            let bytes: &'static [u8] = b"never changes";
            let writable = cache.register(&bytes, ..).access(Access::RECV).now();
            assert_eq!(writable.unwrap_err().kind(), ErrorKind::InvalidArgument);
            let outside = cache.register(&bytes, 3..14).now().unwrap_err();
            assert_eq!(outside.kind(), ErrorKind::InvalidArgument);
            let region = cache.register(&bytes, 3..).now().unwrap();
            let refused = region.write_at(0, b"x").unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::AccessDenied);
            let mut read = [0; 3];
            region.read_at(7, &mut read).unwrap();
            assert_eq!(&read, b"ges");
            assert!(region.read_at(8, &mut read).is_err());
            assert!(region.slice(..11).is_err());
            let empty = cache.register(&bytes, 5..5).now().unwrap();
            assert!(empty.is_empty());
            assert_eq!((cache.stats().count, peer.domain.region_count()), (1, 1));
        },
    );
}

/// Bound with REG_MR a miss is awaited and a hit is not; a request that is dropped caches nothing,
/// and memory that goes away meanwhile is not kept.
#[test]
fn a_miss_is_asynchronous_where_registration_is() {
    over_all_drivers(|net| async move {
        let hints = || Hints::new().domain(|domain| domain.required_mr_mode(MrMode::ALLOCATED));
        let peer = net.peer_with(hints(), DomainBind::REG_MR);
        let cache = plain(&peer).open().unwrap();
        let buffer = SharedBuffer::new(MappedBuffer::new(1 << 20).unwrap());
        let refused = cache.register(&buffer, ..).now().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BadState);
        let region = cache.register(&buffer, ..).await.unwrap();
        let hit = cache.register(&buffer, 100..).into_future().now_or_never();
        let hit = hit.expect("ends at its first poll").unwrap();
        assert_eq!(hit.key(), region.key());
        assert_eq!(cache.register(&buffer, ..).now().unwrap().key(), hit.key());
        drop((hit, region));

        let given_up = SharedBuffer::new(MappedBuffer::new(64 << 20).unwrap());
        let mut request = cache.register(&given_up, ..).into_future();
        assert!((&mut request).now_or_never().is_none());
        drop(request);
        let passing = SharedBuffer::new(MappedBuffer::new(8 << 20).unwrap());
        let request = cache.register(&passing, ..).into_future();
        drop(passing);
        drop(request.await.unwrap());
        assert_eq!((cache.stats().count, peer.domain.region_count()), (1, 1));
        assert!(peer.events.is_empty());
    });
}
