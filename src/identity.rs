//! The identity that a peer proves on a secure connection.

#![forbid(unsafe_code)]

use std::sync::Arc;

use bytes::Bytes;

/// The certificates with which a peer has proven its identity: its own certificate first, then the
/// chain to an authority.
///
/// The application's configuration decides which checks the certificates have passed.
///
/// ```
/// use tokio_fabric::eq::ConnRequest;
///
/// /// The certificate of the peer itself, in DER.
/// fn certificate(request: &ConnRequest) -> Option<Vec<u8>> {
///     let certificates = request.peer_certificates()?;
///     certificates.chain().first().map(|certificate| certificate.to_vec())
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCertificates(Arc<[Bytes]>);

impl PeerCertificates {
    /// `None` if the peer presented no certificates.
    #[cfg_attr(
        not(feature = "tls"),
        allow(dead_code, reason = "without TLS none are shown")
    )]
    pub(crate) fn new(chain: impl Iterator<Item = Bytes>) -> Option<Self> {
        let chain: Arc<[Bytes]> = chain.collect();
        (!chain.is_empty()).then_some(PeerCertificates(chain))
    }

    /// The chain, each certificate in DER.
    pub fn chain(&self) -> &[Bytes] {
        &self.0
    }
}

/// A value that both ends of one secure connection know and no other connection has, for proofs
/// that are valid on this connection alone.
pub(crate) type ChannelBinding = [u8; 32];

/// The peer of a secure connection.
#[derive(Clone, Debug)]
pub(crate) struct PeerIdentity {
    pub(crate) certificates: Option<PeerCertificates>,
    pub(crate) binding: ChannelBinding,
}
