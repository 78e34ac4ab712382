//! The capabilities of an endpoint and of its two sides.

use crate::error::Result;
use crate::info::caps::Caps;
use crate::info::check::{bad_flags, beyond, names, within};
use crate::info::hints::Hints;
use crate::info::offer::Offer;

/// Capabilities that are valid only together with at least one of some others.
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

pub(super) fn caps(hints: &Hints, offer: &Offer) -> Result<Caps> {
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
    // Counting for regions costs a lookup per access, so it is enabled only if asked for.
    Ok(full | offer.caps_always)
}

/// Adds all directions to the primary capabilities that have none.
pub(in crate::info) fn with_directions(caps: Caps) -> Caps {
    let mut full = caps;
    if caps.intersects(Caps::MSG | Caps::TAGGED) && !caps.intersects(Caps::MESSAGE_DIRECTIONS) {
        full |= Caps::MESSAGE_DIRECTIONS;
    }
    if caps.intersects(Caps::RMA | Caps::ATOMIC) && !caps.intersects(Caps::RMA_DIRECTIONS) {
        full |= Caps::RMA_DIRECTIONS;
    }
    full
}

/// Returns the capabilities of one side of an endpoint: the endpoint's capabilities that apply to
/// this side, or the subset asked for. A primary capability without a direction on this side is
/// dropped.
pub(super) fn side_caps(
    hint: &'static str,
    asked: Option<Caps>,
    applicable: Caps,
    offer: &Offer,
    endpoint: Caps,
) -> Result<Caps> {
    let mut caps = side_of(endpoint, applicable);
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
    Ok(side_of(caps, applicable))
}

/// Returns the capabilities of an endpoint that apply to one of its sides. A primary capability
/// without a direction on this side is dropped.
pub(in crate::info) fn side_of(endpoint: Caps, applicable: Caps) -> Caps {
    let mut caps = endpoint & applicable;
    if !caps.intersects(Caps::MESSAGE_DIRECTIONS) {
        caps.remove(Caps::MSG | Caps::TAGGED);
    }
    if !caps.intersects(Caps::RMA_DIRECTIONS) {
        caps.remove(Caps::RMA | Caps::ATOMIC | Caps::RMA_EVENT | Caps::RMA_PMEM);
    }
    if !caps.intersects(Caps::MSG | Caps::TAGGED | Caps::RMA | Caps::ATOMIC) {
        caps.remove(Caps::NAMED_RX_CTX);
    }
    caps
}
