//! The extension of a connection. The control frames offer it, a HELLO from each side opens it, and
//! only then is the connection up. `docs/extension.md` is the specification.

use bytes::Bytes;

use tracing::Level;

use crate::error::Error;
use crate::log::{hold_event, is_logged};
use crate::wire::{
    Capabilities, ExtensionOffer, FrameHeader, Hello, HelloDecoded, HelloDecoder, LOCAL_SIZE, Op,
    WireError,
};

use super::auth::AuthExchange;
use super::credit::SendCredit;
use super::receive_side::LongMessages;
use super::{Connection, Lifecycle, violation};

/// Capabilities that an endpoint offers unless it declines the extension.
pub(crate) const OFFERED: Capabilities = Capabilities::REFUSAL
    .union(Capabilities::LIVENESS)
    .union(Capabilities::CREDIT)
    .union(Capabilities::CLOSE)
    .union(Capabilities::ATOMIC)
    .union(Capabilities::RENDEZVOUS)
    .union(Capabilities::WITHDRAW);

/// Capabilities that a side without announcements cannot offer: with shared receives, credit relies
/// on announcements too.
const ANNOUNCEMENTS: Capabilities = Capabilities::RENDEZVOUS
    .union(Capabilities::WITHDRAW)
    .union(Capabilities::CREDIT);

/// The values that this side offers its peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExtensionParams {
    /// The capabilities of this side; empty: it speaks the plain protocol only.
    pub(crate) capabilities: Capabilities,
    /// Identifies the life of the domain; not 0.
    pub(crate) incarnation: u64,
    /// Number of refused operations that this side tolerates; 0: none.
    pub(crate) refusals_max: u32,
    /// Milliseconds of silence after which this side probes; 0: never.
    pub(crate) probes_after_ms: u32,
}

impl ExtensionParams {
    /// Returns the parameters for this treatment of long messages.
    pub(crate) fn for_messages(self, long: LongMessages) -> Self {
        let capabilities = match long {
            LongMessages::Announced { .. } => self.capabilities,
            LongMessages::Refused { .. } => self.capabilities - ANNOUNCEMENTS,
        };
        ExtensionParams {
            capabilities,
            ..self
        }
    }

    fn offer(&self) -> Option<ExtensionOffer> {
        (!self.capabilities.is_empty()).then(|| ExtensionOffer::new(self.capabilities))
    }
}

/// State of a connection's extension.
#[derive(Debug)]
pub(super) struct Extension {
    pub(super) params: ExtensionParams,
    /// The capabilities that both sides have; none with a plain peer.
    pub(super) agreed: Capabilities,
    /// Set while the peer's HELLO is awaited; boxed, since only the start of a connection needs it.
    awaited: Option<Box<AwaitedHello>>,
    /// The peer's HELLO.
    pub(super) peer: Option<Hello>,
    /// The offer to share memory with a peer on the same host, during an attempt.
    local: Option<Box<[u8; LOCAL_SIZE]>>,
    /// The endpoint's key, until the connection is up; boxed, since most have none.
    pub(super) auth: Option<Box<AuthExchange>>,
}

#[derive(Debug)]
struct AwaitedHello {
    decoder: HelloDecoder,
    /// The acceptor's private data, for the initiator's `Connected` event.
    data: Bytes,
}

impl Extension {
    pub(super) fn new(params: ExtensionParams) -> Self {
        Extension {
            params,
            agreed: Capabilities::empty(),
            awaited: None,
            peer: None,
            local: None,
            auth: None,
        }
    }

    /// Returns the offer for a connect request.
    pub(super) fn offer(&self) -> Option<ExtensionOffer> {
        self.params.offer()
    }

    /// Answers a request with the offer `asked`: records the agreed part, and returns the answer.
    pub(super) fn answer(&mut self, asked: Option<ExtensionOffer>) -> Option<ExtensionOffer> {
        let ours = self.params.offer()?;
        let both = asked?.capabilities() & ours.capabilities();
        let answer = asked?.answer(both.consistent(ours.capabilities()));
        self.agreed = answer.capabilities();
        Some(answer)
    }

    /// Takes the response's answer, and returns it; `None`: the peer has no extension.
    pub(super) fn take_answer(
        &mut self,
        answer: Option<ExtensionOffer>,
    ) -> Result<Option<ExtensionOffer>, WireError> {
        let Some(answer) = answer else {
            return Ok(None);
        };
        match self.params.offer() {
            Some(asked)
                if answer.answers(asked)
                    && answer.capabilities().consistent(asked.capabilities())
                        == answer.capabilities() =>
            {
                self.agreed = answer.capabilities();
                Ok(Some(answer))
            }
            _ => Err(WireError::OfferNotAsked),
        }
    }

    /// Resets the state, for another attempt.
    pub(super) fn reset(&mut self) {
        *self = Extension::new(self.params);
    }

    /// True while the peer's proofs or its HELLO are awaited.
    pub(super) fn is_opening(&self) -> bool {
        self.awaited.is_some() || self.is_proving()
    }
}

