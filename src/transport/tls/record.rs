//! The outer format of a TLS 1.3 record (RFC 8446, section 5), and the numbers of handshake
//! messages and alerts (sections 4 and 6).

use rustls::{Error, InvalidMessage};

use crate::buf::SendBatch;

/// Length of a record's header, in bytes.
pub(super) const HEAD_LEN: usize = 5;

/// Maximum length after the header: a type, padding and a tag are sealed with the plaintext.
const SEALED_MAX: usize = (1 << 14) + 256;

// Handshake messages that are sent after the handshake.
pub(super) const NEW_SESSION_TICKET: u8 = 4;
pub(super) const KEY_UPDATE: u8 = 24;

// Levels of an alert, which TLS 1.3 keeps for compatibility with older versions.
pub(super) const WARNING: u8 = 1;
pub(super) const FATAL: u8 = 2;

/// Returns the length of the record that begins here, with its header; `None` until the header is
/// complete.
///
/// # Errors
/// No record begins with these bytes.
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

/// Records to be sent, each in a frame.
#[derive(Default)]
pub(super) struct RecordQueue(SendBatch);

impl RecordQueue {
    pub(super) fn push(&mut self, record: Vec<u8>) {
        self.0.push_bytes(record, 0);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes all records, and keeps no memory.
    pub(super) fn take(&mut self) -> Box<SendBatch> {
        Box::new(std::mem::take(&mut self.0))
    }
}
