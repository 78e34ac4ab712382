//! Hints against the offer: the answer, or the reason why there is none.
//!
//! Each kind of endpoint has an offer (`offer.rs`); whoever names no kind gets all that fit. A hint
//! is met when what is offered is at least what was asked; the first that is not met ends the
//! search with its name, what was asked and what is offered. A hint that could never be met by
//! anybody is an error of its own kind.

use std::cmp::Reverse;

use super::attr::{AuthKey, DomainAttr, EndpointAttr, FabricAttr, RxAttr, TxAttr};
use super::caps::{Caps, CompOrder, Mode, MrMode, MsgOrder, OpFlags};
use super::hints::Hints;
use super::judge::{at_least, bad_flags, beyond, choose, invalid, limit, names, no_match, within};
use super::kinds::{
    AddressFormat, ApiVersion, ContextCount, Driver, EndpointType, Persistence, Progress,
    ResourceManagement, Threading, TrafficClass,
};
use super::offer::{DOMAIN_CAPS, OFFERS, Offer};
use super::{Info, Interface, address};
use crate::error::Result;
use crate::limits;

const PROVIDER_VERSION: ApiVersion = ApiVersion::new(
    number(env!("CARGO_PKG_VERSION_MAJOR")),
    number(env!("CARGO_PKG_VERSION_MINOR")),
);

/// Capabilities that mean something only beside at least one of some others.
const CAPS_NEED: [(Caps, Caps); 8] = [
    (Caps::RMA_DIRECTIONS, Caps::RMA.union(Caps::ATOMIC)),
    (Caps::MESSAGE_DIRECTIONS, Caps::MSG.union(Caps::TAGGED)),
    (Caps::MULTICAST, Caps::MSG),
    (Caps::RMA_EVENT, Caps::REMOTE_READ.union(Caps::REMOTE_WRITE)),
    (Caps::RMA_PMEM, Caps::RMA),
    (Caps::SOURCE_ERR, Caps::SOURCE),
    (Caps::VARIABLE_MSG, Caps::MSG.union(Caps::TAGGED)),
    (Caps::XPU, Caps::TRIGGER),
];

const REQUIRABLE_MR_MODE: MrMode = MrMode::BASIC
    .union(MrMode::SCALABLE)
    .union(MrMode::VIRT_ADDR)
    .union(MrMode::ALLOCATED)
    .union(MrMode::PROV_KEY)
    .union(MrMode::LOCAL)
    .union(MrMode::RAW)
    .union(MrMode::MMU_NOTIFY)
    .union(MrMode::RMA_EVENT)
    .union(MrMode::ENDPOINT)
    .union(MrMode::COLLECTIVE);

/// Bytes of a key, as on the wire.
const MR_KEY_SIZE: usize = 8;
/// Bytes of a raw key, which headers do not carry whole.
const MR_RAW_KEY_SIZE: usize = limits::RAW_KEY_SIZE;
/// Pieces of memory per region.
const MR_IOV_LIMIT: usize = 16;
/// Objects of a domain. Nothing but memory and descriptors bounds them; these are the numbers
/// that C programs see of the `tcp` provider, who may size their tables by them.
const CQ_CNT: usize = 256;
const EP_CNT: usize = 8192;
const CNTR_CNT: usize = 8192;
pub(crate) const MR_CNT: usize = 65_536;

/// Every way to meet the hints on these interfaces, best first: those on the destination's subnet
/// before others, the loopback interface after others, faster before slower, and otherwise in the
/// order given. The answer is never empty.
///
/// # Errors
///
/// `NoMatch`: nothing fits; the message names the hint, what was asked and what is offered.
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

/// The kinds of endpoint that may be meant, best first. If none of them fits, the first has the
/// reason: it is the one that can do most of what was asked for.
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

