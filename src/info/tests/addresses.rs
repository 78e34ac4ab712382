//! Interfaces, subnets, sources and destinations.

use super::*;

/// fi_fabric(3): "A fabric identifier."
#[test]
fn fabrics_are_subnets_and_domains_are_interfaces() {
    let infos = answers(Hints::new());
    let names: Vec<_> = infos
        .iter()
        .map(|info| (info.fabric.name.as_str(), info.domain.name.as_str()))
        .collect();
    let expected = [
        ("192.168.0.0/20", "eth1"),
        ("10.0.0.0/24", "eth0"),
        ("127.0.0.0/8", "lo"),
        ("::1/128", "lo"),
        ("fe80::/64", "eth1"),
    ];
    assert_eq!(names, expected);
    for info in infos {
        let again = Hints::new()
            .fabric(|fabric| fabric.name(&info.fabric.name))
            .domain(|domain| domain.name(&info.domain.name));
        assert_eq!(answers(again), [info]);
    }
}

/// fi_getinfo(3): "On output a provider shall return an address that corresponds to the indicated
/// fabric, domain, node, and/or service fields."
#[test]
fn the_source_is_the_interfaces_address() {
    let sources: Vec<_> = answers(Hints::new())
        .into_iter()
        .map(|info| info.source)
        .collect();
    let expected = [
        "192.168.7.9:0",
        "10.0.0.5:0",
        "127.0.0.1:0",
        "[::1]:0",
        "[fe80::1%3]:0",
    ];
    assert_eq!(sources, expected.map(|text| Some(address(text))));
}

/// fi_getinfo(3): "If specified, indicates the source address."
#[test]
fn a_source_hint_chooses_its_interface() {
    let infos = answers(Hints::new().source(address("10.0.0.5:7471")));
    assert_eq!(infos.len(), 1);
    assert_eq!(infos[0].domain.name, "eth0");
    assert_eq!(infos[0].source, Some(address("10.0.0.5:7471")));
    let other_loopback = best(Hints::new().source(address("127.9.9.9:1")));
    assert_eq!(other_loopback.source, Some(address("127.9.9.9:1")));
    let zoned = best(Hints::new().source(address("[fe80::1]:5")));
    assert_eq!(zoned.source, Some(address("[fe80::1%3]:5")));
}

/// fi_getinfo(3): "If specified, indicates the source address."
#[test]
fn a_wildcard_source_stays_one_in_its_family() {
    let infos = answers(Hints::new().source(address("0.0.0.0:7471")));
    assert_eq!(infos.len(), 3);
    assert!(
        infos
            .iter()
            .all(|info| info.source == Some(address("0.0.0.0:7471")))
    );
}

/// fi_getinfo(3): "Node is commonly used to provide a network address (such as an IP address) or
/// hostname."
#[test]
fn a_node_in_numbers_is_the_destination() {
    let info = best(Hints::new().node("10.0.0.77").service("7471"));
    assert_eq!(info.dest, Some(address("10.0.0.77:7471")));
    assert_eq!(
        (info.domain.name.as_str(), info.source),
        ("eth0", Some(address("10.0.0.5:0")))
    );
    assert_eq!(
        best(Hints::new().node("10.0.0.77")).dest,
        Some(address("10.0.0.77:0"))
    );
}

/// fi_getinfo(3): "Each fi_info structure will describe an endpoint that meets the application’s
/// specified communication criteria."
#[test]
fn the_destinations_subnet_comes_before_speed_and_the_family_counts() {
    let domains: Vec<_> = answers(Hints::new().node("10.0.0.77"))
        .into_iter()
        .map(|info| info.domain.name)
        .collect();
    assert_eq!(domains, ["eth0", "eth1"]);
    no_match(
        Hints::new().node("fe80::9").interface("eth0"),
        &["hint node", "fe80::9", "10.0.0.5"],
    );
    let near = best(Hints::new().node("fe80::9").service("5"));
    assert_eq!(near.dest, Some(address("[fe80::9%3]:5")));
}

/// fi_getinfo(3): "Note that any returned address is only used when opening a local endpoint."
#[test]
fn beyond_the_subnet_routing_chooses_the_source_unless_a_hint_does() {
    let far = Hints::new().node("203.0.113.9").service("80");
    assert!(
        answers(far.clone())
            .iter()
            .all(|info| info.source.is_none())
    );
    assert_eq!(
        best(far.clone().interface("eth0")).source,
        Some(address("10.0.0.5:0"))
    );
    let bound = best(far.source(address("192.168.7.9:0")));
    assert_eq!(bound.source, Some(address("192.168.7.9:0")));
}

