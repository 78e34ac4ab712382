//! One TLS session, without I/O: records on one side, plaintext on the other.
//!
//! rustls does the handshake and derives keys. The records of an open session are sealed and opened
//! here (`sealer.rs`, `opener.rs`), with the configuration's cryptography, since rustls' own
//! connections copy each byte twice more and keep memory while they are idle.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustls::crypto::cipher::OutboundChunks;
use rustls::{AlertDescription, ProtocolVersion};

use crate::log::hold_event;

use super::errors::{alert_for, handshake_error, no_server, record_error};
use super::handshake::Handshake;
use super::open_session::OpenSession;
use super::opener::OpenedRecord;
use super::record::RecordQueue;
use crate::buf::{SendBatch, Stage};
use crate::error::{Error, ErrorKind, Result};
use crate::identity::PeerIdentity;
use crate::limits::TLS_HANDSHAKE_SIZE_MAX;
use crate::tls::{ALPN, TlsConfig};

pub(super) struct Session {
    state: SessionState,
    /// Bytes that were received and not taken in, including an opened record at the front.
    stage: Option<Stage>,
    opened: Option<OpenedRecord>,
    /// Records to be sent.
    records: RecordQueue,
    /// Number of bytes taken in until the handshake was done.
    handshake_bytes: usize,
}

enum SessionState {
    Shaking(Box<Handshake>),
    Open(Box<OpenSession>),
    /// The handshake or the session has failed.
    Failed,
}

impl Session {
    pub(super) fn client(config: &TlsConfig, to: SocketAddr) -> Result<Self> {
        let Some(client) = &config.client else {
            let what = "this side has no TLS configuration to connect with (TlsConfig::client)";
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        };
        let name = config.name_of(to);
        Session::of(Handshake::client(client.clone(), name))
    }

    pub(super) fn server(config: &TlsConfig) -> Result<Self> {
        let Some(server) = &config.server else {
            return Err(no_server());
        };
        Session::of(Handshake::server(server.clone()))
    }

    fn of(handshake: std::result::Result<Handshake, rustls::Error>) -> Result<Self> {
        let mut records = RecordQueue::default();
        let begun = handshake.and_then(|mut handshake| {
            handshake.advance(&mut records)?;
            Ok(handshake)
        });
        Ok(Session {
            state: SessionState::Shaking(Box::new(begun.map_err(handshake_error)?)),
            stage: None,
            opened: None,
            records,
            handshake_bytes: 0,
        })
    }

    pub(super) fn is_handshaking(&self) -> bool {
        !matches!(self.state, SessionState::Open(_))
    }

    // Receiving.

    /// Adds received bytes. All earlier bytes must have been taken in.
    pub(super) fn give(&mut self, stage: Stage) {
        debug_assert!(self.stage.is_none(), "one stage at a time");
        self.stage = Some(stage);
    }

    /// Returns true if bytes wait to be taken in.
    pub(super) fn has_bytes(&self) -> bool {
        self.stage.is_some()
    }

    /// Takes in bytes until there is plaintext, or no bytes are left.
    ///
    /// # Errors
    /// The peer sent bytes that are not TLS or do not belong to this session; an alert is queued.
    pub(super) fn take_in(&mut self) -> Result<()> {
        let taken = loop {
            let Some(stage) = self.stage.as_mut().filter(|_| self.opened.is_none()) else {
                return Ok(());
            };
            if stage.is_empty() {
                self.stage = None;
                return Ok(());
            }
            let taken = match &mut self.state {
                SessionState::Shaking(handshake) => {
                    let taken = caught(|| handshake.take_in(stage, &mut self.records));
                    taken
                        .map_err(handshake_error)
                        .and_then(|len| self.note_handshake(len))
                }
                SessionState::Open(open) => match open.open(stage) {
                    Ok(opened) => {
                        self.opened = opened;
                        Ok(())
                    }
                    Err(error) => {
                        if let Some(alert) = alert_for(&error) {
                            open.end(alert, &mut self.records);
                        }
                        Err(record_error(&error))
                    }
                },
                SessionState::Failed => return Ok(()),
            };
            if taken.is_err() {
                break taken;
            }
        };
        self.stage = None;
        taken
    }

    /// Counts bytes of the handshake that were taken in. Opens the session if they complete the
    /// handshake and the agreed parameters meet this library's demands.
    fn note_handshake(&mut self, len: usize) -> Result<()> {
        self.handshake_bytes += len;
        if self.handshake_bytes > TLS_HANDSHAKE_SIZE_MAX {
            let what = "TLS: the peer's part of the handshake is too long";
            return Err(Error::new(ErrorKind::ProtocolViolation, what));
        }
        let SessionState::Shaking(handshake) = &mut self.state else {
            return Ok(());
        };
        if !handshake.is_done() {
            return Ok(());
        }
        let agreed = handshake.agreed();
        let what = match (agreed.protocol_version(), agreed.alpn_protocol()) {
            (Some(ProtocolVersion::TLSv1_3), Some(ALPN)) => "",
            (Some(ProtocolVersion::TLSv1_3), _) => "the peer does not ask for fabric/1 (ALPN)",
            _ => "TLS 1.3 was not agreed on",
        };
        if !what.is_empty() {
            handshake.close(&mut self.records);
            return Err(Error::new(ErrorKind::Incompatible, format!("TLS: {what}")));
        }
        let SessionState::Shaking(handshake) =
            std::mem::replace(&mut self.state, SessionState::Failed)
        else {
            return Ok(());
        };
        let open = handshake.finish().and_then(OpenSession::new);
        self.state = SessionState::Open(Box::new(open.map_err(handshake_error)?));
        Ok(())
    }

