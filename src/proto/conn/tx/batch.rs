//! Frames that go to the transport together, as one system call.

use crate::buf::{BounceBuffer, Leases, Payload, SendBatch};
use crate::limits::{GATHER_BYTES_MAX, GATHER_FRAMES_MAX};
use crate::wire::{ByteOrder, FrameHeader};

use super::handed_out::FrameOwner;

/// The next batch, while the transport has none. Its lists are reused.
#[derive(Debug, Default)]
pub(in crate::proto::conn) struct Batch {
    /// Frames that were handed out before and not sent in full come first. `None`: there is no
    /// frame; the transport has the lists, or they were not needed yet.
    pub(super) out: Option<Box<SendBatch>>,
    pub(super) bytes: usize,
    /// Number of frames, each message of a run counted.
    pub(super) count: usize,
    /// Only a part of the last frame is here, so no frame may follow it.
    pub(super) is_cut: bool,
}

impl Batch {
    /// True if the batch is enough for one system call. At least one frame goes out, however long.
    #[inline]
    pub(in crate::proto::conn) fn is_full(&self) -> bool {
        let frames = self.out.as_ref().map_or(0, |out| out.len());
        (self.bytes >= GATHER_BYTES_MAX || frames >= GATHER_FRAMES_MAX) && frames > 0 || self.is_cut
    }

    /// Appends a frame with this header and payload.
    #[inline]
    pub(in crate::proto::conn) fn push(
        &mut self,
        header: &FrameHeader,
        order: ByteOrder,
        id: u8,
        payload: Payload,
        owner: FrameOwner,
    ) {
        let header_len = header.encoded_len();
        self.count += 1;
        self.bytes = self.bytes.saturating_add(header_len + payload.len());
        let encode = |room: &mut [u8]| header.encode_into(order, id, room);
        self.out_mut()
            .push(header_len, encode, payload, owner.to_token());
    }

    /// Appends a run as one frame: `count` injected messages, whose bytes are in the heads already.
    pub(super) fn push_run(&mut self, count: usize, bytes: usize) {
        self.count += count;
        self.bytes += bytes;
        let owner = FrameOwner::Injected(count as u32); // of at most GATHER_BYTES_MAX bytes
        self.out_mut().push_appended(bytes, owner.to_token());
    }

    #[inline]
    pub(super) fn out_mut(&mut self) -> &mut SendBatch {
        self.out.get_or_insert_default()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.out.as_ref().is_none_or(|out| out.is_empty())
    }

    /// Sets the first bytes of the last frame, whose payload is device memory.
    #[cold]
    pub(in crate::proto::conn) fn set_bounce(&mut self, bounce: Box<BounceBuffer>) {
        if let Some(out) = &mut self.out
            && let Some(last) = out.len().checked_sub(1)
        {
            let frame = out.frame_mut(last);
            frame.set_bounce(bounce);
            self.is_cut = frame.is_partly_here();
        }
    }

    pub(in crate::proto::conn) fn push_lease(&mut self, lease: Leases) {
        if !lease.is_empty() {
            self.out_mut().leases.push(lease);
        }
    }

    /// Takes all frames for the transport. `None`: there is no frame.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Box<SendBatch>> {
        self.bytes = 0;
        self.is_cut = false;
        let count = std::mem::take(&mut self.count);
        let mut out = self.out.take_if(|out| !out.is_empty())?;
        out.is_burst = count > 1;
        Some(out)
    }

    /// Gives the batch up: a region of one of its frames refuses, and the connection ends.
    pub(in crate::proto::conn) fn give_up(&mut self) {
        if let Some(out) = &mut self.out {
            out.leases.clear();
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Batch::default();
    }

    pub(super) fn shrink(&mut self) {
        if self.is_empty() {
            self.out = None;
        }
    }
}
