//! TLS between peers: the application's configuration, and the proven identity of a peer.
//!
//! With [`Hints::tls`](crate::Hints) (feature `tls`) every connection of the fabric uses TLS 1.3: a
//! listener rejects peers without TLS, and connecting to a listener without TLS fails.
//! `SECURITY.md` describes what this protects.

#![forbid(unsafe_code)]

#[cfg(feature = "tls")]
mod config;
#[cfg(feature = "tls")]
pub(crate) mod exporter;

pub use crate::identity::PeerCertificates;
#[cfg(feature = "tls")]
pub(crate) use config::ALPN;
#[cfg(feature = "tls")]
pub use config::TlsConfig;
/// The version of rustls whose configurations [`TlsConfig`] takes.
#[cfg(feature = "tls")]
pub use rustls;