    /// Returns contiguous plaintext from the peer that has not been consumed.
    pub(super) fn opened(&mut self) -> &[u8] {
        match (&mut self.state, &self.stage, &self.opened) {
            (SessionState::Open(open), Some(stage), Some(record)) => {
                open.opener().plaintext(stage, record)
            }
            _ => &[],
        }
    }

    /// Consumes the first `count` bytes of the opened plaintext.
    pub(super) fn consume(&mut self, count: usize) {
        if let (SessionState::Open(open), Some(stage), Some(record)) =
            (&mut self.state, &mut self.stage, &mut self.opened)
            && open.opener().consume(stage, record, count)
        {
            self.opened = None;
            if stage.is_empty() {
                self.stage = None;
            }
        }
    }

    /// Takes the staging buffer if it holds only the opened record; the record's plaintext then
    /// counts as consumed.
    pub(super) fn take_opened(&mut self) -> Option<Stage> {
        let (stage, record) = (self.stage.as_ref()?, self.opened.as_ref()?);
        if !record.is_all_of(stage) {
            return None;
        }
        Some(self.opened.take()?.into_stage(self.stage.take()?))
    }

    pub(super) fn opened_len(&self) -> usize {
        self.opened.as_ref().map_or(0, OpenedRecord::len)
    }

    /// Returns the number of bytes that were not consumed; sealed bytes are counted with the
    /// overhead of their records.
    pub(super) fn unread_len(&self) -> usize {
        let staged = self.stage.as_ref().map_or(0, |stage| stage.len());
        match &self.state {
            SessionState::Open(open) => staged + open.joined_len(),
            _ => staged,
        }
    }

    /// Returns true if the peer has ended its stream (`close_notify`).
    pub(super) fn is_peer_closed(&self) -> bool {
        matches!(&self.state, SessionState::Open(open) if open.is_peer_closed())
    }

    // Sending.

    /// Seals plaintext in records, which are queued to be sent.
    pub(super) fn seal(&mut self, plaintext: OutboundChunks<'_>) -> Result<()> {
        let SessionState::Open(open) = &mut self.state else {
            return Err(Error::new(ErrorKind::ConnectionReset, "TLS: no session"));
        };
        let sealed = open.seal(plaintext, &mut self.records);
        sealed.map_err(|error| Error::new(ErrorKind::ProtocolViolation, format!("TLS: {error}")))
    }

    /// Ends this side's stream, after everything that was sealed before.
    pub(super) fn close(&mut self) {
        if let SessionState::Open(open) = &mut self.state {
            open.end(AlertDescription::CloseNotify, &mut self.records);
        }
    }

    pub(super) fn has_records(&self) -> bool {
        !self.records.is_empty()
            || matches!(&self.state, SessionState::Open(open) if open.owes_update())
    }

    /// Takes all records to be sent, each in a frame.
    pub(super) fn take_records(&mut self) -> Box<SendBatch> {
        if let SessionState::Open(open) = &mut self.state {
            let _ = open.update_if_owed(&mut self.records);
        }
        self.records.take()
    }

    /// Returns the peer's identity; `None` before the handshake is done.
    pub(super) fn identity(&self) -> Option<PeerIdentity> {
        match &self.state {
            SessionState::Open(open) => Some(open.peer().clone()),
            _ => None,
        }
    }

    /// Returns the open session, and its records to be sent.
    #[cfg(test)]
    pub(super) fn open_parts(&mut self) -> (&mut OpenSession, &mut RecordQueue) {
        match &mut self.state {
            SessionState::Open(open) => (open, &mut self.records),
            _ => panic!("the handshake is not done"),
        }
    }
}

/// Runs a step of the handshake, which calls verifiers, stores and resolvers of the application. If
/// one of these panics, only its connection ends, not the driver of all connections.
fn caught<R>(
    step: impl FnOnce() -> std::result::Result<R, rustls::Error>,
) -> std::result::Result<R, rustls::Error> {
    catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|_| {
        hold_event(|| tracing::error!("the configuration of TLS has panicked"));
        Err(rustls::Error::General(
            "the configuration has panicked".into(),
        ))
    })
}

debug_fields!(Session, self =>
    handshaking: self.is_handshaking(), peer_closed: self.is_peer_closed()
);
