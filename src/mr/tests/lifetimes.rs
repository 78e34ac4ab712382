//! How regions end, and what keeps their memory until then.

use super::*;

/// Invariant of the house: "a revoked or reused key never resolves" (to the region it was).
#[tokio::test]
async fn revoked_removed_or_reused_key_never_resolves() {
    let domain = test_domain();
    let old = domain.try_region(vec![vec![1; 10].into()], Access::REMOTE, Some(9));
    let old = old.unwrap();
    let remote = old.remote();
    old.revoke().await;
    let refused = domain.resolve(remote, Access::REMOTE_READ).unwrap_err();
    assert_eq!(refused, Refusal::Revoked);
    let taken = domain.try_region(vec![vec![2; 3].into()], Access::REMOTE, Some(9));
    assert_eq!(
        taken.unwrap_err().error.kind(),
        ErrorKind::KeyInUse,
        "revoked, still registered"
    );

    old.deregister().await.unwrap();
    let refused = domain.resolve(remote, Access::REMOTE_READ).unwrap_err();
    assert_eq!(refused, Refusal::Revoked, "deregistered lately");
    let new = domain.try_region(vec![vec![2; 3].into()], Access::REMOTE, Some(9));
    let new = new.unwrap();
    let refused = domain.resolve(remote, Access::REMOTE_READ).unwrap_err();
    assert_eq!(refused, Refusal::OutOfBounds, "judged by the new region");
    // The old region's late handle must not take the new region's key away.
    drop(old);
    assert!(domain.resolve(new.remote(), Access::REMOTE_READ).is_ok());
    drop(new);
    assert!(domain.table.lock("test").is_empty());
}

/// fi_mr(3), fi_close: "accesses to a closed MR from a remote peer will result in an error at the
/// peer"; api.md decision 2: "`drop` revokes at once and frees after the last access".
#[test]
fn dropping_the_last_handle_voids_the_key_and_keeps_memory_in_use() {
    let domain = test_domain();
    let region = domain.region(16, Access::all());
    let clone = region.clone();
    let remote = region.remote();
    drop(region);
    let target = domain.resolve(remote, Access::REMOTE_WRITE).unwrap();
    let mut target = Payload::from_region_uses(vec![target]);
    let leases = target.lease().unwrap();
    let receive = clone.slice(..).unwrap().into_payload(LocalUse::Receive);
    let mut receive = receive.ok().unwrap();
    let unposted = clone.slice(..).unwrap();
    let before = domain.nudges();
    assert_eq!(
        Arc::strong_count(&domain.parent),
        2,
        "a region holds its parent"
    );
    drop(clone);
    assert_eq!(Arc::strong_count(&domain.parent), 1);
    assert!(domain.nudges() > before, "the driver is woken to cancel");
    assert!(domain.table.lock("test").is_empty());
    assert_eq!(
        domain.resolve(remote, Access::REMOTE_READ).unwrap_err(),
        Refusal::Revoked
    );
    assert!(target.copy_in(0, b"late").is_err());
    let mut list = SpanList::new();
    target.spans(0, 16, &mut list);
    drop(leases);
    receive.copy_in(0, b"its own end").unwrap();
    let (error, _) = unposted.into_memory(LocalUse::Send).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadState);
}

/// `revoke_now` is for a `Drop`, which cannot wait: peers are refused when it returns, it says
/// whether an access is still in flight, and the driver is woken only to cancel one.
#[tokio::test]
async fn revoking_without_waiting_refuses_at_once_and_says_what_is_in_flight() {
    let domain = test_domain();
    let region = domain.region(16, Access::all());
    let target = domain.resolve(region.remote(), Access::REMOTE_WRITE);
    let mut target = Payload::from_region_uses(vec![target.unwrap()]);
    let leases = target.lease().unwrap();
    let before = domain.nudges();
    assert!(!region.revoke_now());
    assert!(domain.nudges() > before, "the driver is woken to cancel");
    let refused = domain.resolve(region.remote(), Access::REMOTE_READ);
    assert_eq!(refused.unwrap_err(), Refusal::Revoked);
    drop(leases);
    assert!(target.copy_in(0, b"late").is_err());
    let before = domain.nudges();
    assert!(region.revoke_now(), "as often as one likes");
    assert_eq!(domain.nudges(), before);
    region.revoke().await;
    region.write_at(0, b"ours still").unwrap();
}

