//! One TLS session, without I/O: bytes of records go in and come out, plaintext at the other side.
//!
//! rustls' buffered connection: the unbuffered one of this version opens each record into memory of
//! its own as well, and has no exporter.

use std::io::{BufRead, Read, Write};
use std::net::SocketAddr;

use bytes::Bytes;
use rustls::{AlertDescription, ClientConnection, Connection, ProtocolVersion, ServerConnection};

use crate::buf::Stage;
use crate::error::{Error, ErrorKind, Result};
use crate::identity::{PeerCertificates, PeerIdentity};
use crate::limits::TLS_HANDSHAKE_SIZE_MAX;
use crate::tls::{ALPN, TlsConfig};

/// The exporter's label, for nothing but [`PeerIdentity::binding`].
const BINDING: &[u8] = b"EXPORTER-tokio-fabric-channel-binding";

pub(super) struct Session {
    tls: Connection,
    /// Bytes taken in until the handshake was done.
    handshake_bytes: usize,
    /// The peer has said that it ends its stream (`close_notify`): what came before is all.
    is_peer_closed: bool,
    /// Bytes of plaintext that were not consumed.
    opened_len: usize,
}

impl Session {
    pub(super) fn client(config: &TlsConfig, to: SocketAddr) -> Result<Self> {
        let Some(client) = &config.client else {
            let what = "this side has no TLS configuration to connect with (TlsConfig::client)";
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        };
        let name = config.name_of(to);
        let tls = ClientConnection::new(client.clone(), name).map_err(handshake_error)?;
        Ok(Session::of(tls.into()))
    }

    pub(super) fn server(config: &TlsConfig) -> Result<Self> {
        let Some(server) = &config.server else {
            return Err(no_server());
        };
        let tls = ServerConnection::new(server.clone()).map_err(handshake_error)?;
        Ok(Session::of(tls.into()))
    }

    fn of(mut tls: Connection) -> Self {
        // What is sealed at a time is bounded by who asks for it.
        tls.set_buffer_limit(None);
        Session {
            tls,
            handshake_bytes: 0,
            is_peer_closed: false,
            opened_len: 0,
        }
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// The handshake is done: whether it came to what this library demands.
    pub(super) fn check_agreed(&self) -> Result<()> {
        let what = match (self.tls.protocol_version(), self.tls.alpn_protocol()) {
            (Some(ProtocolVersion::TLSv1_3), Some(ALPN)) => return Ok(()),
            (Some(ProtocolVersion::TLSv1_3), _) => "the peer does not ask for fabric/1 (ALPN)",
            _ => "TLS 1.3 was not agreed on",
        };
        Err(Error::new(ErrorKind::Incompatible, format!("TLS: {what}")))
    }

    /// Takes in bytes until there is plaintext, or none are left.
    ///
    /// # Errors
    /// What the peer sent is no TLS, or not that of this session; an alert for it is to be sent.
    pub(super) fn take_in(&mut self, stage: &mut Stage) -> Result<()> {
        while !stage.is_empty() && self.opened_len == 0 {
            let was_handshaking = self.is_handshaking();
            let taken = self.tls.read_tls(&mut &stage[..]).map_err(|error| {
                Error::new(ErrorKind::ProtocolViolation, format!("TLS: {error}"))
            })?;
            if taken == 0 {
                // Nothing counts behind the end of the stream.
                stage.advance(stage.len());
                break;
            }
            stage.advance(taken);
            if was_handshaking {
                self.handshake_bytes += taken;
                if self.handshake_bytes > TLS_HANDSHAKE_SIZE_MAX {
                    let what = "TLS: the peer's part of the handshake is too long";
                    return Err(Error::new(ErrorKind::ProtocolViolation, what));
                }
            }
            let processed =
                self.tls
                    .process_new_packets()
                    .map_err(|error| match was_handshaking {
                        true => handshake_error(error),
                        false => record_error(&error),
                    })?;
            self.is_peer_closed = processed.peer_has_closed();
            self.opened_len = processed.plaintext_bytes_to_read();
        }
        if stage.is_empty() {
            self.trim();
        }
        Ok(())
    }

    /// Has rustls give back what its buffer holds beyond a first read, which it does when it is
    /// about to read.
    fn trim(&mut self) {
        struct Nothing;
        impl Read for Nothing {
            fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
                Err(std::io::ErrorKind::WouldBlock.into())
            }
        }
        let _ = self.tls.read_tls(&mut Nothing);
    }

