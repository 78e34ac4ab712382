//! Values of bits, and what holds for any hints.

use proptest::prelude::*;

use super::*;

/// fi_getinfo(3): "Interface capabilities are obtained by OR-ing the following flags together."
#[test]
fn bits_have_libfabrics_values() {
    assert_eq!((Caps::MSG | Caps::RMA).bits(), 0x6);
    assert_eq!(Caps::MODIFIERS.bits(), 0x3f00);
    assert_eq!((Caps::LOCAL_COMM | Caps::REMOTE_COMM).bits(), 3 << 51);
    assert_eq!(Caps::DIRECTED_RECV.bits(), 1 << 59);
    assert_eq!(Mode::CONTEXT.bits(), 1 << 59);
    assert_eq!(MrMode::all().bits(), 0xfff);
    assert_eq!(CompOrder::STRICT.bits(), 0x1ff);
    assert_eq!(MsgOrder::ATOMIC_WAW.bits(), 1 << 39);
    assert_eq!(OpFlags::DELIVERY_COMPLETE.bits(), 1 << 28);
    assert_eq!(Caps::PRIMARY & Caps::SECONDARY, Caps::empty());
    assert_eq!(
        Caps::PRIMARY | Caps::SECONDARY | Caps::MODIFIERS,
        Caps::all()
    );
}

#[test]
fn subnets_of_every_prefix_length() {
    for (text, prefix_len, subnet) in [
        ("10.1.2.3", 0, "0.0.0.0/0"),
        ("10.1.2.3", 13, "10.0.0.0/13"),
        ("10.1.2.3", 32, "10.1.2.3/32"),
        ("10.1.2.3", 99, "10.1.2.3/32"),
        ("fe80::1", 0, "::/0"),
        ("2001:db8:ffff::1", 33, "2001:db8:8000::/33"),
        ("::1", 255, "::1/128"),
    ] {
        assert_eq!(interface("x", text, prefix_len, None).subnet(), subnet);
    }
}

proptest! {
    /// Whatever bits are hinted, the answer covers what was asked or there is a reason.
    #[test]
    fn any_bits_are_answered_or_refused(
        caps: u64, tx: u64, mr: u32, order: u64, minor in 0u16..20,
    ) {
        let hints = Hints::new()
            .caps(Caps::from_bits_retain(caps))
            .tx(|attr| attr.caps(Caps::from_bits_retain(tx)))
            .domain(|domain| domain.mr_mode(MrMode::from_bits_retain(mr)))
            .tx(|tx| tx.msg_order(MsgOrder::from_bits_retain(order)))
            .fabric(|fabric| fabric.api_version(ApiVersion::new(1, minor)));
        match resolve(&hints, &machine()) {
            Ok(infos) => {
                prop_assert!(!infos.is_empty());
                for info in infos {
                    prop_assert!(info.caps.contains(Caps::from_bits_retain(caps)));
                    prop_assert!(info.caps.contains(info.tx.caps | info.rx.caps));
                    prop_assert!(info.tx.msg_order.contains(MsgOrder::from_bits_retain(order)));
                }
            }
            Err(error) => prop_assert!(error.to_string().contains("hint ")),
        }
    }

    /// Every answer fits the offered capabilities that were asked for, in all their combinations.
    #[test]
    fn offered_caps_in_any_combination(bits in 0u64..0x4000, extra in 0u64..4) {
        let asked = Caps::from_bits_retain(bits & 0x3f06 | extra << 51);
        match resolve(&Hints::new().caps(asked), &machine()) {
            Ok(infos) => prop_assert!(infos.iter().all(|info| info.caps.contains(asked))),
            Err(error) => prop_assert_eq!(error.kind(), ErrorKind::BadFlags),
        }
    }

    /// No text in node, service, provider or names panics.
    #[test]
    fn any_text_is_answered_or_refused(node in ".{0,40}", service in ".{0,12}", other in ".{0,12}") {
        let hints =
            Hints::new().node(node.clone()).service(service.clone()).provider(other.clone());
        let _ = resolve(&hints, &machine());
        let _ = hints.unresolved();
        let text = Hints::new().node(format!("fi_sockaddr{other}://{node}")).fabric(|fabric| fabric.name(other));
        let _ = resolve(&text, &machine());
    }

    /// An address is in its own subnet, and the subnet's name does not depend on which address.
    #[test]
    fn subnets_contain_their_addresses(own: u32, other: u32, prefix_len in 0u8..=32) {
        let interface = |bits: u32| Interface {
            name: "x".to_owned(),
            address: IpAddr::V4(Ipv4Addr::from_bits(bits)),
            prefix_len,
            scope_id: 0,
            speed_mbps: None,
            loopback: false,
            mtu: None,
        };
        let (one, two) = (interface(own), interface(other));
        prop_assert!(one.contains(one.address));
        prop_assert_eq!(one.contains(two.address), one.subnet() == two.subnet());
    }
}
