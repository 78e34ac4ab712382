//! What an endpoint of each kind can do that is opened with an Info: the one place that decides.

use super::Info;
use super::caps::{Caps, OpFlags};
use super::check::names;
use super::kinds::EndpointType;
use super::offer::{OFFERS, Offer};
use super::resolve::{flags_within, side_of, with_directions};
use crate::error::{Error, ErrorKind, Result};

/// The capabilities of an endpoint: what may be posted to it, and what its peers may ask of it.
/// Computed when it is opened, and asked with each operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SideCaps {
    tx: Caps,
    rx: Caps,
}

/// What only the receive side has: it decides whose capability something is.
const RECEIVES: Caps = Caps::RECEIVE.difference(Caps::TRANSMIT);

impl SideCaps {
    /// All there are.
    #[cfg(any(test, feature = "__instructions"))]
    pub(crate) const ALL: SideCaps = SideCaps {
        tx: Caps::all(),
        rx: Caps::all(),
    };

    /// These on both sides.
    #[cfg(test)]
    pub(crate) fn of_both(caps: Caps) -> Self {
        SideCaps { tx: caps, rx: caps }
    }

    /// The same with buffers for several messages, which receives that are shared can be in any
    /// case.
    pub(crate) fn with_multi_recv(self) -> Self {
        SideCaps {
            rx: self.rx | Caps::MULTI_RECV,
            ..self
        }
    }

    /// True if there is something to do on the transmit side.
    pub(crate) fn transmits(&self) -> bool {
        !self.tx.is_empty()
    }

    /// True if there is something to do on the receive side.
    pub(crate) fn receives(&self) -> bool {
        !self.rx.is_empty()
    }

    /// True if the side that `need` is of has all of it: the receive side if any of it can be of
    /// that side only (to receive, to be read, to be written), else the transmit side.
    #[inline]
    pub(crate) fn has(&self, need: Caps) -> bool {
        self.of(need).contains(need)
    }

    /// As [`has`](Self::has), with the error that names what is missing.
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

    /// The error of what takes capabilities that are not all there.
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
    /// What an endpoint of this kind can do in a domain of this Info. One of the Info's own kind
    /// does what [`caps`](Info::caps) and the capabilities of both sides say; one of another kind
    /// what an Info of that kind had said that answered the same hints.
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
            // What the application has taken out of an answer is out for every kind.
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

    /// What operations of an endpoint of this kind do when their call says nothing, on its transmit
    /// and its receive side: the Info's default flags, as far as they make sense there.
    pub(crate) fn op_flags_of(&self, kind: EndpointType) -> (OpFlags, OpFlags) {
        let caps = self.caps_of(kind);
        let offer = offer_of(kind);
        let (tx, rx) = offer.map_or_else(Default::default, |it| (it.tx_op_flags, it.rx_op_flags));
        (
            self.tx.op_flags & flags_within(tx, caps.tx),
            self.rx.op_flags & flags_within(rx, caps.rx),
        )
    }

    /// What an endpoint of any kind can do in a domain of this Info.
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
