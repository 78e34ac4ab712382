//! The HELLO frame: the first data frame of each side of an extended connection. A list of typed
//! values states what the other side has to know first.

use super::WireError;
use super::auth::Seal;
use super::frame::FrameHeader;
use super::header::{BASE_SIZE, BaseHeader, ByteOrder, Op};
use crate::limits::HELLO_SIZE_MAX;

/// Bytes of a value's type and length.
const HEAD_SIZE: usize = 4;
/// Flag of a type: a receiver that does not know the type must not ignore the value.
const CRITICAL: u16 = 0x8000;

const INCARNATION: u16 = 1;
const MESSAGES: u16 = 2;
const REFUSALS: u16 = 3;
const ASKING: u16 = 4;
const ANNOUNCING: u16 = 5;
const LOCAL: u16 = 6;
const SEAL: u16 = 0x8010;
/// Type and length of the value that seals the others.
const SEAL_HEAD: [u8; HEAD_SIZE] = [0x80, 0x10, 0, 32];

/// The values that one side states in its HELLO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// A random number that differs in each incarnation of a domain; not 0.
    pub(crate) incarnation: u64,
    /// With [`CREDIT`](super::Capabilities::CREDIT): messages that the sender takes without
    /// receives.
    pub(crate) messages: MessageCredit,
    /// With [`REFUSAL`](super::Capabilities::REFUSAL): number of refused operations that the sender
    /// tolerates; 0: the first one ends the connection.
    pub(crate) refusals_max: u32,
    /// With [`LIVENESS`](super::Capabilities::LIVENESS): the milliseconds of silence after which
    /// the sender probes; 0: never. `None`: not stated.
    pub(crate) probes_after_ms: Option<u32>,
    /// With [`RENDEZVOUS`](super::Capabilities::RENDEZVOUS), from a connected endpoint that shares
    /// its receives: messages longer than this are announced to it. `None`: no messages are
    /// announced between connected endpoints.
    pub(crate) announce_min: Option<u64>,
    /// The offer of shared memory to a peer on the same host; `None`: not offered. The transport
    /// defines the bytes. Boxed: a connection keeps its peer's HELLO without this.
    pub(crate) local: Option<Box<[u8; LOCAL_SIZE]>>,
}

/// Bytes of the value for a peer on the same host.
pub(crate) const LOCAL_SIZE: usize = 40;

/// Bytes of messages that a side takes without a receive, and the number of its posted receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MessageCredit {
    /// Bytes of messages, each counted with its overhead.
    pub(crate) budget_bytes: u64,
    /// Bytes added to each message's length.
    pub(crate) overhead_bytes: u32,
    /// Receives posted so far.
    pub(crate) posted: u64,
}

impl Hello {
    /// Returns the whole frame with number `id`. If `seal` returns a seal of the values, it becomes
    /// the last value.
    pub(crate) fn encode(
        &self,
        order: ByteOrder,
        id: u8,
        seal: impl FnOnce(&[u8]) -> Option<Seal>,
    ) -> Vec<u8> {
        let mut values = self.values();
        if let Some(seal) = seal(&values) {
            values.extend(SEAL_HEAD);
            values.extend(seal);
        }
        let header = FrameHeader::Hello {
            len: values.len() as u64,
        };
        [header.encode(order, id), values].concat()
    }

    fn values(&self) -> Vec<u8> {
        let mut values = Vec::new();
        let mut put = |kind: u16, value: &[u8]| {
            values.extend(kind.to_be_bytes());
            values.extend((value.len() as u16).to_be_bytes()); // all values here are short
            values.extend(value);
        };
        put(INCARNATION, &self.incarnation.to_be_bytes());
        let mut messages = [0; 20];
        messages[..8].copy_from_slice(&self.messages.budget_bytes.to_be_bytes());
        messages[8..12].copy_from_slice(&self.messages.overhead_bytes.to_be_bytes());
        messages[12..].copy_from_slice(&self.messages.posted.to_be_bytes());
        put(MESSAGES, &messages);
        put(REFUSALS, &self.refusals_max.to_be_bytes());
        if let Some(probes_after_ms) = self.probes_after_ms {
            put(ASKING, &probes_after_ms.to_be_bytes());
        }
        if let Some(announce_min) = self.announce_min {
            put(ANNOUNCING, &announce_min.to_be_bytes());
        }
        if let Some(local) = &self.local {
            put(LOCAL, &**local);
        }
        values
    }

