//! Promises of fi_mr(3), the memory model and the rulings that regions keep. Each test names its
//! promise.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

use super::*;
use crate::buf::{
    Buffer, Convert, ConvertMany, LocalUse, OwnedBuffer, Payload, RegionMemory, RegionTraits,
    SpanList,
};
use crate::error::{ErrorKind, Refusal, Result};
use crate::id::EndpointId;
use crate::limits::RECENT_KEYS_MAX;
use crate::sync::Role;

mod access_requests;
mod auth;
mod lifetimes;
mod test_domain;
mod values;

use test_domain::{TestDomain, prepare, test_domain};

#[track_caller]
fn kind<T>(result: Result<T>) -> ErrorKind {
    match result {
        Ok(_) => panic!("an error was expected"),
        Err(error) => error.kind(),
    }
}

/// fi_mr(3): "The resulting memory regions are accessible by peers starting at a base address of 0.
/// That is, the target address that is specified is a byte offset into the registered region."
#[test]
fn offset_addressing_judges_every_edge_without_overflow() {
    let domain = test_domain();
    let region = domain.region(100, Access::REMOTE);
    let accepted = |addr, len| {
        let at = RemoteRegion::new(addr, len, region.key());
        match domain.resolve(at, Access::REMOTE_WRITE) {
            Ok(found) => {
                assert_eq!((found.offset() as u64, found.len() as u64), (addr, len));
                assert_eq!(found.role(), Role::Remote);
                true
            }
            Err(refusal) => {
                assert_eq!(refusal, Refusal::OutOfBounds);
                false
            }
        }
    };
    const HIGH: u64 = 1 << 63;
    for (addr, len, expected) in [
        (0, 0, true),
        (0, 1, true),
        (0, 100, true),
        (0, 101, false),
        (99, 1, true),
        (99, 2, false),
        (100, 0, true),
        (100, 1, false),
        (101, 0, false),
        (0, HIGH, false),
        (HIGH, 0, false),
        (HIGH, HIGH, false),
        (1, u64::MAX, false),
        (100, u64::MAX, false),
        (101, u64::MAX, false),
        (u64::MAX, 0, false),
        (u64::MAX, 1, false),
        (u64::MAX, 2, false),
        (u64::MAX - 1, 101, false),
        (u64::MAX, u64::MAX, false),
    ] {
        assert_eq!(accepted(addr, len), expected, "{addr} + {len}");
    }
}

/// fi_mr(3), FI_MR_VIRT_ADDR: "Peers that target memory regions registered with FI_MR_VIRT_ADDR
/// specify the destination memory buffer using the target's virtual address, with any offset into
/// the region specified as virtual address + offset."
#[test]
fn virtual_addressing_counts_from_the_first_buffers_address() {
    let keys = KeyPolicy::Application { key_size: 8 };
    let domain = TestDomain::new(MrAddressing::Virtual, keys);
    let buffer = vec![0; 64];
    let base = buffer.as_ptr().addr() as u64;
    let buffers = vec![buffer.into(), vec![0; 16].into()];
    let region = domain.try_region(buffers, Access::REMOTE, None).unwrap();
    let remote = region.remote();
    assert_eq!((remote.addr, remote.len), (base, 80));
    let found = domain.resolve(remote.slice(60..=79).unwrap(), Access::REMOTE_READ);
    let found = found.unwrap();
    assert_eq!((found.offset(), found.len()), (60, 20));
    for (addr, len) in [
        (0, 1),
        (base - 1, 1),
        (base, 81),
        (base + 81, 0),
        (base, u64::MAX),
    ] {
        let at = RemoteRegion {
            addr,
            len,
            ..remote
        };
        let refused = domain.resolve(at, Access::REMOTE_READ).unwrap_err();
        assert_eq!(refused, Refusal::OutOfBounds);
    }
}

