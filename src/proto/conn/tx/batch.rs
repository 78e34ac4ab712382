//! Frames that go to the transport together, as one system call.

use crate::buf::{BounceBuffer, Leases, OutFrame, SendBatch};
use crate::limits::{GATHER_BYTES_MAX, GATHER_FRAMES_MAX};

use super::injected::Run;

/// The batch that goes out next, while the transport has none. Its lists are used again and again.
#[derive(Debug, Default)]
pub(in crate::proto::conn) struct Batch {
    /// Frames that were handed out before and have not gone in full come first.
    pub(super) out: SendBatch,
    pub(super) bytes: usize,
    /// Frames, those in runs by themselves.
    pub(super) count: usize,
    /// Injected messages, which become one frame.
    pub(super) run: Run,
    /// Of its last frame only some is here, so that nothing goes out behind it.
    pub(super) is_cut: bool,
}

impl Batch {
    /// Enough for one system call. One frame at least goes out, however long.
    #[inline]
    pub(in crate::proto::conn) fn is_full(&self) -> bool {
        (self.bytes >= GATHER_BYTES_MAX || self.out.frames.len() >= GATHER_FRAMES_MAX)
            && !(self.out.frames.is_empty() && self.run.is_empty())
            || self.is_cut
    }

    /// Puts a frame behind those that are there.
    #[inline]
    pub(in crate::proto::conn) fn push(&mut self, frame: OutFrame) {
        self.end_run();
        self.count += 1;
        self.bytes = self.bytes.saturating_add(frame.remaining());
        self.out.frames.push_back(frame);
    }

    /// The first bytes of the frame that was pushed last, whose payload is device memory.
    #[cold]
    pub(in crate::proto::conn) fn set_bounce(&mut self, bounce: Box<BounceBuffer>) {
        if let Some(frame) = self.out.frames.back_mut() {
            frame.set_bounce(bounce);
            self.is_cut = frame.is_partly_here();
        }
    }

    pub(in crate::proto::conn) fn push_lease(&mut self, lease: Leases) {
        if !lease.is_empty() {
            self.out.leases.push(lease);
        }
    }

    #[inline]
    fn end_run(&mut self) {
        if !self.run.is_empty() {
            self.out.frames.push_back(self.run.end());
        }
    }

    /// All of it, for the transport. `None`: there is no frame.
    #[inline]
    pub(super) fn take(&mut self) -> Option<SendBatch> {
        self.end_run();
        self.bytes = 0;
        self.is_cut = false;
        self.out.is_burst = std::mem::take(&mut self.count) > 1;
        (!self.out.frames.is_empty()).then(|| std::mem::take(&mut self.out))
    }

    /// It is not handed out: a region that it reads from refuses, and the connection ends.
    pub(in crate::proto::conn) fn give_up(&mut self) {
        self.out.leases.clear();
        self.run = Run::default();
    }

    pub(super) fn clear(&mut self) {
        *self = Batch::default();
    }

    pub(super) fn shrink(&mut self) {
        self.out.frames.shrink_to_fit();
        self.out.leases.shrink_to_fit();
    }
}
