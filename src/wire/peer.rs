//! The private data with which connectionless endpoints connect: libfabric's eight bytes and,
//! between endpoints of this library, the offer of the extension after them (`docs/extension.md`,
//! section 1).
//!
//! ```text
//!   0         1          2            4                  8                 12        14
//!   +---------+----------+------------+------------------+-----------------+---------+---------+
//!   | version | features | port (big) | incarnation (big)| 't' 'o' 'f' 'a' | n (big) | n bytes |
//!   +---------+----------+------------+------------------+-----------------+---------+---------+
//! ```
//!
//! The first four of the `n` bytes are the offer. If it has [`CONTEXTS`](Capabilities::CONTEXTS),
//! six more bytes name the contexts to connect, and the port. The port in libfabric's part is then
//! 0: libfabric identifies a peer by that port, and would end its connection with the endpoint in
//! favour of one with another context.
//!
//! A request carries the sender's highest version, its listening port, and a number that changes
//! with each restart (libfabric uses its process identifier). The response echoes the port, carries
//! its own sender's number, and its bit 7 confirms that the version was understood.

use std::num::NonZeroU32;

use super::WireError;
use super::extension::{Capabilities, ExtensionOffer, MAGIC};

/// Bytes of libfabric's part.
const PLAIN_SIZE: usize = 8;
/// Bytes of an offer behind the magic.
const OFFER_SIZE: usize = 4;
/// Bytes of the contexts' names and the port, behind the offer.
const CONTEXTS_SIZE: usize = 6;
/// The version of this library: with rendezvous.
const VERSION: u8 = 1;
/// Bit of a response: the version was understood.
const UNDERSTOOD: u8 = 0x80;
/// The features that are known: bit 0, "never connect to me".
const FEATURES: u8 = 0x01;

/// The requester's context and the other side's context that are to be connected (`fi_rx_addr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NamedContexts {
    pub(crate) from: u16,
    pub(crate) to: u16,
}

impl NamedContexts {
    /// The contexts of a connection that names none.
    pub(crate) const FIRST: NamedContexts = NamedContexts { from: 0, to: 0 };

    /// Reads the contexts, and the requester's port, from the bytes behind the offer.
    fn read([f0, f1, t0, t1, p0, p1]: [u8; CONTEXTS_SIZE]) -> (Self, u16) {
        let named = NamedContexts {
            from: u16::from_be_bytes([f0, f1]),
            to: u16::from_be_bytes([t0, t1]),
        };
        (named, u16::from_be_bytes([p0, p1]))
    }

    fn to_bytes(self, port: u16) -> [u8; CONTEXTS_SIZE] {
        let ([f0, f1], [t0, t1]) = (self.from.to_be_bytes(), self.to.to_be_bytes());
        let [p0, p1] = port.to_be_bytes();
        [f0, f1, t0, t1, p0, p1]
    }
}

/// The private data of a request or a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerData {
    version: u8,
    features: u8,
    port: u16,
    incarnation: u32,
    offer: Option<ExtensionOffer>,
    /// Both 0, unless the offer has [`Capabilities::CONTEXTS`].
    contexts: NamedContexts,
}

