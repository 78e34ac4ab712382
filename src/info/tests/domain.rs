//! The domain's attributes.

use super::*;

/// fi_domain(3): "When specified, providers will return a threading model that allows for the
/// greatest level of parallelism."
/// fi_domain(3): `FI_THREAD_UNSPEC`, enumeration value.
/// fi_domain(3): "It may be used on input hints to the fi_getinfo call."
#[test]
fn unspecified_threading_is_safe() {
    assert_eq!(
        best(Hints::new().domain(|domain| domain.threading(Threading::Unspec)))
            .domain
            .threading,
        Threading::Safe
    );
}

/// fi_domain(3): "All providers are required to support FI_THREAD_SAFE."
/// fi_domain(3): `fi_threading`, enumeration.
/// fi_domain(3): "All providers are required to support FI_THREAD_SAFE."
#[test]
fn every_threading_promise_is_taken() {
    use Threading::*;
    for model in [Safe, Fid, Domain, Completion, Endpoint] {
        assert_eq!(
            best(Hints::new().domain(|domain| domain.threading(model)))
                .domain
                .threading,
            model
        );
    }
}

/// fi_domain(3): "It is only valid for control progress (not data progress)."
#[test]
fn unified_progress_is_for_control_only() {
    let hints = Hints::new().domain(|domain| domain.data_progress(Progress::ControlUnified));
    assert!(refusal(hints, ErrorKind::InvalidArgument).contains("data_progress"));
    // Nor beside automatic data progress.
    let hints = Hints::new().domain(|domain| {
        let domain = domain.control_progress(Progress::ControlUnified);
        domain.data_progress(Progress::Auto)
    });
    assert!(refusal(hints, ErrorKind::InvalidArgument).contains("control_progress"));
}

/// fi_domain(3): `FI_PROGRESS_MANUAL`, enumeration value.
/// fi_domain(3): `FI_PROGRESS_CONTROL_UNIFIED`, enumeration value.
/// fi_domain(3): "Setting control=FI_PROGRESS_CONTROL_UNIFIED, data=FI_PROGRESS_MANUAL, and
/// threading=FI_THREAD_DOMAIN/FI_THREAD_COMPLETION allows Libfabric"
/// One driver makes all progress, as the result states: a program that asks for automatic progress
/// of one kind gets both.
#[test]
fn manual_progress_is_hinted_and_told() {
    use Progress::{Auto, ControlUnified, Manual, Unspec};
    for (control, data, answered) in [
        (Unspec, Unspec, (Auto, Auto)),
        (Manual, Manual, (Manual, Manual)),
        (Unspec, Manual, (Manual, Manual)),
        (Manual, Unspec, (Manual, Manual)),
        (ControlUnified, Manual, (ControlUnified, Manual)),
        (ControlUnified, Unspec, (ControlUnified, Manual)),
        (Auto, Manual, (Auto, Auto)),
        (Manual, Auto, (Auto, Auto)),
    ] {
        let hints = Hints::new().domain(|domain| {
            let domain = domain.control_progress(control).data_progress(data);
            domain.threading(Threading::Domain)
        });
        let answer = best(hints).domain;
        assert_eq!(answer.threading, Threading::Domain);
        let got = (answer.control_progress, answer.data_progress);
        assert_eq!(got, answered, "{control:?}, {data:?}");
        let driver = match answered.1 {
            Manual => Driver::Manual,
            _ => Driver::Task,
        };
        assert_eq!(answer.driver, driver);
    }
}

/// fi_domain(3): "It should be noted that even if resource management is disabled, the provider
/// implementation and protocol may still provide some level of protection against overruns."
/// fi_domain(3): `FI_RM_DISABLED`, enumeration value.
#[test]
fn resource_management_is_on_even_if_not_wanted() {
    let info =
        best(Hints::new().domain(|domain| domain.resource_mgmt(ResourceManagement::Disabled)));
    assert_eq!(info.domain.resource_mgmt, ResourceManagement::Enabled);
}

