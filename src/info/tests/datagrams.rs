//! What is offered of datagram endpoints.

use super::*;

fn datagrams(hints: Hints, mtu: Option<u32>) -> Result<Vec<Info>, Error> {
    let mut eth = interface("eth0", "10.0.0.1", 24, Some(1000));
    eth.mtu = mtu;
    resolve(&hints.endpoint(EndpointType::Dgram), &[eth])
}

/// fi_domain(3), `FI_EP_DGRAM`; fi_udp(7): "The provider supports only endpoint type FI_EP_DGRAM."
#[test]
fn datagram_endpoints_are_offered_with_the_attributes_of_udp() {
    let info = datagrams(Hints::new(), Some(9000)).unwrap().remove(0);
    assert_eq!(info.endpoint.endpoint_type, EndpointType::Dgram);
    assert_eq!(info.endpoint.protocol, Protocol::UDP);
    assert_eq!(info.fabric.provider, "udp");
    assert_eq!(info.endpoint.max_msg_size, 9000 - 28);
    assert_eq!(info.tx.inject_size, 9000 - 28);
    assert_eq!(info.domain.cq_data_size, 0);
    assert_eq!(
        (info.tx.rma_iov_limit, info.endpoint.max_order_raw_size),
        (0, 0)
    );
    assert_eq!(info.tx.msg_order, MsgOrder::empty());
    assert_eq!(info.tx.comp_order, CompOrder::STRICT);
    let all = Caps::MSG | Caps::MULTICAST | Caps::SOURCE | Caps::DIRECTED_RECV;
    assert!(info.caps.contains(all) && !info.caps.contains(Caps::RMA));
}

/// fi_getinfo(3): a provider, a protocol or a capability that only datagrams have chooses them.
#[test]
fn what_only_datagrams_have_chooses_them() {
    for hints in [
        Hints::new().provider("udp"),
        Hints::new().endpoint_attr(|endpoint| endpoint.protocol(Protocol::UDP)),
        Hints::new().caps(Caps::MSG | Caps::MULTICAST),
    ] {
        let infos = resolve(&hints, &machine()).unwrap();
        let is_dgram = |info: &Info| info.endpoint.endpoint_type == EndpointType::Dgram;
        assert!(infos.iter().all(is_dgram));
    }
    // Without any wish messages are to arrive.
    let infos = resolve(&Hints::new(), &machine()).unwrap();
    let count = |infos: &[Info], endpoint_type| {
        let of_type = |info: &&Info| info.endpoint.endpoint_type == endpoint_type;
        infos.iter().filter(of_type).count()
    };
    let reliable = [EndpointType::Msg, EndpointType::Rdm];
    let [connected, connectionless] = reliable.map(|one| count(&infos, one));
    assert_eq!((connected, infos.len()), (connectionless, 2 * connected));
    let both = resolve(&Hints::new().provider("tcp,udp"), &machine()).unwrap();
    assert_eq!(both[0].endpoint.endpoint_type, EndpointType::Msg);
    assert_eq!(count(&both, EndpointType::Dgram), connected);
    assert_eq!(both.len(), 3 * connected);
}

/// fi_domain(3), the resource management table: `Unmatched RMA, DGRAM EP-with RM: not applicable`
/// and `RMA Overrun, DGRAM EP-with RM: not applicable`: there is none. Nor without it: `Unmatched
/// RMA, DGRAM EP-no RM: not applicable` and `RMA Overrun, DGRAM EP-no RM: not applicable`.
#[test]
fn datagrams_have_no_remote_memory() {
    for hints in [
        Hints::new().caps(Caps::RMA),
        Hints::new().caps(Caps::MSG | Caps::ATOMIC),
        Hints::new().domain(|domain| domain.cq_data_size(8)),
        Hints::new().domain(|domain| domain.auth_key(AuthKey::new(*b"a key of the domain's own"))),
        Hints::new().tx(|tx| tx.msg_order(MsgOrder::SAS)),
    ] {
        for setting in [ResourceManagement::Enabled, ResourceManagement::Disabled] {
            let hints = hints.clone().domain(|domain| domain.resource_mgmt(setting));
            let error = datagrams(hints, None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoMatch, "{error}");
        }
    }
}

/// fi_endpoint(3): "the maximum message size may be limited to the fabric MTU." Interfaces that
/// take less than was asked for are left out.
#[test]
fn a_message_is_as_long_as_its_interface_allows() {
    for (mtu, max) in [(None, 1472), (Some(1400), 1372), (Some(65_536), 65_507)] {
        let info = datagrams(Hints::new(), mtu).unwrap().remove(0);
        assert_eq!(info.endpoint.max_msg_size, max);
        let asks = |len| {
            datagrams(
                Hints::new().endpoint_attr(|endpoint| endpoint.max_msg_size(len)),
                mtu,
            )
        };
        assert!(asks(max).is_ok());
        let error = asks(max + 1).unwrap_err();
        assert!(error.to_string().contains("max_msg_size"), "{error}");
    }
    let mut six = interface("lo", "::1", 128, None);
    six.mtu = Some(65_536);
    let hints = Hints::new().endpoint(EndpointType::Dgram);
    let info = resolve(&hints, &[six]).unwrap().remove(0);
    assert_eq!(info.endpoint.max_msg_size, 65_536 - 48);
}
