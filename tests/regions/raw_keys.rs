//! Raw keys: larger than a header's 64 bits, mapped before use, and proven with every access
//! (`fi_mr(3)`, FI_MR_RAW).

use crate::common::matrix::{Opens, over_all_combinations};
use crate::common::peers::{bytes_of, open_region, peer_with, read, write};
use tokio_fabric::testing::Net;
use tokio_fabric::{
    Error, ErrorKind, Hints, RemoteRegion,
    domain::DomainBind,
    error::Refusal,
    info::MrMode,
    mr::{KEY_NOT_AVAILABLE, RawKey},
};

fn raw_mode() -> Hints {
    Hints::new().domain(|domain| domain.required_mr_mode(MrMode::RAW))
}

/// fi_domain(3): `FI_MR_RAW`, mode bit.
/// fi_domain(3): "The provider requires additional setup as part of their memory registration
/// process."
/// fi_domain(3): "This mode is required by providers that use a memory key that is larger than
/// 64-bits."
/// fi_mr(3): "must use fi_mr_raw_attr() locally and fi_mr_map_raw() at the peer before targeting a
/// memory region"
/// fi_mr(3): "Use of this call is required if the FI_RAW_MR mode bit has been set by the provider"
/// fi_mr(3): "Use of the fi_mr_map_raw function is required if the peer has the FI_RAW_MR mode bit
/// set"
/// fi_mr(3): "If FI_MR_RAW mode has been set, the key must be retrieved using the fi_mr_raw_attr
/// function."
/// fi_mr(3): "After a raw key has been retrieved, it must be exchanged with the remote peer."
/// fi_mr(3): "The peer must use fi_mr_map_raw to convert the raw key into a usable 64-bit key."
/// fi_mr(3): "A raw key must be mapped by a peer before it can be used in data transfer
/// operations."
/// fi_mr(3): "Raw protection keys must be mapped to a usable key value before they can be used for
/// data transfer operations."
/// fi_mr(3): "The mapping is done by the peer that initiates the RMA or atomic operation."
/// fi_mr(3): "The mapping function takes as input the raw key and its size, and returns the mapped
/// key."
/// fi_mr(3): "The mapping must be done even if the raw key is 64-bits or smaller."
/// fi_mr(3): "Converts a raw memory region key into a key that is usable for data transfer
/// operations."
/// fi_mr(3): "Return raw memory region attributes."
/// fi_mr(3): "Returns the raw, remote protection key and base address associated with a MR."
/// fi_mr(3): `FI_RAW_MR`, mode bit (the page's other name for FI_MR_RAW).
/// fi_mr(3): `fi_mr_raw_key`, the page's other name for fi_mr_raw_attr.
/// fi_mr(3): `fi_mr_map_raw(base_addr)`, `fi_mr_map_raw(raw_key)`, `fi_mr_map_raw(key_size)`,
/// `fi_mr_map_raw(key)`, arguments.
#[test]
fn with_raw_a_region_is_reached_by_its_mapped_raw_key_only() {
    over_all_combinations(|net| async move {
        for more in [MrMode::empty(), MrMode::VIRT_ADDR, MrMode::PROV_KEY] {
            let hints = Hints::new().domain(|domain| domain.required_mr_mode(MrMode::RAW | more));
            let (initiator, target, x, _y) = net.toward(hints).await;
            let region = open_region(&target, vec![1u8; 100]).await;
            // Exchanged, as bytes.
            let (base_addr, raw) = region.raw_key();
            assert_eq!(base_addr, region.remote().addr);
            let raw = RawKey::from_bytes(&raw.to_bytes()).unwrap();
            let mapped = initiator.domain.map_raw(base_addr, &raw).unwrap();
            let remote = mapped.remote(100);
            assert_eq!(
                (remote.key, remote.addr, remote.len),
                (mapped.key(), base_addr, 100)
            );
            write(&x, remote.slice(10..20).unwrap(), 2).await.unwrap();
            assert_eq!(
                bytes_of(&region)[9..21],
                [1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1]
            );
            assert_eq!(
                read(&x, remote.slice(9..11).unwrap()).await.unwrap(),
                [1, 2]
            );
            x.inject_write(b"abc", remote.slice(97..100).unwrap())
                .unwrap();
            assert_eq!(
                read(&x, remote.slice(97..100).unwrap()).await.unwrap(),
                b"abc"
            );
            // Two ranges at a time, and not more.
            let ranges = [remote.slice(0..1).unwrap(), remote.slice(97..99).unwrap()];
            let (_, bytes) = x.read(vec![0; 3], ranges).await.unwrap();
            assert_eq!(bytes, [1, b'a', b'b']);
            let three = [ranges[0], ranges[0], ranges[0]];
            let refused = x.read(vec![0; 3], three).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::TooLarge);
            // The number that stands in it opens nothing unmapped, nor with another's tag.
            let number = u64::from_le_bytes(raw.to_bytes()[..8].try_into().unwrap());
            let (z, _z) = net.connect(&initiator, &target).await.unwrap();
            let unmapped = RemoteRegion::new(base_addr, 4, number);
            let refused = read(&z, unmapped).await.unwrap_err();
            assert_eq!(refused.refusal(), Some(Refusal::UnknownKey), "{refused}");
            let careful = net.peer_with(raw_mode(), DomainBind::empty());
            let (z, _z) = net.connect(&careful, &target).await.unwrap();
            let refused = read(&z, unmapped).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::KeyRejected, "{refused}");
            // Without the mapping there is nothing to use: the region has no key.
            let remote = region.remote();
            assert_eq!(
                (region.key(), remote.key),
                (KEY_NOT_AVAILABLE, KEY_NOT_AVAILABLE)
            );
            assert_eq!(
                read(&x, remote).await.unwrap_err().kind(),
                ErrorKind::KeyRejected
            );
            assert!(x.is_connected());
        }
    });
}