/// Messages that may get lost are for who names their kind, provider or protocol, or sends to
/// groups, which nothing else does.
fn wants_packets(hints: &Hints, offer: &Offer) -> bool {
    let names_it = |filter: &str| {
        !filter.starts_with('^') && !filter.is_empty() && names_provider(filter, offer.provider)
    };
    hints.provider.as_deref().is_some_and(names_it)
        || hints.endpoint_attr.protocol == Some(offer.protocol)
        || (hints.caps).is_some_and(|caps| caps.contains(Caps::MULTICAST))
}

/// The answers of one kind of endpoint.
fn resolve_as(offer: &Offer, hints: &Hints, interfaces: &[Interface]) -> Result<Vec<Info>> {
    let fabric = fabric(hints, offer)?;
    let api = fabric.api_version;
    let caps = caps(hints, offer)?;
    let domain = domain(hints, offer, api)?;
    if offer.is_packet {
        no_key("domain.auth_key", domain.auth_key.as_ref())?;
        no_key(
            "endpoint_attr.auth_key",
            auth_key(
                "endpoint_attr.auth_key",
                hints.endpoint_attr.auth_key.as_ref(),
                api,
            )?
            .as_ref(),
        )?;
    }
    let places = address::places(hints, interfaces)?;
    let mut infos = Vec::new();
    let mut refusal = None;
    for place in places {
        let interface = place.interface;
        let on_packets = offer.on(interface);
        let offer = on_packets.as_ref().unwrap_or(offer);
        let sides = (|| {
            let tx = transmit(hints, offer, caps, &domain)?;
            let rx = receive(hints, offer, caps)?;
            let endpoint = endpoint(hints, api, offer, tx.caps, rx.caps)?;
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
            caps,
            mode: Mode::empty(),
            address_format: match interface.address.is_ipv4() {
                true => AddressFormat::SockaddrIn,
                false => AddressFormat::SockaddrIn6,
            },
            source: place.source,
            dest: place.dest,
            fabric: FabricAttr {
                name: interface.subnet(),
                ..fabric.clone()
            },
            domain: DomainAttr {
                name: interface.name.clone(),
                ..domain.clone()
            },
            endpoint,
            tx,
            rx,
            interface: interface.clone(),
            backend: hints.backend.clone(),
            fallback: None,
        });
    }
    match refusal {
        Some(error) if infos.is_empty() => Err(error),
        _ => Ok(infos),
    }
}

/// All but the name, which is the interface's.
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

/// `tcp`, `udp,tcp`, `^udp`: a list of those allowed, or of those left out.
fn names_provider(filter: &str, provider: &str) -> bool {
    let (list, wanted) = match filter.strip_prefix('^') {
        Some(list) => (list, false),
        None => (filter, true),
    };
    list.split(',').any(|name| name.trim() == provider) == wanted
}

fn caps(hints: &Hints, offer: &Offer) -> Result<Caps> {
    let asked = hints.caps.unwrap_or_default();
    if asked.is_empty() {
        return Ok(offer.caps);
    }
    let full = with_directions(asked);
    for (caps, companions) in CAPS_NEED {
        if asked.intersects(caps) && !full.intersects(companions) {
            return Err(bad_flags(format!(
                "hint caps: {} without any of {}",
                names(asked & caps),
                names(companions)
            )));
        }
    }
    within("caps", asked, offer.caps)?;
    // Counting for regions costs a look per access, so whoever lists what it needs has to ask.
    Ok(full | offer.caps_always)
}

/// Without a direction, a primary capability has them all.
fn with_directions(caps: Caps) -> Caps {
    let mut full = caps;
    if caps.intersects(Caps::MSG | Caps::TAGGED) && !caps.intersects(Caps::MESSAGE_DIRECTIONS) {
        full |= Caps::MESSAGE_DIRECTIONS;
    }
    if caps.intersects(Caps::RMA | Caps::ATOMIC) && !caps.intersects(Caps::RMA_DIRECTIONS) {
        full |= Caps::RMA_DIRECTIONS;
    }
    full
}

