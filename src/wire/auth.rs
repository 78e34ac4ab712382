//! The PROOF frames, with which both sides of a connection prove that they have the same
//! authorization key, and the bytes that the proofs cover. `docs/extension.md`, section 9, is the
//! specification. This module does not compute proofs.

use std::ops::RangeInclusive;

use bytes::Bytes;

use super::WireError;
use super::extension::{Capabilities, ExtensionOffer};
use super::header::{BASE_SIZE, BaseHeader, ByteOrder, Op};
use crate::limits::CM_DATA_SIZE_MAX;

/// Length of an auth_hello in bytes.
const AUTH_HELLO_SIZE: usize = 36;
/// Length of a proof in bytes.
const SEAL_SIZE: usize = 32;

const CHALLENGE: u8 = 1;
const ANSWER: u8 = 2;
const CONFIRM: u8 = 3;
const REFUSED: u8 = 4;

/// Random bytes that no other connection has.
pub(crate) type Nonce = [u8; 32];
/// A proof over some bytes, which only an owner of the key can make.
pub(crate) type Seal = [u8; SEAL_SIZE];

/// A side's extension offer and its nonce, sent before any proof. Kept as received, since the
/// proofs cover these bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct AuthHello([u8; AUTH_HELLO_SIZE]);

impl AuthHello {
    /// Creates the hello of a side that offers `ours`.
    pub(crate) fn new(ours: ExtensionOffer, nonce: Nonce) -> Self {
        let mut bytes = [0; AUTH_HELLO_SIZE];
        bytes[0] = ours.version();
        bytes[2..4].copy_from_slice(&ours.capabilities().bits().to_be_bytes());
        bytes[4..].copy_from_slice(&nonce);
        AuthHello(bytes)
    }

    /// True if the two offers result in `agreed` and in nothing less: neither offer was reduced on
    /// the way.
    pub(crate) fn agrees(&self, other: &AuthHello, agreed: ExtensionOffer) -> bool {
        let [ours, theirs] = [self.capabilities(), other.capabilities()];
        let both = (ours & theirs).consistent(ours | theirs);
        both == agreed.capabilities() && self.version().min(other.version()) == agreed.version()
    }

    /// Returns the highest version that the side has.
    fn version(&self) -> u8 {
        self.0[0]
    }

    /// Returns the side's capabilities that are known here.
    fn capabilities(&self) -> Capabilities {
        Capabilities::from_bits_truncate(u16::from_be_bytes([self.0[2], self.0[3]]))
    }
}

/// Returns the bytes that proofs cover: the agreed offer and the hellos of both sides.
pub(crate) fn transcript(
    agreed: ExtensionOffer,
    acceptor: &AuthHello,
    initiator: &AuthHello,
) -> [u8; 80] {
    let mut bytes = [0; 80];
    bytes[..8].copy_from_slice(&agreed.to_bytes());
    bytes[8..44].copy_from_slice(&acceptor.0);
    bytes[44..].copy_from_slice(&initiator.0);
    bytes
}

/// One step of the proof exchange.
#[derive(Clone)]
pub(crate) enum Proof {
    /// The acceptor's first frame.
    Challenge(AuthHello),
    /// The initiator's answer, with its proof.
    Answer(AuthHello, Seal),
    /// The acceptor's proof, and its private data, which the proof covers.
    Confirm(Seal, Bytes),
    /// The last frame of a side that found the peer's proof wrong.
    Refused,
}

impl Proof {
    /// Returns the whole frame; `id` is the frame's number in its direction.
    pub(crate) fn encode(&self, order: ByteOrder, id: u8) -> Vec<u8> {
        let (step, payload) = match self {
            Proof::Challenge(auth_hello) => (CHALLENGE, auth_hello.0.to_vec()),
            Proof::Answer(auth_hello, seal) => (ANSWER, [&auth_hello.0[..], seal].concat()),
            Proof::Confirm(seal, data) => (CONFIRM, [&seal[..], data].concat()),
            Proof::Refused => (REFUSED, Vec::new()),
        };
        let base = BaseHeader {
            op: Op::Proof,
            flags: 0,
            op_data: step,
            segment_count: 0,
            header_len: 0, // this and `frame_len` are set by `encode_into`
            id,
            frame_len: 0,
        };
        let mut header = [0; BASE_SIZE];
        base.encode_into(order, payload.len() as u64, &mut header);
        [&header, payload.as_slice()].concat()
    }