/// The tag of a raw key is a proof "that a peer cannot forge": neither the key alone nor any other
/// tag opens the region, and nothing more is learned by trying.
#[test]
fn a_raw_key_that_was_changed_or_made_up_opens_nothing() {
    over_all_combinations(|net| async move {
        let (initiator, target) = (
            net.peer().unwrap(),
            net.peer_with(raw_mode(), DomainBind::empty()),
        );
        let region = open_region(&target, vec![1u8; 16]).await;
        let other = open_region(&target, vec![2u8; 16]).await;
        let (base, raw) = region.raw_key();
        let wire_key = u64::from_le_bytes(raw.to_bytes()[..8].try_into().unwrap());
        assert!(target.domain.is_own_raw_key(&raw));
        assert!(!initiator.domain.is_own_raw_key(&raw));
        let mut forged = vec![RemoteRegion::new(base, 16, wire_key)];
        let mut mapped = Vec::new();
        let mut try_raw = |bytes: [u8; 32]| {
            let raw = RawKey::from_bytes(&bytes).expect("its form is right");
            assert!(!target.domain.is_own_raw_key(&raw));
            let key = initiator.domain.map_raw(base, &raw).unwrap();
            forged.push(key.remote(16));
            mapped.push(key);
        };
        for at in (0..8).chain(16..32) {
            let mut bytes = raw.to_bytes();
            bytes[at] ^= 1 << (at % 8);
            try_raw(bytes);
        }
        // One region's tag behind another's key; no proof at all.
        let mut crossed = raw.to_bytes();
        crossed[16..].copy_from_slice(&other.raw_key().1.to_bytes()[16..]);
        try_raw(crossed);
        let mut unproven = raw.to_bytes();
        unproven[9] = 0;
        try_raw(unproven);
        let (x, _y) = net.connect_patient(&initiator, &target, 100).await.unwrap();
        for remote in forged {
            let error = write(&x, remote, 9).await.unwrap_err();
            assert_eq!(error.refusal(), Some(Refusal::UnknownKey), "{error}");
            let error = read(&x, remote).await.unwrap_err();
            assert_eq!(error.refusal(), Some(Refusal::UnknownKey), "{error}");
        }
        assert_eq!(bytes_of(&region), vec![1; 16]);
        assert_eq!(bytes_of(&other), vec![2; 16]);
        // The secret is each domain's own.
        let twin = net.peer_with(raw_mode(), DomainBind::empty());
        let register = |peer: &tokio_fabric::testing::Peer| {
            peer.domain
                .register(vec![0u8; 16])
                .key(5)
                .now()
                .unwrap()
                .raw_key()
                .1
        };
        assert_ne!(register(&target), register(&twin));
    });
}