/// The capabilities of one side of an endpoint: those of the endpoint that apply to the side, or
/// the subset asked for. A primary capability that has no direction left on this side is dropped.
fn side_caps(
    hint: &'static str,
    asked: Option<Caps>,
    applicable: Caps,
    offer: &Offer,
    endpoint: Caps,
) -> Result<Caps> {
    let mut caps = endpoint & applicable;
    if let Some(asked) = asked.filter(|asked| !asked.is_empty()) {
        if let Some(wrong) = beyond(asked, applicable) {
            return Err(bad_flags(format!(
                "hint {hint}: {} is not of this side",
                names(wrong)
            )));
        }
        within(hint, asked, offer.caps)?;
        if let Some(wrong) = beyond(asked, endpoint) {
            return Err(bad_flags(format!(
                "hint {hint}: {} is not among the endpoint's capabilities, {}",
                names(wrong),
                names(endpoint)
            )));
        }
        caps &= with_directions(asked);
    }
    if !caps.intersects(Caps::MESSAGE_DIRECTIONS) {
        caps.remove(Caps::MSG | Caps::TAGGED);
    }
    if !caps.intersects(Caps::RMA_DIRECTIONS) {
        caps.remove(Caps::RMA | Caps::RMA_EVENT | Caps::RMA_PMEM);
    }
    Ok(caps)
}

/// All but the name, which is the interface's.
fn domain(hints: &Hints, offer: &Offer, api: ApiVersion) -> Result<DomainAttr> {
    if hints.domain.data_progress == Some(Progress::ControlUnified) {
        return Err(invalid(
            "hint data_progress: ControlUnified is for control progress only",
        ));
    }
    let progress = |hint, asked| choose(hint, asked, &[Progress::Auto]);
    let asked_caps = hints.domain.caps.unwrap_or_default();
    let domain_caps = DOMAIN_CAPS | Caps::SHARED_AV | (asked_caps & Caps::AV_USER_ID);
    within("domain.caps", asked_caps, domain_caps | Caps::AV_USER_ID)?;
    let mr_mode = mr_mode(hints, api)?;
    let mr_key_size = match mr_mode.contains(MrMode::RAW) {
        true => MR_RAW_KEY_SIZE,
        false => MR_KEY_SIZE,
    };
    Ok(DomainAttr {
        name: String::new(),
        threading: match hints.domain.threading {
            None | Some(Threading::Unspec) => Threading::Safe,
            Some(promised) => promised,
        },
        control_progress: progress("domain.control_progress", hints.domain.control_progress)?,
        data_progress: progress("domain.data_progress", hints.domain.data_progress)?,
        driver: Driver::Task,
        resource_mgmt: ResourceManagement::Enabled,
        av_type: hints.domain.av_type.unwrap_or_default(),
        mr_mode,
        mr_key_size: limit("domain.mr_key_size", hints.domain.mr_key_size, mr_key_size)?,
        cq_data_size: limit(
            "domain.cq_data_size",
            hints.domain.cq_data_size,
            offer.cq_data_size,
        )?,
        cq_cnt: at_least(hints.domain.cq_cnt, CQ_CNT),
        ep_cnt: at_least(hints.domain.ep_cnt, EP_CNT),
        tx_ctx_cnt: at_least(hints.domain.tx_ctx_cnt, EP_CNT),
        rx_ctx_cnt: at_least(hints.domain.rx_ctx_cnt, EP_CNT),
        max_ep_tx_ctx: limit("domain.max_ep_tx_ctx", hints.domain.max_ep_tx_ctx, 1)?,
        max_ep_rx_ctx: limit("domain.max_ep_rx_ctx", hints.domain.max_ep_rx_ctx, 1)?,
        max_ep_stx_ctx: limit("domain.max_ep_stx_ctx", hints.domain.max_ep_stx_ctx, 0)?,
        max_ep_srx_ctx: limit("domain.max_ep_srx_ctx", hints.domain.max_ep_srx_ctx, 0)?,
        cntr_cnt: at_least(hints.domain.cntr_cnt, CNTR_CNT),
        mr_iov_limit: limit(
            "domain.mr_iov_limit",
            hints.domain.mr_iov_limit,
            MR_IOV_LIMIT,
        )?,
        caps: domain_caps,
        mode: Mode::empty(),
        auth_key: auth_key("domain.auth_key", hints.domain.auth_key.as_ref(), api)?,
        max_err_data: limit(
            "domain.max_err_data",
            hints.domain.max_err_data,
            limits::ERR_DATA_SIZE_MAX,
        )?,
        mr_cnt: at_least(hints.domain.mr_cnt, MR_CNT),
        traffic_class: traffic_class("domain.traffic_class", hints.domain.traffic_class)?,
        persistence: Persistence::Synchronize,
        max_ep_auth_key: limit("domain.max_ep_auth_key", hints.domain.max_ep_auth_key, 0)?,
    })
}