/// fi_domain(3): "Address vectors are only used by connectionless endpoints."
#[test]
fn any_address_vector_type_is_taken() {
    for av_type in [AvType::Unspec, AvType::Map, AvType::Table] {
        assert_eq!(
            best(Hints::new().domain(|domain| domain.av_type(av_type)))
                .domain
                .av_type,
            av_type
        );
    }
}

/// fi_domain(3): `fi_domain_attr.auth_key`: "This field is ignored unless the fabric is opened with
/// API version 1.5 or greater."
/// fi_domain(3): `fi_domain_attr.auth_key_size`: "This field is ignored unless the fabric is opened
/// with API version 1.5 or greater."
#[test]
fn authorization_keys_are_ignored_before_1_5() {
    for key in [AuthKey::new(*b"secret"), AuthKey::of_address_vector()] {
        let hints = old_api()
            .domain(|domain| domain.auth_key(key.clone()))
            .endpoint_attr(|endpoint| endpoint.auth_key(key));
        for info in answers(hints) {
            assert_eq!((info.domain.auth_key, info.endpoint.auth_key), (None, None));
        }
    }
}

/// fi_domain(3): "If set to 0, then no authorization key will be associated with endpoints and
/// memory registrations created within the domain unless specified in the endpoint or memory
/// registration attributes."
#[test]
fn a_key_of_no_bytes_is_no_key() {
    assert_eq!(
        best(Hints::new().domain(|domain| domain.auth_key(AuthKey::new([]))))
            .domain
            .auth_key,
        None
    );
}

/// fi_domain(3): `fi_domain_attr.auth_key`, structure field.
/// fi_domain(3): `fi_domain_attr.auth_key_size`, structure field.
/// fi_domain(3): "The length in bytes of the default authorization key for the domain."
#[test]
fn the_key_and_its_size_are_hinted_and_reported() {
    let (of_domain, of_endpoint) = (AuthKey::new([7; 40]), AuthKey::new([9; 16]));
    let hints = Hints::new().domain(|domain| domain.auth_key(of_domain.clone()));
    let info = best(hints.endpoint_attr(|endpoint| endpoint.auth_key(of_endpoint.clone())));
    assert_eq!(info.domain.auth_key.as_ref(), Some(&of_domain));
    assert_eq!(info.endpoint.auth_key, Some(of_endpoint));
    assert_eq!(info.domain.auth_key.map_or(0, |key| key.len()), 40);
}

/// Keys never in Debug, logs or errors.
#[test]
fn authorization_keys_are_never_shown() {
    let secret = AuthKey::new(*b"hunter2");
    let hints = Hints::new()
        .domain(|domain| domain.auth_key(secret.clone()))
        .endpoint_attr(|endpoint| endpoint.auth_key(secret));
    let complaint = refusal(
        hints.clone().domain(|domain| domain.mr_iov_limit(17)),
        ErrorKind::NoMatch,
    );
    let shown = format!("{hints:?} {hints:#?} {complaint} {:?}", best(hints.clone()));
    assert!(
        !shown.contains("hunter2") && !shown.contains("104, 117"),
        "{shown}"
    );
    assert!(shown.contains("7 bytes"), "{shown}");
}

/// fi_domain(3): "Key sizes larger than 8 bytes require using the FI_RAW_KEY mode bit."
#[test]
fn keys_have_eight_bytes() {
    assert_eq!(
        best(Hints::new().domain(|domain| domain.mr_key_size(8)))
            .domain
            .mr_key_size,
        8
    );
    no_match(
        Hints::new().domain(|domain| domain.mr_key_size(32)),
        &["mr_key_size"],
    );
}

