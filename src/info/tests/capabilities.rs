//! Capabilities, modes, orders and flags; the two contexts.

use super::*;
use crate::path::LocalPath;

/// fi_getinfo(3): "If capabilities in the hint parameter are set to 0, the underlying provider will
/// return the set of capabilities which are supported."
#[test]
fn caps_of_zero_give_all_that_is_supported() {
    let basic = Caps::MSG | Caps::RMA | Caps::MODIFIERS | Caps::LOCAL_COMM | Caps::REMOTE_COMM;
    assert_eq!(best(Hints::new().caps(basic)).caps, basic);
    let all = basic | Caps::ATOMIC | Caps::RMA_EVENT | Caps::RMA_PMEM | Caps::FENCE;
    let all = all | Caps::VARIABLE_MSG | Caps::HMEM;
    assert_eq!(best(Hints::new()).caps, all);
    assert_eq!(best(Hints::new().caps(all)).caps, all);
    let more = Caps::TAGGED | Caps::DIRECTED_RECV | Caps::AV_USER_ID;
    let all = all | more | Caps::MULTI_RECV | Caps::SOURCE | Caps::NAMED_RX_CTX;
    assert_eq!(best(rdm()).caps, all);
    assert_eq!(best(rdm().caps(all)).caps, all);
}

/// fi_endpoint(3): `FI_MULTI_RECV`
/// fi_endpoint(3): `FI_SOURCE`
/// fi_endpoint(3): `FI_DIRECTED_RECV`
/// fi_endpoint(3): `FI_TAGGED`
/// fi_getinfo(3): "Specifies that the endpoint should handle tagged message transfers."
/// fi_getinfo(3): "Requests that the communication endpoint use the source address of an incoming
/// message when matching it with a receive buffer."
/// fi_getinfo(3): "Requests that the endpoint return source addressing data as part of its
/// completion data."
/// fi_getinfo(3): "This capability only applies to connectionless endpoints."
/// fi_getinfo(3): "Specifies that the endpoint must support the FI_MULTI_RECV flag when posting
/// receive buffers."
#[test]
fn what_only_connectionless_endpoints_have_gives_those() {
    for caps in [
        Caps::TAGGED,
        Caps::MSG | Caps::DIRECTED_RECV,
        Caps::MSG | Caps::SOURCE,
        Caps::MSG | Caps::MULTI_RECV,
        Caps::MSG | Caps::AV_USER_ID,
    ] {
        let info = best(Hints::new().caps(caps));
        assert_eq!(info.endpoint.endpoint_type, EndpointType::Rdm, "{caps:?}");
        assert_eq!(info.caps & (Caps::PRIMARY | caps), caps);
        let msg = Hints::new().endpoint(EndpointType::Msg).caps(caps);
        no_match(msg, &["hint caps: asked for"]);
    }
    let info = best(Hints::new().caps(Caps::TAGGED | Caps::RECV));
    assert_eq!(info.tx.caps, Caps::empty());
    assert_eq!(info.rx.caps, Caps::TAGGED | Caps::RECV);
}

/// fi_endpoint(3): "A generic, unstructured tag and mask can be achieved by requesting a bit array
/// consisting of alternating 1’s and 0’s."
/// fi_endpoint(3): `FI_PROTO_XNET`
/// fi_endpoint(3): "FI_PROTO_XNET"
/// fi_endpoint(3): "mem_tag_format may be used to divide the bit array into separate fields."
#[test]
fn connectionless_endpoints_speak_xnet_and_tags_have_64_bits() {
    let info = best(rdm());
    let endpoint = &info.endpoint;
    assert_eq!(endpoint.protocol, Protocol::XNET);
    assert_eq!(endpoint.protocol_version, 1);
    assert_eq!(endpoint.max_msg_size, u64::MAX);
    assert_eq!(endpoint.mem_tag_format, 0xaaaa_aaaa_aaaa_aaaa);
    let halves = 0xffff_ffff_0000_0000;
    let asked = best(rdm().endpoint_attr(|endpoint| endpoint.mem_tag_format(halves)));
    assert_eq!(asked.endpoint.mem_tag_format, halves);
    assert_eq!(
        best(Hints::new().endpoint_attr(|endpoint| endpoint.protocol(Protocol::XNET))).endpoint,
        *endpoint
    );
    assert!(info.tx.caps.contains(Caps::TAGGED | Caps::FENCE));
    let receive = Caps::TAGGED | Caps::DIRECTED_RECV | Caps::MULTI_RECV | Caps::SOURCE;
    assert!(info.rx.caps.contains(receive));
}

