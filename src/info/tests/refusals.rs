//! Every hint that cannot be met, one by one.

use super::*;

/// fi_getinfo(3): "As a general rule, specifying a non-zero value for input hints indicates that a
/// provider must support the requested value or fail the operation with -FI_ENODATA."
#[test]
fn each_hint_that_cannot_be_met_is_named_with_what_was_asked_and_what_is_offered() {
    let new = || Hints::new().endpoint(EndpointType::Msg);
    let rdm = || Hints::new().endpoint(EndpointType::Rdm);
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
            new().fabric(|fabric| fabric.api_version(ApiVersion::new(9, 1))),
            &["hint fabric.api_version", "9.1", "1.0 to 2.6"],
        ),
        (new().provider("verbs"), &["hint provider", "verbs", "tcp"]),
        (
            new().fabric(|fabric| fabric.provider_version(ApiVersion::new(99, 0))),
            &["hint fabric.provider_version", "99.0"],
        ),
        (
            new().domain(|domain| domain.required_mr_mode(MrMode::COLLECTIVE)),
            &["hint domain.required_mr_mode", "COLLECTIVE", "VIRT_ADDR"],
        ),
        (
            new().domain(|domain| domain.mr_key_size(9)),
            &["hint domain.mr_key_size", "9", "8"],
        ),
        (
            new().domain(|domain| domain.cq_data_size(16)),
            &["hint domain.cq_data_size", "16", "8"],
        ),
        (
            new().domain(|domain| domain.max_ep_tx_ctx(2)),
            &["hint domain.max_ep_tx_ctx", "2", "1"],
        ),
        (
            rdm().domain(|domain| domain.max_ep_rx_ctx(65)),
            &["hint domain.max_ep_rx_ctx", "65", "64"],
        ),
        (
            new().domain(|domain| domain.max_ep_stx_ctx(1)),
            &["hint domain.max_ep_stx_ctx", "1", "0"],
        ),
        (
            rdm().domain(|domain| domain.ep_cnt(4).max_ep_srx_ctx(5)),
            &["hint domain.max_ep_srx_ctx", "5", "4"],
        ),
        (
            new().domain(|domain| domain.mr_iov_limit(17)),
            &["hint domain.mr_iov_limit", "17", "16"],
        ),
        (
            new().domain(|domain| domain.caps(Caps::DIRECTED_RECV)),
            &["hint domain.caps", "DIRECTED_RECV"],
        ),
        (
            new().domain(|domain| domain.auth_key(AuthKey::of_address_vector())),
            &["hint domain.auth_key", "address vector"],
        ),
        (
            new().endpoint_attr(|endpoint| endpoint.auth_key(AuthKey::of_address_vector())),
            &["hint endpoint_attr.auth_key"],
        ),
        (
            new().domain(|domain| domain.max_ep_auth_key(1)),
            &["hint domain.max_ep_auth_key", "1", "0"],
        ),
        (
            new().domain(|domain| domain.max_err_data(257)),
            &["hint domain.max_err_data", "257", "256"],
        ),
        (
            new().endpoint_attr(|endpoint| endpoint.protocol(Protocol::XNET)),
            &["hint endpoint_attr.protocol", "25", "6"],
        ),
        (
            new().endpoint_attr(|endpoint| endpoint.protocol_version(1)),
            &["hint endpoint_attr.protocol_version", "1", "0"],
        ),
        (
            new().endpoint_attr(|endpoint| endpoint.msg_prefix_size(8)),
            &["hint endpoint_attr.msg_prefix_size", "8", "0"],
        ),
        (
            new().endpoint_attr(|endpoint| endpoint.max_order_war_size(1)),
            &["hint endpoint_attr.max_order_war_size", "1", "0"],
        ),
        (
            new().endpoint_attr(|endpoint| endpoint.mem_tag_format(0xff)),
            &["hint endpoint_attr.mem_tag_format", "255", "0"],
        ),
        (
            new().endpoint_attr(|endpoint| endpoint.tx_ctx_cnt(ContextCount::Own(2))),
            &["hint endpoint_attr.tx_ctx_cnt", "2", "1"],
        ),
        (
            rdm()
                .domain(|domain| domain.max_ep_rx_ctx(2))
                .endpoint_attr(|endpoint| endpoint.rx_ctx_cnt(ContextCount::Own(3))),
            &["hint endpoint_attr.rx_ctx_cnt", "3", "2"],
        ),
        (
            rdm().endpoint_attr(|endpoint| endpoint.tx_ctx_cnt(ContextCount::Shared)),
            &["hint endpoint_attr.tx_ctx_cnt", "shared"],
        ),
        (
            new().tx(|tx| tx.caps(Caps::TRIGGER)),
            &["hint tx.caps", "TRIGGER"],
        ),
        (
            new().rx(|rx| rx.caps(Caps::SOURCE)),
            &["hint rx.caps", "SOURCE"],
        ),
        (
            new()
                .caps(Caps::MSG | Caps::RMA)
                .tx(|tx| tx.op_flags(OpFlags::COMMIT_COMPLETE)),
            &["hint tx.op_flags", "COMMIT_COMPLETE"],
        ),
        (
            new().rx(|rx| rx.op_flags(OpFlags::MULTI_RECV)),
            &["hint rx.op_flags", "MULTI_RECV"],
        ),
        (
            new().tx(|tx| tx.msg_order(MsgOrder::SAR)),
            &["hint tx.msg_order", "SAR", "SAS"],
        ),
        (
            new().rx(|rx| rx.msg_order(MsgOrder::WAR)),
            &["hint rx.msg_order", "WAR", "WAW"],
        ),
        (
            new().tx(|tx| tx.comp_order(CompOrder::STRICT)),
            &["hint tx.comp_order", "STRICT", "none"],
        ),
        (
            new().rx(|rx| rx.comp_order(CompOrder::DATA)),
            &["hint rx.comp_order", "DATA", "STRICT"],
        ),
        (
            new().tx(|tx| tx.inject_size(129)),
            &["hint tx.inject_size", "129", "128"],
        ),
        (
            new().tx(|tx| tx.size(4097)),
            &["hint tx.size", "4097", "4096"],
        ),
        (
            new().rx(|rx| rx.size(65_537)),
            &["hint rx.size", "65537", "65536"],
        ),
        (
            new().tx(|tx| tx.iov_limit(5)),
            &["hint tx.iov_limit", "5", "4"],
        ),
        (
            new().rx(|rx| rx.iov_limit(5)),
            &["hint rx.iov_limit", "5", "4"],
        ),
        (
            new().tx(|tx| tx.rma_iov_limit(5)),
            &["hint tx.rma_iov_limit", "5", "4"],
        ),
        (
            new().interface("wlan0"),
            &["hint interface", "wlan0", "lo, eth0, eth1"],
        ),
        (
            new().domain(|domain| domain.name("mlx5_0")),
            &["hint domain.name", "mlx5_0", "eth0"],
        ),
        (
            new().fabric(|fabric| fabric.name("10.1.0.0/24")),
            &["hint fabric.name", "10.0.0.0/24"],
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