impl<T> Connection<T> {
    /// The peer's HELLO; `None` for a plain peer.
    pub(crate) fn peer_hello(&self) -> Option<&Hello> {
        self.extension.peer.as_ref()
    }

    /// The capabilities that both sides have beyond the plain protocol.
    pub(crate) fn agreed(&self) -> Capabilities {
        self.extension.agreed
    }

    /// Takes the peer's offer to share memory with peers on its host.
    pub(crate) fn take_peer_local(&mut self) -> Option<Box<[u8; LOCAL_SIZE]>> {
        self.extension.peer.as_mut()?.local.take()
    }

    /// Sets the next attempt's offer to share memory with a peer on the same host.
    pub(crate) fn offer_local(&mut self, local: [u8; LOCAL_SIZE]) {
        self.extension.local = Some(Box::new(local));
    }

    /// Sends our HELLO and awaits the peer's.
    pub(super) fn begin_extension(&mut self, data: Bytes) {
        let local = self.extension.local.take();
        let hello = Hello {
            incarnation: self.extension.params.incarnation,
            messages: self.first_credit(),
            refusals_max: self.extension.params.refusals_max,
            probes_after_ms: Some(self.extension.params.probes_after_ms),
            announce_min: self.announce_min(),
            local,
        };
        let (order, (ours, _)) = (self.byte_order, self.hello_seals());
        let extension = &mut self.extension;
        self.tx
            .push_opening(|id| hello.encode(order, id, |values| extension.seal(ours, values)));
        let decoder = extension.hello_decoder(order);
        extension.awaited = Some(Box::new(AwaitedHello { decoder, data }));
    }

    /// Returns the length beyond which the peer has to announce messages, if a connected endpoint
    /// shares its receives. The peer of a connectionless endpoint has a limit of its own.
    fn announce_min(&self) -> Option<u64> {
        let binding = self.binding().filter(|it| it.rdm.is_none())?;
        match binding.params.long_messages {
            LongMessages::Announced { min } => Some(min),
            LongMessages::Refused { .. } => None,
        }
    }

    /// Consumes bytes of the peer's first frames: its proofs, then its HELLO.
    pub(super) fn consume_opening(&mut self, input: &[u8]) -> Result<usize, Error> {
        match self.extension.is_proving() {
            true => self.consume_proof(input),
            false => self.consume_hello(input),
        }
    }

    fn consume_hello(&mut self, input: &[u8]) -> Result<usize, Error> {
        let Some(awaited) = &mut self.extension.awaited else {
            return Ok(0);
        };
        let (hello, consumed) = match awaited.decoder.feed(input) {
            Ok(HelloDecoded::Hello { hello, consumed }) => (hello, consumed),
            Ok(HelloDecoded::Need) => return Ok(input.len()),
            Err(error) => return Err(self.extension.why_no_hello(error)),
        };
        if is_logged(Level::TRACE) {
            // The local offer is not logged, because its token must stay secret.
            let local = hello.local.is_some();
            let hello = Hello {
                local: None,
                ..hello.clone()
            };
            hold_event(move || tracing::trace!(?hello, local, "received"));
        }
        let Some(AwaitedHello { decoder, data }) = self.extension.awaited.take().map(|it| *it)
        else {
            return Ok(0);
        };
        let (_, theirs) = self.hello_seals();
        self.extension.take_seal(theirs, &decoder)?;
        if self.agreed().contains(Capabilities::CREDIT) {
            self.tx.credit = Some(SendCredit::new(hello.messages));
        }
        self.extension.peer = Some(hello);
        if self.lifecycle == Lifecycle::Connecting {
            self.connected(data);
        } else {
            self.response_sent_if_all();
        }
        Ok(consumed)
    }

    /// Refuses frames of the plain protocol that this connection does not take.
    fn check_announced(&self, header: &FrameHeader) -> Result<(), Error> {
        let op = header.op();
        let error = match op {
            Op::Tagged if !self.is_connectionless() => WireError::TaggedOnMsg,
            Op::TaggedRts if !self.is_connectionless() => WireError::TaggedOnMsg,
            Op::TaggedRts | Op::Cts | Op::Data if !self.takes_announcements(true) => {
                WireError::Unsupported(op)
            }
            _ => return Ok(()),
        };
        Err(error.into())
    }

    /// Refuses frames that were not agreed on.
    #[inline]
    pub(super) fn check_agreed(&self, header: &FrameHeader) -> Result<(), Error> {
        if let FrameHeader::Message { .. } = header {
            return Ok(()); // Every peer may send messages, and most frames are messages.
        }
        if !header.op().is_extension() {
            return self.check_announced(header);
        }
        match header {
            FrameHeader::Hello { .. } if self.extension.peer.is_some() => {
                Err(violation("a second hello"))
            }
            _ if header.needs().is_empty() || !self.agreed().contains(header.needs()) => {
                Err(WireError::UnknownOp(header.op().to_byte()).into())
            }
            _ => Ok(()),
        }
    }
}
