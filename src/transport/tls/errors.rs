//! What is wrong with a peer, for both sides: our error, and the alert that says it.

use rustls::{AlertDescription, Error as Tls, PeerMisbehaved};

use crate::error::{Error, ErrorKind};

/// There is nothing to listen with.
pub(super) fn no_server() -> Error {
    let what = "this side has no TLS configuration to listen with (TlsConfig::server)";
    Error::new(ErrorKind::InvalidArgument, what)
}

/// Why a handshake failed: the peer speaks something else, or its certificate is rejected, or it
/// has rejected this side's.
pub(super) fn handshake_error(error: Tls) -> Error {
    let (kind, what) = match &error {
        Tls::InvalidMessage(_) | Tls::InappropriateMessage { .. } => (
            ErrorKind::Incompatible,
            "the peer does not speak TLS, which this side requires (Hints::tls)",
        ),
        Tls::PeerIncompatible(_)
        | Tls::NoApplicationProtocol
        | Tls::AlertReceived(
            AlertDescription::NoApplicationProtocol | AlertDescription::ProtocolVersion,
        ) => (
            ErrorKind::Incompatible,
            "the peers have no protocol in common",
        ),
        Tls::InvalidCertificate(_) | Tls::NoCertificatesPresented => (
            ErrorKind::NotAuthorized,
            "the peer's certificate is rejected",
        ),
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
            "the peer rejects this side's certificate",
        ),
        false => (
            ErrorKind::ConnectionReset,
            "the peer refuses the connection",
        ),
    }
}

/// Why a record of an open session was not taken. The handshake's last word may come late: a server
/// refuses a client's certificate after the client is done.
pub(super) fn record_error(error: &Tls) -> Error {
    let (kind, what) = match error {
        Tls::AlertReceived(alert) => refused_by(*alert),
        _ => (ErrorKind::ProtocolViolation, "a record is not the peer's"),
    };
    Error::new(kind, format!("TLS: {what}: {error}"))
}

/// The alert for a record that was not taken (RFC 8446, section 6.2); `None`: the peer has said the
/// last word itself.
pub(super) fn alert_for(error: &Tls) -> Option<AlertDescription> {
    Some(match error {
        Tls::AlertReceived(_) => return None,
        Tls::DecryptError => AlertDescription::BadRecordMac,
        Tls::PeerSentOversizedRecord => AlertDescription::RecordOverflow,
        Tls::InvalidMessage(_) => AlertDescription::DecodeError,
        Tls::PeerMisbehaved(
            PeerMisbehaved::TooManyEmptyFragments | PeerMisbehaved::TooManyWarningAlertsReceived,
        ) => AlertDescription::DecodeError,
        Tls::PeerMisbehaved(_)
        | Tls::InappropriateMessage { .. }
        | Tls::InappropriateHandshakeMessage { .. } => AlertDescription::UnexpectedMessage,
        _ => AlertDescription::InternalError,
    })
}