/// Ruling 22: "`deregister` returns the buffers": the very buffer, once local operations have
/// ended, in the type it came in.
#[tokio::test]
async fn deregister_waits_for_operations_and_gives_the_buffer_itself_back() {
    let domain = test_domain();
    let buffer = vec![7; 32];
    let at = buffer.as_ptr();
    let region = domain
        .try_region(vec![buffer.into()], Access::all(), None)
        .unwrap();
    let sending = region.slice(..).unwrap().into_payload(LocalUse::Send);
    let mut closing = Box::pin(region.deregister());
    assert!(futures::poll!(&mut closing).is_pending());
    assert_eq!(kind(region.read_at(0, &mut [0])), ErrorKind::BadState);
    assert_eq!(kind(region.quiesce().await), ErrorKind::BadState);
    drop(sending);
    let vec: Vec<u8> = closing.await.unwrap().remove(0).downcast().unwrap();
    assert_eq!((vec.as_ptr(), vec.len()), (at, 32));
    assert_eq!(kind(region.deregister().await), ErrorKind::BadState);

    let bytes = BytesMut::from(&b"bytes"[..]);
    let boxed: Box<[u8]> = Box::from(&b"boxed"[..]);
    let buffers = vec![bytes.into(), boxed.into()];
    let region = domain.try_region(buffers, Access::all(), None).unwrap();
    region.write_at(3, b"__").unwrap();
    let mut both = region.deregister().await.unwrap();
    let boxed: Box<[u8]> = both.pop().unwrap().downcast().unwrap();
    let bytes: BytesMut = both.pop().unwrap().downcast().unwrap();
    assert_eq!((&bytes[..], &boxed[..]), (&b"byt__"[..], &b"boxed"[..]));
}

/// Memory-model rule 4: deregistering and revoking end "even if the peer stalls in mid-payload".
#[tokio::test]
async fn stalled_peer_delays_neither_revoke_nor_deregister() {
    let domain = test_domain();
    let region = domain.region(64, Access::all());
    let stalled = domain
        .resolve(region.remote(), Access::REMOTE_WRITE)
        .unwrap();
    let mut stalled = Payload::from_region_uses(vec![stalled]);
    stalled.copy_in(0, b"first half").unwrap();
    region.revoke().await;
    assert!(stalled.copy_in(10, b"second half").is_err());
    let buffer = region.deregister().await.unwrap();
    assert_eq!(&buffer[0][..11], b"first half\0");
    assert!(stalled.lease().is_err());
}

/// Cancel safety of `deregister`: "If the future is dropped, the buffers stay with the region: call
/// it again to get them".
#[tokio::test]
async fn dropped_deregister_can_be_called_again() {
    let domain = test_domain();
    let region = domain.region(4, Access::all());
    let posted = region.slice(..).unwrap().into_payload(LocalUse::Receive);
    let mut closing = Box::pin(region.deregister());
    assert!(futures::poll!(&mut closing).is_pending());
    drop(closing);
    assert!(
        domain.table.lock("test").is_empty(),
        "the key is void all the same"
    );
    drop(posted);
    assert_eq!(region.deregister().await.unwrap()[0].len(), 4);
}

/// Futures do nothing before they are polled, and may be dropped or leaked in every state.
#[tokio::test]
async fn dropped_and_leaked_futures_leave_the_region_sound() {
    let domain = test_domain();
    let region = domain.region(4, Access::all());
    drop((region.revoke(), region.quiesce(), region.deregister()));
    region.write_at(0, b"open").unwrap();
    assert!(domain.resolve(region.remote(), Access::REMOTE_READ).is_ok());

    let target = domain
        .resolve(region.remote(), Access::REMOTE_WRITE)
        .unwrap();
    let target = Payload::from_region_uses(vec![target]);
    let leases = target.lease().unwrap();
    let mut quiescing = Box::pin(region.quiesce());
    assert!(futures::poll!(&mut quiescing).is_pending());
    assert_eq!(kind(region.write_at(0, b"x")), ErrorKind::Busy);
    drop(quiescing);
    region.write_at(0, b"x").unwrap();

    let mut revoking = Box::pin(region.revoke());
    assert!(futures::poll!(&mut revoking).is_pending());
    drop(revoking);
    assert_eq!(
        domain
            .resolve(region.remote(), Access::REMOTE_READ)
            .unwrap_err(),
        Refusal::Revoked,
        "revoking is final from its first poll"
    );

    // Leaked while it waits: the region stays quiesced, and deregister answers `Busy`.
    let mut quiescing = Box::pin(region.quiesce());
    assert!(futures::poll!(&mut quiescing).is_pending());
    std::mem::forget(quiescing);
    drop(leases);
    assert_eq!(kind(region.deregister().await), ErrorKind::Busy);
}