    /// Decodes a frame's payload, whose length is in the range for this step.
    fn decode(step: u8, payload: &[u8]) -> Result<Proof, WireError> {
        let wrong = WireError::ProofStep(step);
        let auth_hello = || payload.first_chunk().copied().map(AuthHello);
        Ok(match step {
            CHALLENGE => Proof::Challenge(auth_hello().ok_or(wrong)?),
            ANSWER => {
                let seal = payload.last_chunk().ok_or(wrong)?;
                Proof::Answer(auth_hello().ok_or(wrong)?, *seal)
            }
            CONFIRM => {
                let (seal, data) = payload.split_first_chunk().ok_or(wrong)?;
                Proof::Confirm(*seal, Bytes::copy_from_slice(data))
            }
            REFUSED => Proof::Refused,
            _ => return Err(wrong),
        })
    }
}

/// Returns the range of payload lengths for a step.
fn payload_len(step: u8) -> Result<RangeInclusive<usize>, WireError> {
    const ANSWER_SIZE: usize = AUTH_HELLO_SIZE + SEAL_SIZE;
    Ok(match step {
        CHALLENGE => AUTH_HELLO_SIZE..=AUTH_HELLO_SIZE,
        ANSWER => ANSWER_SIZE..=ANSWER_SIZE,
        CONFIRM => SEAL_SIZE..=SEAL_SIZE + CM_DATA_SIZE_MAX,
        REFUSED => 0..=0,
        _ => return Err(WireError::ProofStep(step)),
    })
}

/// Progress of a [`ProofDecoder`].
pub(crate) enum ProofDecoded {
    /// All bytes given were taken, and more are needed.
    Need,
    /// The frame is complete; `consumed` bytes of the last input belong to it.
    Proof { proof: Proof, consumed: usize },
}

/// Assembles a PROOF frame from pieces of any size. It holds at most the longest such frame, and
/// refuses a frame of another kind or size as soon as the base header is complete.
#[derive(Debug)]
pub(crate) struct ProofDecoder {
    order: ByteOrder,
    bytes: Vec<u8>,
}

impl ProofDecoder {
    /// Creates a decoder at the start of a frame.
    pub(crate) fn new(order: ByteOrder) -> Self {
        ProofDecoder {
            order,
            bytes: Vec::new(),
        }
    }

    /// Takes the bytes of the frame from the start of `bytes`. After a complete frame the decoder
    /// awaits the next one.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<ProofDecoded, WireError> {
        let mut rest = bytes;
        loop {
            let (step, frame_len) = self.frame_len()?;
            if self.bytes.len() == frame_len && step != 0 {
                let proof = Proof::decode(step, &self.bytes[BASE_SIZE..])?;
                self.bytes.clear();
                return Ok(ProofDecoded::Proof {
                    proof,
                    consumed: bytes.len() - rest.len(),
                });
            }
            if rest.is_empty() {
                return Ok(ProofDecoded::Need);
            }
            let wanted = frame_len - self.bytes.len();
            let (taken, left) = rest.split_at(wanted.min(rest.len()));
            self.bytes.extend_from_slice(taken);
            rest = left;
        }
    }

    /// Returns the frame's step, 0 while it is not known, and its length as far as it is known.
    fn frame_len(&self) -> Result<(u8, usize), WireError> {
        let Some(base) = self.bytes.first_chunk::<BASE_SIZE>() else {
            return Ok((0, BASE_SIZE));
        };
        let base = BaseHeader::parse(base, self.order)?;
        if base.op != Op::Proof {
            return Err(WireError::ProofMissing(base.op));
        }
        let may_be = payload_len(base.op_data)?;
        usize::try_from(base.frame_len)
            .ok()
            .filter(|_| usize::from(base.header_len) == BASE_SIZE)
            .filter(|len| (len.checked_sub(BASE_SIZE)).is_some_and(|len| may_be.contains(&len)))
            .map(|len| (base.op_data, len))
            .ok_or(WireError::FrameSize {
                frame_len: base.frame_len,
                header_len: base.header_len,
            })
    }
}