/// fi_mr(3): "On input, the key_size parameter should indicate the size of the raw_key buffer."
/// fi_mr(3): "If the actual key is larger than what can fit into the buffer, it will return
/// -FI_ETOOSMALL."
/// fi_mr(3): `FI_ETOOSMALL`, error code.
/// fi_mr(3): "On output, key_size is set to the size of the buffer needed to store the key, which
/// may be larger than the input value."
/// fi_mr(3): "The needed key_size can also be obtained through the mr_key_size domain attribute
/// (fi_domain_attr) field." That of a domain with the mode.
/// fi_domain(3): "Key sizes larger than 8 bytes require using the FI_RAW_KEY mode bit."
/// fi_domain(3): `FI_RAW_KEY`, mode bit (the page's name for FI_MR_RAW).
/// fi_mr(3): `fi_mr_raw_attr(base_addr)`, `fi_mr_raw_attr(raw_key)`, `fi_mr_raw_attr(key_size)`,
/// arguments.
/// fi_mr(3): `fi_mr_raw_attr`: "it is safe to use this call with any memory region."
#[tokio::test]
async fn a_raw_key_has_its_size() {
    let net = Net::loopback();
    for (hints, key_size) in [(raw_mode(), 32), (Hints::new(), 8)] {
        let target = peer_with(&net, hints, DomainBind::empty());
        assert_eq!(target.domain.info().domain.mr_key_size, key_size);
        let region = open_region(&target, vec![0u8; 8]).await;
        for len in [0, 8, 31] {
            let mut small = vec![0xee; len];
            let error = region.raw_attr(&mut small).unwrap_err();
            assert_eq!((error.key_size, Error::from(error).fi_errno()), (32, 257));
            assert_eq!(small, vec![0xee; len], "untouched");
        }
        let mut large = [0xee; 40];
        assert_eq!(
            region.raw_attr(&mut large).unwrap(),
            (region.remote().addr, 32)
        );
        assert_eq!(large[..32], region.raw_key().1.to_bytes());
        assert_eq!(large[32..], [0xee; 8]);
        for wrong in [&large[..31], &large[..33], &[0xff; 32][..]] {
            let error = RawKey::from_bytes(wrong).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
    }
    let nine = net
        .fabric_with(Hints::new().domain(|domain| domain.mr_key_size(9)))
        .unwrap_err();
    assert_eq!(nine.kind(), ErrorKind::NoMatch);
    assert!(
        net.fabric_with(raw_mode().domain(|domain| domain.mr_key_size(32)))
            .is_ok()
    );
    assert!(!format!("{:?}", RawKey::from_bytes(&open_key(&net).await)).contains("17"));
}

async fn open_key(net: &Net) -> [u8; 32] {
    let target = peer_with(net, raw_mode(), DomainBind::empty());
    let region = target
        .domain
        .register(vec![0u8; 8])
        .key(0x1717_1717_1717_1717)
        .now();
    region.unwrap().raw_key().1.to_bytes()
}

/// fi_mr(3): "it is safe to use this call with any memory region."
/// fi_mr(3): "this routine may be called on any valid key."
/// fi_mr(3): "usable with all registered memory regions, even if FI_MR_RAW has not been set."
#[test]
fn raw_keys_work_in_every_mode() {
    over_all_combinations(|net| async move {
        for mode in [
            MrMode::empty(),
            MrMode::BASIC,
            MrMode::VIRT_ADDR,
            MrMode::LOCAL,
            MrMode::ALLOCATED,
        ] {
            let hints = Hints::new().domain(|domain| domain.required_mr_mode(mode));
            let (initiator, target, x, _y) = net.toward(hints).await;
            let region = open_region(&target, vec![3u8; 8]).await;
            let (base, raw) = region.raw_key();
            let mapped = initiator.domain.map_raw(base, &raw).unwrap();
            assert_eq!(read(&x, mapped.remote(8)).await.unwrap(), [3; 8]);
            // Beside it, the plain key still does.
            assert_eq!(read(&x, region.remote()).await.unwrap(), [3; 8]);
        }
        // An initiator that has the mode itself maps every key.
        let careful = net.peer_with(raw_mode(), DomainBind::empty());
        let plain = net.peer().unwrap();
        let region = open_region(&plain, vec![4u8; 8]).await;
        let (x, _y) = net.connect(&careful, &plain).await.unwrap();
        let unmapped = read(&x, region.remote()).await.unwrap_err();
        assert_eq!(unmapped.kind(), ErrorKind::KeyRejected);
        let (base, raw) = region.raw_key();
        let mapped = careful.domain.map_raw(base, &raw).unwrap();
        assert_eq!(read(&x, mapped.remote(8)).await.unwrap(), [4; 8]);
    });
}

/// fi_mr(3): "All mapped keys must be freed by calling fi_mr_unmap_key when access to the peer
/// memory region is no longer necessary."
/// fi_mr(3): "This call releases any resources that may have been allocated as part of mapping a
/// raw memory key."
/// fi_mr(3): "All mapped keys must be freed before the corresponding domain is closed."
/// fi_mr(3): "Releases a previously mapped raw memory region key."
/// fi_mr(3): `fi_mr_unmap_key(key)`, argument.
/// fi_mr(3): `fi_mr_raw_attr(flags)`, argument, and `fi_mr_map_raw(flags)`, argument: reserved, so
/// the calls here take none.
#[test]
fn mapped_keys_are_released_before_their_domain_closes() {
    over_all_combinations(|net| async move {
        let initiator = net.undriven(Hints::new(), DomainBind::empty());
        let target = net.peer_with(raw_mode(), DomainBind::empty());
        let (x, y) = net.connect_patient(&initiator, &target, 10).await.unwrap();
        let region = open_region(&target, vec![5u8; 8]).await;
        let (base, raw) = region.raw_key();
        let one = initiator.domain.map_raw(base, &raw).unwrap();
        let two = initiator.domain.map_raw(base, &raw).unwrap();
        assert_ne!(one.key(), two.key());
        let remote = one.remote(8);
        assert_eq!(read(&x, remote).await.unwrap(), [5; 8]);
        one.unmap();
        // Now it is the number it always was, which opens nothing.
        let unmapped = read(&x, remote).await.unwrap_err();
        assert_eq!(unmapped.refusal(), Some(Refusal::UnknownKey), "{unmapped}");
        assert_eq!(read(&x, two.remote(8)).await.unwrap(), [5; 8]);
        x.shutdown().await.unwrap();
        drop((x, y));
        // What `one` held is released, what `two` holds is not, and nothing else is open.
        let busy = async || loop {
            let busy = initiator.domain.close().await.unwrap_err();
            assert_eq!(busy.kind(), ErrorKind::Busy);
            if !busy.to_string().contains("endpoint") {
                break busy.to_string();
            }
            tokio::task::yield_now().await;
        };
        let busy = busy().await;
        assert!(busy.ends_with("still used by mapped key"), "{busy}");
        drop(two);
        initiator.domain.close().await.unwrap();
        let closed = initiator.domain.map_raw(base, &raw).unwrap_err();
        assert_eq!(closed.kind(), ErrorKind::BadState);
    });
}

/// fi_mr(3): "can obtain the provider key using fi_mr_key(), unless FI_MR_RAW is also set."
/// fi_mr(3): "If the FI_RAW_MR mode bit has been set for the domain, then the memory key must be
/// obtained using the fi_mr_raw_key"
/// fi_mr(3): "FI_KEY_NOTAVAIL will be returned if the registration has not completed or a raw
/// memory key is required."
/// fi_mr(3): `FI_KEY_NOTAVAIL`, return value of fi_mr_key.
/// fi_mr(3): "The memory registration must have completed successfully before invoking this
/// routine."
/// fi_mr(3): "The returned key should then be exchanged with peers prior to initiating an RMA or
/// atomic operation."
#[test]
fn there_is_no_key_before_completion_nor_where_a_raw_key_is_needed() {
    over_all_combinations(|net| async move {
        let flags = DomainBind::REG_MR;
        let provider = Hints::new().domain(|domain| domain.required_mr_mode(MrMode::PROV_KEY));
        let target = net.peer_with(provider, flags);
        let mut registration = target.domain.register(vec![7u8; 8]).into_future();
        // Whether it is at work or done, its key is the region's own, or none.
        let early = registration.key();
        let region = (&mut registration).await.unwrap();
        assert!([KEY_NOT_AVAILABLE, region.key()].contains(&early));
        assert_ne!(region.key(), KEY_NOT_AVAILABLE);
        assert_eq!(
            registration.key(),
            KEY_NOT_AVAILABLE,
            "it has been handed over"
        );
        let initiator = net.peer().unwrap();
        let (x, _y) = net.connect(&initiator, &target).await.unwrap();
        let exchanged = RemoteRegion::new(0, 8, region.key());
        assert_eq!(read(&x, exchanged).await.unwrap(), [7; 8]);
        let both =
            Hints::new().domain(|domain| domain.required_mr_mode(MrMode::PROV_KEY | MrMode::RAW));
        let target = net.peer_with(both, DomainBind::empty());
        let region = open_region(&target, vec![7u8; 8]).await;
        assert_eq!(region.key(), KEY_NOT_AVAILABLE);
        // A synchronous registration that was not polled has not completed either.
        let registration = target.domain.register(vec![7u8; 8]).into_future();
        assert_eq!(registration.key(), KEY_NOT_AVAILABLE);
    });
}
