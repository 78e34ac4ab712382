//! Completions for a link, a listener or a datagram socket, until it takes them.

use std::collections::VecDeque;
use std::mem;
use std::os::fd::OwnedFd;
use std::task::Waker;

use super::bufs::{BufferRing, FilledBuffer};
use super::op::{OpMemory, OpSlot};
use crate::buf::Stage;
use crate::slab::Key;
use crate::transport::epoll::IoDirection;

/// The completions of one owner's operations.
pub(super) enum CompletionSlot {
    Link(Box<LinkCompletions>),
    Listener(Box<ListenerCompletions>),
    Readiness(Box<ReadinessCompletions>),
}

impl CompletionSlot {
    /// Returns this owner's operations that the kernel has.
    pub(super) fn ops(&self) -> impl Iterator<Item = Key> + use<> {
        let ops = match self {
            CompletionSlot::Link(link) => [link.send, link.read, link.poll],
            CompletionSlot::Listener(listener) => [listener.accept, OpSlot::Idle, OpSlot::Idle],
            CompletionSlot::Readiness(socket) => [socket.read, socket.write, OpSlot::Idle],
        };
        ops.into_iter().filter_map(OpSlot::key)
    }
}

pub(super) struct LinkCompletions {
    pub(super) waker: Waker,
    pub(super) send: OpSlot,
    /// A send that has ended, with its result.
    pub(super) sent: Option<(OpMemory, i32)>,
    /// A receive, direct or staged: at most one per socket (memory-model rule 5).
    pub(super) read: OpSlot,
    /// A direct receive that has ended, with its result.
    pub(super) direct_end: Option<(OpMemory, i32)>,
    /// Result of a staged receive that ended without bytes: zero for the end of the stream.
    pub(super) stage_end: Option<i32>,
    /// Number of consecutive completions of the receive that another thread than the submitting one
    /// harvested.
    pub(super) foreign_harvests: u8,
    pub(super) poll: OpSlot,
    pub(super) polled: Option<i32>,
    /// Received bytes that the link has not taken, in order, before `stage_end`: first the bytes
    /// copied out of their buffers, then those still in `filled`.
    copied: VecDeque<u8>,
    pub(super) filled: VecDeque<FilledBuffer>,
}

/// Completions of a socket whose owner makes the system calls itself, and uses the ring for
/// readiness only.
pub(super) struct ReadinessCompletions {
    pub(super) waker: Waker,
    /// One poll per direction.
    pub(super) read: OpSlot,
    pub(super) write: OpSlot,
}

impl ReadinessCompletions {
    pub(super) fn new(waker: Waker) -> Self {
        ReadinessCompletions {
            waker,
            read: OpSlot::Idle,
            write: OpSlot::Idle,
        }
    }

    pub(super) fn poll(&mut self, direction: IoDirection) -> &mut OpSlot {
        match direction {
            IoDirection::Read => &mut self.read,
            IoDirection::Write => &mut self.write,
        }
    }
}

#[derive(Default)]
pub(super) struct ListenerCompletions {
    pub(super) waker: Option<Waker>,
    pub(super) accepted: VecDeque<OwnedFd>,
    pub(super) accept: OpSlot,
    pub(super) error: Option<i32>,
}

impl LinkCompletions {
    pub(super) fn new(waker: Waker) -> Self {
        LinkCompletions {
            waker,
            send: OpSlot::Idle,
            sent: None,
            read: OpSlot::Idle,
            direct_end: None,
            stage_end: None,
            foreign_harvests: 0,
            poll: OpSlot::Idle,
            polled: None,
            copied: VecDeque::new(),
            filled: VecDeque::new(),
        }
    }

    pub(super) fn unread_bytes(&self) -> usize {
        let filled = self.filled.iter().map(FilledBuffer::len);
        self.copied.len() + filled.sum::<usize>()
    }

    /// Returns true if bytes, or the end of the stream, have not been taken.
    pub(super) fn has_received(&self) -> bool {
        !self.copied.is_empty() || !self.filled.is_empty() || self.stage_end.is_some()
    }

    /// Takes the next bytes, at most `size_max`.
    pub(super) fn take_received(
        &mut self,
        buffers: &mut BufferRing,
        size_max: usize,
    ) -> Option<Stage> {
        if !self.copied.is_empty() {
            let mut stage = Stage::take();
            let room = stage.spare();
            let count = self.copied.len().min(size_max).min(room.len());
            let bytes = self.copied.drain(..count);
            room.iter_mut().zip(bytes).for_each(|(at, byte)| *at = byte);
            stage.fill(count);
            if self.copied.is_empty() {
                self.copied = VecDeque::new();
            }
            return Some(stage);
        }
        self.filled.front()?;
        let mut stage = Stage::take();
        while let Some(mut front) = self.filled.pop_front() {
            let left = size_max - stage.len();
            if buffers.copy_to(&mut front, &mut stage, left) {
                buffers.recycle(front);
                continue;
            }
            self.filled.push_front(front);
            break;
        }
        Some(stage)
    }

    /// Puts bytes back that a receive has taken and could not use.
    pub(super) fn put_back(&mut self, stage: Stage) {
        let rest = mem::take(&mut self.copied);
        self.copied = stage.iter().copied().chain(rest).collect();
    }

    /// Copies received bytes out of their buffers, which are returned to the kernel.
    pub(super) fn copy_out(&mut self, buffers: &mut BufferRing) {
        while let Some(front) = self.filled.pop_front() {
            self.copied.extend(buffers.bytes(&front));
            buffers.recycle(front);
        }
    }
}
