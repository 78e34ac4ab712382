//! Each test is named after a promise and quotes it.

use std::net::{IpAddr, SocketAddr};

mod addresses;
mod capabilities;
mod datagrams;
mod domain;
mod properties;
mod refusals;
mod registration;
mod sides;

use super::*;
use crate::error::{Error, ErrorKind};
use crate::limits;

// Helpers, so that the tests below read as sentences.

fn interface(name: &str, address: &str, prefix_len: u8, speed_mbps: Option<u64>) -> Interface {
    let address: IpAddr = address.parse().expect("an address");
    let loopback = name == "lo";
    Interface {
        name: name.to_owned(),
        address,
        prefix_len,
        scope_id: 0,
        speed_mbps,
        loopback,
        mtu: None,
    }
}

/// Two cards of different speed, and the loopback interface.
fn machine() -> Vec<Interface> {
    let mut link_local = interface("eth1", "fe80::1", 64, Some(25_000));
    link_local.scope_id = 3;
    vec![
        interface("lo", "127.0.0.1", 8, None),
        interface("lo", "::1", 128, None),
        interface("eth0", "10.0.0.5", 24, Some(1_000)),
        link_local,
        interface("eth1", "192.168.7.9", 20, Some(25_000)),
    ]
}

/// The answers of all kinds of endpoint.
#[track_caller]
fn all_answers(hints: Hints) -> Vec<Info> {
    let infos = resolve(&hints, &machine()).expect("the hints can be met");
    assert!(!infos.is_empty(), "an answer is never empty");
    infos
}

/// The answers of the kind of endpoint that comes first.
#[track_caller]
fn answers(hints: Hints) -> Vec<Info> {
    let mut infos = all_answers(hints);
    let first = infos[0].endpoint.endpoint_type;
    infos.retain(|info| info.endpoint.endpoint_type == first);
    infos
}

fn rdm() -> Hints {
    Hints::new().endpoint(EndpointType::Rdm)
}

#[track_caller]
fn best(hints: Hints) -> Info {
    answers(hints).swap_remove(0)
}

#[track_caller]
fn refusal(hints: Hints, kind: ErrorKind) -> String {
    let error: Error = resolve(&hints, &machine()).expect_err("the hints cannot be met");
    assert_eq!(error.kind(), kind, "{error}");
    error.to_string()
}