/// fi_getinfo(3): "Primary capabilities must explicitly be requested by an application, and a
/// provider must enable support for only those primary capabilities which were selected."
#[test]
fn primary_caps_are_those_asked_for() {
    let caps = best(Hints::new().caps(Caps::MSG)).caps;
    assert_eq!(caps & Caps::PRIMARY, Caps::MSG);
    assert!(!caps.intersects(Caps::RMA_DIRECTIONS));
}

/// fi_getinfo(3): "If no modifiers are specified for an applicable capability, all relevant
/// modifiers are assumed."
#[test]
fn no_direction_means_all_directions() {
    let caps = best(Hints::new().caps(Caps::MSG | Caps::RMA | Caps::SEND)).caps;
    assert!(caps.contains(Caps::SEND | Caps::RMA_DIRECTIONS));
    assert!(!caps.contains(Caps::RECV));
}

/// fi_getinfo(3): "Applications can use the FI_SEND and FI_RECV flags to optimize an endpoint as
/// send-only or receive-only."
#[test]
fn directions_limit_messages() {
    let info = best(Hints::new().caps(Caps::MSG | Caps::RECV));
    assert!(!info.caps.contains(Caps::SEND));
    assert_eq!(info.tx.caps, Caps::empty());
    assert_eq!(info.rx.caps, Caps::MSG | Caps::RECV);
}

/// fi_getinfo(3): "Applications can use the FI_READ, FI_WRITE, FI_REMOTE_READ, and FI_REMOTE_WRITE
/// flags to restrict the types of RMA operations supported by an endpoint."
#[test]
fn directions_limit_rma() {
    let info = best(Hints::new().caps(Caps::RMA | Caps::REMOTE_READ));
    assert_eq!(info.caps & Caps::RMA_DIRECTIONS, Caps::REMOTE_READ);
    assert_eq!(info.tx.caps, Caps::empty());
    assert_eq!(info.rx.caps, Caps::RMA | Caps::REMOTE_READ);
}

/// `Hints::local_path`: the default follows what the capabilities ask for.
#[test]
fn communication_with_other_hosts_alone_needs_no_shared_memory() {
    let path_of = |hints: Hints| hints.chosen_local_path();
    let both = Caps::REMOTE_COMM | Caps::LOCAL_COMM;
    assert_eq!(path_of(Hints::new()), LocalPath::Auto);
    assert_eq!(path_of(Hints::new().caps(both)), LocalPath::Auto);
    assert_eq!(
        path_of(Hints::new().caps(Caps::LOCAL_COMM)),
        LocalPath::Auto
    );
    let remote = Hints::new().caps(Caps::MSG | Caps::REMOTE_COMM);
    assert_eq!(path_of(remote.clone()), LocalPath::Off);
    let of_domain = Hints::new().domain(|domain| domain.caps(Caps::REMOTE_COMM));
    assert_eq!(path_of(of_domain), LocalPath::Off);
    assert_eq!(path_of(remote.local_path(LocalPath::Auto)), LocalPath::Auto);
}

/// fi_getinfo(3): "A provider may optionally report non-selected secondary capabilities if doing so
/// would not compromise performance or security."
/// fi_domain(3): "All domain capabilities are considered secondary capabilities."
#[test]
fn secondary_caps_are_offered_unasked() {
    let unasked = best(Hints::new().caps(Caps::MSG));
    let communication = Caps::LOCAL_COMM | Caps::REMOTE_COMM;
    assert!(unasked.caps.contains(communication));
    for hints in [Hints::new(), rdm()] {
        // None of a domain's is primary: each may be left out, and asked for of the domain.
        let offered = best(hints.clone()).domain.caps;
        assert!(offered.contains(communication), "{offered:?}");
        assert!(!offered.intersects(Caps::PRIMARY), "{offered:?}");
        for caps in offered {
            let asked = best(hints.clone().domain(|domain| domain.caps(caps)));
            assert!(asked.domain.caps.contains(caps), "{caps:?}");
        }
        let none = best(hints.domain(|domain| domain.caps(Caps::empty())));
        assert_eq!(none.domain.caps, offered, "without asking");
    }
}

