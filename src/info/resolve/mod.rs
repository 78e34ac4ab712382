//! Matches hints against the offers: returns the results, or the reason why there are none.
//!
//! Each kind of endpoint has an offer (`offer.rs`); hints that name no kind get all kinds that
//! match. A hint is met if the offer is at least what was asked for. The first hint that is not met
//! ends the search with an error that names it, the value asked for and the values offered. A hint
//! that contradicts itself is `InvalidArgument` or `BadFlags`.

mod caps;
mod domain;
mod endpoint;

use std::cmp::Reverse;

use super::attr::{DomainAttr, FabricAttr};
use super::caps::{Caps, Mode};
use super::check::{choose, names, no_match};
use super::hints::Hints;
use super::kinds::{AddressFormat, ApiVersion, EndpointType};
use super::offer::{OFFERS, Offer};
use super::{Info, Interface, address};
use crate::error::Result;

use caps::caps;
pub(super) use caps::{side_of, with_directions};
#[cfg(feature = "tls")]
use domain::no_tls;
use domain::{auth_key, domain, no_key};
pub(super) use endpoint::flags_within;
use endpoint::{endpoint, receive, transmit};

const PROVIDER_VERSION: ApiVersion = ApiVersion::new(
    number(env!("CARGO_PKG_VERSION_MAJOR")),
    number(env!("CARGO_PKG_VERSION_MINOR")),
);

/// Returns every way to meet the hints on these interfaces, best first: interfaces on the
/// destination's subnet before others, the loopback interface after others, faster before slower,
/// and otherwise in the given order. The result is never empty.
///
/// # Errors
///
/// `NoMatch`: nothing matches; the message names the hint, the value asked for and the values
/// offered.
/// `InvalidArgument`, `BadFlags`: a hint makes no sense whatever is offered.
pub(crate) fn resolve(hints: &Hints, interfaces: &[Interface]) -> Result<Vec<Info>> {
    let mut infos = Vec::new();
    let mut refusal = None;
    for offer in candidates(hints)? {
        match resolve_as(offer, hints, interfaces) {
            Ok(found) => infos.extend(found),
            Err(error) => refusal = refusal.or(Some(error)),
        }
    }
    match refusal {
        Some(error) if infos.is_empty() => Err(error),
        _ => Ok(infos),
    }
}

/// Returns the kinds of endpoint that the hints may mean, best first. If none of them matches, the
/// error is that of the first, which has the most of the capabilities asked for.
fn candidates(hints: &Hints) -> Result<Vec<&'static Offer>> {
    let named = hints.endpoint.unwrap_or_default();
    let is_meant = |offer: &&Offer| match named {
        EndpointType::Unspec => !offer.is_packet || wants_packets(hints, offer),
        named => offer.endpoint_type == named,
    };
    let mut meant: Vec<_> = OFFERS.iter().filter(is_meant).collect();
    if meant.is_empty() {
        let offered: Vec<_> = OFFERS.iter().map(|offer| offer.endpoint_type).collect();
        choose("endpoint", hints.endpoint, &offered)?;
    }
    let asked = hints.caps.unwrap_or_default();
    meant.sort_by_key(|offer| Reverse((offer.caps & asked).bits().count_ones()));
    Ok(meant)
}

/// Returns whether the hints ask for unreliable messages: by their provider or protocol, or by
/// multicast.
fn wants_packets(hints: &Hints, offer: &Offer) -> bool {
    let names_it = |filter: &str| {
        !filter.starts_with('^') && !filter.is_empty() && names_provider(filter, offer.provider)
    };
    hints.provider.as_deref().is_some_and(names_it)
        || hints.endpoint_attr.protocol == Some(offer.protocol)
        || (hints.caps).is_some_and(|caps| caps.contains(Caps::MULTICAST))
}