/// fi_domain(3): "At a conceptual level, this field indicates that the underlying device supports
/// loopback communication."
#[test]
fn loopback_is_reached_from_loopback_only() {
    let infos = answers(Hints::new().node("127.0.0.1").service("9"));
    assert_eq!(infos.len(), 1);
    assert_eq!(infos[0].source, Some(address("127.0.0.1:0")));
    let offers = [interface("lo", "127.0.0.1", 8, None)];
    let error = resolve(&Hints::new().node("10.0.0.1"), &offers).expect_err("out of reach");
    assert!(error.to_string().contains("127.0.0.1 (lo)"), "{error}");
}

/// fi_getinfo(3): "Service is usually associated with a transport address (such as a TCP port
/// number)."
#[test]
fn a_service_alone_is_a_port_of_this_machine() {
    let dests: Vec<_> = answers(Hints::new().service("7471"))
        .into_iter()
        .map(|info| info.dest)
        .collect();
    assert_eq!(
        dests,
        [Some(address("127.0.0.1:7471")), Some(address("[::1]:7471"))]
    );
    let message = refusal(Hints::new().service("70000"), ErrorKind::InvalidArgument);
    assert!(message.contains("70000"), "{message}");
}

/// fi_getinfo(3): "Indicates that the node and service parameters specify the local source address
/// to associate with an endpoint."
#[test]
fn node_and_service_may_name_the_local_side() {
    let listener = best(
        Hints::new()
            .node("10.0.0.5")
            .service("7471")
            .node_is_source(),
    );
    assert_eq!(
        (listener.source, listener.dest),
        (Some(address("10.0.0.5:7471")), None)
    );
    let anywhere = answers(Hints::new().service("7471").node_is_source());
    assert_eq!(anywhere.len(), 5);
    assert!(
        anywhere
            .iter()
            .all(|info| info.source.is_some_and(|a| a.port() == 7471))
    );
    let connecting = best(
        Hints::new()
            .node("10.0.0.5")
            .node_is_source()
            .dest(address("10.0.0.9:1")),
    );
    assert_eq!(connecting.dest, Some(address("10.0.0.9:1")));
}

/// fi_getinfo(3): "If specified, either the node and/or service parameter must be non-NULL."
#[test]
fn naming_the_local_side_needs_a_name() {
    refusal(Hints::new().node_is_source(), ErrorKind::InvalidArgument);
}

/// fi_getinfo(3): "This field will be ignored in hints if FI_SOURCE flag is set."
#[test]
fn a_source_hint_is_ignored_beside_a_local_node() {
    let hints = Hints::new()
        .node("10.0.0.5")
        .node_is_source()
        .source(address("192.168.7.9:1"));
    assert_eq!(best(hints).source, Some(address("10.0.0.5:0")));
}

/// fi_getinfo(3): "This field will be ignored in hints unless the node and service parameters are
/// NULL or FI_SOURCE flag is set."
#[test]
fn a_dest_hint_is_ignored_beside_a_node() {
    let hints = Hints::new().dest(address("192.168.7.1:1"));
    assert_eq!(best(hints.clone()).dest, Some(address("192.168.7.1:1")));
    assert_eq!(
        best(hints.node("10.0.0.9").service("2")).dest,
        Some(address("10.0.0.9:2"))
    );
}

/// fi_getinfo(3): "Applications may also pass in an FI_ADDR_STR formatted address (see format
/// details below) as the node parameter."
#[test]
fn a_node_may_be_an_address_in_text_form() {
    for (text, dest) in [
        ("fi_sockaddr://10.0.0.12:7471", "10.0.0.12:7471"),
        ("fi_sockaddr_in6://[fe80::6:12]:7471", "[fe80::6:12%3]:7471"),
        ("fi_sockaddr://10.0.0.12:7471?qos=3", "10.0.0.12:7471"),
        ("fi_sockaddr_in://10.0.0.12", "10.0.0.12:0"),
        ("fi_sockaddr_in6://[fe80::6]", "[fe80::6%3]:0"),
    ] {
        assert_eq!(
            best(Hints::new().node(text)).dest,
            Some(address(dest)),
            "{text}"
        );
    }
    for wrong in [
        "fi_sockaddr",
        "fi_sockaddr://",
        "fi_sockaddr_in6://10.0.0.1:5",
        "fi_sockaddr_ib://10.0.0.1",
    ] {
        refusal(Hints::new().node(wrong), ErrorKind::InvalidArgument);
    }
}

