//! An authority, and nodes with certificates of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_fabric::Hints;
use tokio_fabric::tls::TlsConfig;

/// The address that tests connect to, which certificates are for.
pub const NAME: &str = "127.0.0.1";

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

/// A certificate and its key.
pub struct Identity {
    pub certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Clone for Identity {
    fn clone(&self) -> Self {
        Identity {
            certificate: self.certificate.clone(),
            key: self.key.clone_key(),
        }
    }
}

impl Identity {
    pub fn new(certificate: CertificateDer<'static>, key: &KeyPair) -> Identity {
        Identity {
            certificate,
            key: PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
        }
    }

    /// As a resolver of a configuration gives it.
    pub fn certified(&self) -> CertifiedKey {
        let key = rustls::crypto::ring::sign::any_supported_type(&self.key).unwrap();
        CertifiedKey::new(vec![self.certificate.clone()], key)
    }

    /// The same key with another certificate.
    pub fn with_certificate(self, certificate: CertificateDer<'static>) -> Identity {
        Identity {
            certificate,
            ..self
        }
    }
}

impl Authority {
    pub fn new() -> Authority {
        /// Each has a name of its own, by which it is found among others.
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        let name = format!("authority {number}");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().der().clone();
        Authority {
            issuer: Issuer::new(params, key),
            certificate,
        }
    }

    /// A node of this authority.
    pub fn node(&self) -> Identity {
        self.node_with(|_| {})
    }

    /// The same, with a certificate that is changed before it is signed.
    pub fn node_with(&self, change: impl FnOnce(&mut CertificateParams)) -> Identity {
        let mut params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Identity::new(certificate.der().clone(), &key)
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        Arc::new(roots)
    }

    /// Who connects, without a certificate.
    pub fn client(&self) -> ClientConfig {
        let builder = ClientConfig::builder().with_root_certificates(self.roots());
        builder.with_no_client_auth()
    }

    /// Who connects, with one.
    pub fn client_as(&self, identity: Identity) -> ClientConfig {
        let builder = ClientConfig::builder().with_root_certificates(self.roots());
        let chain = vec![identity.certificate];
        builder.with_client_auth_cert(chain, identity.key).unwrap()
    }

    /// Who listens, and takes anybody.
    pub fn server(&self, identity: Identity) -> ServerConfig {
        let builder = ServerConfig::builder().with_no_client_auth();
        let chain = vec![identity.certificate];
        builder.with_single_cert(chain, identity.key).unwrap()
    }

    /// Who listens, and takes those who have a certificate of the authority.
    pub fn strict_server(&self, identity: Identity) -> ServerConfig {
        let verifier = WebPkiClientVerifier::builder(self.roots());
        let builder = ServerConfig::builder().with_client_cert_verifier(verifier.build().unwrap());
        let chain = vec![identity.certificate];
        builder.with_single_cert(chain, identity.key).unwrap()
    }

    /// A side that authenticates servers alone.
    pub fn config(&self) -> TlsConfig {
        both(self.client(), self.server(self.node()))
    }

    /// A side that authenticates all it is connected with, and is this.
    pub fn mutual(&self, identity: Identity) -> TlsConfig {
        let server = self.strict_server(identity.clone());
        both(self.client_as(identity), server)
    }
}

pub fn both(client: ClientConfig, server: ServerConfig) -> TlsConfig {
    TlsConfig::new()
        .client(Arc::new(client))
        .server(Arc::new(server))
}

pub fn hints(tls: &TlsConfig) -> Hints {
    Hints::new().tls(tls.clone())
}