    /// Plaintext of the peer's that was not consumed yet, as far as it lies together.
    pub(super) fn opened(&mut self) -> &[u8] {
        self.tls.reader().into_first_chunk().unwrap_or_default()
    }

    /// The first `count` bytes of what is opened are consumed.
    pub(super) fn consume(&mut self, count: usize) {
        self.tls.reader().consume(count);
        self.opened_len -= count;
    }

    pub(super) fn opened_len(&self) -> usize {
        self.opened_len
    }

    pub(super) fn is_peer_closed(&self) -> bool {
        self.is_peer_closed
    }

    /// Seals plaintext in records, which are to be sent.
    pub(super) fn seal(&mut self, plaintext: &[u8]) -> Result<()> {
        let sealed = self.tls.writer().write_all(plaintext);
        sealed.map_err(|error| Error::new(ErrorKind::ProtocolViolation, format!("TLS: {error}")))
    }

    /// Ends this side's stream, behind what was sealed before.
    pub(super) fn close(&mut self) {
        self.tls.send_close_notify();
    }

    pub(super) fn has_records(&self) -> bool {
        self.tls.wants_write()
    }

    /// Appends all records that are to be sent.
    pub(super) fn take_records(&mut self, into: &mut Vec<u8>) {
        while self.tls.wants_write() && self.tls.write_tls(into).is_ok() {}
    }

    /// What is known of the peer; `None` before the handshake is done.
    pub(super) fn identity(&self) -> Option<PeerIdentity> {
        let binding = self
            .tls
            .export_keying_material([0; 32], BINDING, None)
            .ok()?;
        let chain = self.tls.peer_certificates().unwrap_or_default().iter();
        Some(PeerIdentity {
            certificates: PeerCertificates::new(
                chain.map(|certificate| Bytes::copy_from_slice(certificate)),
            ),
            binding,
        })
    }

    /// Uses other keys from the next record on, and asks the peer to.
    #[cfg(test)]
    pub(super) fn refresh_keys(&mut self) {
        self.tls.refresh_traffic_keys().expect("an open session");
    }
}

/// There is nothing to listen with.
pub(super) fn no_server() -> Error {
    let what = "this side has no TLS configuration to listen with (TlsConfig::server)";
    Error::new(ErrorKind::InvalidArgument, what)
}

/// Why a handshake failed: the peer speaks something else, or is not who it must be, or says so of
/// this side.
fn handshake_error(error: rustls::Error) -> Error {
    use rustls::Error as Tls;
    let (kind, what) = match &error {
        Tls::InvalidMessage(_) | Tls::InappropriateMessage { .. } => (
            ErrorKind::Incompatible,
            "the peer does not speak TLS, which is demanded of it here (Hints::tls)",
        ),
        Tls::PeerIncompatible(_)
        | Tls::NoApplicationProtocol
        | Tls::AlertReceived(
            AlertDescription::NoApplicationProtocol | AlertDescription::ProtocolVersion,
        ) => (
            ErrorKind::Incompatible,
            "the peers have no protocol in common",
        ),
        Tls::InvalidCertificate(_) | Tls::NoCertificatesPresented => {
            (ErrorKind::NotAuthorized, "the peer is not who it must be")
        }
        Tls::AlertReceived(alert) => refused_by(*alert),
        _ => (ErrorKind::ProtocolViolation, "the handshake failed"),
    };
    Error::new(kind, format!("TLS: {what}: {error}"))
}

/// What it means that the peer ends the session with an alert.
fn refused_by(alert: AlertDescription) -> (ErrorKind, &'static str) {
    use AlertDescription::*;
    let is_about_certificates = matches!(
        alert,
        BadCertificate
            | UnsupportedCertificate
            | CertificateRevoked
            | CertificateExpired
            | CertificateUnknown
            | CertificateRequired
            | UnknownCA
            | AccessDenied
            | DecryptError
    );
    match is_about_certificates {
        true => (
            ErrorKind::NotAuthorized,
            "the peer does not take this side for who it must be",
        ),
        false => (ErrorKind::ConnectionReset, "the peer refuses this side"),
    }
}

/// Why a record of an open session was not taken. The handshake's last word may come late: a server
/// refuses a client's certificate after the client is done.
fn record_error(error: &rustls::Error) -> Error {
    let (kind, what) = match error {
        rustls::Error::AlertReceived(alert) => refused_by(*alert),
        _ => (ErrorKind::ProtocolViolation, "a record is not the peer's"),
    };
    Error::new(kind, format!("TLS: {what}: {error}"))
}

debug_fields!(Session, self =>
    handshaking: self.is_handshaking(), peer_closed: self.is_peer_closed
);
