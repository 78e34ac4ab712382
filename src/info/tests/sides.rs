//! Capabilities of endpoints of each kind.

use super::*;

const KINDS: [EndpointType; 3] = [EndpointType::Msg, EndpointType::Rdm, EndpointType::Dgram];

fn offered(info: &Info, kind: EndpointType, need: Caps) -> bool {
    info.caps_of(kind).has(need)
}

/// fi_getinfo(3): "If capabilities in the hint parameter are set to 0, the underlying provider will
/// return the set of capabilities which are supported": each kind has all that is offered for it,
/// whatever kind the Info is of.
#[test]
fn hints_without_capabilities_give_every_kind_all_of_its_own() {
    for kind in KINDS {
        let info = best(Hints::new().endpoint(kind));
        for need in [
            Caps::MSG | Caps::SEND,
            Caps::MSG | Caps::RECV,
            Caps::RMA | Caps::READ,
            Caps::RMA | Caps::REMOTE_WRITE,
            Caps::ATOMIC | Caps::WRITE | Caps::READ,
            Caps::FENCE,
            Caps::RMA_EVENT,
        ] {
            let is_of_stream = !need.intersects(Caps::MSG);
            assert!(offered(&info, EndpointType::Msg, need), "{need:?}");
            assert!(offered(&info, EndpointType::Rdm, need), "{need:?}");
            assert_eq!(offered(&info, EndpointType::Dgram, need), !is_of_stream);
        }
        let shared = Caps::DIRECTED_RECV | Caps::SOURCE;
        let received = Caps::TAGGED | Caps::RECV | Caps::MULTI_RECV;
        assert!(offered(&info, EndpointType::Rdm, shared | received));
        assert!(offered(&info, EndpointType::Dgram, shared));
        assert!(offered(&info, EndpointType::Dgram, Caps::MULTICAST));
        assert!(!offered(
            &info,
            EndpointType::Msg,
            Caps::TAGGED | Caps::SEND
        ));
        assert!(!offered(&info, EndpointType::Msg, shared));
        assert!(!offered(
            &info,
            EndpointType::Unspec,
            Caps::MSG | Caps::SEND
        ));
        assert!(info.caps_of_all_kinds().has(received));
    }
}

/// fi_getinfo(3): "Primary capabilities must explicitly be requested by an application, and a
/// provider must enable support for only those primary capabilities which were selected": of an
/// endpoint of another kind too.
#[test]
fn capabilities_asked_for_limit_every_kind() {
    let info = best(Hints::new().caps(Caps::MSG | Caps::SEND));
    assert_eq!(info.endpoint.endpoint_type, EndpointType::Msg);
    for kind in KINDS {
        assert!(offered(&info, kind, Caps::MSG | Caps::SEND));
        for not_asked in [
            Caps::MSG | Caps::RECV,
            Caps::TAGGED | Caps::SEND,
            Caps::RMA | Caps::READ,
            Caps::RMA | Caps::REMOTE_READ,
            Caps::ATOMIC | Caps::WRITE,
            Caps::DIRECTED_RECV,
            Caps::MULTICAST,
            Caps::FENCE,
        ] {
            assert!(!offered(&info, kind, not_asked), "{kind:?}: {not_asked:?}");
        }
    }
    // What one kind has and another does not is there where it is.
    let info = best(Hints::new().caps(Caps::TAGGED | Caps::MSG | Caps::RMA | Caps::READ));
    assert!(offered(&info, EndpointType::Rdm, Caps::TAGGED | Caps::RECV));
    assert!(offered(&info, EndpointType::Msg, Caps::RMA | Caps::READ));
    assert!(!offered(
        &info,
        EndpointType::Msg,
        Caps::TAGGED | Caps::RECV
    ));
    assert!(!offered(&info, EndpointType::Dgram, Caps::RMA | Caps::READ));
}

/// fi_endpoint(3): "The capabilities must be a subset of those requested of the associated
/// endpoint": what one side was not asked to do, it does not, of whatever kind.
#[test]
fn each_side_has_its_own() {
    let hints = Hints::new()
        .caps(Caps::MSG | Caps::RMA)
        .tx(|tx| tx.caps(Caps::RMA | Caps::READ))
        .rx(|rx| rx.caps(Caps::MSG | Caps::RECV));
    let info = best(hints);
    for kind in [EndpointType::Msg, EndpointType::Rdm] {
        assert!(offered(&info, kind, Caps::RMA | Caps::READ));
        assert!(offered(&info, kind, Caps::MSG | Caps::RECV));
        assert!(!offered(&info, kind, Caps::RMA | Caps::WRITE));
        assert!(!offered(&info, kind, Caps::MSG | Caps::SEND));
        assert!(!offered(&info, kind, Caps::RMA | Caps::REMOTE_READ));
    }
}

/// An Info is a plain value: a capability that an application removes is removed.
#[test]
fn what_is_taken_out_of_an_answer_is_out() {
    let mut info = best(Hints::new());
    info.caps.remove(Caps::REMOTE_WRITE);
    for kind in [EndpointType::Msg, EndpointType::Rdm] {
        assert!(!offered(&info, kind, Caps::RMA | Caps::REMOTE_WRITE));
        assert!(offered(&info, kind, Caps::RMA | Caps::REMOTE_READ));
    }
    assert!(offered(&info, EndpointType::Rdm, Caps::TAGGED | Caps::SEND));
    // A capability that is not offered is not added by setting it.
    info.caps.insert(Caps::TAGGED);
    info.tx.caps.insert(Caps::TAGGED);
    assert!(!offered(
        &info,
        EndpointType::Msg,
        Caps::TAGGED | Caps::SEND
    ));
}

/// The refusal names the missing capability, its side, and the remedy.
#[test]
fn a_refusal_names_the_capability() {
    let info = best(Hints::new().caps(Caps::MSG | Caps::SEND));
    let caps = info.caps_of(EndpointType::Msg);
    assert!(caps.check(Caps::MSG | Caps::SEND).is_ok());
    let error = caps.check(Caps::MSG | Caps::RECV).unwrap_err();
    assert_eq!(
        (error.kind(), error.fi_errno()),
        (ErrorKind::NoCapability, 95)
    );
    let text = error.to_string();
    for word in ["RECV", "receive side", "hints"] {
        assert!(text.contains(word), "{text}");
    }
}