/// fi_mr(3), ERRORS: "-FI_ENOKEY: The requested_key is already in use." The buffer comes back.
/// fi_mr(3): "The requested_key is already in use."
#[test]
fn enokey_requested_key_is_already_in_use() {
    let domain = test_domain();
    let first = domain.try_region(vec![vec![1; 4].into()], Access::all(), Some(42));
    let first = first.unwrap();
    assert_eq!(first.key(), 42);
    let buffer = vec![2; 4];
    let at = buffer.as_ptr();
    let refused = domain.try_region(vec![buffer.into()], Access::all(), Some(42));
    let RegisterError { error, mut buffers } = *refused.unwrap_err();
    assert_eq!((error.kind(), error.fi_errno()), (ErrorKind::KeyInUse, 266));
    assert_eq!(Buffer::new(buffers.pop().unwrap()).as_ptr(), at);
    drop(first);
    assert!(
        domain
            .try_region(vec![vec![3].into()], Access::all(), Some(42))
            .is_ok()
    );
}

/// fi_mr(3), ERRORS: "-FI_EKEYREJECTED: The requested_key is not available. They key may be out of
/// the range supported by the provider".
/// fi_mr(3): "They key may be out of the range supported by the provider"
/// fi_domain(3): "Applications that request their own MR key must select a value within the range
/// specified by this value."
#[test]
fn ekeyrejected_key_out_of_the_supported_range() {
    for (key_size, key, expected) in [
        (1, 0xff, true),
        (1, 0x100, false),
        (4, 0xffff_ffff, true),
        (4, 0x1_0000_0000, false),
        (7, (1 << 56) - 1, true),
        (7, 1 << 56, false),
        (8, 0, true),
        (8, u64::MAX - 1, true),
        // FI_KEY_NOTAVAIL says that there is no key.
        (8, u64::MAX, false),
    ] {
        let domain = TestDomain::new(MrAddressing::Offset, KeyPolicy::Application { key_size });
        let made = domain.try_region(vec![vec![1].into()], Access::all(), Some(key));
        match made {
            Ok(region) => assert!(expected && region.key() == key, "{key:x} of {key_size}"),
            Err(refused) => {
                let error = refused.error;
                assert_eq!(
                    (error.kind(), error.fi_errno()),
                    (ErrorKind::KeyRejected, 129)
                );
                assert!(!expected, "{key:x} of {key_size}");
            }
        }
    }
}

/// fi_mr(3), ERRORS: "or the provider may not support user-requested memory registration keys", and
/// FI_MR_PROV_KEY: "MR keys are returned by the provider."
/// fi_mr(3): "the provider may not support user-requested memory registration keys."
#[test]
fn ekeyrejected_where_the_provider_chooses_keys() {
    let domain = TestDomain::new(MrAddressing::Offset, KeyPolicy::Provider);
    let refused = domain.try_region(vec![vec![1].into()], Access::all(), Some(7));
    assert_eq!(refused.unwrap_err().error.kind(), ErrorKind::KeyRejected);
    let (one, two) = (
        domain.region(1, Access::all()),
        domain.region(1, Access::all()),
    );
    assert_ne!(one.key(), two.key());
    assert!(one.key() != 0 && one.key() != u64::MAX);
}

/// Ruling 23: "Keys chosen by the library are 64 random bits from the operating system". In a small
/// key space they stay within it, are never taken ones, and end with an error, not a loop.
#[test]
fn chosen_keys_are_free_and_in_range_down_to_the_last() {
    let keys = KeyPolicy::Application { key_size: 1 };
    let domain = TestDomain::new(MrAddressing::Offset, keys);
    let regions: Vec<_> = (0..255).map(|_| domain.region(1, Access::all())).collect();
    let mut seen: Vec<_> = regions.iter().map(MemoryRegion::key).collect();
    seen.sort_unstable();
    assert_eq!(seen, (1..=255).collect::<Vec<_>>());
    let refused = domain.try_region(vec![vec![1].into()], Access::all(), None);
    assert_eq!(refused.unwrap_err().error.kind(), ErrorKind::LimitReached);

    let wide = self::test_domain();
    let high = (0..64).filter(|_| wide.region(1, Access::all()).key() >> 32 != 0);
    assert!(high.count() > 60, "keys use all 64 bits");
}