#[track_caller]
fn no_match(hints: Hints, words: &[&str]) {
    let message = refusal(hints, ErrorKind::NoMatch);
    for word in words {
        assert!(message.contains(word), "{word:?} is missing in: {message}");
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address with port")
}

fn old_api() -> Hints {
    Hints::new().fabric(|fabric| fabric.api_version(ApiVersion::new(1, 4)))
}

// The answer as a whole.

/// fi_getinfo(3): "Callers may specify NULL for node, service, and hints in order to retrieve
/// information about what providers are available and their optimal usage models."
#[test]
fn no_hints_give_every_interface_address() {
    let names: Vec<_> = answers(Hints::new())
        .into_iter()
        .map(|info| info.domain.name)
        .collect();
    assert_eq!(names, ["eth1", "eth0", "lo", "lo", "eth1"]);
}

/// fi_getinfo(3): "Callers may specify NULL for node, service, and hints in order to retrieve
/// information about what providers are available and their optimal usage models."
#[test]
fn no_hints_give_every_kind_of_endpoint() {
    let mut kinds: Vec<_> = all_answers(Hints::new())
        .into_iter()
        .map(|info| (info.endpoint.endpoint_type, info.endpoint.protocol.0))
        .collect();
    kinds.dedup();
    assert_eq!(kinds, [(EndpointType::Msg, 6), (EndpointType::Rdm, 25)]);
}

/// fi_getinfo(3): "Providers that return multiple endpoints to a single fi_getinfo call should
/// return the endpoints that are highest performing first."
#[test]
fn faster_interfaces_come_first_and_loopback_last() {
    let infos = answers(Hints::new().address_format(AddressFormat::SockaddrIn));
    let speeds: Vec<_> = infos.iter().map(|info| info.interface.speed_mbps).collect();
    assert_eq!(speeds, [Some(25_000), Some(1_000), None]);
    assert!(infos[2].interface.loopback);
}

/// fi_getinfo(3): "Indicates that no providers could be found which support the requested fabric
/// information."
#[test]
fn no_interface_is_no_match() {
    let error = resolve(&Hints::new(), &[]).expect_err("nothing is offered");
    assert_eq!(error.kind(), ErrorKind::NoMatch);
    assert_eq!(error.fi_errno(), 61);
}

/// fi_getinfo(3): "With the exception of mode bits, hints that are set to zero are treated as a
/// wildcard."
#[test]
fn zero_is_a_wildcard() {
    let zero = Hints::new()
        .endpoint(EndpointType::Unspec)
        .caps(Caps::empty())
        .address_format(AddressFormat::Unspec)
        .domain(|domain| {
            domain
                .threading(Threading::Unspec)
                .control_progress(Progress::Unspec)
                .data_progress(Progress::Unspec)
                .resource_mgmt(ResourceManagement::Unspec)
                .av_type(AvType::Unspec)
        })
        .endpoint_attr(|endpoint| endpoint.protocol(Protocol::UNSPEC))
        .domain(|domain| domain.traffic_class(TrafficClass::Unspec))
        .tx(|tx| tx.traffic_class(TrafficClass::Unspec))
        .endpoint_attr(|endpoint| {
            endpoint
                .tx_ctx_cnt(ContextCount::Own(0))
                .max_order_war_size(0)
        })
        .domain(|domain| domain.max_ep_srx_ctx(0))
        .rx(|rx| rx.total_buffered_recv(0))
        .tx(|tx| tx.inject_size(0).size(0))
        .rx(|rx| rx.size(0))
        .domain(|domain| domain.mr_mode(MrMode::UNSPEC))
        .provider("");
    assert_eq!(answers(zero), answers(Hints::new()));
}

/// fi_getinfo(3): "Output values will be greater than or equal to the requested input values."
/// fi_domain(3): "Applications can set the mr_cnt on input to fi_getinfo, in order to indicate
/// their memory registration requirements."
#[test]
fn sizes_and_counts_are_at_least_what_was_asked() {
    let info = best(
        Hints::new()
            .tx(|tx| tx.size(4096))
            .rx(|rx| rx.size(16))
            .domain(|domain| {
                domain
                    .cq_cnt(100_000)
                    .ep_cnt(100_000)
                    .tx_ctx_cnt(100_000)
                    .rx_ctx_cnt(100_000)
                    .cntr_cnt(100_000)
                    .mr_cnt(1_000_000)
                    .mr_iov_limit(3)
                    .mr_key_size(4)
            })
            .tx(|tx| tx.inject_size(64))
            .domain(|domain| domain.max_err_data(16))
            .rx(|rx| rx.total_buffered_recv(4 << 20))
            .endpoint_attr(|endpoint| {
                endpoint
                    .max_msg_size(1 << 40)
                    .max_order_raw_size(u64::MAX)
                    .max_order_waw_size(4096)
            }),
    );
    assert_eq!((info.tx.size, info.rx.size), (4096, 16));
    assert_eq!((info.domain.cq_cnt, info.domain.ep_cnt), (100_000, 100_000));
    assert_eq!(
        (info.domain.tx_ctx_cnt, info.domain.rx_ctx_cnt),
        (100_000, 100_000)
    );
    assert_eq!(
        (info.domain.cntr_cnt, info.domain.mr_cnt),
        (100_000, 1_000_000)
    );
    assert_eq!((info.domain.mr_iov_limit, info.domain.mr_key_size), (16, 8));
    assert_eq!((info.tx.inject_size, info.domain.max_err_data), (128, 256));
    assert_eq!(info.rx.total_buffered_recv, 4 << 20);
    assert_eq!(info.endpoint.max_msg_size, u64::MAX);
    assert_eq!(info.endpoint.max_order_waw_size, u64::MAX);
}

/// fi_domain(3): "Domain attributes reflect the limitations and capabilities of the underlying
/// hardware and/or software provider."
/// fi_domain(3): "By default, there is a single transmit context associated with each endpoint"
/// fi_domain(3): "By default, a single receive context is associated with each endpoint"
#[test]
fn the_offer_is_that_of_libfabrics_tcp_provider() {
    let info = best(Hints::new().domain(|domain| domain.name("eth0")));
    assert_eq!(info.fabric.name, "10.0.0.0/24");
    assert_eq!(info.fabric.provider, "tcp");
    assert_eq!(info.fabric.api_version, ApiVersion::new(1, 17));
    assert_eq!(info.endpoint.endpoint_type, EndpointType::Msg);
    assert_eq!(
        (info.endpoint.protocol, info.endpoint.protocol_version),
        (Protocol::SOCK_TCP, 0)
    );
    assert_eq!(info.endpoint.max_order_raw_size, u64::MAX);
    assert_eq!(info.endpoint.max_order_war_size, 0);
    assert_eq!(info.endpoint.tx_ctx_cnt, ContextCount::Own(1));
    assert_eq!(info.endpoint.rx_ctx_cnt, ContextCount::Own(1));
    assert_eq!(
        (info.tx.inject_size, info.tx.size),
        (128, limits::CONTEXT_SIZE_DEFAULT)
    );
    assert_eq!(
        (info.tx.iov_limit, info.tx.rma_iov_limit, info.rx.iov_limit),
        (4, 4, 4)
    );
    assert_eq!(info.rx.size, 256);
    let order = info.tx.msg_order;
    assert!(order.contains(MsgOrder::RAR | MsgOrder::RAW | MsgOrder::WAW));
    assert!(order.contains(MsgOrder::SAW | MsgOrder::SAS));
    assert!(
        !order.intersects(MsgOrder::WAS | MsgOrder::RAS),
        "not unless asked"
    );
    assert!(!order.intersects(MsgOrder::SAR | MsgOrder::WAR | MsgOrder::RMA_WAR));
    assert_eq!(info.rx.msg_order, order);
    assert_eq!(info.domain.threading, Threading::Safe);
    assert_eq!(info.domain.control_progress, Progress::Auto);
    assert_eq!(info.domain.data_progress, Progress::Auto);
    assert_eq!(info.domain.resource_mgmt, ResourceManagement::Enabled);
    assert_eq!((info.domain.mr_key_size, info.domain.cq_data_size), (8, 8));
    let counts = (info.domain.cq_cnt, info.domain.ep_cnt);
    assert_eq!(counts, (limits::CQ_COUNT_MAX, limits::EP_COUNT_MAX));
    assert_eq!(info.domain.max_err_data, limits::ERR_DATA_SIZE_MAX);
}

/// fi_fabric(3): "This value corresponds to the version parameter passed into fi_getinfo(3)."
#[test]
fn the_api_version_asked_for_is_reported() {
    let version = ApiVersion::new(1, 4);
    assert_eq!(
        best(Hints::new().fabric(|fabric| fabric.api_version(version)))
            .fabric
            .api_version,
        version
    );
    assert_eq!(version.to_bits(), 0x0001_0004);
    assert_eq!((version.major(), version.minor()), (1, 4));
}

/// fi_fabric(3): "Specifying “FI_PROVIDER=foo,bar” will allow any providers with the names “foo” or
/// “bar” to be registered."
#[test]
fn a_provider_filter_is_a_list_of_those_allowed() {
    answers(Hints::new().provider("tcp"));
    answers(Hints::new().provider("udp, tcp"));
    no_match(Hints::new().provider("psm3,verbs"), &["provider"]);
    no_match(Hints::new().provider("ofi_rxm;tcp"), &["provider"]);
}

/// fi_fabric(3): "Similarly, specifying “FI_PROVIDER=^foo,bar” will prevent any providers with the
/// names “foo” or “bar” from being registered."
#[test]
fn a_provider_filter_may_list_those_left_out() {
    answers(Hints::new().provider("^udp,verbs"));
    no_match(Hints::new().provider("^udp,tcp"), &["provider"]);
}