impl PeerData {
    /// Creates the request of an endpoint that listens at `port`.
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
            contexts: NamedContexts::FIRST,
        }
    }

    /// Returns the request with these contexts. Unless they are the first ones, the offer has to
    /// name contexts.
    pub(crate) fn between(self, contexts: NamedContexts) -> Self {
        debug_assert!(contexts == NamedContexts::FIRST || self.names_contexts());
        PeerData { contexts, ..self }
    }

    /// Returns the response to this request. `offer`: the answer to the request's offer; `None` if
    /// the request had no offer. A C peer thus gets only libfabric's own part.
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
            contexts: self.contexts,
        }
    }

    /// Returns the request or response with a version that rules out announcements.
    pub(crate) fn without_announcements(self) -> Self {
        PeerData { version: 0, ..self }
    }

    /// Reads a peer's private data. Bytes after the first eight are skipped unless they begin with
    /// our magic.
    pub(crate) fn read(data: &[u8]) -> Result<Self, WireError> {
        let wrong = WireError::PeerData(data.len());
        let (plain, block) = data.split_first_chunk::<PLAIN_SIZE>().ok_or(wrong)?;
        let [version, features, p0, p1, i0, i1, i2, i3] = *plain;
        let (mut offer, mut contexts) = (None, NamedContexts::FIRST);
        let mut port = u16::from_be_bytes([p0, p1]);
        if let Some(block) = block.strip_prefix(&MAGIC) {
            let (size, values) = block.split_first_chunk().ok_or(wrong)?;
            let (values, more) = values
                .get(..usize::from(u16::from_be_bytes(*size)))
                .and_then(|values| values.split_first_chunk::<OFFER_SIZE>())
                .ok_or(wrong)?;
            offer = ExtensionOffer::from_parts(MAGIC, *values);
            if offer.is_some_and(ExtensionOffer::names_contexts) {
                let names = more.first_chunk().filter(|_| port == 0).ok_or(wrong)?;
                (contexts, port) = NamedContexts::read(*names);
            }
        }
        Ok(PeerData {
            contexts,
            version,
            features,
            port,
            incarnation: u32::from_be_bytes([i0, i1, i2, i3]),
            offer,
        })
    }

    /// Returns the bytes of the private data.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut data = self.plain().to_vec();
        if let Some(offer) = self.offer {
            let (magic, values) = offer.to_parts();
            let names = self
                .names_contexts()
                .then(|| self.contexts.to_bytes(self.port));
            let size = OFFER_SIZE + names.map_or(0, |names| names.len());
            data.extend(magic);
            data.extend((size as u16).to_be_bytes()); // 4 or 10
            data.extend(values);
            data.extend(names.into_iter().flatten());
        }
        data
    }

    /// Returns the eight bytes that C peers know. A reject carries those of its request.
    pub(crate) fn plain(&self) -> [u8; PLAIN_SIZE] {
        let port = match self.names_contexts() {
            false => self.port,
            true => 0,
        };
        let [p0, p1] = port.to_be_bytes();
        let [i0, i1, i2, i3] = self.incarnation.to_be_bytes();
        [self.version, self.features, p0, p1, i0, i1, i2, i3]
    }

    /// Returns the private data of a reject of this request: the request's bytes. If the request
    /// had an offer, the rejecter's incarnation and offer (a key or nothing) replace the request's.
    pub(crate) fn reject(&self, incarnation: NonZeroU32, has_key: bool) -> Vec<u8> {
        let capabilities = match has_key {
            true => Capabilities::AUTH,
            false => Capabilities::empty(),
        };
        self.reject_with(incarnation, capabilities)
    }

    /// Returns the private data of a reject because the context that this request names does not
    /// exist. The reject does not reveal whether the rejecter has a key, or anything else of it.
    pub(crate) fn reject_context(&self, incarnation: NonZeroU32) -> Vec<u8> {
        let proves = self.offer.is_some_and(ExtensionOffer::proves_key);
        let capabilities = match proves {
            true => Capabilities::CONTEXTS | Capabilities::AUTH,
            false => Capabilities::CONTEXTS,
        };
        self.reject_with(incarnation, capabilities)
    }

    fn reject_with(&self, incarnation: NonZeroU32, capabilities: Capabilities) -> Vec<u8> {
        if self.offer.is_none() {
            return self.plain().to_vec();
        }
        PeerData {
            offer: Some(ExtensionOffer::new(capabilities)),
            incarnation: incarnation.get(),
            ..*self
        }
        .encode()
    }

    /// The contexts that are to be connected.
    pub(crate) fn contexts(&self) -> NamedContexts {
        self.contexts
    }

    /// True if a request or a response names contexts. A reject names them if the requested context
    /// does not exist.
    pub(crate) fn names_contexts(&self) -> bool {
        self.offer.is_some_and(ExtensionOffer::names_contexts)
    }

    fn number(&self) -> u8 {
        self.version & !UNDERSTOOD
    }

    /// True if a response allows announcements of messages on the connection, in both directions.
    pub(crate) fn agrees_to_announcements(&self) -> bool {
        self.version & UNDERSTOOD != 0 && self.number() >= 1
    }

    /// The port at which the requester listens. Port and IP address are the peer's identity.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// A number that differs in each incarnation of the peer.
    pub(crate) fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// True if the sender of a request cannot be reached, and must not be dialled.
    pub(crate) fn is_behind_firewall(&self) -> bool {
        self.features & FEATURES != 0
    }

    /// The extension that is offered or agreed on; `None` from a C peer.
    pub(crate) fn offer(&self) -> Option<ExtensionOffer> {
        self.offer
    }
}

/// The private data of a reject that RXM understands: its version, and no particular reason.
/// (libfabric's `tcp` before 1.18 has RXM, a layer on top of this protocol, instead.)
pub(crate) const RXM_REJECT: [u8; 2] = [1, 1];

/// True if this is the private data of RXM. This protocol can answer such a request only by a
/// reject with [`RXM_REJECT`].
pub(crate) fn is_rxm_request(data: &[u8]) -> bool {
    const SIZE: usize = 24;
    let starts = matches!(data, [1, 1 | 2, 4, 3, ..]);
    starts && data.len() == SIZE && !data[PLAIN_SIZE..].starts_with(&MAGIC)
}
