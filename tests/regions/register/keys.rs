//! Keys of regions: chosen by the application or by the library.

use crate::common::matrix::over_all_combinations;
use crate::common::peers::{bytes_of, open_region, read};
use tokio_fabric::{ErrorKind, Hints, RemoteRegion, info::MrMode};

/// fi_mr(3): `FI_ENOKEY`, error code.
/// fi_mr(3): "The requested_key is already in use."
/// fi_mr(3): `FI_EKEYREJECTED`, error code.
/// fi_mr(3): "The requested_key is not available."
/// fi_mr(3): "They key may be out of the range supported by the provider"
/// fi_mr(3): "Optional requested remote key associated with registered buffers."
/// fi_mr(3): "to indicate that a specific key be used by the provider."
/// fi_mr(3): "use the requested_key parameter to indicate that a specific key value be returned."
/// fi_domain(3): "Applications that request their own MR key must select a value within the range
/// specified by this value."
#[test]
fn keys_are_had_as_asked_or_refused() {
    over_all_combinations(|net| async move {
        let peer = net.peer().unwrap();
        let region = peer
            .domain
            .register(vec![0u8; 8])
            .key(0xfeed)
            .now()
            .unwrap();
        assert_eq!((region.key(), region.remote().key), (0xfeed, 0xfeed));
        let taken = peer
            .domain
            .register(vec![1u8; 8])
            .key(0xfeed)
            .now()
            .unwrap_err();
        assert_eq!(
            (taken.kind(), taken.error().fi_errno()),
            (ErrorKind::KeyInUse, 266)
        );
        assert_eq!(taken.into_parts().1, Some(vec![1u8; 8]));
        // FI_KEY_NOTAVAIL is never a key.
        let rejected = peer
            .domain
            .register(vec![2u8; 8])
            .key(u64::MAX)
            .now()
            .unwrap_err();
        assert_eq!(
            (rejected.kind(), rejected.error().fi_errno()),
            (ErrorKind::KeyRejected, 129)
        );
        assert_eq!(rejected.into_parts().1, Some(vec![2u8; 8]));
        let largest = peer
            .domain
            .register(vec![0u8; 8])
            .key(u64::MAX - 1)
            .now()
            .unwrap();
        assert_eq!(largest.key(), u64::MAX - 1);
        // Each of the eight bytes is a part of the key, which a peer sends in full.
        let (_initiator, target, x, _y) = net.toward(Hints::new()).await;
        assert_eq!(target.domain.info().domain.mr_key_size, 8);
        let keys = (0..8)
            .map(|byte| 0xa5 << (8 * byte))
            .chain([0, u64::MAX - 1]);
        let regions = keys.enumerate().map(|(fill, key)| {
            let register = target.domain.register(vec![fill as u8; 8]).key(key);
            (key, register.now().unwrap())
        });
        for (fill, (key, _region)) in regions.collect::<Vec<_>>().iter().enumerate() {
            let bytes = read(&x, RemoteRegion::new(0, 8, *key)).await.unwrap();
            assert_eq!(bytes, [fill as u8; 8], "{key:x}");
        }
        // A key is free again at once.
        drop(region);
        assert_eq!(
            peer.domain
                .register(vec![0u8; 8])
                .key(0xfeed)
                .now()
                .unwrap()
                .key(),
            0xfeed
        );
    });
}

/// fi_domain(3): `FI_MR_PROV_KEY`, mode bit.
/// fi_domain(3): "Memory registration keys are selected and returned by the provider."
/// fi_mr(3): "the provider does not support application requested MR keys."
/// fi_mr(3): "MR keys are returned by the provider."
/// fi_mr(3): "the provider may not support user-requested memory registration keys."
/// fi_mr(3): "For FI_MR_PROV_KEY, the provider will return a key that must be used by the peer when
/// accessing the memory region."
/// fi_mr(3): "Support for user requested keys is provider specific and is determined by the mr_mode
/// domain attribute."
/// fi_mr(3): "Support for user requested keys is provider specific and is determined by the mr_mode
/// domain attribute."
/// fi_mr(3): "The returned key should then be exchanged with peers prior to initiating an RMA or
/// atomic operation."
/// fi_mr(3): "can obtain the provider key using fi_mr_key(), unless FI_MR_RAW is also set."
/// fi_mr(3): "The application is responsible for transferring this key to the peer."
#[test]
fn with_prov_key_the_library_chooses() {
    over_all_combinations(|net| async move {
        let hints = Hints::new().domain(|domain| domain.required_mr_mode(MrMode::PROV_KEY));
        let (_initiator, target, x, _y) = net.toward(hints).await;
        let rejected = target
            .domain
            .register(vec![0u8; 8])
            .key(1)
            .now()
            .unwrap_err();
        assert_eq!(rejected.kind(), ErrorKind::KeyRejected);
        let region = open_region(&target, vec![0u8; 8]).await;
        let other = open_region(&target, vec![0u8; 8]).await;
        assert_ne!(region.key(), other.key());
        // The peer gets the key, by any means, and uses it.
        let remote = tokio_fabric::RemoteRegion::new(0, 8, region.key());
        x.write(vec![6u8; 8], remote)
            .delivery_complete()
            .await
            .unwrap();
        assert_eq!(bytes_of(&region), vec![6u8; 8]);
        assert_eq!(bytes_of(&other), vec![0u8; 8]);
    });
}

/// fi_mr(3): "This allows applications to use well known key values, which can avoid applications
/// needing to exchange and store keys."
#[test]
fn a_well_known_key_is_used_without_an_exchange() {
    const WELL_KNOWN: u64 = 12;
    over_all_combinations(|net| async move {
        let (_initiator, target, x, _y) = net.toward(Hints::new()).await;
        let region = target.domain.register(vec![0u8; 16]).key(WELL_KNOWN);
        let region = region.now().unwrap();
        // All that the peer knows is what both programs were written with.
        let known = RemoteRegion::new(0, 16, WELL_KNOWN);
        x.write(vec![5u8; 16], known)
            .delivery_complete()
            .await
            .unwrap();
        assert_eq!(bytes_of(&region), [5; 16]);
    });
}
