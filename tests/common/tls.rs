//! Nodes that trust one certificate, which all of them have.

use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_fabric::tls::TlsConfig;

/// Where another process finds the node that it is to be.
pub const VARIABLE: &str = "TOKIO_FABRIC_TEST_NODE";

/// A certificate and its key, in DER.
#[derive(Clone)]
pub struct Node {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl Node {
    pub fn new() -> Node {
        let node = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a key");
        Node {
            certificate: node.cert.der().to_vec(),
            key: node.signing_key.serialize_der(),
        }
    }

    /// The node that the process that started this one is too, if that is one.
    pub fn of_the_parent() -> Option<Node> {
        let text = std::env::var(VARIABLE).ok()?;
        let (certificate, key) = text.split_once(' ').expect("as it was written");
        Some(Node {
            certificate: bytes(certificate),
            key: bytes(key),
        })
    }

    /// For the variable.
    pub fn to_text(&self) -> String {
        let hex = |bytes: &[u8]| -> String {
            let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
            digits.collect()
        };
        format!("{} {}", hex(&self.certificate), hex(&self.key))
    }

    /// What all nodes of a network are opened with.
    pub fn config(&self) -> TlsConfig {
        let certificate = CertificateDer::from(self.certificate.clone());
        let key = PrivatePkcs8KeyDer::from(self.key.clone());
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).expect("a certificate");
        let client = ClientConfig::builder().with_root_certificates(roots);
        let server = ServerConfig::builder().with_no_client_auth();
        let server = server.with_single_cert(vec![certificate], key.into());
        TlsConfig::new()
            .client(Arc::new(client.with_no_client_auth()))
            .server(Arc::new(server.expect("a server")))
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2);
    let digits = digits.map(|two| std::str::from_utf8(two).expect("ASCII"));
    let bytes = digits.map(|two| u8::from_str_radix(two, 16).expect("hex"));
    bytes.collect()
}