/// fi_mr(3), access: "Indicates the type of operations that the local or a peer endpoint may
/// perform on registered memory region." Each right is asked for by its own operations alone.
/// fi_mr(3): "Supported access permissions are the bitwise OR of the following flags:"
#[test]
fn access_rights_are_judged_per_operation() {
    let local = [
        (LocalUse::Send, Access::SEND),
        (LocalUse::Receive, Access::RECV),
        (LocalUse::Read, Access::READ),
        (LocalUse::Write, Access::WRITE),
    ];
    for granted in Access::all().iter() {
        let domain = test_domain();
        let region = domain.region(8, granted);
        for (usage, need) in local {
            match region.slice(2..6).unwrap().into_payload(usage) {
                Ok(payload) => {
                    assert_eq!((granted, payload.len()), (need, 4));
                    let slice = RegionSlice::from_payload(payload).unwrap();
                    assert_eq!((slice.offset(), slice.len()), (2, 4));
                }
                Err((error, slice)) => {
                    assert_eq!((error.kind(), slice.len()), (ErrorKind::AccessDenied, 4));
                    assert_ne!(granted, need);
                }
            }
        }
        for need in [Access::REMOTE_READ, Access::REMOTE_WRITE] {
            let found = domain
                .resolve(region.remote(), need)
                .map(|found| found.len());
            let expected = if granted == need {
                Ok(8)
            } else {
                Err(Refusal::AccessDenied)
            };
            assert_eq!(found, expected, "{granted:?} for {need:?}");
        }
        let none = region.slice(..).unwrap().access();
        assert_eq!(none, granted);
    }
}

/// House rule 18: "Buffers go in by value and come back in the result, also on error"; ruling 17:
/// with `FI_MR_LOCAL` slices of the domain's own regions are accepted.
#[test]
fn refused_vector_of_slices_comes_back_whole() {
    let domain = test_domain();
    let (able, unable) = (
        domain.region(8, Access::SEND),
        domain.region(8, Access::RECV),
    );
    let slices = [
        able.slice(0..1).unwrap(),
        unable.slice(0..2).unwrap(),
        able.slice(0..3).unwrap(),
    ];
    assert!(
        slices.is_registered(),
        "FI_MR_LOCAL lets region slices pass"
    );
    assert!(!vec![0u8; 1].is_registered());
    let (error, back) = slices.into_payload(LocalUse::Send).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AccessDenied);
    assert_eq!(back.map(|slice| slice.len()), [1, 2, 3]);
}

/// Memory-model rule 3: "A read-only region (its own type, built from `Bytes`, `Arc<[u8]>`,
/// `&'static [u8]`, with rights among SEND, WRITE and REMOTE_READ) gives `&[u8]`."
#[tokio::test]
async fn read_only_region_gives_its_bytes_and_only_reading_rights() {
    let domain = test_domain();
    let bytes = Bytes::from(vec![1, 2, 3]);
    for access in Access::all().iter() {
        let made = prepare(
            vec![bytes.clone().into()],
            RegionTraits::plain(access.bits()),
        );
        assert_eq!(
            made.is_ok(),
            Access::READ_ONLY.contains(access),
            "{access:?}"
        );
    }
    let memory = prepare(
        vec![bytes.clone().into()],
        RegionTraits::plain(Access::READ_ONLY.bits()),
    )
    .unwrap();
    let region = ReadOnlyRegion::<Bytes>::create(domain.parts(memory, None)).unwrap();
    assert_eq!((region.as_ptr(), region.len()), (bytes.as_ptr(), 3));
    let clone = region.clone();
    let slice: &[u8] = &clone;
    let remote = region.remote();
    assert_eq!(remote.access, Access::REMOTE_READ);
    assert!(domain.resolve(remote, Access::REMOTE_READ).is_ok());
    let refused = domain.resolve(remote, Access::REMOTE_WRITE).unwrap_err();
    assert_eq!(refused, Refusal::AccessDenied);
    let sent = region.slice(1..).unwrap().into_memory(LocalUse::Send);
    assert_eq!(sent.unwrap().len(), 2);
    let received = region.slice(1..).unwrap().into_memory(LocalUse::Receive);
    assert_eq!(received.unwrap_err().0.kind(), ErrorKind::AccessDenied);
    let back: Bytes = region.deregister().await.unwrap();
    assert_eq!(back.as_ptr(), bytes.as_ptr());
    drop((back, bytes, region));
    assert_eq!(slice, [1, 2, 3], "other handles still read it");

    let memory = prepare(
        vec![vec![1].into()],
        RegionTraits::plain(Access::READ_ONLY.bits()),
    )
    .unwrap();
    let refused = ReadOnlyRegion::<Bytes>::create(domain.parts(memory, None)).unwrap_err();
    assert_eq!(
        (refused.error.kind(), refused.buffers.len()),
        (ErrorKind::InvalidArgument, 1)
    );
    let memory = prepare(
        vec!["text".into()],
        RegionTraits::plain(Access::SEND.bits()),
    )
    .unwrap();
    let refused = <MemoryRegion>::create(domain.parts(memory, None)).unwrap_err();
    assert_eq!(
        (refused.error.kind(), refused.buffers.len()),
        (ErrorKind::InvalidArgument, 1)
    );
    assert!(prepare(Vec::new(), RegionTraits::plain(Access::SEND.bits())).is_err());
}

