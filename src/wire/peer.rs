//! The private data with which connectionless endpoints connect: eight bytes of libfabric's, and
//! behind them, between endpoints of this library, what is offered beyond the protocol
//! (`docs/extension.md`, section 1).
//!
//! ```text
//!   0         1          2            4                  8                 12        14
//!   +---------+----------+------------+------------------+-----------------+---------+---------+
//!   | version | features | port (big) | incarnation (big)| 't' 'o' 'f' 'a' | n (big) | n bytes |
//!   +---------+----------+------------+------------------+-----------------+---------+---------+
//! ```
//!
//! A request carries the highest version of its sender, its listening port, and a number that is
//! another one after a restart (libfabric takes its process identifier). The response echoes the
//! port, carries the number of its own sender, and says by bit 7 that the version was understood.

use std::num::NonZeroU32;

use super::WireError;
use super::extension::{Capabilities, ExtensionOffer, MAGIC};

/// Bytes of libfabric's part.
const PLAIN_SIZE: usize = 8;
/// Bytes of an offer behind the magic.
const OFFER_SIZE: usize = 4;
/// The version spoken here: with rendezvous.
const VERSION: u8 = 1;
/// Of a response: the version was understood.
const UNDERSTOOD: u8 = 0x80;
/// The features that are known: bit 0, "never connect to me".
const FEATURES: u8 = 0x01;

/// What the private data of a request or a response says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerData {
    version: u8,
    features: u8,
    port: u16,
    incarnation: u32,
    offer: Option<ExtensionOffer>,
}

impl PeerData {
    /// A request by the endpoint that listens at `port`.
    pub(crate) fn request(
        port: u16,
        incarnation: NonZeroU32,
        offer: Option<ExtensionOffer>,
    ) -> Self {
        PeerData {
            version: VERSION,
            features: 0,
            port,
            incarnation: incarnation.get(),
            offer,
        }
    }

    /// The response to this request. `offer`: the answer to its offer; `None` if it had none, so
    /// that a C peer never gets more than it knows.
    pub(crate) fn response(&self, incarnation: NonZeroU32, offer: Option<ExtensionOffer>) -> Self {
        debug_assert!(offer.is_none() || self.offer.is_some(), "an answer only");
        PeerData {
            version: match self.number() {
                0 => 0,
                asked => asked.min(VERSION) | UNDERSTOOD,
            },
            features: self.features & FEATURES,
            port: self.port,
            incarnation: incarnation.get(),
            offer,
        }
    }

    /// Reads what a peer sent. What is behind the eight bytes without our magic is
    /// skipped.
    pub(crate) fn read(data: &[u8]) -> Result<Self, WireError> {
        let wrong = WireError::PeerData(data.len());
        let (plain, block) = data.split_first_chunk::<PLAIN_SIZE>().ok_or(wrong)?;
        let [version, features, p0, p1, i0, i1, i2, i3] = *plain;
        let offer = match block.strip_prefix(&MAGIC) {
            Some(block) => {
                let (size, values) = block.split_first_chunk().ok_or(wrong)?;
                let values = values
                    .get(..usize::from(u16::from_be_bytes(*size)))
                    .and_then(|values| values.first_chunk::<OFFER_SIZE>())
                    .ok_or(wrong)?;
                ExtensionOffer::from_parts(MAGIC, *values)
            }
            None => None,
        };
        Ok(PeerData {
            version,
            features,
            port: u16::from_be_bytes([p0, p1]),
            incarnation: u32::from_be_bytes([i0, i1, i2, i3]),
            offer,
        })
    }

    /// The private data.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut data = self.plain().to_vec();
        if let Some(offer) = self.offer {
            let (magic, values) = offer.to_parts();
            data.extend(magic);
            data.extend((OFFER_SIZE as u16).to_be_bytes());
            data.extend(values);
        }
        data
    }

    /// The eight bytes that C peers know, as they stand: a reject carries those of its request.
    pub(crate) fn plain(&self) -> [u8; PLAIN_SIZE] {
        let [p0, p1] = self.port.to_be_bytes();
        let [i0, i1, i2, i3] = self.incarnation.to_be_bytes();
        [self.version, self.features, p0, p1, i0, i1, i2, i3]
    }

    /// What a reject of this request carries: the request's bytes. If it had an offer, there is in
    /// its place what the rejecter has, a key or nothing, and the rejecter's own incarnation.
    pub(crate) fn reject(&self, incarnation: NonZeroU32, has_key: bool) -> Vec<u8> {
        let Some(_) = self.offer else {
            return self.plain().to_vec();
        };
        let capabilities = match has_key {
            true => Capabilities::AUTH,
            false => Capabilities::empty(),
        };
        PeerData {
            offer: Some(ExtensionOffer::new(capabilities)),
            incarnation: incarnation.get(),
            ..*self
        }
        .encode()
    }

    fn number(&self) -> u8 {
        self.version & !UNDERSTOOD
    }

    /// Of a response: true if messages may be announced on the connection, in both directions.
    pub(crate) fn agrees_to_announcements(&self) -> bool {
        self.version & UNDERSTOOD != 0 && self.number() >= 1
    }

    /// Where the requester listens. With its IP it is the peer's identity.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Another number in each life of the peer.
    pub(crate) fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// Of a request: its sender cannot be reached, and must not be dialled.
    pub(crate) fn is_behind_firewall(&self) -> bool {
        self.features & FEATURES != 0
    }

    /// What is offered, or agreed on, beyond the protocol; `None` of a C peer.
    pub(crate) fn offer(&self) -> Option<ExtensionOffer> {
        self.offer
    }
}

/// The private data of a reject that RXM understands (the layer on top of this protocol that
/// libfabric's `tcp` before 1.18 has instead): its version, and no particular reason.
pub(crate) const RXM_REJECT: [u8; 2] = [1, 1];

/// True if these are the private data of RXM, whose request this protocol cannot answer otherwise
/// than by a reject with [`RXM_REJECT`].
pub(crate) fn is_rxm_request(data: &[u8]) -> bool {
    const SIZE: usize = 24;
    let starts = matches!(data, [1, 1 | 2, 4, 3, ..]);
    starts && data.len() == SIZE && !data[PLAIN_SIZE..].starts_with(&MAGIC)
}
