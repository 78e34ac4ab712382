//! TLS between peers: what the application configures, and what it learns of a peer.
//!
//! With [`Hints::tls`](crate::Hints) (feature `tls`) every connection of the fabric is TLS 1.3, and
//! nothing else: what listens takes no peer without, what connects goes to no listener without.
//! `SECURITY.md` says what that protects.

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
/// The version of rustls that [`TlsConfig`] takes configurations of.
#[cfg(feature = "tls")]
pub use rustls;
