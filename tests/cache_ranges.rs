//! Address ranges in the registration cache: who tells that their memory has gone.

mod common;

use common::{on, on_every_backend};
use tokio_fabric::testing::{Peer, connect};
use tokio_fabric::{
    AddressRange, Backend, CacheWatch, Endpoint, ErrorKind, RegionSlice, RegistrationCache,
    RegistrationCacheBuilder,
};

/// A cache without limits or variables, as far as a test does not change it.
fn plain(peer: &Peer) -> RegistrationCacheBuilder {
    let cache = peer.domain.cache();
    cache
        .max_size(usize::MAX)
        .max_count(1024)
        .merge_regions(false)
}

/// What a message of this slice brings to the other side.
async fn passed(from: &Endpoint, to: &Endpoint, slice: RegionSlice) -> Vec<u8> {
    let receive = to.recv(vec![0; 8192]).into_future();
    from.send(slice).await.unwrap();
    let (received, mut bytes) = receive.await.unwrap();
    bytes.truncate(received.len);
    bytes
}

fn with_cache(
    open: impl Fn(RegistrationCacheBuilder) -> RegistrationCacheBuilder,
    test: impl Fn(Peer, RegistrationCache),
) {
    on(Backend::Loopback, |net| {
        let peer = net.peer().unwrap();
        let cache = open(plain(&peer)).open().unwrap();
        test(peer, cache);
        async {}
    });
}

/// Memory that the test maps where it likes, and takes away again.
struct Mapping {
    start: *mut u8,
    len: usize,
}

impl Mapping {
    fn new(len: usize) -> Mapping {
        Self::at(std::ptr::null_mut(), len, 0)
    }

    /// Unmaps it and maps the same addresses anew.
    fn replace(&mut self) {
        let new = Self::at(self.start, self.len, libc::MAP_FIXED);
        std::mem::forget(std::mem::replace(self, new));
    }

    fn at(start: *mut u8, len: usize, flags: libc::c_int) -> Mapping {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
        // SAFETY: a new mapping, which replaces none but one of the test's own.
        let start = unsafe { libc::mmap(start.cast(), len, rights, flags, -1, 0) };
        assert_ne!(
            start,
            libc::MAP_FAILED,
            "{}",
            std::io::Error::last_os_error()
        );
        Mapping {
            start: start.cast(),
            len,
        }
    }

    fn range(&self) -> AddressRange {
        // SAFETY: the test keeps no reference to these bytes, and whatever it maps here may be read
        // and written.
        unsafe { AddressRange::new(self.start, self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the test's own mapping, to which it has no reference.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

/// An address range is found again as long as it is mapped, and not when it was unmapped, moved or
/// emptied meanwhile, though the same address is in use again.
#[test]
fn the_system_tells_that_an_address_range_has_gone() {
    on_every_backend(|net| async move {
        let (peer, other) = (net.peer().unwrap(), net.peer().unwrap());
        let (here, there) = connect(&peer, &other).await.unwrap();
        let cache = match plain(&peer).watch(CacheWatch::System).open() {
            Ok(cache) => cache,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported);
                assert_eq!(plain(&peer).open().unwrap().watch(), CacheWatch::Caller);
                return;
            }
        };
        assert_eq!(cache.watch(), plain(&peer).open().unwrap().watch());
        let len = 1 << 16;
        let mut mapping = Mapping::new(len);
        for round in 0..50u8 {
            let place = mapping.start;
            let region = cache.register(&mapping.range(), ..).await.unwrap();
            region.write_at(100, &[round; 50]).unwrap();
            let slice = region.slice(100..150).unwrap();
            assert_eq!(passed(&here, &there, slice).await, [round; 50]);
            drop(region);
            let again = cache.register(&mapping.range(), 100..200).now().unwrap();
            assert_eq!((again.len(), again.registered_len()), (100, len));
            drop(again);
            let before = cache.stats();
            assert_eq!(
                (before.hits, before.misses),
                (u64::from(round) + 1, u64::from(round) + 1)
            );
            match round % 3 {
                // In one step, since other tests map memory too.
                0 => mapping.replace(),
                1 => {
                    // SAFETY: the mapping is the test's own; its bytes become zero.
                    let done = unsafe { libc::madvise(place.cast(), 4096, libc::MADV_DONTNEED) };
                    assert_eq!(done, 0);
                }
                _ => {
                    let mut elsewhere = Mapping::new(len);
                    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                    // SAFETY: both mappings are the test's own; the first replaces the second.
                    let moved =
                        unsafe { libc::mremap(place.cast(), len, len, flags, elsewhere.start) };
                    assert_eq!(moved, elsewhere.start.cast());
                    std::mem::swap(&mut mapping, &mut elsewhere);
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

/// Where the system does not tell, the caller does.
#[test]
fn the_caller_tells_that_an_address_range_has_gone() {
    with_cache(
        |cache| cache.watch(CacheWatch::Caller),
        |peer, cache| {
            let mapping = Mapping::new(1 << 16);
            let key = cache
                .register(&mapping.range(), ..4096)
                .now()
                .unwrap()
                .key();
            let same = cache.register(&mapping.range(), 10..20).now().unwrap();
            assert_eq!((same.key(), cache.watch()), (key, CacheWatch::Caller));
            drop(same);
            assert_eq!(cache.forget(&mapping.range(), 4095..).unwrap(), 1);
            assert_eq!((cache.stats().count, peer.domain.region_count()), (0, 0));
            let wraps = unsafe {
                // SAFETY: it is refused.
                AddressRange::new(mapping.start, usize::MAX)
            };
            let refused = cache.register(&wraps, 0..8).now().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        },
    );
}

/// Mappings of files are not watched by the system, so they are not kept.
#[test]
fn what_the_system_does_not_watch_is_not_kept() {
    use std::os::fd::AsRawFd;
    with_cache(
        |cache| cache,
        |peer, cache| {
            if cache.watch() != CacheWatch::System {
                return;
            }
            let file = tempfile::tempfile().unwrap();
            file.set_len(8192).unwrap();
            let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            let null = std::ptr::null_mut();
            // SAFETY: a new mapping; it replaces none.
            let start = unsafe { libc::mmap(null, 8192, rights, flags, file.as_raw_fd(), 0) };
            assert_ne!(start, libc::MAP_FAILED);
            let mapping = Mapping {
                start: start.cast(),
                len: 8192,
            };
            let region = cache.register(&mapping.range(), ..).now().unwrap();
            region.write_at(0, b"works").unwrap();
            let stats = cache.stats();
            if stats.untracked == 1 {
                assert_eq!((stats.count, peer.domain.region_count()), (0, 1));
                drop(region);
                assert_eq!(peer.domain.region_count(), 0);
            }
        },
    );
}
