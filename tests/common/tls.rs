//! Nodes that trust one certificate, which all of them have.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::sync::{Arc, LazyLock};

use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
};
use tokio_fabric::tls::TlsConfig;

use super::wire::TlsStep;

/// Where another process finds the node that it is to be.
pub const VARIABLE: &str = "TOKIO_FABRIC_TEST_NODE";

/// The host that the certificate is for.
const HOST: &str = "127.0.0.1";
/// The protocol within.
const ALPN: &[u8] = b"fabric/1";

/// A certificate and its key, in DER.
#[derive(Clone)]
pub struct Node {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl Node {
    pub fn new() -> Node {
        let node = rcgen::generate_simple_self_signed([HOST.to_owned()]).expect("a key");
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

    /// The node that this process is, and all its peers by hand are.
    pub fn here() -> Node {
        static HERE: LazyLock<Node> =
            LazyLock::new(|| Node::of_the_parent().unwrap_or_else(Node::new));
        HERE.clone()
    }

    /// For the variable.
    pub fn to_text(&self) -> String {
        let hex = |bytes: &[u8]| -> String {
            let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
            digits.collect()
        };
        format!("{} {}", hex(&self.certificate), hex(&self.key))
    }

    /// What all nodes of a network are opened with, whatever their addresses are.
    pub fn config(&self) -> TlsConfig {
        let (client, server) = self.configs();
        TlsConfig::new()
            .client(Arc::new(client))
            .server(Arc::new(server))
            .server_name(name())
    }

    fn configs(&self) -> (ClientConfig, ServerConfig) {
        let certificate = CertificateDer::from(self.certificate.clone());
        let key = PrivatePkcs8KeyDer::from(self.key.clone());
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).expect("a certificate");
        let client = ClientConfig::builder().with_root_certificates(roots);
        let server = ServerConfig::builder().with_no_client_auth();
        let server = server.with_single_cert(vec![certificate], key.into());
        (client.with_no_client_auth(), server.expect("a server"))
    }
}

fn name() -> ServerName<'static> {
    ServerName::try_from(HOST).expect("an address")
}

/// One end of a connection by rustls' own records, over a socket that blocks: a peer that can stop
/// anywhere. It is the node that this process [is](Node::here).
pub struct HandMade {
    session: Connection,
    socket: TcpStream,
}

impl HandMade {
    /// The end that has dialled, after so much of the handshake.
    pub fn client(socket: TcpStream, until: TlsStep) -> HandMade {
        let (mut config, _) = Node::here().configs();
        config.alpn_protocols = vec![ALPN.to_vec()];
        let session = ClientConnection::new(Arc::new(config), name()).expect("a session");
        let session = session.into();
        HandMade { session, socket }.after(until)
    }

    /// The end that was dialled, after so much of the handshake.
    pub fn server(socket: TcpStream, until: TlsStep) -> HandMade {
        let (_, mut config) = Node::here().configs();
        config.alpn_protocols = vec![ALPN.to_vec()];
        let session = ServerConnection::new(Arc::new(config)).expect("a session");
        let session = session.into();
        HandMade { session, socket }.after(until)
    }

    fn after(mut self, until: TlsStep) -> HandMade {
        if until == TlsStep::Nothing {
            return self;
        }
        // The client has two flights, and the server one.
        let mut is_last = matches!(self.session, Connection::Server(_));
        while self.session.is_handshaking() {
            if !self.session.wants_write() {
                self.receive().expect("a flight of the other side's");
                continue;
            }
            let flight = self.sealed();
            let sent = match until {
                TlsStep::HalfFlight => flight.len() / 2,
                TlsStep::Unfinished if is_last => flight.len() - 10,
                _ => flight.len(),
            };
            self.socket
                .write_all(&flight[..sent])
                .expect("a connection");
            if sent < flight.len() {
                return self;
            }
            is_last = true;
        }
        // The client's is written when it has the keys; so are the server's tickets.
        let rest = self.sealed();
        let sent = match until {
            TlsStep::Unfinished => rest.len() - 10,
            _ => rest.len(),
        };
        self.socket.write_all(&rest[..sent]).expect("a connection");
        self
    }

    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// The records that are to be sent.
    fn sealed(&mut self) -> Vec<u8> {
        let mut records = Vec::new();
        while self.session.wants_write() {
            self.session.write_tls(&mut records).expect("memory");
        }
        records
    }

    fn receive(&mut self) -> Result<usize> {
        let bytes = self.session.read_tls(&mut self.socket)?;
        self.session.process_new_packets().map_err(Error::other)?;
        Ok(bytes)
    }

    pub fn put_half_a_record(&mut self, bytes: &[u8]) {
        self.session.writer().write_all(bytes).expect("room");
        let record = self.sealed();
        let half = &record[..record.len() / 2];
        self.socket.write_all(half).expect("a connection");
    }

    /// RFC 8446, section 7.5, without a context.
    pub fn export(&self, label: &[u8]) -> Vec<u8> {
        let exported = self.session.export_keying_material([0; 32], label, None);
        exported.expect("a session").to_vec()
    }

    pub fn close_notify(&mut self) {
        self.session.send_close_notify();
        let alert = self.sealed();
        self.socket.write_all(&alert).expect("a connection");
    }
}

impl Read for HandMade {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        loop {
            match self.session.reader().read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.receive()?,
                read => return read,
            };
        }
    }
}

impl Write for HandMade {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let taken = self.session.writer().write(bytes)?;
        while self.session.wants_write() {
            self.session.write_tls(&mut self.socket)?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2);
    let digits = digits.map(|two| std::str::from_utf8(two).expect("ASCII"));
    let bytes = digits.map(|two| u8::from_str_radix(two, 16).expect("hex"));
    bytes.collect()
}