/// Returns the results for one kind of endpoint.
fn resolve_as(offer: &Offer, hints: &Hints, interfaces: &[Interface]) -> Result<Vec<Info>> {
    let fabric = fabric(hints, offer)?;
    let api = fabric.api_version;
    let caps = caps(hints, offer)?;
    let domain = domain(hints, offer, api)?;
    if offer.is_packet {
        no_key("domain.auth_key", domain.auth_key.as_ref())?;
        let hint = "endpoint_attr.auth_key";
        let key = auth_key(hint, hints.endpoint_attr.auth_key.as_ref(), api, false)?;
        no_key(hint, key.as_ref())?;
        #[cfg(feature = "tls")]
        no_tls(hints)?;
    }
    let routes = address::routes(hints, interfaces)?;
    let mut infos = Vec::new();
    let mut refusal = None;
    for route in routes {
        let interface = route.interface;
        let lacking = match reaches_others(hints, interface) {
            true => Caps::empty(),
            false => Caps::REMOTE_COMM,
        };
        let asked = [("caps", hints.caps), ("domain.caps", hints.domain.caps)];
        let wants_more = |(_, it): &(_, Option<Caps>)| it.is_some_and(|it| it.intersects(lacking));
        if let Some((hint, _)) = asked.into_iter().find(wants_more) {
            let offered = format!("LOCAL_COMM on {}", interface.name);
            refusal = refusal.or(Some(no_match(hint, names(lacking), offered)));
            continue;
        }
        let on_packets = offer.on(interface);
        let offer = on_packets.as_ref().unwrap_or(offer);
        let sides = (|| {
            let tx = transmit(hints, offer, caps, &domain)?;
            let rx = receive(hints, offer, caps)?;
            let endpoint = endpoint(hints, api, offer, &domain, (tx.caps, rx.caps))?;
            Ok((tx, rx, endpoint))
        })();
        let (tx, rx, endpoint) = match sides {
            Ok(sides) => sides,
            Err(error) => {
                refusal = refusal.or(Some(error));
                continue;
            }
        };
        infos.push(Info {
            caps: caps - lacking,
            mode: Mode::empty(),
            address_format: match interface.address.is_ipv4() {
                true => AddressFormat::SockaddrIn,
                false => AddressFormat::SockaddrIn6,
            },
            source: route.source,
            dest: route.dest,
            fabric: FabricAttr {
                name: interface.subnet(),
                ..fabric.clone()
            },
            domain: DomainAttr {
                name: interface.name.clone(),
                caps: domain.caps - lacking,
                ..domain.clone()
            },
            endpoint,
            tx,
            rx,
            interface: interface.clone(),
            backend: hints.backend.clone(),
            asked: hints.caps.unwrap_or_default(),
        });
    }
    match refusal {
        Some(error) if infos.is_empty() => Err(error),
        _ => Ok(infos),
    }
}

/// Returns false if only endpoints of this machine, or of this process, can be reached.
fn reaches_others(hints: &Hints, interface: &Interface) -> bool {
    let in_process = hints.backend.as_deref() == Some("loopback");
    !interface.loopback && !in_process
}

/// Returns all attributes but the name, which is the interface's.
fn fabric(hints: &Hints, offer: &Offer) -> Result<FabricAttr> {
    let api_version = hints.fabric.api_version.unwrap_or_default();
    if !(ApiVersion::OLDEST..=ApiVersion::NEWEST).contains(&api_version) {
        let offered = format!("{} to {}", ApiVersion::OLDEST, ApiVersion::NEWEST);
        return Err(no_match("fabric.api_version", api_version, offered));
    }
    if let Some(filter) = hints
        .provider
        .as_deref()
        .filter(|filter| !filter.is_empty())
        && !names_provider(filter, offer.provider)
    {
        return Err(no_match("provider", filter, offer.provider));
    }
    if let Some(version) = hints.fabric.provider_version
        && version > PROVIDER_VERSION
    {
        return Err(no_match(
            "fabric.provider_version",
            version,
            PROVIDER_VERSION,
        ));
    }
    Ok(FabricAttr {
        name: String::new(),
        provider: offer.provider.to_owned(),
        provider_version: PROVIDER_VERSION,
        api_version,
    })
}

/// Returns whether a filter allows this provider: a list such as `tcp` or `udp,tcp` of allowed
/// ones, or one such as `^udp` of excluded ones.
fn names_provider(filter: &str, provider: &str) -> bool {
    let (list, wanted) = match filter.strip_prefix('^') {
        Some(list) => (list, false),
        None => (filter, true),
    };
    list.split(',').any(|name| name.trim() == provider) == wanted
}

const fn number(digits: &str) -> u16 {
    let digits = digits.as_bytes();
    let (mut value, mut index) = (0, 0);
    while index < digits.len() {
        value = value * 10 + (digits[index] - b'0') as u16;
        index += 1;
    }
    value
}