/// Every field of the structure can be hinted or is answered, with what this library has.
/// fi_domain(3): `fi_domain_attr`, structure. fi_domain(3): `fi_domain_attr.name`, structure field.
/// fi_domain(3): `fi_domain_attr.threading`, structure field. fi_domain(3):
/// `fi_domain_attr.control_progress`, structure field. fi_domain(3):
/// `fi_domain_attr.data_progress`, structure field. fi_domain(3): `fi_domain_attr.resource_mgmt`,
/// structure field. fi_domain(3): `fi_domain_attr.av_type`, structure field. fi_domain(3):
/// `fi_domain_attr.mr_mode`, structure field. fi_domain(3): `fi_domain_attr.mr_key_size`, structure
/// field. fi_domain(3): `fi_domain_attr.cq_data_size`, structure field. fi_domain(3):
/// `fi_domain_attr.cq_cnt`, structure field. fi_domain(3): `fi_domain_attr.ep_cnt`, structure
/// field. fi_domain(3): `fi_domain_attr.tx_ctx_cnt`, structure field. fi_domain(3):
/// `fi_domain_attr.rx_ctx_cnt`, structure field. fi_domain(3): `fi_domain_attr.max_ep_tx_ctx`,
/// structure field. fi_domain(3): `fi_domain_attr.max_ep_rx_ctx`, structure field. fi_domain(3):
/// `fi_domain_attr.max_ep_stx_ctx`, structure field. fi_domain(3): `fi_domain_attr.max_ep_srx_ctx`,
/// structure field. fi_domain(3): `fi_domain_attr.cntr_cnt`, structure field. fi_domain(3):
/// `fi_domain_attr.mr_iov_limit`, structure field. fi_domain(3): `fi_domain_attr.caps`, structure
/// field. fi_domain(3): `fi_domain_attr.mode`, structure field with its own section. fi_domain(3):
/// `fi_domain_attr.mode` as 2.x has it: in the structure, without a section of its own.
/// fi_domain(3): `fi_domain_attr.max_err_data`, structure field. fi_domain(3):
/// `fi_domain_attr.mr_cnt`, structure field. fi_domain(3): `fi_domain_attr.tclass`, structure
/// field. fi_domain(3): "The optimal number of completion queues supported by the domain"
/// fi_domain(3): "The total number of endpoints supported by the domain, relative to any specified
/// or default endpoint attributes." fi_domain(3): "The endpoint count is the number of addressable
/// endpoints supported by the provider." fi_domain(3): "The number of outbound command queues
/// optimally supported by the provider." fi_domain(3): "The number of inbound processing queues
/// optimally supported by the provider." fi_domain(3): "The maximum number of transmit contexts
/// that may be associated with an endpoint." fi_domain(3): "The maximum number of receive contexts
/// that may be associated with an endpoint." fi_domain(3): "The optimal number of completion
/// counters supported by the domain." fi_domain(3): "The optimal number of memory regions supported
/// by the domain, or endpoint if the mr_mode FI_MR_ENDPOINT bit has been set." fi_domain(3): "The
/// optimal number of memory regions supported by the domain."
#[test]
fn every_domain_attribute_is_hinted_and_reported() {
    let hints = Hints::new().domain(|domain| {
        domain
            .name("eth0")
            .threading(Threading::Domain)
            .control_progress(Progress::Auto)
            .data_progress(Progress::Auto)
            .resource_mgmt(ResourceManagement::Enabled)
            .av_type(AvType::Table)
            .required_mr_mode(MrMode::VIRT_ADDR)
            .mr_key_size(1)
            .cq_data_size(4)
            .cq_cnt(1000)
            .ep_cnt(10_000)
            .tx_ctx_cnt(10_001)
            .rx_ctx_cnt(10_002)
            .max_ep_tx_ctx(1)
            .max_ep_rx_ctx(1)
            .cntr_cnt(9001)
            .mr_iov_limit(2)
            .caps(Caps::LOCAL_COMM)
            .mode(Mode::CONTEXT)
            .max_err_data(64)
            .mr_cnt(100_000)
            .traffic_class(TrafficClass::BestEffort)
    });
    let answer = best(hints).domain;
    assert_eq!(answer.name, "eth0");
    assert_eq!(answer.threading, Threading::Domain);
    assert_eq!(
        (answer.control_progress, answer.data_progress),
        (Progress::Auto, Progress::Auto)
    );
    assert_eq!(answer.resource_mgmt, ResourceManagement::Enabled);
    assert_eq!(
        (answer.av_type, answer.mr_mode),
        (AvType::Table, MrMode::VIRT_ADDR)
    );
    assert_eq!((answer.mr_key_size, answer.cq_data_size), (8, 8));
    assert_eq!((answer.cq_cnt, answer.ep_cnt), (1000, 10_000));
    assert_eq!((answer.tx_ctx_cnt, answer.rx_ctx_cnt), (10_001, 10_002));
    assert_eq!((answer.max_ep_tx_ctx, answer.max_ep_rx_ctx), (1, 1));
    assert_eq!((answer.max_ep_stx_ctx, answer.max_ep_srx_ctx), (0, 10_000));
    assert_eq!((answer.cntr_cnt, answer.mr_iov_limit), (9001, 16));
    assert!(answer.caps.contains(Caps::LOCAL_COMM));
    assert_eq!(
        answer.mode,
        Mode::empty(),
        "nothing is asked of the application"
    );
    assert_eq!((answer.max_err_data, answer.mr_cnt), (256, 100_000));
    assert_eq!(answer.traffic_class, TrafficClass::BestEffort);
    // What there is not is refused by name.
    no_match(
        Hints::new().domain(|domain| domain.cq_data_size(9)),
        &["cq_data_size"],
    );
    no_match(
        Hints::new().domain(|domain| domain.max_ep_tx_ctx(65)),
        &["max_ep_tx_ctx"],
    );
    no_match(
        Hints::new().domain(|domain| domain.max_ep_stx_ctx(1)),
        &["max_ep_stx_ctx"],
    );
    no_match(
        Hints::new().domain(|domain| domain.mr_iov_limit(17)),
        &["mr_iov_limit"],
    );
}

