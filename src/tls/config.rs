//! The application's configuration of secure connections.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};

use super::exporter::ExporterLog;

/// The protocol that is agreed on within TLS (ALPN). It keeps a peer that speaks another protocol,
/// with a certificate of the same authority, from being taken for a peer of this protocol.
pub(crate) const ALPN: &[u8] = b"fabric/1";

type ServerNames = dyn Fn(SocketAddr) -> ServerName<'static> + Send + Sync;

/// How connections are secured: the application's rustls configurations, with its certificates,
/// verifiers, session store and cryptography.
///
/// This crate depends on [`rustls`](super::rustls) without default features, and so without
/// cryptography: enable its feature `ring` or `aws-lc-rs`.
///
/// Connecting requires a [`client`](Self::client) configuration, listening a
/// [`server`](Self::server) configuration, and a connectionless endpoint both. They also determine
/// who is authenticated: a server always, a client if the server's configuration requests it. The
/// peer's certificates are in the connection request and in the `Connected` event.
///
/// The library changes some settings in copies of the configurations: the application protocol
/// (ALPN) is `fabric/1`, and early data is disabled. After the handshake by rustls the library
/// itself encrypts and decrypts the records, with the configuration's cryptography.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
///
/// use tokio_fabric::tls::TlsConfig;
/// use tokio_fabric::tls::rustls::{ClientConfig, RootCertStore, ServerConfig};
/// use tokio_fabric::{Fabric, Hints};
///
/// # let key = rcgen::generate_simple_self_signed(["node.example".to_owned()])?;
/// # let (certificate, key) = (
/// #     key.cert.der().clone(),
/// #     rustls::pki_types::PrivatePkcs8KeyDer::from(key.signing_key.serialize_der()),
/// # );
/// let mut roots = RootCertStore::empty();
/// roots.add(certificate.clone())?;
/// let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
/// let server = ServerConfig::builder()
///     .with_no_client_auth()
///     .with_single_cert(vec![certificate], key.into())?;
///
/// let tls = TlsConfig::new()
///     .client(Arc::new(client))
///     .server(Arc::new(server))
///     .server_name("node.example".try_into()?);
/// let fabric = Fabric::open(Hints::new().tls(tls))?;
/// # let _ = fabric;
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct TlsConfig {
    pub(crate) client: Option<Arc<ClientConfig>>,
    pub(crate) server: Option<Arc<ServerConfig>>,
    names: Option<Arc<ServerNames>>,
}

impl TlsConfig {
    /// A configuration for neither connecting nor listening: both are refused.
    pub fn new() -> Self {
        Self::default()
    }

    /// The configuration for connecting.
    pub fn client(mut self, config: Arc<ClientConfig>) -> Self {
        let mut own = ClientConfig::clone(&config);
        own.alpn_protocols = vec![ALPN.to_vec()];
        own.enable_early_data = false;
        own.max_fragment_size = None;
        own.enable_secret_extraction = true;
        own.key_log = ExporterLog::before(own.key_log);
        self.client = Some(Arc::new(own));
        self
    }

    /// The configuration for listening.
    pub fn server(mut self, config: Arc<ServerConfig>) -> Self {
        let mut own = ServerConfig::clone(&config);
        own.alpn_protocols = vec![ALPN.to_vec()];
        own.max_early_data_size = 0;
        own.send_half_rtt_data = false;
        own.max_fragment_size = None;
        own.enable_secret_extraction = true;
        own.key_log = ExporterLog::before(own.key_log);
        self.server = Some(Arc::new(own));
        self
    }

    /// The name that the certificates of all listeners must be issued for. Default: the address
    /// that is connected to.
    pub fn server_name(self, name: ServerName<'static>) -> Self {
        self.server_names(move |_| name.clone())
    }

    /// The name that the certificate of a listener must be issued for, as a function of its
    /// address.
    pub fn server_names(
        mut self,
        name: impl Fn(SocketAddr) -> ServerName<'static> + Send + Sync + 'static,
    ) -> Self {
        self.names = Some(Arc::new(name));
        self
    }

    pub(crate) fn name_of(&self, to: SocketAddr) -> ServerName<'static> {
        match &self.names {
            Some(names) => names(to),
            None => to.ip().into(),
        }
    }
}

fn is_same<T: ?Sized>(one: Option<&Arc<T>>, other: Option<&Arc<T>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (one, other) => one.is_none() && other.is_none(),
    }
}

/// Two configurations are equal if they are clones of one configuration.
impl PartialEq for TlsConfig {
    fn eq(&self, other: &Self) -> bool {
        is_same(self.client.as_ref(), other.client.as_ref())
            && is_same(self.server.as_ref(), other.server.as_ref())
            && is_same(self.names.as_ref(), other.names.as_ref())
    }
}

impl Eq for TlsConfig {}

/// Shows only which configurations are set, since keys are secret.
impl fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConfig")
            .field("client", &self.client.is_some())
            .field("server", &self.server.is_some())
            .finish_non_exhaustive()
    }
}
