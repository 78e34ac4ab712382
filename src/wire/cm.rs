//! The control frames of the handshake: connect request, response and reject (`fi_cm(3)`), each
//! with up to 256 bytes of the application's private data.

use std::fmt;

use bytes::Bytes;

use super::WireError;
use super::extension::{ExtensionOffer, OFFER_AT, OFFER_SIZE};
use super::header::ByteOrder;
use crate::limits::CM_DATA_SIZE_MAX;

/// Bytes of a control frame before its private data.
const CONTROL_SIZE: usize = 32;
/// Bytes of the largest control frame.
const CONTROL_SIZE_MAX: usize = CONTROL_SIZE + CM_DATA_SIZE_MAX;
/// The only version of control frames.
const CONTROL_VERSION: u8 = 3;
/// Offset of the byte-order probe. C peers send the twenty bytes before it (seg_no, conn_id,
/// msg_id) as zero and never read them; an [`ExtensionOffer`] stands in conn_id.
const PROBE_AT: usize = 24;

const _: () = assert!(CM_DATA_SIZE_MAX <= u16::MAX as usize, "the length field");

/// The kind of a control frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ControlKind {
    /// From the connecting side: requests a connection.
    Request,
    /// From the listening side: connected; data frames may follow at once.
    Response,
    /// From the listening side: rejects the request; the connection is closed.
    Reject,
}

impl ControlKind {
    fn from_byte(byte: u8) -> Option<ControlKind> {
        match byte {
            0 => Some(ControlKind::Request),
            1 => Some(ControlKind::Response),
            6 => Some(ControlKind::Reject),
            _ => None,
        }
    }

    fn to_byte(self) -> u8 {
        match self {
            ControlKind::Request => 0,
            ControlKind::Response => 1,
            ControlKind::Reject => 6,
        }
    }
}

/// Data of a reject by a listener whose process has no free descriptors.
pub(crate) const NO_DESCRIPTORS: &[u8] = b"tokio-fabric: no descriptors";

/// One control frame. Invariant: `data.len() <= 256`.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ControlFrame {
    kind: ControlKind,
    data: Bytes,
    offer: Option<ExtensionOffer>,
}

impl ControlFrame {
    /// Creates a frame with this private data. Fails with [`WireError::ControlDataSize`] if the
    /// data is longer than [`CM_DATA_SIZE_MAX`].
    pub(crate) fn new(kind: ControlKind, data: Bytes) -> Result<Self, WireError> {
        if data.len() > CM_DATA_SIZE_MAX {
            return Err(WireError::ControlDataSize(data.len()));
        }
        Ok(ControlFrame {
            kind,
            data,
            offer: None,
        })
    }

    /// Sets the offer of the extension, or the answer to an offer.
    pub(crate) fn with_offer(mut self, offer: Option<ExtensionOffer>) -> Self {
        self.offer = offer;
        self
    }

    /// The sender's offer of the extension; `None` from C peers.
    pub(crate) fn offer(&self) -> Option<ExtensionOffer> {
        self.offer
    }

    /// The kind of the frame.
    pub(crate) fn kind(&self) -> ControlKind {
        self.kind
    }

    /// The application's private data; may be empty.
    pub(crate) fn data(&self) -> &Bytes {
        &self.data
    }

    /// The application's private data.
    pub(crate) fn into_data(self) -> Bytes {
        self.data
    }

    /// Returns the frame's bytes, to be sent in one write: a C listener treats a request as broken
    /// if its first 32 bytes come in two pieces.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let [length_high, length_low] = (self.data.len() as u16).to_be_bytes();
        let mut bytes = Vec::with_capacity(CONTROL_SIZE + self.data.len());
        bytes.extend([
            CONTROL_VERSION,
            self.kind.to_byte(),
            length_high,
            length_low,
        ]);
        bytes.resize(PROBE_AT, 0);
        if let Some(offer) = self.offer {
            bytes[OFFER_AT..OFFER_AT + OFFER_SIZE].copy_from_slice(&offer.to_bytes());
        }
        bytes.extend(match self.kind {
            ControlKind::Request | ControlKind::Response => ByteOrder::probe(),
            // No data frame follows a reject, and C peers send none in it.
            ControlKind::Reject => [0; 8],
        });
        debug_assert_eq!(bytes.len(), CONTROL_SIZE, "the fixed part is complete");
        bytes.extend_from_slice(&self.data);
        bytes
    }
}

impl fmt::Debug for ControlFrame {
    /// Shows only the length of the private data, which may hold credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlFrame")
            .field("kind", &self.kind)
            .field("data_len", &self.data.len())
            .field("offer", &self.offer)
            .finish()
    }
}

