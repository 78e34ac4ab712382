//! Seals records, with a key that can be replaced.

use rustls::crypto::cipher::{MessageEncrypter, OutboundChunks, OutboundPlainMessage};
use rustls::{ContentType, Error, ProtocolVersion};

pub(super) struct Sealer {
    key: Box<dyn MessageEncrypter>,
    /// The number of the next record under this key.
    sequence: u64,
}

impl Sealer {
    pub(super) fn new(sequence: u64, key: Box<dyn MessageEncrypter>) -> Self {
        Sealer { key, sequence }
    }

    /// Seals one record of at most [`TLS_RECORD_MAX`](crate::limits::TLS_RECORD_MAX) bytes. rustls
    /// returns the record in memory that it allocates; that memory is sent.
    pub(super) fn seal(
        &mut self,
        kind: ContentType,
        plaintext: OutboundChunks<'_>,
    ) -> Result<Vec<u8>, Error> {
        let message = OutboundPlainMessage {
            typ: kind,
            version: ProtocolVersion::TLSv1_2,
            payload: plaintext,
        };
        let sealed = self.key.encrypt(message, self.sequence)?;
        self.sequence += 1;
        Ok(sealed.encode())
    }

    /// Returns how many records this key has sealed.
    pub(super) fn sealed_count(&self) -> u64 {
        self.sequence
    }

    #[cfg(test)]
    pub(super) fn skip(&mut self, records: u64) {
        self.sequence += records;
    }

    /// Changes the key, from the next record on.
    pub(super) fn set_key(&mut self, key: Box<dyn MessageEncrypter>) {
        *self = Sealer::new(0, key);
    }
}
