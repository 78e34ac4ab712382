//! Nodes that trust one certificate, which all of them have.

use std::sync::Arc;

use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_fabric::tls::TlsConfig;

/// What all nodes of a network are opened with.
pub fn config() -> TlsConfig {
    let node = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a key");
    let certificate = node.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(node.signing_key.serialize_der());
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).expect("a certificate");
    let client = ClientConfig::builder().with_root_certificates(roots);
    let server = ServerConfig::builder().with_no_client_auth();
    let server = server.with_single_cert(vec![certificate], key.into());
    TlsConfig::new()
        .client(Arc::new(client.with_no_client_auth()))
        .server(Arc::new(server.expect("a server")))
}
