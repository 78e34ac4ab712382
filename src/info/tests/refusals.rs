//! Every hint that cannot be met, one by one.

use super::*;

/// fi_getinfo(3): "As a general rule, specifying a non-zero value for input hints indicates that a
/// provider must support the requested value or fail the operation with -FI_ENODATA."
#[test]
fn each_hint_that_cannot_be_met_is_named_with_what_was_asked_and_what_is_offered() {
    let new = || Hints::new().endpoint(EndpointType::Msg);
    let cases: Vec<(Hints, &[&str])> = vec![
        (
            new().endpoint(EndpointType::Dgram).caps(Caps::RMA),
            &["hint caps: asked for RMA", "MULTICAST"],
        ),
        (
            new().endpoint(EndpointType::SockStream),
            &["hint endpoint", "SockStream"],
        ),
        (
            new().caps(Caps::TAGGED),
            &["hint caps: asked for TAGGED", "MSG | RMA"],
        ),
        (
            Hints::new().caps(Caps::TAGGED | Caps::TRIGGER),
            &["hint caps: asked for TRIGGER", "MSG | RMA | TAGGED"],
        ),
        (
            new().caps(Caps::from_bits_retain(1 << 33)),
            &["hint caps", "0x200000000"],
        ),
        (
            new().api_version(ApiVersion::new(9, 1)),
            &["hint api_version", "9.1", "1.0 to 2.6"],
        ),
        (new().provider("verbs"), &["hint provider", "verbs", "tcp"]),
        (
            new().provider_version(ApiVersion::new(99, 0)),
            &["hint provider_version", "99.0"],
        ),
        (
            new().control_progress(Progress::Manual),
            &["hint control_progress", "Manual", "Auto"],
        ),
        (
            new().data_progress(Progress::Manual),
            &["hint data_progress", "Manual", "Auto"],
        ),
        (
            new().control_progress(Progress::ControlUnified),
            &["hint control_progress", "ControlUnified", "Auto"],
        ),
        (
            new().required_mr_mode(MrMode::HMEM),
            &["hint required_mr_mode", "HMEM", "VIRT_ADDR"],
        ),
        (new().mr_key_size(9), &["hint mr_key_size", "9", "8"]),
        (new().cq_data_size(16), &["hint cq_data_size", "16", "8"]),
        (new().max_ep_tx_ctx(2), &["hint max_ep_tx_ctx", "2", "1"]),
        (new().max_ep_rx_ctx(2), &["hint max_ep_rx_ctx", "2", "1"]),
        (new().max_ep_stx_ctx(1), &["hint max_ep_stx_ctx", "1", "0"]),
        (new().max_ep_srx_ctx(1), &["hint max_ep_srx_ctx", "1", "0"]),
        (new().mr_iov_limit(17), &["hint mr_iov_limit", "17", "16"]),
        (
            new().domain_caps(Caps::DIRECTED_RECV),
            &["hint domain_caps", "DIRECTED_RECV"],
        ),
        (
            new().auth_key(AuthKey::of_address_vector()),
            &["hint auth_key", "address vector"],
        ),
        (
            new().ep_auth_key(AuthKey::of_address_vector()),
            &["hint ep_auth_key"],
        ),
        (
            new().max_ep_auth_key(1),
            &["hint max_ep_auth_key", "1", "0"],
        ),
        (
            new().max_err_data(257),
            &["hint max_err_data", "257", "256"],
        ),
        (
            new().traffic_class(TrafficClass::LowLatency),
            &["hint traffic_class", "BestEffort"],
        ),
        (
            new().tx_traffic_class(TrafficClass::Dscp(46)),
            &["hint tx_traffic_class", "Dscp(46)"],
        ),
        (
            new().protocol(Protocol::XNET),
            &["hint protocol", "25", "6"],
        ),
        (
            new().protocol_version(1),
            &["hint protocol_version", "1", "0"],
        ),
        (
            new().msg_prefix_size(8),
            &["hint msg_prefix_size", "8", "0"],
        ),
        (
            new().max_order_war_size(1),
            &["hint max_order_war_size", "1", "0"],
        ),
        (
            new().mem_tag_format(0xff),
            &["hint mem_tag_format", "255", "0"],
        ),
        (
            new().ep_tx_ctx_cnt(ContextCount::Own(2)),
            &["hint ep_tx_ctx_cnt", "2", "1"],
        ),
        (
            new().ep_rx_ctx_cnt(ContextCount::Shared),
            &["hint ep_rx_ctx_cnt", "shared"],
        ),
        (new().tx_caps(Caps::TRIGGER), &["hint tx_caps", "TRIGGER"]),
        (new().rx_caps(Caps::SOURCE), &["hint rx_caps", "SOURCE"]),
        (
            new().tx_op_flags(OpFlags::COMMIT_COMPLETE),
            &["hint tx_op_flags", "COMMIT_COMPLETE"],
        ),
        (
            new().rx_op_flags(OpFlags::MULTI_RECV),
            &["hint rx_op_flags", "MULTI_RECV"],
        ),
        (
            new().tx_msg_order(MsgOrder::SAR),
            &["hint tx_msg_order", "SAR", "SAS"],
        ),
        (
            new().rx_msg_order(MsgOrder::WAR),
            &["hint rx_msg_order", "WAR", "WAW"],
        ),
        (
            new().tx_comp_order(CompOrder::STRICT),
            &["hint tx_comp_order", "STRICT", "none"],
        ),
        (
            new().rx_comp_order(CompOrder::DATA),
            &["hint rx_comp_order", "DATA", "STRICT"],
        ),
        (new().inject_size(129), &["hint inject_size", "129", "128"]),
        (new().tx_size(4097), &["hint tx_size", "4097", "4096"]),
        (new().rx_size(65_537), &["hint rx_size", "65537", "65536"]),
        (new().tx_iov_limit(5), &["hint tx_iov_limit", "5", "4"]),
        (new().rx_iov_limit(5), &["hint rx_iov_limit", "5", "4"]),
        (new().rma_iov_limit(5), &["hint rma_iov_limit", "5", "4"]),
        (
            new().interface("wlan0"),
            &["hint interface", "wlan0", "lo, eth0, eth1"],
        ),
        (
            new().domain_name("mlx5_0"),
            &["hint domain_name", "mlx5_0", "eth0"],
        ),
        (
            new().fabric_name("10.1.0.0/24"),
            &["hint fabric_name", "10.0.0.0/24"],
        ),
        (
            new().address_format(AddressFormat::Str),
            &["hint address_format", "Str"],
        ),
        (
            new().source(address("10.0.0.6:0")),
            &["hint source", "10.0.0.6", "10.0.0.5 (eth0)"],
        ),
    ];
    for (hints, words) in cases {
        no_match(hints, words);
    }
}