/// Rules of the API (ruling 18): a range outside of the region is EINVAL, whatever its form.
#[test]
fn local_calls_judge_every_range() {
    let domain = test_domain();
    let region = domain.region(10, Access::all());
    assert_eq!(region.slice(..).unwrap().len(), 10);
    assert_eq!(region.slice(10..).unwrap().len(), 0);
    assert_eq!(region.slice(2..=4).unwrap().slice(1..).unwrap().offset(), 3);
    assert_eq!(kind(region.slice(..11)), ErrorKind::InvalidArgument);
    assert_eq!(kind(region.slice(11..)), ErrorKind::InvalidArgument);
    assert_eq!(
        kind(region.slice(..=usize::MAX)),
        ErrorKind::InvalidArgument
    );
    #[allow(clippy::reversed_empty_ranges)]
    let reversed = region.slice(5..4);
    assert_eq!(kind(reversed), ErrorKind::InvalidArgument);
    assert_eq!(
        kind(region.slice(2..4).unwrap().slice(..3)),
        ErrorKind::InvalidArgument
    );
    for offset in [8, 10, 11, usize::MAX - 1, usize::MAX] {
        assert_eq!(
            kind(region.read_at(offset, &mut [0; 3])),
            ErrorKind::InvalidArgument
        );
        assert_eq!(
            kind(region.write_at(offset, &[0; 3])),
            ErrorKind::InvalidArgument
        );
        assert_eq!(kind(region.load::<u64>(offset)), ErrorKind::InvalidArgument);
        assert_eq!(kind(region.store(offset, 0u64)), ErrorKind::InvalidArgument);
    }
    region.write_at(10, &[]).unwrap();
    region.write_at(7, b"end").unwrap();
    assert_eq!(region.slice(7..).unwrap().to_vec().unwrap(), b"end");
}