/// Progress of a [`CmDecoder`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CmDecoded {
    /// All bytes given were taken. The frame has at least this many more bytes, so this many can be
    /// read from the connection without taking a byte after the frame. Never 0.
    Need(usize),
    /// The frame is complete.
    Frame {
        /// The frame.
        frame: ControlFrame,
        /// Byte order of the following data frames; without meaning in a reject.
        order: ByteOrder,
        /// Number of bytes of the last input that belong to the frame; the rest are data frames.
        consumed: usize,
    },
}

/// Assembles a control frame from pieces of any size.
///
/// The decoder takes no byte after the frame. It refuses a wrong version with the first byte and
/// every other flaw with the byte that shows it; a refusal is final. Invariants: `filled <=
/// CONTROL_SIZE_MAX`, and `filled <= frame_len()` while `frame_len` returns no error.
pub(crate) struct CmDecoder {
    bytes: [u8; CONTROL_SIZE_MAX],
    filled: usize,
}

impl CmDecoder {
    /// Creates a decoder at the start of a connection.
    pub(crate) fn new() -> Self {
        CmDecoder {
            bytes: [0; CONTROL_SIZE_MAX],
            filled: 0,
        }
    }

    /// Takes the bytes of the frame from the start of `bytes`.
    ///
    /// A call after the end of the frame returns the frame again, with nothing consumed.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<CmDecoded, WireError> {
        let mut rest = bytes;
        // Each round takes the bytes that are known to belong to the frame; the fixed part then
        // shows how many more there are.
        loop {
            let wanted = self.frame_len()? - self.filled;
            if wanted == 0 {
                let order = self.byte_order()?;
                return Ok(CmDecoded::Frame {
                    frame: self.frame()?,
                    order,
                    consumed: bytes.len() - rest.len(),
                });
            }
            if rest.is_empty() {
                return Ok(CmDecoded::Need(wanted));
            }
            let (taken, left) = rest.split_at(wanted.min(rest.len()));
            self.bytes[self.filled..self.filled + taken.len()].copy_from_slice(taken);
            self.filled += taken.len();
            rest = left;
        }
    }

    /// Number of bytes that may be read now: the value of the last [`CmDecoded::Need`], 32 at the
    /// start, 0 once the frame is complete or refused.
    pub(crate) fn wanted(&self) -> usize {
        self.frame_len().map_or(0, |len| len - self.filled)
    }

    /// Returns the frame's length as far as it is known, or an error if the bytes so far are wrong.
    fn frame_len(&self) -> Result<usize, WireError> {
        let mut len = CONTROL_SIZE;
        let received = &self.bytes[..self.filled];
        if let [version, ..] = *received
            && version != CONTROL_VERSION
        {
            return Err(WireError::ControlVersion(version));
        }
        if let [_, kind, ..] = *received
            && ControlKind::from_byte(kind).is_none()
        {
            return Err(WireError::ControlType(kind));
        }
        if let [_, _, high, low, ..] = *received {
            let data_len = usize::from(u16::from_be_bytes([high, low]));
            if data_len > CM_DATA_SIZE_MAX {
                return Err(WireError::ControlDataSize(data_len));
            }
            len += data_len;
        }
        if self.filled >= CONTROL_SIZE {
            self.byte_order()?;
        }
        Ok(len)
    }

    /// Returns the byte order that the probe shows; called when the fixed part is complete.
    fn byte_order(&self) -> Result<ByteOrder, WireError> {
        let [_, kind, ..] = self.bytes;
        if ControlKind::from_byte(kind) == Some(ControlKind::Reject) {
            return Ok(ByteOrder::Native);
        }
        self.bytes[PROBE_AT..]
            .first_chunk()
            .and_then(|probe| ByteOrder::from_probe(*probe))
            .ok_or(WireError::ControlProbe)
    }

    /// Returns the frame; called when the frame is complete.
    fn frame(&self) -> Result<ControlFrame, WireError> {
        let [_, kind, ..] = self.bytes;
        let kind = ControlKind::from_byte(kind).ok_or(WireError::ControlType(kind))?;
        let data = Bytes::copy_from_slice(&self.bytes[CONTROL_SIZE..self.filled]);
        let offer = self.bytes[OFFER_AT..]
            .first_chunk()
            .and_then(|bytes| ExtensionOffer::from_bytes(*bytes));
        Ok(ControlFrame::new(kind, data)?.with_offer(offer))
    }
}

debug_fields!(CmDecoder, self => filled: self.filled, wanted: self.wanted());
