//! Sending: seals the outer link's batch in records for the link.

use rustls::crypto::cipher::OutboundChunks;

use super::{Channel, ChannelPhase, StreamEnd};
use crate::buf::{AccessError, CopyTo, Slices, Stage};
use crate::error::Result;
use crate::limits::{TLS_RECORD_MAX, TLS_SEAL_MAX};
use crate::transport::SendBatch;
use crate::transport::stream::Submissions;

impl Channel {
    /// Submits the session's records to the link.
    pub(super) fn flush(&mut self) {
        if self.is_sending || self.phase == ChannelPhase::Dialing || !self.session.has_records() {
            return;
        }
        let records = self.session.take_records();
        self.is_sending = true;
        self.link.send(records);
    }

    /// Seals the next bytes of the submitted batch.
    pub(super) fn seal_from(&mut self, io: &mut Submissions) {
        let Some(batch) = io.batch() else { return };
        if let Some(fault) = self.fault.clone() {
            self.sealed = 0;
            return io.end_send(Err(fault));
        }
        if self.is_sending || self.phase != ChannelPhase::Open || self.session.has_records() {
            return;
        }
        let size_max = TLS_SEAL_MAX.min(io.sizes.send);
        let mut gathered = None;
        let mut sealed = 0;
        let end = loop {
            let len = TLS_RECORD_MAX.min(size_max - sealed);
            match self.seal_record(batch, sealed, len, &mut gathered) {
                Ok((count, refused)) => {
                    sealed += count;
                    if count < len || sealed == size_max {
                        break refused;
                    }
                }
                Err(error) => {
                    self.fault = Some(error.clone());
                    return io.end_send(Err(error));
                }
            }
        };
        match end {
            _ if sealed > 0 => {
                self.sealed = sealed;
                self.flush();
            }
            Some(fault @ AccessError::Fault(_)) => io.end_send(Err(fault.error("sending"))),
            _ => io.end_send(Ok(0)),
        }
    }

    /// Seals up to `len` bytes of the batch after its first `sealed` bytes, in place if possible.
    /// Returns the number of bytes sealed, and the reason if a region refused access.
    fn seal_record(
        &mut self,
        batch: &SendBatch,
        sealed: usize,
        len: usize,
        gathered: &mut Option<Stage>,
    ) -> Result<(usize, Option<AccessError>)> {
        let mut slices = Slices::new();
        if let Some(count) = batch.slices(sealed, len, &mut slices) {
            self.session.seal(OutboundChunks::new(&slices))?;
            return Ok((count, None));
        }
        let stage = gathered.get_or_insert_with(Stage::take);
        let room = &mut stage.spare()[..len];
        let (count, refused) = batch.copy_out(sealed, CopyTo::Slice(room));
        self.session.seal(OutboundChunks::Single(&room[..count]))?;
        Ok((count, refused))
    }

    /// Takes the batch back. Returns how many of its bytes are sealed; these will still be sent.
    pub(in super::super) fn withdraw_batch(&mut self) -> usize {
        std::mem::take(&mut self.sealed)
    }

    /// Ends the link's stream once everything has been sent.
    pub(super) fn finish_link(&mut self) {
        if self.end == StreamEnd::Sealed && !self.is_sending && !self.session.has_records() {
            self.end = StreamEnd::Finished;
            self.link.finish();
        }
    }

    /// Handles a batch that the link returns.
    pub(super) fn handle_sent(
        &mut self,
        mut batch: Box<SendBatch>,
        result: Result<usize>,
        io: &mut Submissions,
    ) {
        if let Ok(sent) = result {
            batch.drop_sent(sent);
            if !batch.is_empty() {
                return self.link.send(batch);
            }
        }
        self.is_sending = false;
        let sealed = std::mem::take(&mut self.sealed);
        match result {
            Ok(_) if sealed > 0 => io.end_send(Ok(sealed)),
            Ok(_) => {}
            Err(error) => {
                if self.phase == ChannelPhase::Shaking {
                    self.break_off(error.clone());
                }
                self.fault.get_or_insert(error);
            }
        }
    }

    /// Ends this side's stream, after everything that was sent.
    pub(in super::super) fn finish(&mut self) {
        if self.end == StreamEnd::Open {
            self.session.close();
            self.end = StreamEnd::Sealed;
        }
    }
}