/// fi_getinfo(3): "If requested, a provider must support the capability or fail the fi_getinfo
/// request (FI_ENODATA)."
#[test]
fn secondary_caps_asked_for_are_had_or_refused() {
    answers(Hints::new().caps(Caps::MSG | Caps::LOCAL_COMM));
    let with = best(Hints::new().caps(Caps::RMA | Caps::RMA_PMEM)).caps;
    assert!(with.contains(Caps::RMA_PMEM) && !with.contains(Caps::RMA_EVENT));
    for missing in [Caps::TRIGGER, Caps::COLLECTIVE] {
        no_match(Hints::new().caps(Caps::MSG | missing), &["hint caps"]);
    }
}

/// fi_getinfo(3), FI_NAMED_RX_CTX: "Requests that endpoints which support multiple receive contexts
/// allow an initiator to target (or name) a specific receive context as part of a data transfer
/// operation."
#[test]
fn contexts_are_named_and_counted_where_endpoints_are_connectionless() {
    let named = best(Hints::new().caps(Caps::MSG | Caps::NAMED_RX_CTX));
    assert_eq!(named.endpoint.endpoint_type, EndpointType::Rdm);
    assert!(named.tx.caps.contains(Caps::NAMED_RX_CTX));
    let without = best(rdm().caps(Caps::MSG));
    assert!(!without.caps.contains(Caps::NAMED_RX_CTX));

    let counts = |hints: Hints| {
        let (domain, endpoint) = (best(hints.clone()).domain, best(hints).endpoint);
        let most = (domain.max_ep_tx_ctx, domain.max_ep_rx_ctx);
        (most, endpoint.tx_ctx_cnt, endpoint.rx_ctx_cnt)
    };
    let own = ContextCount::Own;
    assert_eq!(counts(rdm()), ((64, 64), own(1), own(1)));
    // A context has both directions: the other side has as many, if it is in use.
    let two = rdm().endpoint_attr(|endpoint| endpoint.tx_ctx_cnt(own(2)));
    assert_eq!(counts(two.clone()), ((64, 64), own(2), own(2)));
    let sending = two.caps(Caps::MSG | Caps::SEND);
    assert_eq!(counts(sending), ((64, 64), own(2), own(0)));
    let fewer = rdm().domain(|domain| domain.max_ep_rx_ctx(3));
    assert_eq!(counts(fewer.clone()), ((64, 3), own(1), own(1)));
    no_match(
        fewer.endpoint_attr(|endpoint| endpoint.tx_ctx_cnt(own(4))),
        &["endpoint_attr.tx_ctx_cnt", "4", "3"],
    );
}

/// fi_getinfo(3): "This flag requires that FI_RMA and/or FI_ATOMIC be set."
#[test]
fn rma_directions_alone_are_bad_flags() {
    for direction in Caps::RMA_DIRECTIONS {
        let message = refusal(
            Hints::new().caps(Caps::MSG | direction),
            ErrorKind::BadFlags,
        );
        assert!(message.contains("RMA | ATOMIC"), "{message}");
    }
}

/// fi_msg(3): "Support for variable messages is indicated through the FI_VARIABLE_MSG capability
/// bit."
#[test]
fn messages_of_variable_length_are_offered() {
    for kind in [EndpointType::Msg, EndpointType::Rdm] {
        let asked = Caps::MSG | Caps::VARIABLE_MSG;
        let answer = answers(Hints::new().endpoint(kind).caps(asked));
        let caps = answer[0].caps;
        assert!(caps.contains(asked | Caps::SEND | Caps::RECV), "{caps:?}");
    }
    let datagrams = Hints::new().endpoint(EndpointType::Dgram);
    let asked = datagrams.caps(Caps::MSG | Caps::VARIABLE_MSG);
    refusal(asked, ErrorKind::NoMatch);
}

/// fi_getinfo(3): "The specified endpoint or domain capability or operation flags are invalid."
#[test]
fn caps_without_their_companions_are_bad_flags() {
    let alone = [
        Caps::SEND,
        Caps::RECV,
        Caps::MULTICAST,
        Caps::RMA_PMEM,
        Caps::SOURCE_ERR,
    ]
    .into_iter()
    .chain([Caps::VARIABLE_MSG, Caps::XPU, Caps::RMA_EVENT | Caps::MSG]);
    for caps in alone {
        refusal(Hints::new().caps(caps), ErrorKind::BadFlags);
    }
}