/// What is left of the modes. Of those the application can cope with, the library needs none and
/// clears all but BASIC, which is a request; those it wants to be held to stay.
fn mr_mode(hints: &Hints, api: ApiVersion) -> Result<MrMode> {
    let copes = hints.domain.mr_mode.unwrap_or_default();
    let required = hints.domain.required_mr_mode.unwrap_or_default();
    check_pairing("domain.mr_mode", copes, api)?;
    check_pairing("domain.required_mr_mode", required, api)?;
    check_pairing("mr_mode with required_mr_mode", copes | required, api)?;
    within("domain.required_mr_mode", required, REQUIRABLE_MR_MODE)?;
    let left = (copes & MrMode::BASIC) | required;
    // Before 1.5 empty was no answer but a question, so the answer there has a name.
    match (api < ApiVersion::MODE_BITS, left.contains(MrMode::BASIC)) {
        (true, false) => Ok(MrMode::SCALABLE),
        _ => Ok(left - MrMode::SCALABLE),
    }
}

fn check_pairing(hint: &'static str, mode: MrMode, api: ApiVersion) -> Result<()> {
    let complain = |why: String| {
        Err(invalid(format!(
            "hint {hint}: {why} (fi_mr(3)), asked for {}",
            names(mode)
        )))
    };
    if mode.contains(MrMode::BASIC) && !(MrMode::BASIC | MrMode::LOCAL).contains(mode) {
        return complain("BASIC stands alone or with LOCAL".to_owned());
    }
    if mode.contains(MrMode::SCALABLE) && mode != MrMode::SCALABLE {
        return complain("SCALABLE stands alone".to_owned());
    }
    let old = mode.is_empty() || mode.intersects(MrMode::BASIC | MrMode::SCALABLE);
    if api < ApiVersion::MODE_BITS && !old {
        return complain(format!("version {api} knows only BASIC and SCALABLE"));
    }
    Ok(())
}

