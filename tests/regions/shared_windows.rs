//! Windows of shared memory, each registered by itself: a key, rights and an end of its own.

use crate::common::matrix::over_all_combinations;
use tokio_fabric::{
    Access, ErrorKind,
    buf::{MappedBuffer, SharedBuffer, SharedWindow},
    error::Refusal,
};

/// A layer above lends parts of one buffer to its peer, each for one call: what is taken back is
/// refused, and what else was lent, or is cached, of the same bytes goes on.
#[test]
fn a_region_of_a_shared_window_has_a_key_and_an_end_of_its_own() {
    over_all_combinations(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let (x, y) = net.connect_patient(&a, &b, 1).await.unwrap();
        let buffer = SharedBuffer::new(MappedBuffer::new(4096).unwrap());
        let lend = |range, access| {
            let window = buffer.window(range).unwrap();
            b.domain.register(window).access(access | Access::LOCAL)
        };
        let first = lend(1..9, Access::REMOTE_WRITE).await.unwrap();
        let second = lend(4..12, Access::REMOTE_WRITE).now().unwrap();
        let read_only = lend(0..16, Access::REMOTE_READ).now().unwrap();
        let cache = b.domain.cache().open().unwrap();
        let cached = cache.register(&buffer, 1..9).access(Access::REMOTE_WRITE);
        let cached = cached.now().unwrap();
        let keys = [first.key(), second.key(), read_only.key(), cached.key()];
        assert!((0..4).all(|at| !keys[..at].contains(&keys[at])));

        x.write("aaaaaaaa", first.remote()).await.unwrap();
        assert!(first.revoke_now());
        let late = x.write("bbbbbbbb", first.remote()).await.unwrap_err();
        assert_eq!(late.error().refusal(), Some(Refusal::Revoked));
        x.write("cccccccc", second.remote()).await.unwrap();
        let (_, seen) = x.read(vec![9; 16], read_only.remote()).await.unwrap();
        assert_eq!(seen, b"\0aaacccccccc\0\0\0\0");
        x.write("dddddddd", cached.remote()).await.unwrap();
        let mut seen = [0; 12];
        buffer.read_at(0, &mut seen).unwrap();
        assert_eq!(&seen, b"\0ddddddddccc");

        // The window comes back, to be lent again under another key.
        let window: SharedWindow = first.deregister().await.unwrap();
        let again = b.domain.register(window).await.unwrap();
        assert_ne!(again.key(), keys[0]);
        let late = x.write("eeeeeeee", first.remote()).await.unwrap_err();
        assert_eq!(late.error().refusal(), Some(Refusal::Revoked));
        x.write("ffffffff", again.remote()).await.unwrap();
        // By an operation of this process, too.
        let got = x.recv(vec![0; 4]).post().unwrap();
        y.send(again.slice(..4).unwrap()).await.unwrap();
        assert_eq!(got.await.unwrap().1, b"ffff");
        assert!(x.is_connected() && y.is_connected());
    });
}

/// docs/memory-model.md, rule 3: sole access to bytes that others have is given to none, and what a
/// region gives back shows none of them.
#[test]
fn a_region_of_a_shared_window_is_never_exclusive() {
    over_all_combinations(|net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let (x, _y) = net.connect(&a, &b).await.unwrap();
        let buffer = SharedBuffer::new(vec![0u8; 64]);
        let windows = [0..16, 8..32].map(|range| buffer.window(range).unwrap());
        let region = b.domain.register(windows).now().unwrap();
        assert_eq!((region.len(), region.segment_count()), (40, 2));
        let refused = region.quiesce().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        // The same bytes, by both windows.
        let at = region.remote().slice(8..10).unwrap();
        x.write("ab", at).await.unwrap();
        let mut seen = [0; 2];
        region.read_at(16, &mut seen).unwrap();
        assert_eq!(&seen, b"ab");

        let parts = region.erase().deregister().await.unwrap();
        assert!(parts.iter().all(|part| part.is_empty()));
        let buffer = buffer.into_buffer().expect_err("windows are out");
        let windows = parts.into_iter().map(|part| part.into_window().unwrap());
        let lens: Vec<_> = windows.map(|window| window.len()).collect();
        assert_eq!(lens, [16, 24]);
        let bytes: Vec<u8> = buffer.into_buffer().unwrap().downcast().unwrap();
        assert_eq!(&bytes[8..10], b"ab");
    });
}

#[test]
fn a_window_lies_within_its_buffer() {
    let buffer = SharedBuffer::new(vec![0u8; 64]);
    let (beyond, reversed) = (
        (60..65),
        (std::ops::Bound::Included(9), std::ops::Bound::Excluded(8)),
    );
    for refused in [
        buffer.window(beyond),
        buffer.window(reversed),
        buffer.window(..=usize::MAX),
    ] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    assert!(buffer.window(64..).unwrap().is_empty());
    assert_eq!(buffer.window(..).unwrap().clone().len(), 64);
}