/// fi_endpoint(3): "If the caps field is 0 on input to fi_getinfo(3), the applicable capability
/// bits from the fi_info structure will be used."
#[test]
fn context_caps_default_to_the_endpoints() {
    let info = best(Hints::new());
    assert_eq!(
        info.tx.caps,
        Caps::MSG
            | Caps::RMA
            | Caps::ATOMIC
            | Caps::SEND
            | Caps::READ
            | Caps::WRITE
            | Caps::RMA_PMEM
            | Caps::FENCE
            | Caps::HMEM
    );
    let memory = Caps::RMA | Caps::ATOMIC | Caps::REMOTE_READ | Caps::REMOTE_WRITE;
    let receive = Caps::MSG | Caps::RECV | Caps::VARIABLE_MSG | Caps::HMEM | memory;
    assert_eq!(info.rx.caps, receive | Caps::RMA_EVENT | Caps::RMA_PMEM);
}

/// fi_endpoint(3): "The capabilities must be a subset of those requested of the associated
/// endpoint."
#[test]
fn context_caps_are_a_subset_of_the_endpoints() {
    let messages = Hints::new().caps(Caps::MSG);
    assert_eq!(
        best(messages.clone().tx(|tx| tx.caps(Caps::MSG))).tx.caps,
        Caps::MSG | Caps::SEND
    );
    refusal(
        messages.clone().tx(|tx| tx.caps(Caps::RMA)),
        ErrorKind::BadFlags,
    );
    refusal(
        messages.clone().tx(|tx| tx.caps(Caps::MSG | Caps::RECV)),
        ErrorKind::BadFlags,
    );
    refusal(messages.rx(|rx| rx.caps(Caps::SEND)), ErrorKind::BadFlags);
    let reader = best(Hints::new().tx(|tx| tx.caps(Caps::RMA | Caps::READ)));
    assert_eq!(reader.tx.caps, Caps::RMA | Caps::READ);
}

/// fi_endpoint(3): "If not specified (0), 1 context will be assigned if the endpoint supports
/// outbound transfers."
#[test]
fn a_context_is_assigned_where_there_is_something_to_do() {
    let target = best(Hints::new().caps(Caps::RMA | Caps::REMOTE_WRITE));
    assert_eq!(target.endpoint.tx_ctx_cnt, ContextCount::Own(0));
    assert_eq!(target.endpoint.rx_ctx_cnt, ContextCount::Own(1));
}

/// fi_endpoint(3): "Providers that do not support shared transmit contexts will fail the request."
#[test]
fn shared_contexts_are_refused() {
    no_match(
        Hints::new().endpoint_attr(|endpoint| endpoint.tx_ctx_cnt(ContextCount::Shared)),
        &["endpoint_attr.tx_ctx_cnt"],
    );
}

/// fi_getinfo(3): "On output, providers will clear mode bits that are not necessary to achieve
/// high-performance."
#[test]
fn all_modes_are_cleared() {
    let all = Mode::all();
    let info = best(
        Hints::new()
            .mode(all)
            .domain(|domain| domain.mode(all))
            .tx(|tx| tx.mode(all))
            .rx(|rx| rx.mode(all)),
    );
    let modes = [info.mode, info.domain.mode, info.tx.mode, info.rx.mode];
    assert_eq!(modes, [Mode::empty(); 4]);
}

/// fi_endpoint(3): "Flags that control the operation of operations submitted against the context."
#[test]
fn default_flags_are_kept_and_those_of_the_other_side_are_bad() {
    let flags = OpFlags::DELIVERY_COMPLETE | OpFlags::COMPLETION;
    assert_eq!(
        best(Hints::new().tx(|tx| tx.op_flags(flags))).tx.op_flags,
        flags
    );
    assert_eq!(best(Hints::new()).tx.op_flags, OpFlags::empty());
    refusal(
        Hints::new().tx(|tx| tx.op_flags(OpFlags::MULTI_RECV)),
        ErrorKind::BadFlags,
    );
    refusal(
        Hints::new().rx(|rx| rx.op_flags(OpFlags::INJECT)),
        ErrorKind::BadFlags,
    );
}