/// api.md decision 4: "`Copy`, sliceable, fixed byte encoding".
#[test]
fn remote_region_is_sliced_with_checks_and_encoded_the_same_everywhere() {
    let remote = RemoteRegion {
        addr: 0x10,
        len: 0x20,
        key: 0x0102_0304_0506_0708,
        access: Access::REMOTE_READ,
    };
    let bytes = remote.to_bytes();
    assert_eq!(&bytes[..9], &[0x10, 0, 0, 0, 0, 0, 0, 0, 0x20]);
    assert_eq!(&bytes[16..24], &[8, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(bytes[25], 0x10, "FI_REMOTE_READ is bit 12");
    assert_eq!(RemoteRegion::from_bytes(&bytes).unwrap(), remote);
    assert_eq!(
        kind(RemoteRegion::from_bytes(&bytes[1..])),
        ErrorKind::InvalidArgument
    );
    let part = remote.slice(4..8).unwrap();
    assert_eq!((part.addr, part.len, part.key), (0x14, 4, remote.key));
    assert_eq!(remote.slice(0x20..).unwrap().len, 0);
    assert_eq!(kind(remote.slice(..0x21)), ErrorKind::InvalidArgument);
    assert_eq!(kind(remote.slice(..=u64::MAX)), ErrorKind::InvalidArgument);
    let wild = RemoteRegion::new(u64::MAX, u64::MAX, 1);
    assert_eq!(kind(wild.slice(1..2)), ErrorKind::InvalidArgument);
    assert_eq!(wild.access, Access::REMOTE);
}

/// With the `serde` feature a handle travels in any of serde's formats.
#[cfg(feature = "serde")]
#[test]
fn remote_region_goes_through_serde() {
    let remote = RemoteRegion::new(1, 2, 3);
    let text = serde_json::to_string(&remote).unwrap();
    assert_eq!(text, r#"{"addr":1,"len":2,"key":3,"access":12288}"#);
    assert_eq!(serde_json::from_str::<RemoteRegion>(&text).unwrap(), remote);
}

/// Keys are what protects a region: logs do not show them.
#[test]
fn debug_never_shows_keys() {
    let domain = test_domain();
    let key = 987_654_321_987;
    let region = domain.try_region(vec![vec![1; 3].into()], Access::all(), Some(key));
    let region = region.unwrap();
    let table = domain.table.lock("test");
    for shown in [
        format!("{region:?}"),
        format!("{:?}", region.remote()),
        format!("{:?}", region.slice(..).unwrap()),
        format!("{:#?}", *table),
    ] {
        assert!(!shown.contains("987654321987"), "{shown}");
    }
}

/// api.md decision 8: "Handles are `Clone + Send + Sync`", and what they give may be sent.
#[test]
fn handles_guards_and_futures_may_be_sent() {
    fn sync<T: Clone + Send + Sync>() {}
    fn send<T: Send + 'static>(_: &T) {}
    sync::<MemoryRegion>();
    sync::<ReadOnlyRegion>();
    sync::<RemoteRegion>();
    let domain = test_domain();
    let region = domain.region(1, Access::all());
    send(&region.revoke());
    send(&region.quiesce());
    send(&region.deregister());
    send(&region.slice(..).unwrap());
    fn guard<T: Send + Sync + 'static>() {}
    guard::<Quiesced>();
}

proptest! {
    /// Resolving agrees with arithmetic in a type that cannot overflow, for every address, length,
    /// need and addressing.
    #[test]
    fn resolve_agrees_with_wide_arithmetic(
        len in 0usize..300,
        start in prop_oneof![any::<u64>(), 0u64..400, (0u64..400).prop_map(|it| u64::MAX - it)],
        count in prop_oneof![any::<u64>(), 0u64..400, (0u64..400).prop_map(|it| u64::MAX - it)],
        granted in any::<u64>(),
        write in any::<bool>(),
        by_virtual_address in any::<bool>(),
    ) {
        let addressing =
            if by_virtual_address { MrAddressing::Virtual } else { MrAddressing::Offset };
        let domain = TestDomain::new(addressing, KeyPolicy::Application { key_size: 8 });
        let granted = Access::from_bits_truncate(granted);
        let region = domain.region(len, granted);
        let base = region.remote().addr;
        let addr = base.wrapping_add(start);
        let need = if write { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
        let at = RemoteRegion::new(addr, count, region.key());
        let found = domain.resolve(at, need);
        let (low, high) = (u128::from(addr), u128::from(addr) + u128::from(count));
        let within = low >= u128::from(base) && high <= u128::from(base) + len as u128;
        if !granted.contains(need) {
            prop_assert_eq!(found.unwrap_err(), Refusal::AccessDenied);
        } else if within {
            let found = found.unwrap();
            prop_assert_eq!(found.offset() as u64, addr - base);
            prop_assert_eq!(found.len() as u64, count);
        } else {
            prop_assert_eq!(found.unwrap_err(), Refusal::OutOfBounds);
        }
        let unknown = RemoteRegion::new(0, 0, !region.key());
        prop_assert_eq!(domain.resolve(unknown, need).unwrap_err(), Refusal::UnknownKey);
    }

    /// Any 32 bytes decode to something, and what was encoded decodes to itself.
    #[test]
    fn remote_region_round_trips(addr: u64, len: u64, key: u64, rights: u64, noise: [u8; 32]) {
        let access = Access::from_bits_truncate(rights);
        let remote = RemoteRegion { addr, len, key, access };
        prop_assert_eq!(RemoteRegion::from_bytes(&remote.to_bytes()).unwrap(), remote);
        prop_assert!(RemoteRegion::from_bytes(&noise).is_ok());
    }
}
