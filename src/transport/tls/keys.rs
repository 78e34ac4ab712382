//! The keys of an open session: the present keys, and the source of later keys, which rustls keeps
//! together with the state of tickets.

use rustls::client::ClientConnectionData;
use rustls::crypto::cipher::{AeadKey, Iv, MessageDecrypter, MessageEncrypter};
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{ConnectionTrafficSecrets, Error, HandshakeType, Tls13CipherSuite};

/// The source of new keys.
pub(super) enum KeySource {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

/// The source of a session's keys, and its cipher suite.
pub(super) struct KeySchedule {
    source: KeySource,
    suite: &'static Tls13CipherSuite,
}

impl KeySchedule {
    pub(super) fn new(source: KeySource, suite: &'static Tls13CipherSuite) -> Self {
        KeySchedule { source, suite }
    }

    /// Returns how many records one key may seal.
    pub(super) fn sealed_max(&self) -> u64 {
        self.suite.common.confidentiality_limit
    }

    pub(super) fn sealing(
        &self,
        secrets: ConnectionTrafficSecrets,
    ) -> Result<Box<dyn MessageEncrypter>, Error> {
        let (key, iv) = parts(secrets)?;
        Ok(self.suite.aead_alg.encrypter(key, iv))
    }

    pub(super) fn opening(
        &self,
        secrets: ConnectionTrafficSecrets,
    ) -> Result<Box<dyn MessageDecrypter>, Error> {
        let (key, iv) = parts(secrets)?;
        Ok(self.suite.aead_alg.decrypter(key, iv))
    }

    pub(super) fn next_sealing(&mut self) -> Result<Box<dyn MessageEncrypter>, Error> {
        let (_, secrets) = match &mut self.source {
            KeySource::Client(client) => client.update_tx_secret()?,
            KeySource::Server(server) => server.update_tx_secret()?,
        };
        self.sealing(secrets)
    }

    pub(super) fn next_opening(&mut self) -> Result<Box<dyn MessageDecrypter>, Error> {
        let (_, secrets) = match &mut self.source {
            KeySource::Client(client) => client.update_rx_secret()?,
            KeySource::Server(server) => server.update_rx_secret()?,
        };
        self.opening(secrets)
    }

    /// Takes a server's ticket, with which a later session is resumed.
    pub(super) fn take_ticket(&mut self, ticket: &[u8]) -> Result<(), Error> {
        match &mut self.source {
            KeySource::Client(client) => client.handle_new_session_ticket(ticket),
            KeySource::Server(_) => Err(Error::InappropriateHandshakeMessage {
                expect_types: vec![HandshakeType::KeyUpdate],
                got_type: HandshakeType::NewSessionTicket,
            }),
        }
    }
}

fn parts(secrets: ConnectionTrafficSecrets) -> Result<(AeadKey, Iv), Error> {
    match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv }
        | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
        | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => Ok((key, iv)),
        _ => Err(Error::General("keys of an unknown kind".into())),
    }
}