/// What is offered as a default flag is what is done: that which takes a capability, with that
/// capability.
#[test]
fn default_flags_are_offered_where_they_mean_something() {
    let tx = |flags| Hints::new().tx(|tx| tx.op_flags(flags));
    let rx = |flags| Hints::new().rx(|rx| rx.op_flags(flags));
    answers(tx(OpFlags::COMMIT_COMPLETE));
    no_match(
        tx(OpFlags::COMMIT_COMPLETE).caps(Caps::RMA),
        &["tx.op_flags", "COMMIT"],
    );
    no_match(tx(OpFlags::INJECT), &["tx.op_flags", "INJECT"]);
    let many = best(rx(OpFlags::MULTI_RECV));
    assert_eq!(many.endpoint.endpoint_type, EndpointType::Rdm);
    no_match(
        rx(OpFlags::MULTI_RECV).caps(Caps::TAGGED),
        &["rx.op_flags", "MULTI_RECV"],
    );
    // An endpoint of another kind has the flags that apply to it.
    let many = best(rx(OpFlags::MULTI_RECV | OpFlags::COMPLETION));
    let (_, rx) = many.op_flags_of(EndpointType::Msg);
    assert_eq!(rx, OpFlags::COMPLETION);
    let committed = best(tx(OpFlags::COMMIT_COMPLETE | OpFlags::TRANSMIT_COMPLETE));
    let (tx, _) = committed.op_flags_of(EndpointType::Dgram);
    assert_eq!(tx, OpFlags::TRANSMIT_COMPLETE);
}

/// fi_endpoint(3): "FI_ORDER_NONE is an alias for the value 0."
#[test]
fn no_order_asked_gives_the_order_there_is() {
    let none = best(Hints::new().tx(|tx| tx.msg_order(MsgOrder::empty())));
    let some = best(Hints::new().tx(|tx| tx.msg_order(MsgOrder::SAS | MsgOrder::RMA_WAW)));
    assert_eq!(none.tx.msg_order, some.tx.msg_order);
}

/// fi_endpoint(3): "Providers should return the completion order that they actually provide, with
/// the constraint that the returned ordering is stricter than that specified by the application."
#[test]
fn receives_are_reported_in_order_and_transmits_as_they_end() {
    let info = best(Hints::new().rx(|rx| rx.comp_order(CompOrder::STRICT)));
    assert_eq!(info.rx.comp_order, CompOrder::STRICT);
    assert_eq!(info.tx.comp_order, CompOrder::empty());
}

/// fi_endpoint(3): "The provider may adjust or ignore this value."
#[test]
fn buffered_receive_space_is_a_mebibyte_unless_asked() {
    let default = best(Hints::new()).rx.total_buffered_recv;
    assert_eq!(default, limits::UNEXPECTED_BYTES_DEFAULT);
}

/// fi_endpoint(3): "If tclass is unset or set to FI_TC_UNSPEC, the endpoint will use the default
/// traffic class associated with the domain."
#[test]
fn an_endpoints_traffic_class_is_its_domains() {
    let classes = |domain, endpoint| {
        let hints = Hints::new().domain(|hints| hints.traffic_class(domain));
        let info = best(hints.tx(|hints| hints.traffic_class(endpoint)));
        (info.domain.traffic_class, info.tx.traffic_class)
    };
    use TrafficClass::{BestEffort, BulkData, Dscp, LowLatency, Unspec};
    assert_eq!(classes(Unspec, Unspec), (BestEffort, BestEffort));
    assert_eq!(classes(LowLatency, Unspec), (LowLatency, LowLatency));
    assert_eq!(classes(LowLatency, BulkData), (LowLatency, BulkData));
    assert_eq!(classes(Dscp(63), BestEffort), (Dscp(63), BestEffort));
}

/// fi_endpoint(3): "This call converts a DSCP defined value into a libfabric traffic class value."
#[test]
fn a_code_point_has_libfabrics_number_and_six_bits() {
    assert_eq!(TrafficClass::Dscp(46).to_bits(), 0x12e);
    assert_eq!(TrafficClass::NetworkCtrl.to_bits(), 0x205);
    let message = refusal(
        Hints::new().domain(|domain| domain.traffic_class(TrafficClass::Dscp(64))),
        ErrorKind::InvalidArgument,
    );
    assert!(message.contains("64"), "{message}");
}