    fn decode(mut values: &[u8]) -> Result<Hello, WireError> {
        let (mut incarnation, mut messages) = (None, None);
        let (mut refusals_max, mut probes_after_ms, mut announce_min) = (None, None, None);
        let mut local = None;
        while !values.is_empty() {
            let (head, rest) = values
                .split_first_chunk::<HEAD_SIZE>()
                .ok_or(WireError::HelloCut)?;
            let [k0, k1, l0, l1] = *head;
            let kind = u16::from_be_bytes([k0, k1]);
            let (value, rest) = rest
                .split_at_checked(usize::from(u16::from_be_bytes([l0, l1])))
                .ok_or(WireError::HelloCut)?;
            values = rest;
            let is_new = match kind {
                INCARNATION => incarnation.replace(word(value, kind)?).is_none(),
                MESSAGES => messages.replace(credit(value)?).is_none(),
                REFUSALS => refusals_max.replace(short(value, kind)?).is_none(),
                ASKING => probes_after_ms.replace(short(value, kind)?).is_none(),
                ANNOUNCING => announce_min.replace(word(value, kind)?).is_none(),
                LOCAL => local.replace(local_of(value)?).is_none(),
                unknown if unknown & CRITICAL != 0 => {
                    return Err(WireError::HelloCritical(unknown));
                }
                _ => true,
            };
            if !is_new {
                return Err(WireError::HelloValue(kind));
            }
        }
        Ok(Hello {
            incarnation: incarnation
                .filter(|incarnation| *incarnation != 0)
                .ok_or(WireError::HelloValue(INCARNATION))?,
            messages: messages.unwrap_or_default(),
            refusals_max: refusals_max.unwrap_or(0),
            probes_after_ms,
            announce_min,
            local,
        })
    }
}

fn word(value: &[u8], kind: u16) -> Result<u64, WireError> {
    let bytes = value.try_into().map_err(|_| WireError::HelloValue(kind))?;
    Ok(u64::from_be_bytes(bytes))
}

fn short(value: &[u8], kind: u16) -> Result<u32, WireError> {
    let bytes = value.try_into().map_err(|_| WireError::HelloValue(kind))?;
    Ok(u32::from_be_bytes(bytes))
}

fn local_of(value: &[u8]) -> Result<Box<[u8; LOCAL_SIZE]>, WireError> {
    let local = value.try_into().map_err(|_| WireError::HelloValue(LOCAL));
    local.map(Box::new)
}

fn credit(value: &[u8]) -> Result<MessageCredit, WireError> {
    let wrong = WireError::HelloValue(MESSAGES);
    let (budget, rest) = value.split_at_checked(8).ok_or(wrong)?;
    let (overhead, posted) = rest.split_at_checked(4).ok_or(wrong)?;
    Ok(MessageCredit {
        budget_bytes: word(budget, MESSAGES)?,
        overhead_bytes: short(overhead, MESSAGES)?,
        posted: word(posted, MESSAGES)?,
    })
}

/// Progress of a [`HelloDecoder`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HelloDecoded {
    /// All bytes given were taken, and more are needed.
    Need,
    /// The frame is complete; `consumed` bytes of the last input belong to it.
    Hello { hello: Hello, consumed: usize },
}

/// Assembles a HELLO frame from pieces of any size. It holds at most [`HELLO_SIZE_MAX`] bytes, and
/// refuses a frame of another kind or size as soon as the base header is complete.
pub(crate) struct HelloDecoder {
    order: ByteOrder,
    /// True if the last value has to be a seal; else there is no seal.
    is_sealed: bool,
    bytes: Vec<u8>,
}

impl HelloDecoder {
    /// Creates a decoder at the start of the data frames.
    pub(crate) fn new(order: ByteOrder) -> Self {
        HelloDecoder {
            order,
            is_sealed: false,
            bytes: Vec::new(),
        }
    }

    /// Creates a decoder for a sealed HELLO, after the proofs of a key.
    pub(crate) fn sealed(order: ByteOrder) -> Self {
        HelloDecoder {
            is_sealed: true,
            ..HelloDecoder::new(order)
        }
    }

    /// Returns all values of a complete frame, and their seal.
    pub(crate) fn values(&self) -> Result<(&[u8], Option<&Seal>), WireError> {
        let values = self.bytes.get(BASE_SIZE..).unwrap_or_default();
        if !self.is_sealed {
            return Ok((values, None));
        }
        let (rest, seal) = values
            .split_last_chunk()
            .ok_or(WireError::HelloValue(SEAL))?;
        let values = rest
            .strip_suffix(&SEAL_HEAD)
            .ok_or(WireError::HelloValue(SEAL))?;
        Ok((values, Some(seal)))
    }

    /// Takes the bytes of the frame from the start of `bytes`.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<HelloDecoded, WireError> {
        let mut rest = bytes;
        loop {
            let wanted = self.frame_len()? - self.bytes.len();
            if wanted == 0 {
                return Ok(HelloDecoded::Hello {
                    hello: Hello::decode(self.values()?.0)?,
                    consumed: bytes.len() - rest.len(),
                });
            }
            if rest.is_empty() {
                return Ok(HelloDecoded::Need);
            }
            let (taken, left) = rest.split_at(wanted.min(rest.len()));
            self.bytes.extend_from_slice(taken);
            rest = left;
        }
    }

    /// The frame's length as far as it is known.
    fn frame_len(&self) -> Result<usize, WireError> {
        let Some(base) = self.bytes.first_chunk::<BASE_SIZE>() else {
            return Ok(BASE_SIZE);
        };
        let base = BaseHeader::parse(base, self.order)?;
        if base.op != Op::Hello {
            return Err(WireError::HelloMissing(base.op));
        }
        usize::try_from(base.frame_len)
            .ok()
            .filter(|len| (BASE_SIZE..=HELLO_SIZE_MAX).contains(len))
            .filter(|_| usize::from(base.header_len) == BASE_SIZE)
            .ok_or(WireError::FrameSize {
                frame_len: base.frame_len,
                header_len: base.header_len,
            })
    }
}

debug_fields!(HelloDecoder, self => filled: self.bytes.len());
