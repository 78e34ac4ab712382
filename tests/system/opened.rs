//! Open domains in discovery (`fi_domain_attr.domain` of fi_domain(3)).

use crate::common::alone::alone;
use tokio_fabric::info::MrMode;
use tokio_fabric::{Caps, Domain, EndpointType, ErrorKind, Fabric, Hints, discover};

fn on_loopback() -> Hints {
    Hints::new().interface("lo")
}

fn open(hints: Hints) -> Domain {
    Fabric::open(hints).unwrap().domain().open().unwrap()
}

/// The domains that the answers name.
fn named(hints: &Hints) -> Vec<Option<Domain>> {
    let infos = discover(hints).unwrap();
    let domains = infos.iter().map(|info| info.domain.domain.as_ref());
    domains.map(|it| it.and_then(|it| it.upgrade())).collect()
}

fn is_all(found: &[Option<Domain>], expected: &Domain) -> bool {
    let expected = Some(expected.downgrade());
    let is_it = |it: &Option<Domain>| it.as_ref().map(Domain::downgrade) == expected;
    !found.is_empty() && found.iter().all(is_it)
}

/// fi_domain(3): "the user has an opened instance of the named domain, this will reference the first
/// opened instance."
/// fi_domain(3): "If no instance has been opened, this field will be NULL."
#[test]
fn discovery_names_the_instance_that_was_opened_first() {
    alone("opened::first_and_none");
}

/// Of a process of its own, in which no other domain is open.
#[tokio::test]
#[ignore = "the other process of another test"]
async fn first_and_none() {
    assert!(named(&on_loopback()).iter().all(Option::is_none));
    let first = open(on_loopback());
    let second = open(on_loopback());
    assert_ne!(first.downgrade(), second.downgrade());
    assert!(is_all(&named(&on_loopback()), &first));
    // What is closed, or dropped, is no longer an instance.
    first.close().await.unwrap();
    assert!(first.downgrade().upgrade().is_none());
    assert!(is_all(&named(&on_loopback()), &second));
    let weak = second.downgrade();
    drop(second);
    assert!(weak.upgrade().is_none());
    assert!(named(&on_loopback()).iter().all(Option::is_none));
    // Of another name it is another domain's.
    let others = Hints::new().caps(Caps::MSG);
    let _held = open(on_loopback());
    for info in discover(&others).unwrap() {
        assert_eq!(info.domain.domain.is_some(), info.domain.name == "lo");
    }
}

/// fi_domain(3): `fi_domain_attr.domain`
/// fi_domain(3): "a user may set this to an opened domain instance to restrict output to the given
/// domain."
#[tokio::test]
async fn an_open_domain_in_the_hints_restricts_the_answers_to_it() {
    let strict = on_loopback().domain(|it| it.required_mr_mode(MrMode::LOCAL).mr_cnt(77));
    let domain = open(strict);
    let within = |hints: Hints| hints.domain(|it| it.domain(domain.downgrade()));
    let hints = within(Hints::new().endpoint(EndpointType::Rdm));
    let infos = discover(&hints).unwrap();
    assert!(!infos.is_empty());
    for info in &infos {
        assert_eq!(info.domain.name, "lo");
        assert_eq!(
            (info.domain.mr_mode, info.domain.mr_cnt),
            (MrMode::LOCAL, 77)
        );
        assert_eq!(info.endpoint.endpoint_type, EndpointType::Rdm);
    }
    assert!(is_all(&named(&hints), &domain));
    // A fabric of such answers opens another instance of the same domain.
    let again = open(hints);
    assert_eq!(again.info().domain.mr_mode, MrMode::LOCAL);
    assert_ne!(again.downgrade(), domain.downgrade());
    // What does not go with it is refused.
    let other = discover(&within(Hints::new().backend("loopback"))).unwrap_err();
    assert_eq!(other.kind(), ErrorKind::NoMatch, "{other}");
    let more = within(Hints::new()).domain(|it| it.mr_cnt(5));
    let more = discover(&more).unwrap_err();
    assert_eq!(more.kind(), ErrorKind::InvalidArgument, "{more}");
}

/// fi_domain(3): "The domain instance returned by fi_getinfo should only be considered valid if the
/// application does not close any domain instances from another thread while fi_getinfo is being
/// processed." Here it is valid or gone, whatever other threads do.
#[test]
fn what_discovery_names_is_open_or_gone_whatever_other_threads_do() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let _inside = runtime.enter();
    std::thread::scope(|scope| {
        let inside = runtime.handle();
        for _ in 0..2 {
            scope.spawn(move || {
                let _entered = inside.enter();
                for round in 0..40 {
                    let domain = open(on_loopback());
                    if round % 2 == 0 {
                        inside.block_on(domain.close()).unwrap();
                    }
                }
            });
        }
        for _ in 0..40 {
            for domain in named(&on_loopback()).into_iter().flatten() {
                assert_eq!(domain.info().domain.name, "lo");
            }
        }
    });
    let domain = open(on_loopback());
    let weak = domain.downgrade();
    drop(domain);
    let gone = discover(&on_loopback().domain(|it| it.domain(weak))).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NoMatch, "{gone}");
}
