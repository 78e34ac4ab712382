//! Errors that a peer causes: this side's error, and the alert that reports it to the peer.

use rustls::{AlertDescription, Error as Tls, PeerMisbehaved};

use crate::error::{Error, ErrorKind};

/// Makes the error of a side that has no TLS configuration for listening.
pub(super) fn no_server() -> Error {
    let what = "this side has no TLS configuration to listen with (TlsConfig::server)";
    Error::new(ErrorKind::InvalidArgument, what)
}

/// Makes the error of a failed handshake: the peer speaks another protocol, its certificate is
/// rejected, or it has rejected this side's.
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

/// Returns the meaning of an alert with which the peer ends the session.
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

/// Makes the error of a record that an open session rejects. The handshake may fail late: a server
/// may refuse a client's certificate after the client has finished its handshake.
pub(super) fn record_error(error: &Tls) -> Error {
    let (kind, what) = match error {
        Tls::AlertReceived(alert) => refused_by(*alert),
        _ => (ErrorKind::ProtocolViolation, "a record is not the peer's"),
    };
    Error::new(kind, format!("TLS: {what}: {error}"))
}

/// Returns the alert for a rejected record (RFC 8446, section 6.2); `None`: the peer has sent an
/// alert itself.
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