/// Cancel safety of `quiesce`: a waiting future that holds the last handle may be dropped.
#[tokio::test]
async fn quiesce_future_with_the_last_handle_may_be_dropped() {
    let domain = test_domain();
    let region = domain.region(4, Access::all());
    let posted = region.slice(..).unwrap().into_payload(LocalUse::Receive);
    let mut quiescing = Box::pin(region.quiesce());
    assert!(futures::poll!(&mut quiescing).is_pending());
    drop(region);
    assert_eq!(
        domain.table.lock("test").len(),
        1,
        "the future holds the region"
    );
    drop(quiescing);
    assert!(domain.table.lock("test").is_empty());
    drop(posted);
}

/// Memory-model rule 3: "a leaked guard leaves the region excluded, and `deregister` then answers
/// Busy and does not hang."
#[tokio::test]
async fn leaked_guard_makes_deregister_busy() {
    let domain = test_domain();
    let region = domain.region(4, Access::all());
    let remote = region.remote();
    std::mem::forget(region.quiesce().await.unwrap());
    for _ in 0..2 {
        let error = region.deregister().await.unwrap_err();
        assert!(error.is_busy() && error.fi_errno() == 16);
    }
    assert_eq!(kind(region.quiesce().await), ErrorKind::Busy);
    region.revoke().await;
    drop(region);
    assert!(
        domain.resolve(remote, Access::REMOTE_READ).is_err(),
        "the region stays quiesced"
    );
}

/// Ruling 16: "A region that is quiesced, refreshed, disabled, revoked or closed refuses accesses
/// by peers. It never makes them wait".
#[tokio::test]
async fn quiesced_region_refuses_and_never_waits() {
    let domain = test_domain();
    let region = domain.region(4, Access::all());
    let before = domain.nudges();
    let mut guard = region.quiesce().await.unwrap();
    assert_eq!(domain.nudges(), before, "no kernel operation is under way");
    guard.copy_from_slice(b"mine");
    assert_eq!(guard.segments().count(), 1);
    assert_eq!(guard.region().len(), 4);
    let refused = domain
        .resolve(region.remote(), Access::REMOTE_READ)
        .unwrap_err();
    assert_eq!(refused, Refusal::Held);
    let (error, slice) = region
        .slice(..)
        .unwrap()
        .into_memory(LocalUse::Send)
        .unwrap_err();
    assert!(error.is_busy());
    drop(guard);
    assert!(slice.into_memory(LocalUse::Send).is_ok());
    let mut bytes = [0; 4];
    region.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"mine");
    assert!(domain.resolve(region.remote(), Access::REMOTE_READ).is_ok());
}

/// Ruling 15: a peer that comes late with the key of a deregistered region has not guessed. A
/// domain remembers a bounded number of such keys; those that peers could not reach take no place.
#[test]
fn the_keys_of_the_regions_deregistered_last_are_remembered_and_no_more() {
    let domain = test_domain();
    let keyed = |key| {
        let region = domain.try_region(vec![vec![0; 8].into()], Access::REMOTE, Some(key));
        region.unwrap().remote()
    };
    let judged = |remote| domain.resolve(remote, Access::REMOTE_READ).unwrap_err();
    let keys = RECENT_KEYS_MAX as u64 + 10;
    let remotes: Vec<_> = (0..keys).map(keyed).collect();
    for _ in 0..RECENT_KEYS_MAX {
        drop(domain.region(8, Access::SEND));
    }
    for (key, remote) in remotes.into_iter().enumerate() {
        let expected = match key < 10 {
            true => Refusal::UnknownKey,
            false => Refusal::Revoked,
        };
        assert_eq!(judged(remote), expected, "key {key}");
    }
    let never = RemoteRegion::new(0, 8, keys);
    assert_eq!(judged(never), Refusal::UnknownKey);
}
