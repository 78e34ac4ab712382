//! Registration caches of tests.

use tokio_fabric::testing::Peer;
use tokio_fabric::{
    Backend, Endpoint,
    domain::{RegistrationCache, RegistrationCacheBuilder},
    mr::RegionSlice,
};

use crate::common::on;

/// A cache without limits or variables, as far as a test does not change it.
pub fn plain(peer: &Peer) -> RegistrationCacheBuilder {
    let cache = peer.domain.cache();
    cache
        .max_size(usize::MAX)
        .max_count(1024)
        .merge_regions(false)
}

/// What a message of this slice brings to the other side.
pub async fn passed(from: &Endpoint, to: &Endpoint, slice: RegionSlice) -> Vec<u8> {
    let receive = to.recv(vec![0; 8192]).into_future();
    from.send(slice).await.unwrap();
    let (received, mut bytes) = receive.await.unwrap();
    bytes.truncate(received.len);
    bytes
}

/// Runs the test with a cache that differs from a [`plain`] one as `open` makes it.
pub fn with_cache(
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
