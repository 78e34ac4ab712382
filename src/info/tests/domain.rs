//! The domain's attributes.

use super::*;

/// fi_domain(3): "When specified, providers will return a threading model that allows for the
/// greatest level of parallelism."
#[test]
fn unspecified_threading_is_safe() {
    assert_eq!(
        best(Hints::new().threading(Threading::Unspec))
            .domain
            .threading,
        Threading::Safe
    );
}

/// fi_domain(3): "All providers are required to support FI_THREAD_SAFE."
#[test]
fn every_threading_promise_is_taken() {
    use Threading::*;
    for model in [Safe, Fid, Domain, Completion, Endpoint] {
        assert_eq!(best(Hints::new().threading(model)).domain.threading, model);
    }
}

/// fi_domain(3): "It is only valid for control progress (not data progress)."
#[test]
fn unified_progress_is_for_control_only() {
    let hints = Hints::new().data_progress(Progress::ControlUnified);
    assert!(refusal(hints, ErrorKind::InvalidArgument).contains("data_progress"));
}

/// fi_domain(3): "It should be noted that even if resource management is disabled, the provider
/// implementation and protocol may still provide some level of protection against overruns."
#[test]
fn resource_management_is_on_even_if_not_wanted() {
    let info = best(Hints::new().resource_mgmt(ResourceManagement::Disabled));
    assert_eq!(info.domain.resource_mgmt, ResourceManagement::Enabled);
}

/// fi_domain(3): "Address vectors are only used by connectionless endpoints."
#[test]
fn any_address_vector_type_is_taken() {
    for av_type in [AvType::Unspec, AvType::Map, AvType::Table] {
        assert_eq!(best(Hints::new().av_type(av_type)).domain.av_type, av_type);
    }
}

/// fi_domain(3): "This field is ignored unless the fabric is opened with API version 1.5 or
/// greater."
#[test]
fn authorization_keys_are_ignored_before_1_5() {
    answers(
        old_api()
            .auth_key(AuthKey::new(*b"secret"))
            .ep_auth_key(AuthKey::new(*b"secret")),
    );
}

/// fi_domain(3): "If set to 0, then no authorization key will be associated with endpoints and
/// memory registrations created within the domain unless specified in the endpoint or memory
/// registration attributes."
#[test]
fn a_key_of_no_bytes_is_no_key() {
    assert_eq!(
        best(Hints::new().auth_key(AuthKey::new([])))
            .domain
            .auth_key,
        None
    );
}

/// fi_domain(3): "The default authorization key to associate with endpoint and memory registrations
/// created within the domain."
#[test]
fn authorization_keys_are_never_shown() {
    let secret = AuthKey::new(*b"hunter2");
    let hints = Hints::new().auth_key(secret.clone()).ep_auth_key(secret);
    let shown = format!(
        "{hints:?} {hints:#?} {}",
        refusal(hints.clone(), ErrorKind::NoMatch)
    );
    assert!(
        !shown.contains("hunter2") && !shown.contains("104, 117"),
        "{shown}"
    );
    assert!(shown.contains("7 bytes"), "{shown}");
}

/// fi_domain(3): "Key sizes larger than 8 bytes require using the FI_RAW_KEY mode bit."
#[test]
fn keys_have_eight_bytes() {
    assert_eq!(best(Hints::new().mr_key_size(8)).domain.mr_key_size, 8);
    no_match(Hints::new().mr_key_size(32), &["mr_key_size"]);
}
