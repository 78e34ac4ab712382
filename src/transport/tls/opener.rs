//! Opens records in place: in the staging buffer that received them or, if a record spans two
//! buffers, in the buffer that joins its parts.

use std::ops::Range;

use rustls::crypto::cipher::{InboundOpaqueMessage, MessageDecrypter};
use rustls::{ContentType, Error, InvalidMessage, ProtocolVersion};

use super::record::{HEAD_LEN, record_len};
use crate::buf::Stage;

pub(super) struct Opener {
    key: Box<dyn MessageDecrypter>,
    /// The number of the next record under this key.
    sequence: u64,
    /// The received part of a record that spans several buffers; otherwise without memory.
    joined: Vec<u8>,
}

/// An opened record: at the front of the stage, or the joined one.
#[derive(Debug)]
pub(super) struct OpenedRecord {
    pub(super) kind: ContentType,
    is_joined: bool,
    /// Range of the plaintext that has not been consumed.
    plaintext: Range<usize>,
    len: usize,
}

impl OpenedRecord {
    pub(super) fn len(&self) -> usize {
        self.plaintext.len()
    }

    /// Returns true if the stage holds nothing but this record.
    pub(super) fn is_all_of(&self, stage: &Stage) -> bool {
        !self.is_joined && self.len == stage.len()
    }

    /// Reduces the stage, which must hold only this record, to the record's plaintext.
    pub(super) fn into_stage(self, mut stage: Stage) -> Stage {
        stage.advance(self.plaintext.start);
        stage.truncate(self.plaintext.len());
        stage
    }
}

impl Opener {
    pub(super) fn new(sequence: u64, key: Box<dyn MessageDecrypter>) -> Self {
        Opener {
            key,
            sequence,
            joined: Vec::new(),
        }
    }

    #[cfg(test)]
    pub(super) fn skip(&mut self, records: u64) {
        self.sequence += records;
    }

    /// Changes the key, from the next record on.
    pub(super) fn set_key(&mut self, key: Box<dyn MessageDecrypter>) {
        self.key = key;
        self.sequence = 0;
    }

    /// Opens the next record. `None`: the record is not complete, and the stage is empty. The
    /// previous record must be consumed.
    pub(super) fn open(&mut self, stage: &mut Stage) -> Result<Option<OpenedRecord>, Error> {
        let in_stage = match self.joined.is_empty() {
            true => record_len(stage)?.filter(|len| *len <= stage.len()),
            false => None,
        };
        let (record, is_joined) = match in_stage {
            Some(len) => (&mut stage.held_mut()[..len], false),
            None if self.join(stage)? => (&mut self.joined[..], true),
            None => return Ok(None),
        };
        let len = record.len();
        let begin = record.as_ptr().addr();
        let (head, sealed) = record.split_at_mut(HEAD_LEN);
        if ContentType::from(head[0]) != ContentType::ApplicationData {
            return Err(InvalidMessage::UnexpectedMessage("a record that is not sealed").into());
        }
        let sealed = InboundOpaqueMessage::new(
            ContentType::ApplicationData,
            ProtocolVersion::TLSv1_2,
            sealed,
        );
        let opened = self.key.decrypt(sealed, self.sequence)?;
        self.sequence += 1;
        let start = opened.payload.as_ptr().addr().wrapping_sub(begin);
        let plaintext = start..start.wrapping_add(opened.payload.len());
        let kind = opened.typ;
        if plaintext.start > plaintext.end || plaintext.end > len {
            return Err(Error::General("a record is not opened in place".into()));
        }
        Ok(Some(OpenedRecord {
            kind,
            is_joined,
            plaintext,
            len,
        }))
    }

    /// Appends the next part of a record to the parts received before. Returns whether the record
    /// is complete.
    fn join(&mut self, stage: &mut Stage) -> Result<bool, Error> {
        loop {
            let len = record_len(&self.joined)?;
            if len == Some(self.joined.len()) {
                return Ok(true);
            }
            let missing = len.unwrap_or(HEAD_LEN) - self.joined.len();
            let count = missing.min(stage.len());
            if count == 0 {
                return Ok(false);
            }
            self.joined.reserve_exact(missing);
            self.joined.extend_from_slice(&stage[..count]);
            stage.advance(count);
        }
    }

    /// Returns the plaintext of the record that has not been consumed.
    pub(super) fn plaintext<'a>(&'a self, stage: &'a Stage, record: &OpenedRecord) -> &'a [u8] {
        match record.is_joined {
            true => &self.joined[record.plaintext.clone()],
            false => &stage[record.plaintext.clone()],
        }
    }

    /// Consumes `count` bytes of the record's plaintext. Returns whether the record is consumed.
    pub(super) fn consume(
        &mut self,
        stage: &mut Stage,
        record: &mut OpenedRecord,
        count: usize,
    ) -> bool {
        assert!(count <= record.len(), "only what is there is consumed");
        record.plaintext.start += count;
        if record.len() > 0 {
            return false;
        }
        match record.is_joined {
            true => self.joined = Vec::new(),
            false => stage.advance(record.len),
        }
        true
    }

    /// Returns the bytes of records that are held outside of the stage.
    pub(super) fn joined_len(&self) -> usize {
        self.joined.len()
    }
}