fn endpoint(
    hints: &Hints,
    api: ApiVersion,
    offer: &Offer,
    tx: Caps,
    rx: Caps,
) -> Result<EndpointAttr> {
    Ok(EndpointAttr {
        endpoint_type: offer.endpoint_type,
        protocol: choose(
            "endpoint_attr.protocol",
            hints.endpoint_attr.protocol,
            &[offer.protocol],
        )?,
        protocol_version: limit(
            "endpoint_attr.protocol_version",
            hints.endpoint_attr.protocol_version,
            offer.protocol_version,
        )?,
        max_msg_size: limit(
            "endpoint_attr.max_msg_size",
            hints.endpoint_attr.max_msg_size,
            offer.max_msg_size,
        )?,
        msg_prefix_size: limit(
            "endpoint_attr.msg_prefix_size",
            hints.endpoint_attr.msg_prefix_size,
            0,
        )?,
        max_order_raw_size: limit(
            "endpoint_attr.max_order_raw_size",
            hints.endpoint_attr.max_order_raw_size,
            offer.max_order_size,
        )?,
        max_order_war_size: limit(
            "endpoint_attr.max_order_war_size",
            hints.endpoint_attr.max_order_war_size,
            0,
        )?,
        max_order_waw_size: limit(
            "endpoint_attr.max_order_waw_size",
            hints.endpoint_attr.max_order_waw_size,
            offer.max_order_size,
        )?,
        mem_tag_format: tag_format(hints, offer)?,
        tx_ctx_cnt: contexts(
            "endpoint_attr.tx_ctx_cnt",
            hints.endpoint_attr.tx_ctx_cnt,
            tx,
        )?,
        rx_ctx_cnt: contexts(
            "endpoint_attr.rx_ctx_cnt",
            hints.endpoint_attr.rx_ctx_cnt,
            rx,
        )?,
        auth_key: auth_key(
            "endpoint_attr.auth_key",
            hints.endpoint_attr.auth_key.as_ref(),
            api,
        )?,
    })
}

/// All bits of a tag may be matched by one by one, so any division of them into fields is had.
fn tag_format(hints: &Hints, offer: &Offer) -> Result<u64> {
    match hints
        .endpoint_attr
        .mem_tag_format
        .filter(|format| *format != 0)
    {
        Some(asked) if offer.mem_tag_format == 0 => {
            Err(no_match("endpoint_attr.mem_tag_format", asked, 0))
        }
        Some(asked) => Ok(asked),
        None => Ok(offer.mem_tag_format),
    }
}

/// One, or none when the capabilities leave nothing to do on this side.
fn contexts(hint: &'static str, asked: Option<ContextCount>, side: Caps) -> Result<ContextCount> {
    let useful = usize::from(!side.is_empty());
    match asked {
        None | Some(ContextCount::Own(0)) => Ok(ContextCount::Own(useful)),
        Some(ContextCount::Own(1)) => Ok(ContextCount::Own(1)),
        Some(ContextCount::Own(more)) => Err(no_match(hint, more, 1)),
        Some(ContextCount::Shared) => Err(no_match(hint, "a shared context", "one of its own")),
    }
}

/// The order kept: both sides of an endpoint keep the same.
fn msg_order(hints: &Hints, offer: &Offer) -> MsgOrder {
    let asked = hints.tx.msg_order.unwrap_or_default() | hints.rx.msg_order.unwrap_or_default();
    offer.msg_order | (asked & offer.msg_order_on_demand)
}

fn transmit(hints: &Hints, offer: &Offer, endpoint: Caps, domain: &DomainAttr) -> Result<TxAttr> {
    within(
        "tx.msg_order",
        hints.tx.msg_order.unwrap_or_default(),
        offer.msg_order | offer.msg_order_on_demand,
    )?;
    within(
        "tx.comp_order",
        hints.tx.comp_order.unwrap_or_default(),
        offer.tx_comp_order,
    )?;
    // The proof of a raw key takes a segment behind each.
    let rma_iov_limit = match domain.mr_mode.contains(MrMode::RAW) {
        true => offer.rma_iov_limit / 2,
        false => offer.rma_iov_limit,
    };
    let asked_flags = hints.tx.op_flags.unwrap_or_default();
    Ok(TxAttr {
        caps: side_caps("tx.caps", hints.tx.caps, Caps::TRANSMIT, offer, endpoint)?,
        mode: Mode::empty(),
        op_flags: op_flags(
            "tx.op_flags",
            asked_flags,
            OpFlags::TRANSMIT,
            offer.tx_op_flags,
        )?,
        msg_order: msg_order(hints, offer),
        comp_order: offer.tx_comp_order,
        inject_size: limit("tx.inject_size", hints.tx.inject_size, offer.inject_size)?,
        size: context_size("tx.size", hints.tx.size, limits::TRANSMIT_SIZE_MAX)?,
        iov_limit: limit("tx.iov_limit", hints.tx.iov_limit, limits::IOV_LIMIT)?,
        rma_iov_limit: limit("tx.rma_iov_limit", hints.tx.rma_iov_limit, rma_iov_limit)?,
        traffic_class: match hints.tx.traffic_class {
            None | Some(TrafficClass::Unspec) => domain.traffic_class,
            asked => traffic_class("tx.traffic_class", asked)?,
        },
    })
}

