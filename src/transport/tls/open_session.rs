//! A session with keys: application data in records, and the messages between them (RFC 8446,
//! sections 4.6 and 6): tickets, key updates, alerts.

use rustls::crypto::cipher::OutboundChunks;
use rustls::{AlertDescription, ContentType, Error, HandshakeType, InvalidMessage, PeerMisbehaved};

use super::handshake::Agreement;
use super::keys::KeySchedule;
use super::opener::{OpenedRecord, Opener};
use super::record::{FATAL, KEY_UPDATE, NEW_SESSION_TICKET, RecordQueue, WARNING};
use super::sealer::Sealer;
use crate::buf::Stage;
use crate::identity::PeerIdentity;
use crate::limits::{
    TLS_EMPTY_RECORDS_MAX, TLS_KEY_UPDATES_MAX, TLS_MESSAGE_SIZE_MAX, TLS_RECORD_MAX,
};

pub(super) struct OpenSession {
    schedule: KeySchedule,
    sealer: Sealer,
    opener: Opener,
    peer: PeerIdentity,
    /// A handshake message that was received in part.
    message: Vec<u8>,
    /// Number of empty records in a row.
    empty_records: u8,
    /// Number of key updates of the peer since it last sent data.
    key_updates: u8,
    /// True if the peer has requested a key update of ours, which is still due.
    owes_update: bool,
    is_peer_closed: bool,
    /// True once the final alert was sent.
    is_ended: bool,
}

impl OpenSession {
    pub(super) fn new(agreement: Agreement) -> Result<Self, Error> {
        let Agreement {
            schedule,
            secrets,
            peer,
        } = agreement;
        let (sealed, sealing) = secrets.tx;
        let (opened, opening) = secrets.rx;
        Ok(OpenSession {
            sealer: Sealer::new(sealed, schedule.sealing(sealing)?),
            opener: Opener::new(opened, schedule.opening(opening)?),
            schedule,
            peer,
            message: Vec::new(),
            empty_records: 0,
            key_updates: 0,
            owes_update: false,
            is_peer_closed: false,
            is_ended: false,
        })
    }

    pub(super) fn peer(&self) -> &PeerIdentity {
        &self.peer
    }

    pub(super) fn is_peer_closed(&self) -> bool {
        self.is_peer_closed
    }

    pub(super) fn owes_update(&self) -> bool {
        self.owes_update
    }

    pub(super) fn opener(&mut self) -> &mut Opener {
        &mut self.opener
    }

    /// Returns the bytes of records that are held outside of the stage.
    pub(super) fn joined_len(&self) -> usize {
        self.opener.joined_len()
    }

    // Receiving.

    /// Opens records until one has data; `None`: no complete record is left.
    pub(super) fn open(&mut self, stage: &mut Stage) -> Result<Option<OpenedRecord>, Error> {
        while !self.is_peer_closed
            && let Some(mut record) = self.opener.open(stage)?
        {
            if !self.message.is_empty() && record.kind != ContentType::Handshake {
                return Err(PeerMisbehaved::MessageInterleavedWithHandshakeMessage.into());
            }
            let len = record.len();
            if len > 0 {
                self.empty_records = 0;
            } else if self.empty_records == TLS_EMPTY_RECORDS_MAX {
                return Err(PeerMisbehaved::TooManyEmptyFragments.into());
            } else {
                self.empty_records += 1;
            }
            let plaintext = self.opener.plaintext(stage, &record);
            match record.kind {
                ContentType::ApplicationData if len > 0 => {
                    self.key_updates = 0;
                    return Ok(Some(record));
                }
                ContentType::ApplicationData => {}
                ContentType::Handshake if len > 0 => {
                    if self.message.len() + len > TLS_MESSAGE_SIZE_MAX {
                        return Err(InvalidMessage::HandshakePayloadTooLarge.into());
                    }
                    self.message.extend_from_slice(plaintext);
                }
                ContentType::Alert => match *plaintext {
                    [_, description] => self.take_alert(description.into())?,
                    _ => return Err(InvalidMessage::MessageTooShort.into()),
                },
                kind => {
                    return Err(Error::InappropriateMessage {
                        expect_types: vec![ContentType::ApplicationData, ContentType::Handshake],
                        got_type: kind,
                    });
                }
            }
            self.opener.consume(stage, &mut record, len);
            self.take_messages()?;
        }
        if self.is_peer_closed {
            // Bytes after the end of the stream are discarded.
            stage.advance(stage.len());
        }
        Ok(None)
    }

    fn take_alert(&mut self, description: AlertDescription) -> Result<(), Error> {
        match description {
            AlertDescription::CloseNotify => self.is_peer_closed = true,
            // This alert only announces `close_notify`.
            AlertDescription::UserCanceled => {}
            description => return Err(Error::AlertReceived(description)),
        }
        Ok(())
    }

