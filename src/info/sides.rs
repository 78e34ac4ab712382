//! The capabilities of an endpoint of each kind that is opened with an Info. Only this module
//! decides them.

use super::Info;
use super::caps::{Caps, OpFlags};
use super::check::names;
use super::kinds::EndpointType;
use super::offer::{OFFERS, Offer};
use super::resolve::{flags_within, side_of, with_directions};
use crate::error::{Error, ErrorKind, Result};

/// The capabilities of an endpoint: for the operations that may be posted to it, and for its peers'
/// accesses. Computed when the endpoint is opened, and checked with each operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SideCaps {
    tx: Caps,
    rx: Caps,
}

/// Capabilities that only the receive side has. A check that needs one of them is about the receive
/// side.
const RECEIVES: Caps = Caps::RECEIVE.difference(Caps::TRANSMIT);

impl SideCaps {
    /// All capabilities.
    #[cfg(any(test, feature = "__instructions"))]
    pub(crate) const ALL: SideCaps = SideCaps {
        tx: Caps::all(),
        rx: Caps::all(),
    };

    /// Creates these capabilities on both sides.
    #[cfg(test)]
    pub(crate) fn of_both(caps: Caps) -> Self {
        SideCaps { tx: caps, rx: caps }
    }

    /// Adds the capability for multi-receive buffers, which shared receives always have.
    pub(crate) fn with_multi_recv(self) -> Self {
        SideCaps {
            rx: self.rx | Caps::MULTI_RECV,
            ..self
        }
    }

    /// Returns whether any capability uses the transmit side.
    pub(crate) fn transmits(&self) -> bool {
        !self.tx.is_empty()
    }

    /// Returns whether any capability uses the receive side.
    pub(crate) fn receives(&self) -> bool {
        !self.rx.is_empty()
    }

    /// Returns whether one side has all of `need`: the receive side if `need` contains anything
    /// that only this side can have (to receive, to be read, to be written), otherwise the transmit
    /// side.
    #[inline]
    pub(crate) fn has(&self, need: Caps) -> bool {
        self.of(need).contains(need)
    }

    /// As [`has`](Self::has), with an error that names the missing capabilities.
    #[inline]
    pub(crate) fn check(&self, need: Caps) -> Result<()> {
        match self.has(need) {
            true => Ok(()),
            false => Err(self.missing(need)),
        }
    }

    #[inline]
    fn of(&self, need: Caps) -> Caps {
        match need.intersects(RECEIVES) {
            true => self.rx,
            false => self.tx,
        }
    }

    /// Returns the error of an operation that needs capabilities of which some are missing.
    #[cold]
    pub(crate) fn missing(&self, need: Caps) -> Error {
        let side = match need.intersects(RECEIVES) {
            true => "receive",
            false => "transmit",
        };
        let what = format!(
            "this takes {} of the endpoint's {side} side, which has {}: ask for it in the hints \
             (Hints::caps)",
            names(need),
            names(self.of(need))
        );
        Error::new(ErrorKind::NoCapability, what)
    }

    fn union(self, other: SideCaps) -> SideCaps {
        SideCaps {
            tx: self.tx | other.tx,
            rx: self.rx | other.rx,
        }
    }
}

impl Info {
    /// Returns the capabilities of an endpoint of this kind in a domain of this Info. An endpoint
    /// of the Info's own kind has [`caps`](Info::caps) as limited by the capabilities of both
    /// sides; one of another kind has those that an Info of that kind would have for the same
    /// hints.
    pub(crate) fn caps_of(&self, kind: EndpointType) -> SideCaps {
        let (Some(offer), Some(own)) = (offer_of(kind), offer_of(self.endpoint.endpoint_type))
        else {
            return SideCaps {
                tx: Caps::empty(),
                rx: Caps::empty(),
            };
        };
        let caps = match offer.endpoint_type == own.endpoint_type {
            true => self.caps & own.caps,
            // Capabilities that the application has removed from a result are removed for every
            // kind.
            false => self.caps_asked_of(offer) - (own.caps - self.caps),
        };
        let side = |applicable: Caps, left: Caps| {
            let narrowed = side_of(self.caps, applicable) - left;
            side_of(caps - narrowed, applicable)
        };
        SideCaps {
            tx: side(Caps::TRANSMIT, self.tx.caps),
            rx: side(Caps::RECEIVE, self.rx.caps),
        }
    }

    /// Returns the default flags of operations of an endpoint of this kind, on its transmit and its
    /// receive side: those of the Info that its capabilities allow.
    pub(crate) fn op_flags_of(&self, kind: EndpointType) -> (OpFlags, OpFlags) {
        let caps = self.caps_of(kind);
        let offer = offer_of(kind);
        let (tx, rx) = offer.map_or_else(Default::default, |it| (it.tx_op_flags, it.rx_op_flags));
        (
            self.tx.op_flags & flags_within(tx, caps.tx),
            self.rx.op_flags & flags_within(rx, caps.rx),
        )
    }

    /// Returns the capabilities of endpoints of all kinds together in a domain of this Info.
    pub(crate) fn caps_of_all_kinds(&self) -> SideCaps {
        let kinds = OFFERS.iter().map(|offer| self.caps_of(offer.endpoint_type));
        kinds.fold(self.caps_of(self.endpoint.endpoint_type), SideCaps::union)
    }

    fn caps_asked_of(&self, offer: &Offer) -> Caps {
        match self.asked.is_empty() {
            true => offer.caps,
            false => (with_directions(self.asked) | offer.caps_always) & offer.caps,
        }
    }
}

fn offer_of(kind: EndpointType) -> Option<&'static Offer> {
    OFFERS.iter().find(|offer| offer.endpoint_type == kind)
}
