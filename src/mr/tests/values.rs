//! Integers and values in region memory.

use super::*;
use crate::id::UserContext;

/// Memory-model rule 6, as users have it: every integer type and every operation, none of which
/// waits.
#[test]
fn atomics_on_region_memory_do_what_their_names_say() {
    let domain = test_domain();
    let region = domain.region(64, Access::all());
    let at = (0..8).find(|at| region.load::<u64>(*at).is_ok()).unwrap();
    region.store(at, 5u32).unwrap();
    assert_eq!(region.load::<u32>(at).unwrap(), 5);
    assert_eq!(region.load::<u8>(at + 4).unwrap(), 0);
    assert_eq!(region.swap(at, 9u32).unwrap(), 5);
    assert_eq!(region.compare_exchange(at, 8u32, 1).unwrap(), Err(9));
    assert_eq!(region.compare_exchange(at, 9u32, 1).unwrap(), Ok(9));
    assert_eq!(region.fetch_add(at, u32::MAX).unwrap(), 1);
    assert_eq!(region.fetch_or(at, 0b1100u32).unwrap(), 0);
    assert_eq!(region.fetch_and(at, 0b0110u32).unwrap(), 0b1100);
    assert_eq!(region.fetch_xor(at, 0b0111u32).unwrap(), 0b0100);
    assert_eq!(region.fetch_max(at, 2u32).unwrap(), 3);
    assert_eq!(region.fetch_min(at, 2u32).unwrap(), 3);
    assert_eq!(region.load::<u32>(at).unwrap(), 2);
    region.store(at + 8, -1i16).unwrap();
    assert_eq!(region.fetch_max(at + 8, 3i16).unwrap(), -1);
    assert_eq!(region.update(at + 8, |_: i16| None).unwrap(), 3);
    assert_eq!(kind(region.load::<u64>(at + 4)), ErrorKind::InvalidArgument);
    assert_eq!(kind(region.load::<u16>(at + 1)), ErrorKind::InvalidArgument);
    assert_eq!(kind(region.load::<u8>(64)), ErrorKind::InvalidArgument);
}

/// "typed views through `zerocopy` on copies or exclusive guards": nothing else gives a reference.
#[tokio::test]
async fn values_are_copied_or_seen_under_the_guard() {
    let domain = test_domain();
    let region = domain.region(64, Access::all());
    region.write_value(3, &[1u32, 2, 3]).unwrap();
    assert_eq!(region.read_value::<[u32; 3]>(3).unwrap(), [1, 2, 3]);
    assert_eq!(
        region.read_value::<[u16; 2]>(3).unwrap(),
        if cfg!(target_endian = "little") {
            [1, 0]
        } else {
            [0, 1]
        }
    );
    assert_eq!(
        kind(region.read_value::<u64>(57)),
        ErrorKind::InvalidArgument
    );
    assert_eq!(
        kind(region.write_value(61, &0u32)),
        ErrorKind::InvalidArgument
    );
    let mut guard = region.quiesce().await.unwrap();
    let first = guard.as_ptr().addr().wrapping_neg() % 8;
    guard
        .view_mut::<[u64]>(first..first + 16)
        .unwrap()
        .copy_from_slice(&[7, 8]);
    assert_eq!(*guard.view::<u64>(first + 8..first + 16).unwrap(), 8);
    assert_eq!(guard.view::<[u64; 2]>(first..first + 16).unwrap(), &[7, 8]);
    for range in [first..first + 15, first + 1..first + 9, 56..72] {
        assert_eq!(
            kind(guard.view::<[u64]>(range.clone())),
            ErrorKind::InvalidArgument
        );
        assert_eq!(
            kind(guard.view_mut::<[u64]>(range)),
            ErrorKind::InvalidArgument
        );
    }
}

/// fi_mr(3), context: "Application context associated with asynchronous memory registration
/// operations. This value is returned as part of any asynchronous event".
#[test]
fn a_region_names_what_it_was_registered_with() {
    let domain = test_domain();
    let region = domain.region(12, Access::LOCAL | Access::REMOTE_READ);
    assert_eq!(region.context(), Some(UserContext(5)));
    assert_eq!(region.access(), Access::LOCAL | Access::REMOTE_READ);
    let remote = region.remote();
    assert_eq!((remote.addr, remote.len, remote.key), (0, 12, region.key()));
    assert_eq!(remote.access, Access::REMOTE_READ);
    assert!(!region.is_empty() && region.segment_count() == 1);
    let first = (0..8)
        .find(|offset| region.store(*offset, 77u64).is_ok())
        .unwrap();
    assert_eq!(region.load::<u64>(first).unwrap(), 77);
}
