//! Authorization keys: comparing them, and what a peer without the key sees.

use super::*;

/// fi_mr(3): "Only peer endpoints that are programmed to use the same authorization key may access
/// the memory region."
#[test]
fn a_region_with_a_key_is_there_for_peers_with_the_same_only() {
    let domain = test_domain();
    let (one, two) = (AuthSecret::of(b"one job's key"), AuthSecret::of(b"two"));
    let registered = |auth_key: Option<&AuthSecret>| {
        let traits = RegionTraits::plain(Access::REMOTE.bits());
        let memory = prepare(vec![vec![0; 8].into()], traits).unwrap();
        <MemoryRegion>::create(PreparedRegion {
            auth_key: auth_key.cloned(),
            ..domain.parts(memory, None)
        })
        .unwrap()
    };
    for key in [None, Some(&one), Some(&two)] {
        let region = registered(key);
        for proven in [None, Some(&one), Some(&two)] {
            for len in [8, 9] {
                let request = AccessRequest {
                    key: region.key(),
                    tag: None,
                    addr: 0,
                    len,
                    need: Access::REMOTE_READ,
                    persistent: false,
                };
                let context = AccessContext::new(EndpointId::next(), proven);
                let found = domain.table.lock("test").resolve(&request, context);
                let expected = match (key.is_none() || key == proven, len) {
                    (true, 8) => Ok(8),
                    (true, _) => Err(Refusal::OutOfBounds),
                    // The same answer as for a key that no region has.
                    (false, _) => Err(Refusal::UnknownKey),
                };
                assert_eq!(found.map(|found| found.len()), expected);
            }
        }
        // The same peers are answered `Revoked` after the region is gone.
        let number = region.key();
        drop(region);
        for proven in [None, Some(&one), Some(&two)] {
            let request = AccessRequest {
                key: number,
                tag: None,
                addr: 0,
                len: 8,
                need: Access::REMOTE_READ,
                persistent: false,
            };
            let context = AccessContext::new(EndpointId::next(), proven);
            let refused = domain.table.lock("test").resolve(&request, context);
            let expected = match key.is_none() || key == proven {
                true => Refusal::Revoked,
                false => Refusal::UnknownKey,
            };
            assert_eq!(refused.unwrap_err(), expected);
        }
    }
}

/// Keys are never in Debug, logs or errors; a seal for one side or place is valid for no other.
#[test]
fn secrets_differ_by_every_byte_and_are_never_shown() {
    let secret = AuthSecret::of(b"a key");
    assert!(secret == AuthSecret::of(b"a key"));
    for other in [&b"a kex"[..], b"a ke", b"a key\0", b""] {
        assert!(secret != AuthSecret::of(other));
    }
    let session = secret.session(&[1; 80], None);
    assert_eq!(
        format!("{secret:?} {session:?}"),
        "AuthSecret SessionKey",
        "and not a byte of either"
    );
    let places = [
        Sealed::InitiatorProof,
        Sealed::AcceptorProof,
        Sealed::InitiatorHello,
        Sealed::AcceptorHello,
    ];
    for here in places {
        let seal = session.seal(here, b"words");
        for there in places {
            assert_eq!(session.is_seal(there, b"words", &seal), here == there);
        }
        assert!(!session.is_seal(here, b"other words", &seal));
        assert!(
            !secret
                .session(&[2; 80], None)
                .is_seal(here, b"words", &seal)
        );
    }
}
