//! What a record of TLS 1.3 looks like from outside (RFC 8446, section 5), and the numbers of what
//! goes between data (sections 4 and 6).

use rustls::{Error, InvalidMessage};

use crate::buf::SendBatch;

/// Bytes of a record's head.
pub(super) const HEAD_LEN: usize = 5;

/// Most bytes behind the head: a type, padding and a tag are sealed with the plaintext.
const SEALED_MAX: usize = (1 << 14) + 256;

// Messages of the handshake's that come after it.
pub(super) const NEW_SESSION_TICKET: u8 = 4;
pub(super) const KEY_UPDATE: u8 = 24;

// Levels of an alert, which TLS 1.3 has for older versions' sake.
pub(super) const WARNING: u8 = 1;
pub(super) const FATAL: u8 = 2;

/// Bytes of the record that begins here, its head included; `None` until the head is here.
///
/// # Errors
/// No record begins so.
pub(super) fn record_len(bytes: &[u8]) -> Result<Option<usize>, Error> {
    let Some(&[kind, major, _, high, low]) = bytes.first_chunk::<HEAD_LEN>() else {
        return Ok(None);
    };
    let len = usize::from(u16::from_be_bytes([high, low]));
    let fault = match () {
        () if !(20..=23).contains(&kind) => InvalidMessage::InvalidContentType,
        () if major != 3 => InvalidMessage::UnknownProtocolVersion,
        () if len > SEALED_MAX => InvalidMessage::MessageTooLarge,
        () => return Ok(Some(HEAD_LEN + len)),
    };
    Err(fault.into())
}

/// Records that are to be sent, each in a frame.
#[derive(Default)]
pub(super) struct RecordQueue(SendBatch);

impl RecordQueue {
    pub(super) fn push(&mut self, record: Vec<u8>) {
        self.0.push_bytes(record, 0);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, which leaves no memory behind.
    pub(super) fn take(&mut self) -> Box<SendBatch> {
        Box::new(std::mem::take(&mut self.0))
    }
}