/// Models that are not said are wildcards, and the answer has one.
/// fi_domain(3): `fi_progress`, enumeration.
/// fi_domain(3): `FI_PROGRESS_UNSPEC`, enumeration value.
/// fi_domain(3): "It may be used on input hints to the fi_getinfo call."
/// fi_domain(3): `fi_resource_mgmt`, enumeration.
/// fi_domain(3): `FI_RM_UNSPEC`, enumeration value.
/// fi_domain(3): "It may be used on input hints to the fi_getinfo call."
#[test]
fn unspecified_progress_and_resource_management_are_answered() {
    let hints = Hints::new().domain(|domain| {
        domain
            .control_progress(Progress::Unspec)
            .data_progress(Progress::Unspec)
            .resource_mgmt(ResourceManagement::Unspec)
    });
    let answer = best(hints).domain;
    assert_eq!(
        (answer.control_progress, answer.data_progress),
        (Progress::Auto, Progress::Auto)
    );
    assert_eq!(answer.resource_mgmt, ResourceManagement::Enabled);
}

/// fi_domain(3): `FI_LOCAL_COMM`, capability.
/// fi_domain(3): `FI_REMOTE_COMM`, capability.
#[test]
fn both_communication_capabilities_can_be_asked_for() {
    for caps in [
        Caps::LOCAL_COMM,
        Caps::REMOTE_COMM,
        Caps::LOCAL_COMM | Caps::REMOTE_COMM,
    ] {
        let answer = best(Hints::new().domain(|domain| domain.caps(caps).name("eth0")));
        assert!(answer.domain.caps.contains(caps), "{caps:?}");
    }
}

/// Where messages are matched by their sender, a domain has the capability that is asked for.
/// fi_domain(3): `FI_DIRECTED_RECV`, capability.
#[test]
fn a_domain_has_directed_receives_where_endpoints_have_them() {
    let asked = || Hints::new().domain(|domain| domain.caps(Caps::DIRECTED_RECV));
    for endpoint in [EndpointType::Rdm, EndpointType::Dgram] {
        let plain = best(Hints::new().endpoint(endpoint)).domain.caps;
        assert!(
            !plain.contains(Caps::DIRECTED_RECV),
            "a primary one is asked for"
        );
        let answer = best(asked().endpoint(endpoint)).domain.caps;
        assert!(answer.contains(Caps::DIRECTED_RECV), "{endpoint:?}");
    }
    no_match(
        asked().endpoint(EndpointType::Msg),
        &["domain.caps", "DIRECTED_RECV"],
    );
}