/// fi_getinfo(3): "In such cases, the service parameter must be NULL."
#[test]
fn an_address_in_text_form_excludes_a_service() {
    let hints = Hints::new()
        .node("fi_sockaddr://10.0.0.12:7471")
        .service("1");
    assert!(refusal(hints, ErrorKind::InvalidArgument).contains("service"));
}

/// fi_getinfo(3): "Use of this flag will suppress any lengthy name resolution protocol."
#[test]
fn a_numeric_host_is_no_name() {
    let message = refusal(
        Hints::new().node("peer").numeric_host(),
        ErrorKind::InvalidArgument,
    );
    assert!(message.contains("peer"), "{message}");
    answers(Hints::new().node("10.0.0.9").numeric_host());
}

/// fi_getinfo(3): "If node is provided, fi_getinfo will attempt to resolve the fabric address to
/// the given node."
#[test]
fn names_are_left_to_the_caller_and_come_back_as_addresses() {
    let named = Hints::new().node("peer.example").service("http");
    assert_eq!(
        named.unresolved().unwrap(),
        Some((Some("peer.example"), Some("http")))
    );
    assert_eq!(best(named.clone()).dest, None);
    let found = named.clone().resolved_to(address("10.0.0.9:80"));
    assert_eq!(found.unresolved().unwrap(), None);
    assert_eq!(best(found).dest, Some(address("10.0.0.9:80")));
    let local = named.node_is_source().resolved_to(address("10.0.0.5:80"));
    assert_eq!(best(local).source, Some(address("10.0.0.5:80")));
    for numeric in [
        Hints::new(),
        Hints::new().node("::1"),
        Hints::new().service("1"),
    ] {
        assert_eq!(numeric.unresolved().unwrap(), None);
    }
}

/// fi_getinfo(3): "If specified, indicates the destination address."
#[test]
fn a_wildcard_is_no_destination() {
    for hints in [
        Hints::new().node("0.0.0.0"),
        Hints::new().dest(address("[::]:1")),
    ] {
        assert!(refusal(hints, ErrorKind::InvalidArgument).contains("dest"));
    }
}

/// fi_getinfo(3): "The format of the address is indicated by the returned addr_format field."
#[test]
fn the_address_format_implies_the_family() {
    for info in answers(Hints::new().address_format(AddressFormat::SockaddrIp)) {
        let four = info.source.is_some_and(|source| source.is_ipv4());
        let expected = if four {
            AddressFormat::SockaddrIn
        } else {
            AddressFormat::SockaddrIn6
        };
        assert_eq!(info.address_format, expected);
    }
    assert_eq!(
        answers(Hints::new().address_format(AddressFormat::SockaddrIn6)).len(),
        2
    );
}

/// fi_getinfo(3): "Applications that require specific communication interfaces, domains,
/// capabilities or other requirements, can specify them using fields in hints."
#[test]
fn an_interface_and_a_backend_may_be_chosen() {
    let infos = answers(Hints::new().interface("eth1").backend("epoll"));
    assert_eq!(infos.len(), 2);
    assert!(
        infos
            .iter()
            .all(|info| info.backend.as_deref() == Some("epoll"))
    );
    assert_eq!(
        infos[0].to_string(),
        "tcp Msg on eth1 (192.168.0.0/20) from 192.168.7.9:0"
    );
}

/// What is offered is named once each, however many addresses an interface has.
#[test]
fn a_hint_that_no_interface_meets_names_each_interface_once() {
    let two = [
        interface("lo", "127.0.0.1", 8, None),
        interface("eth0", "10.0.0.5", 24, None),
        interface("lo", "::1", 128, None),
        interface("eth0", "fd00::5", 64, None),
    ];
    let hints = Hints::new().interface("nope0");
    let said = resolve(&hints, &two).unwrap_err().to_string();
    assert!(
        said.ends_with("asked for nope0, offered lo, eth0"),
        "{said}"
    );
}