    /// Processes the handshake messages that are complete.
    fn take_messages(&mut self) -> Result<(), Error> {
        let message = std::mem::take(&mut self.message);
        let mut left = &message[..];
        while let Some((&[kind, high, mid, low], rest)) = left.split_first_chunk() {
            let len = u32::from_be_bytes([0, high, mid, low]) as usize;
            if len > TLS_MESSAGE_SIZE_MAX {
                return Err(InvalidMessage::HandshakePayloadTooLarge.into());
            }
            let Some((body, behind)) = rest.split_at_checked(len) else {
                break;
            };
            match (kind, body) {
                (NEW_SESSION_TICKET, ticket) => self.schedule.take_ticket(ticket)?,
                (KEY_UPDATE, [0 | 1]) if !behind.is_empty() => {
                    return Err(PeerMisbehaved::KeyEpochWithPendingFragment.into());
                }
                (KEY_UPDATE, [asks @ (0 | 1)]) => self.take_update(*asks == 1)?,
                (KEY_UPDATE, _) => return Err(InvalidMessage::InvalidKeyUpdate.into()),
                (kind, _) => {
                    return Err(Error::InappropriateHandshakeMessage {
                        expect_types: vec![
                            HandshakeType::NewSessionTicket,
                            HandshakeType::KeyUpdate,
                        ],
                        got_type: kind.into(),
                    });
                }
            }
            left = behind;
        }
        self.message.extend_from_slice(left);
        Ok(())
    }

    /// Changes the key that opens the peer's records, from the next record on.
    fn take_update(&mut self, asks: bool) -> Result<(), Error> {
        if self.key_updates == TLS_KEY_UPDATES_MAX {
            return Err(PeerMisbehaved::TooManyKeyUpdateRequests.into());
        }
        self.key_updates += 1;
        self.owes_update |= asks;
        self.opener.set_key(self.schedule.next_opening()?);
        Ok(())
    }

    // Sending.

    /// Seals data.
    pub(super) fn seal(
        &mut self,
        mut plaintext: OutboundChunks<'_>,
        records: &mut RecordQueue,
    ) -> Result<(), Error> {
        while !plaintext.is_empty() {
            let (part, rest) = plaintext.split_at(TLS_RECORD_MAX);
            plaintext = rest;
            if self.sealer.sealed_count() >= self.schedule.sealed_max() {
                self.update_key(true, records)?;
            }
            let record = self.sealer.seal(ContentType::ApplicationData, part)?;
            records.push(record);
        }
        Ok(())
    }

    /// Updates our key if the peer has requested it.
    pub(super) fn update_if_owed(&mut self, records: &mut RecordQueue) -> Result<(), Error> {
        match self.owes_update {
            true => self.update_key(false, records),
            false => Ok(()),
        }
    }

    /// Seals with a new key from the next record on. `asks`: requests that the peer does the same.
    pub(super) fn update_key(
        &mut self,
        asks: bool,
        records: &mut RecordQueue,
    ) -> Result<(), Error> {
        self.owes_update = false;
        let message = [KEY_UPDATE, 0, 0, 1, u8::from(asks)];
        records.push(
            self.sealer
                .seal(ContentType::Handshake, OutboundChunks::Single(&message))?,
        );
        self.sealer.set_key(self.schedule.next_sealing()?);
        Ok(())
    }

    /// Sends the final alert, once.
    pub(super) fn end(&mut self, alert: AlertDescription, records: &mut RecordQueue) {
        if std::mem::replace(&mut self.is_ended, true) {
            return;
        }
        let level = match alert {
            AlertDescription::CloseNotify => WARNING,
            _ => FATAL,
        };
        if let Ok(record) = self.sealer.seal(
            ContentType::Alert,
            OutboundChunks::Single(&[level, alert.into()]),
        ) {
            records.push(record);
        }
    }

    /// Seals a record of any type.
    #[cfg(test)]
    pub(super) fn seal_as(
        &mut self,
        kind: ContentType,
        plaintext: &[u8],
        records: &mut RecordQueue,
    ) {
        records.push(
            self.sealer
                .seal(kind, OutboundChunks::Single(plaintext))
                .unwrap(),
        );
    }

    /// Skips sequence numbers, as if that many records had been sealed or opened with the key.
    #[cfg(test)]
    pub(super) fn skip(&mut self, sealed: u64, opened: u64) {
        self.sealer.skip(sealed);
        self.opener.skip(opened);
    }

    /// Returns how many records one key may seal.
    #[cfg(test)]
    pub(super) fn sealed_max(&self) -> u64 {
        self.schedule.sealed_max()
    }
}
