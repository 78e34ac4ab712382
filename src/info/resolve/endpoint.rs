//! The attributes of an endpoint, its transmit side and its receive side.

use super::caps::side_caps;
use super::domain::{auth_key, traffic_class};
use crate::error::Result;
use crate::info::attr::{AuthKey, DomainAttr, EndpointAttr, RxAttr, TxAttr};
use crate::info::caps::{Caps, CompOrder, Mode, MrMode, MsgOrder, OpFlags};
use crate::info::check::{bad_flags, beyond, choose, limit, names, no_match, within};
use crate::info::hints::Hints;
use crate::info::kinds::{ApiVersion, ContextCount, EndpointType, TrafficClass};
use crate::info::offer::Offer;
use crate::limits;

pub(super) fn endpoint(
    hints: &Hints,
    api: ApiVersion,
    offer: &Offer,
    domain: &DomainAttr,
    (tx, rx): (Caps, Caps),
) -> Result<EndpointAttr> {
    let (tx_ctx_cnt, rx_ctx_cnt) = context_counts(hints, offer, domain, (tx, rx))?;
    let by_vector = (domain.auth_key.as_ref()).is_some_and(AuthKey::is_of_address_vector);
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
        tx_ctx_cnt,
        rx_ctx_cnt,
        auth_key: auth_key(
            "endpoint_attr.auth_key",
            hints.endpoint_attr.auth_key.as_ref(),
            api,
            by_vector,
        )?,
    })
}

pub(super) fn transmit(
    hints: &Hints,
    offer: &Offer,
    endpoint: Caps,
    domain: &DomainAttr,
) -> Result<TxAttr> {
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
    // The proof of a raw key takes an additional segment.
    let rma_iov_limit = match domain.mr_mode.contains(MrMode::RAW) {
        true => offer.rma_iov_limit / 2,
        false => offer.rma_iov_limit,
    };
    let asked_flags = hints.tx.op_flags.unwrap_or_default();
    let caps = side_caps("tx.caps", hints.tx.caps, Caps::TRANSMIT, offer, endpoint)?;
    Ok(TxAttr {
        caps,
        mode: Mode::empty(),
        op_flags: op_flags(
            "tx.op_flags",
            asked_flags,
            OpFlags::TRANSMIT,
            flags_within(offer.tx_op_flags, caps),
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

pub(super) fn receive(hints: &Hints, offer: &Offer, endpoint: Caps) -> Result<RxAttr> {
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
    let caps = side_caps("rx.caps", hints.rx.caps, Caps::RECEIVE, offer, endpoint)?;
    Ok(RxAttr {
        caps,
        mode: Mode::empty(),
        op_flags: op_flags(
            "rx.op_flags",
            asked_flags,
            OpFlags::RECEIVE,
            flags_within(offer.rx_op_flags, caps),
        )?,
        msg_order: msg_order(hints, offer),
        comp_order: CompOrder::STRICT,
        total_buffered_recv: buffered.unwrap_or(limits::UNEXPECTED_BYTES_DEFAULT),
        size: context_size("rx.size", hints.rx.size, limits::RECEIVE_SIZE_MAX)?,
        iov_limit: limit("rx.iov_limit", hints.rx.iov_limit, limits::IOV_LIMIT)?,
    })
}

/// Returns the format of tags. Each bit of a tag can be matched separately, so any division into
/// fields is supported.
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

/// Returns the numbers of contexts on both sides. A context has both directions, so if both sides
/// are in use they have the same number of contexts.
fn context_counts(
    hints: &Hints,
    offer: &Offer,
    domain: &DomainAttr,
    (tx, rx): (Caps, Caps),
) -> Result<(ContextCount, ContextCount)> {
    let hints = &hints.endpoint_attr;
    let transmit = contexts(
        "endpoint_attr.tx_ctx_cnt",
        hints.tx_ctx_cnt,
        (tx, domain.max_ep_tx_ctx),
        false,
    )?;
    let receive = contexts(
        "endpoint_attr.rx_ctx_cnt",
        hints.rx_ctx_cnt,
        (rx, domain.max_ep_rx_ctx),
        matches!(offer.endpoint_type, EndpointType::Msg | EndpointType::Rdm),
    )?;
    Ok(match (transmit, receive) {
        (ContextCount::Own(tx @ 1..), ContextCount::Own(rx @ 1..)) => {
            let most = tx.max(rx);
            for (hint, max) in [
                ("endpoint_attr.rx_ctx_cnt", domain.max_ep_tx_ctx),
                ("endpoint_attr.tx_ctx_cnt", domain.max_ep_rx_ctx),
            ] {
                if most > max {
                    return Err(no_match(hint, most, max));
                }
            }
            (ContextCount::Own(most), ContextCount::Own(most))
        }
        counts => counts,
    })
}

/// Returns the contexts of one side: by default one, or none if the capabilities leave the side
/// unused; if asked for, up to `max`, or a shared one if `may_share`.
fn contexts(
    hint: &'static str,
    asked: Option<ContextCount>,
    (side, max): (Caps, usize),
    may_share: bool,
) -> Result<ContextCount> {
    let useful = usize::from(!side.is_empty());
    match asked {
        None | Some(ContextCount::Own(0)) => Ok(ContextCount::Own(useful)),
        Some(ContextCount::Own(asked)) if asked <= max => Ok(ContextCount::Own(asked)),
        Some(ContextCount::Own(more)) => Err(no_match(hint, more, max)),
        Some(ContextCount::Shared) if may_share => Ok(ContextCount::Shared),
        Some(ContextCount::Shared) => Err(no_match(hint, "a shared context", "one of its own")),
    }
}

/// Returns the order that is kept, which is the same on both sides of an endpoint.
fn msg_order(hints: &Hints, offer: &Offer) -> MsgOrder {
    let asked = hints.tx.msg_order.unwrap_or_default() | hints.rx.msg_order.unwrap_or_default();
    offer.msg_order | (asked & offer.msg_order_on_demand)
}

/// Returns the offered flags that these capabilities of a side allow.
pub(in crate::info) fn flags_within(offered: OpFlags, caps: Caps) -> OpFlags {
    let takes = [
        (OpFlags::COMMIT_COMPLETE, Caps::RMA_PMEM),
        (OpFlags::MULTI_RECV, Caps::MULTI_RECV),
        (OpFlags::MULTICAST, Caps::MULTICAST),
    ];
    let lacking = takes.into_iter().filter(|(_, cap)| !caps.contains(*cap));
    lacking.fold(offered, |left, (flag, _)| left - flag)
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

fn context_size(hint: &'static str, asked: Option<usize>, max: usize) -> Result<usize> {
    limit(hint, asked, max)?;
    Ok(asked
        .filter(|size| *size != 0)
        .unwrap_or(limits::CONTEXT_SIZE_DEFAULT))
}