fn receive(hints: &Hints, offer: &Offer, endpoint: Caps) -> Result<RxAttr> {
    within(
        "rx.msg_order",
        hints.rx.msg_order.unwrap_or_default(),
        offer.msg_order | offer.msg_order_on_demand,
    )?;
    within(
        "rx.comp_order",
        hints.rx.comp_order.unwrap_or_default(),
        CompOrder::STRICT,
    )?;
    let asked_flags = hints.rx.op_flags.unwrap_or_default();
    let buffered = hints.rx.total_buffered_recv.filter(|bytes| *bytes != 0);
    Ok(RxAttr {
        caps: side_caps("rx.caps", hints.rx.caps, Caps::RECEIVE, offer, endpoint)?,
        mode: Mode::empty(),
        op_flags: op_flags(
            "rx.op_flags",
            asked_flags,
            OpFlags::RECEIVE,
            offer.rx_op_flags,
        )?,
        msg_order: msg_order(hints, offer),
        comp_order: CompOrder::STRICT,
        total_buffered_recv: buffered.unwrap_or(limits::UNEXPECTED_BYTES_DEFAULT),
        size: context_size("rx.size", hints.rx.size, limits::RECEIVE_SIZE_MAX)?,
        iov_limit: limit("rx.iov_limit", hints.rx.iov_limit, limits::IOV_LIMIT)?,
    })
}

fn op_flags(
    hint: &'static str,
    asked: OpFlags,
    applicable: OpFlags,
    offered: OpFlags,
) -> Result<OpFlags> {
    if let Some(wrong) = beyond(asked, applicable) {
        return Err(bad_flags(format!(
            "hint {hint}: {} is not of this side",
            names(wrong)
        )));
    }
    within(hint, asked, offered)?;
    Ok(asked)
}

fn traffic_class(hint: &'static str, asked: Option<TrafficClass>) -> Result<TrafficClass> {
    if let Some(TrafficClass::Dscp(point @ 64..)) = asked {
        return Err(invalid(format!(
            "hint {hint}: a code point has 6 bits, {point} is too large"
        )));
    }
    choose(hint, asked, &[TrafficClass::BestEffort])
}

/// A packet has no room for a proof, and a key that would be taken and not honoured is worse than
/// none.
fn no_key(hint: &'static str, asked: Option<&AuthKey>) -> Result<()> {
    match asked {
        Some(key) => Err(no_match(hint, format!("{key:?}"), "none, for datagrams")),
        None => Ok(()),
    }
}

/// The key in force: none without bytes, and none before there were keys.
fn auth_key(
    hint: &'static str,
    asked: Option<&AuthKey>,
    api: ApiVersion,
) -> Result<Option<AuthKey>> {
    match asked.filter(|_| api.counts_auth_keys()) {
        Some(key) if key.is_of_address_vector() => {
            Err(no_match(hint, format!("{key:?}"), "keys of bytes"))
        }
        asked => Ok(asked.filter(|key| !key.is_empty()).cloned()),
    }
}

fn context_size(hint: &'static str, asked: Option<usize>, max: usize) -> Result<usize> {
    limit(hint, asked, max)?;
    Ok(asked
        .filter(|size| *size != 0)
        .unwrap_or(limits::CONTEXT_SIZE_DEFAULT))
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
