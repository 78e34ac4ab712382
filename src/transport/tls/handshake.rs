//! The handshake, without I/O: rustls' unbuffered connection gets one record at a time, so that it
//! opens no record after the handshake's last one. Then it hands over its keys.

use std::sync::Arc;

use bytes::Bytes;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus,
};
use rustls::{ClientConfig, CommonState, Error, ExtractedSecrets, ServerConfig};

use super::keys::{KeySchedule, KeySource};
use super::record::{HEAD_LEN, RecordQueue, record_len};
use crate::buf::Stage;
use crate::identity::{PeerCertificates, PeerIdentity};
use crate::tls::exporter::{ExporterSecret, catch_secret};

/// A handshake under way.
pub(super) struct Handshake {
    side: HandshakeSide,
    /// Complete records that rustls has not processed, then the received part of the next record.
    incoming: Vec<u8>,
    /// Number of bytes of the complete records in `incoming`.
    whole: usize,
    exporter: Option<ExporterSecret>,
}

enum HandshakeSide {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// The result of a handshake.
pub(super) struct Agreement {
    pub(super) schedule: KeySchedule,
    pub(super) secrets: ExtractedSecrets,
    pub(super) peer: PeerIdentity,
}

/// The result of a step: `More` if rustls may take another one without more bytes.
enum Step {
    More,
    Nothing,
}

impl Handshake {
    pub(super) fn client(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> Result<Self, Error> {
        let client = UnbufferedClientConnection::new(config, name)?;
        Ok(Handshake::of(HandshakeSide::Client(client)))
    }

    pub(super) fn server(config: Arc<ServerConfig>) -> Result<Self, Error> {
        let server = UnbufferedServerConnection::new(config)?;
        Ok(Handshake::of(HandshakeSide::Server(server)))
    }

    fn of(side: HandshakeSide) -> Self {
        Handshake {
            side,
            incoming: Vec::new(),
            whole: 0,
            exporter: None,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        !self.agreed().is_handshaking()
    }

    /// Returns the parameters that are agreed on so far.
    pub(super) fn agreed(&self) -> &CommonState {
        match &self.side {
            HandshakeSide::Client(client) => client,
            HandshakeSide::Server(server) => server,
        }
    }

    /// Takes the bytes of at most one record from the stage; returns their number.
    ///
    /// # Errors
    /// The handshake has failed; an alert for the peer is in `records`.
    pub(super) fn take_in(
        &mut self,
        stage: &mut Stage,
        records: &mut RecordQueue,
    ) -> Result<usize, Error> {
        let mut taken = 0;
        loop {
            let begun = self.incoming.len() - self.whole;
            let len = match record_len(&self.incoming[self.whole..]) {
                Ok(len) => len.unwrap_or(HEAD_LEN),
                Err(error) => {
                    // rustls refuses the record too, and queues an alert.
                    self.whole = self.incoming.len();
                    return self.advance(records).and(Err(error));
                }
            };
            if begun == len {
                self.whole = self.incoming.len();
                self.advance(records)?;
                return Ok(taken);
            }
            let count = (len - begun).min(stage.len());
            if count == 0 {
                return Ok(taken);
            }
            self.incoming.extend_from_slice(&stage[..count]);
            stage.advance(count);
            taken += count;
        }
    }

    /// Makes rustls take all steps that it can take now. A client begins with this.
    pub(super) fn advance(&mut self, records: &mut RecordQueue) -> Result<(), Error> {
        loop {
            match self.step(records) {
                Ok(Step::More) => {}
                Ok(Step::Nothing) => return Ok(()),
                Err(error) => {
                    // If there is an alert, it is the next step.
                    let _ = self.step(records);
                    return Err(error);
                }
            }
        }
    }

    fn step(&mut self, records: &mut RecordQueue) -> Result<Step, Error> {
        let incoming = &mut self.incoming[..self.whole];
        let ((done, step), secret) = catch_secret(|| match &mut self.side {
            HandshakeSide::Client(client) => {
                take_step(client.process_tls_records(incoming), records)
            }
            HandshakeSide::Server(server) => {
                take_step(server.process_tls_records(incoming), records)
            }
        });
        self.exporter = secret.or(self.exporter.take());
        self.incoming.drain(..done);
        self.whole -= done;
        step
    }

    /// Refuses the peer although the handshake succeeded: queues a `close_notify`.
    pub(super) fn close(&mut self, records: &mut RecordQueue) {
        let incoming = &mut self.incoming[..self.whole];
        match &mut self.side {
            HandshakeSide::Client(client) => end(client.process_tls_records(incoming), records),
            HandshakeSide::Server(server) => end(server.process_tls_records(incoming), records),
        }
    }

    /// Returns the result of a completed TLS 1.3 handshake.
    pub(super) fn finish(self) -> Result<Agreement, Error> {
        let agreed = self.agreed();
        let suite = agreed.negotiated_cipher_suite();
        let suite = suite.and_then(|suite| suite.tls13());
        let (Some(suite), Some(exporter)) = (suite, &self.exporter) else {
            return Err(Error::HandshakeNotComplete);
        };
        let chain = agreed.peer_certificates().unwrap_or_default().iter();
        let peer = PeerIdentity {
            certificates: PeerCertificates::new(
                chain.map(|certificate| Bytes::copy_from_slice(certificate)),
            ),
            binding: exporter.binding(suite),
        };
        let (secrets, source) = match self.side {
            HandshakeSide::Client(client) => {
                let (secrets, client) = client.dangerous_into_kernel_connection()?;
                (secrets, KeySource::Client(client))
            }
            HandshakeSide::Server(server) => {
                let (secrets, server) = server.dangerous_into_kernel_connection()?;
                (secrets, KeySource::Server(server))
            }
        };
        Ok(Agreement {
            schedule: KeySchedule::new(source, suite),
            secrets,
            peer,
        })
    }
}

/// Carries out the step that rustls asks for. Returns how many bytes rustls has consumed, and
/// whether it asks for another step.
fn take_step<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    records: &mut RecordQueue,
) -> (usize, Result<Step, Error>) {
    let step = status.state.and_then(|state| match state {
        ConnectionState::EncodeTlsData(data) => {
            records.push(encode(data)?);
            Ok(Step::More)
        }
        ConnectionState::TransmitTlsData(sent) => {
            sent.done();
            Ok(Step::More)
        }
        ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_) => Ok(Step::Nothing),
        _ => Err(Error::General("data in a handshake".into())),
    });
    (status.discard, step)
}

fn encode<Data>(mut data: EncodeTlsData<'_, Data>) -> Result<Vec<u8>, Error> {
    let mut record = Vec::new();
    loop {
        match data.encode(&mut record) {
            Ok(len) => {
                record.truncate(len);
                return Ok(record);
            }
            Err(EncodeError::InsufficientSize(size)) => record.resize(size.required_size, 0),
            Err(error) => return Err(Error::General(error.to_string())),
        }
    }
}

fn end<Data>(status: UnbufferedStatus<'_, '_, Data>, records: &mut RecordQueue) {
    let Ok(ConnectionState::WriteTraffic(mut traffic)) = status.state else {
        return;
    };
    // The error has the length of the record.
    if let Err(EncryptError::InsufficientSize(size)) = traffic.queue_close_notify(&mut []) {
        let mut record = vec![0; size.required_size];
        if let Ok(len) = traffic.queue_close_notify(&mut record) {
            record.truncate(len);
            records.push(record);
        }
    }
}
