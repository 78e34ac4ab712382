//! The attributes of a domain.

use crate::error::Result;
use crate::info::attr::{AuthKey, DomainAttr};
use crate::info::caps::{Caps, Mode, MrMode};
use crate::info::check::{count, invalid, limit, names, no_match, within};
use crate::info::hints::Hints;
use crate::info::kinds::{
    ApiVersion, Driver, EndpointType, Persistence, Progress, ResourceManagement, Threading,
    TrafficClass,
};
use crate::info::offer::{DOMAIN_CAPS, Offer};
use crate::limits::{self, CNTR_COUNT_MAX, CQ_COUNT_MAX, EP_COUNT_MAX, MR_COUNT_MAX, MR_IOV_LIMIT};

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
    .union(MrMode::HMEM);

/// Bytes of a key, as on the wire.
const MR_KEY_SIZE: usize = 8;
/// Bytes of a raw key, of which headers carry only a part.
const MR_RAW_KEY_SIZE: usize = limits::RAW_KEY_SIZE;

/// Returns all attributes but the name, which is the interface's.
pub(super) fn domain(hints: &Hints, offer: &Offer, api: ApiVersion) -> Result<DomainAttr> {
    let (control_progress, data_progress) = progress(hints)?;
    let asked_caps = hints.domain.caps.unwrap_or_default();
    let is_rdm = offer.endpoint_type == EndpointType::Rdm;
    // Primary capabilities are enabled only if asked for. For a domain, directed receives mean that
    // its regions can be limited to authorization keys.
    let primary = Caps::AV_USER_ID | (offer.caps & Caps::DIRECTED_RECV);
    let domain_caps = DOMAIN_CAPS | Caps::SHARED_AV | (asked_caps & primary);
    within("domain.caps", asked_caps, domain_caps | primary)?;
    let mr_mode = mr_mode(hints, api)?;
    let mr_key_size = match mr_mode.contains(MrMode::RAW) {
        true => MR_RAW_KEY_SIZE,
        false => MR_KEY_SIZE,
    };
    let sharers = match offer.endpoint_type {
        EndpointType::Msg | EndpointType::Rdm => {
            count("domain.ep_cnt", hints.domain.ep_cnt, EP_COUNT_MAX)?
        }
        _ => 0,
    };
    let contexts = match is_rdm {
        true => limits::EP_CONTEXTS_MAX,
        false => 1,
    };
    Ok(DomainAttr {
        domain: None,
        name: String::new(),
        threading: match hints.domain.threading {
            None | Some(Threading::Unspec) => Threading::Safe,
            Some(promised) => promised,
        },
        control_progress,
        data_progress,
        driver: match data_progress {
            Progress::Manual => Driver::Manual,
            _ => Driver::Task,
        },
        resource_mgmt: ResourceManagement::Enabled,
        av_type: hints.domain.av_type.unwrap_or_default(),
        mr_mode,
        mr_key_size: limit("domain.mr_key_size", hints.domain.mr_key_size, mr_key_size)?,
        cq_data_size: limit(
            "domain.cq_data_size",
            hints.domain.cq_data_size,
            offer.cq_data_size,
        )?,
        cq_cnt: count("domain.cq_cnt", hints.domain.cq_cnt, CQ_COUNT_MAX)?,
        ep_cnt: count("domain.ep_cnt", hints.domain.ep_cnt, EP_COUNT_MAX)?,
        tx_ctx_cnt: count("domain.tx_ctx_cnt", hints.domain.tx_ctx_cnt, EP_COUNT_MAX)?,
        rx_ctx_cnt: count("domain.rx_ctx_cnt", hints.domain.rx_ctx_cnt, EP_COUNT_MAX)?,
        max_ep_tx_ctx: count("domain.max_ep_tx_ctx", hints.domain.max_ep_tx_ctx, contexts)?,
        max_ep_rx_ctx: count("domain.max_ep_rx_ctx", hints.domain.max_ep_rx_ctx, contexts)?,
        max_ep_stx_ctx: limit("domain.max_ep_stx_ctx", hints.domain.max_ep_stx_ctx, 0)?,
        max_ep_srx_ctx: limit(
            "domain.max_ep_srx_ctx",
            hints.domain.max_ep_srx_ctx,
            sharers,
        )?,
        cntr_cnt: count("domain.cntr_cnt", hints.domain.cntr_cnt, CNTR_COUNT_MAX)?,
        mr_iov_limit: limit(
            "domain.mr_iov_limit",
            hints.domain.mr_iov_limit,
            MR_IOV_LIMIT,
        )?,
        caps: domain_caps,
        mode: Mode::empty(),
        auth_key: auth_key(
            "domain.auth_key",
            hints.domain.auth_key.as_ref(),
            api,
            is_rdm,
        )?,
        max_err_data: limit(
            "domain.max_err_data",
            hints.domain.max_err_data,
            limits::ERR_DATA_SIZE_MAX,
        )?,
        mr_cnt: count("domain.mr_cnt", hints.domain.mr_cnt, MR_COUNT_MAX)?,
        traffic_class: traffic_class("domain.traffic_class", hints.domain.traffic_class)?,
        persistence: Persistence::Synchronize,
        max_ep_auth_key: limit(
            "domain.max_ep_auth_key",
            hints.domain.max_ep_auth_key,
            match is_rdm {
                true => limits::EP_AUTH_KEY_MAX,
                false => 0,
            },
        )?,
    })
}