/// The capabilities follow the interface and the backend: neither the loopback interface nor a
/// backend within the process reaches another machine.
/// fi_domain(3): "this field indicates that the underlying device supports loopback communication."
/// fi_domain(3): "the underlying provider supports communication with nodes that are reachable over
/// the network."
/// fi_getinfo(3): "If requested, a provider must support the capability or fail the fi_getinfo
/// request (FI_ENODATA)."
#[test]
fn remote_communication_is_offered_where_there_is_any() {
    let of = |name: &str| best(Hints::new().interface(name));
    let both = Caps::LOCAL_COMM | Caps::REMOTE_COMM;
    for info in [
        of("eth0"),
        of("lo"),
        best(Hints::new().interface("eth0").backend("loopback")),
    ] {
        let is_remote = info.domain.name == "eth0" && info.backend.is_none();
        let expected = if is_remote { both } else { Caps::LOCAL_COMM };
        assert_eq!(info.caps & both, expected, "{info}");
        assert_eq!(info.domain.caps & both, expected, "{info}");
    }
    for hints in [
        Hints::new().caps(Caps::MSG | Caps::REMOTE_COMM),
        Hints::new().domain(|domain| domain.caps(Caps::REMOTE_COMM)),
    ] {
        assert!(
            all_answers(hints.clone())
                .iter()
                .all(|info| !info.interface.loopback)
        );
        no_match(
            hints.clone().interface("lo"),
            &["caps", "REMOTE_COMM", "LOCAL_COMM on lo"],
        );
        no_match(
            hints.backend("loopback"),
            &["caps", "REMOTE_COMM", "LOCAL_COMM"],
        );
    }
}

/// fi_domain(3): "The total number of endpoints supported by the domain, relative to any specified
/// or default endpoint attributes." No more is offered than could be had.
#[test]
fn counts_beyond_what_can_be_had_are_refused() {
    type Set = fn(DomainHints, usize) -> DomainHints;
    let cases: [(&str, Set, usize); 6] = [
        ("cq_cnt", DomainHints::cq_cnt, limits::CQ_COUNT_MAX),
        ("ep_cnt", DomainHints::ep_cnt, limits::EP_COUNT_MAX),
        ("tx_ctx_cnt", DomainHints::tx_ctx_cnt, limits::EP_COUNT_MAX),
        ("rx_ctx_cnt", DomainHints::rx_ctx_cnt, limits::EP_COUNT_MAX),
        ("cntr_cnt", DomainHints::cntr_cnt, limits::CNTR_COUNT_MAX),
        ("mr_cnt", DomainHints::mr_cnt, limits::MR_COUNT_MAX),
    ];
    for (name, set, max) in cases {
        answers(Hints::new().domain(|domain| set(domain, max)));
        let hint = format!("hint domain.{name}");
        no_match(
            Hints::new().domain(|domain| set(domain, max + 1)),
            &[&hint, &max.to_string()],
        );
    }
}

/// Vectors with names can always be opened; those whose every address has an identifier, where that
/// is asked for.
/// fi_domain(3): `FI_SHARED_AV`, capability.
/// fi_domain(3): `FI_AV_USER_ID`, capability and flag of opening an address vector.
#[test]
fn capabilities_of_address_vectors_are_reported() {
    let plain = best(Hints::new()).domain.caps;
    assert!(plain.contains(Caps::SHARED_AV) && !plain.contains(Caps::AV_USER_ID));
    let asked = Caps::SHARED_AV | Caps::AV_USER_ID;
    let answer = best(Hints::new().domain(|domain| domain.caps(asked)))
        .domain
        .caps;
    assert!(answer.contains(asked));
}