/// Returns control and data progress. One driver makes both, so either both are automatic or
/// neither is. If only one of the hints asks for automatic progress, both are automatic.
fn progress(hints: &Hints) -> Result<(Progress, Progress)> {
    let asked = |it: Option<Progress>| it.unwrap_or_default();
    let control = asked(hints.domain.control_progress);
    let data = asked(hints.domain.data_progress);
    match (control, data) {
        (_, Progress::ControlUnified) => Err(invalid(
            "hint data_progress: ControlUnified is for control progress only",
        )),
        // fi_domain(3) allows ControlUnified only with manual data progress.
        (Progress::ControlUnified, Progress::Auto) => Err(invalid(
            "hint control_progress: ControlUnified goes with Manual data progress, asked for Auto",
        )),
        (Progress::ControlUnified, _) => Ok((Progress::ControlUnified, Progress::Manual)),
        (Progress::Auto, _) | (_, Progress::Auto) | (Progress::Unspec, Progress::Unspec) => {
            Ok((Progress::Auto, Progress::Auto))
        }
        (Progress::Manual | Progress::Unspec, Progress::Manual | Progress::Unspec) => {
            Ok((Progress::Manual, Progress::Manual))
        }
    }
}

/// Returns the modes in force. The library needs none of the modes that the application supports,
/// and clears them, except BASIC, which is a request. The modes that the application requires stay.
fn mr_mode(hints: &Hints, api: ApiVersion) -> Result<MrMode> {
    let copes = hints.domain.mr_mode.unwrap_or_default();
    let required = hints.domain.required_mr_mode.unwrap_or_default();
    check_pairing("domain.mr_mode", copes, api)?;
    check_pairing("domain.required_mr_mode", required, api)?;
    check_pairing("mr_mode with required_mr_mode", copes | required, api)?;
    within("domain.required_mr_mode", required, REQUIRABLE_MR_MODE)?;
    let left = (copes & MrMode::BASIC) | required;
    // Before 1.5 the empty set means that either may be chosen, so a result names the chosen one.
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

pub(super) fn traffic_class(
    hint: &'static str,
    asked: Option<TrafficClass>,
) -> Result<TrafficClass> {
    if let Some(TrafficClass::Dscp(point @ 64..)) = asked {
        return Err(invalid(format!(
            "hint {hint}: a code point has 6 bits, {point} is too large"
        )));
    }
    Ok(match asked {
        None | Some(TrafficClass::Unspec) => TrafficClass::BestEffort,
        Some(class) => class,
    })
}

/// Refuses a key for datagrams: a packet has no room for a proof, and a key that is accepted but
/// not enforced is worse than none.
pub(super) fn no_key(hint: &'static str, asked: Option<&AuthKey>) -> Result<()> {
    match asked {
        Some(key) => Err(no_match(hint, format!("{key:?}"), "none, for datagrams")),
        None => Ok(()),
    }
}

/// Refuses TLS for datagrams: there is no DTLS here, and plain datagrams do not meet hints that
/// demand secure connections.
#[cfg(feature = "tls")]
pub(super) fn no_tls(hints: &Hints) -> Result<()> {
    match &hints.tls {
        Some(_) => Err(no_match("tls", "TLS", "none, for datagrams")),
        None => Ok(()),
    }
}

/// Returns the key in force: none for a key without bytes, and none in versions that are older than
/// keys. With `by_vector`, the keys may be those of an address vector.
pub(super) fn auth_key(
    hint: &'static str,
    asked: Option<&AuthKey>,
    api: ApiVersion,
    by_vector: bool,
) -> Result<Option<AuthKey>> {
    match asked.filter(|_| api.counts_auth_keys()) {
        Some(key) if key.is_of_address_vector() && !by_vector => {
            Err(no_match(hint, format!("{key:?}"), "keys of bytes"))
        }
        asked => Ok(asked.filter(|key| !key.is_empty()).cloned()),
    }
}
