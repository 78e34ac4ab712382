//! Mailboxes: what has ended for a link or a listener, until it takes it.

use std::collections::VecDeque;
use std::mem;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Waker;

use super::bufs::{Arrived, BufferRing};
use super::op::Cargo;
use crate::buf::{Stage, StagePool};
use crate::limits::STAGE_SIZE;
use crate::slab::Key;
use crate::transport::epoll::Side;

/// How many bytes may lie in a mailbox before its receive is stopped: a connection that nobody
/// reads from holds so many, and what the kernel adds until the stop.
pub(super) const ARRIVED_MAX: usize = 2 * STAGE_SIZE;
/// Connections that wait in a listener's mailbox before accepting is stopped.
pub(super) const ACCEPTED_MAX: usize = 64;
/// Where the ends of somebody's operations go.
pub(super) enum Mailbox {
    Link(Box<LinkMail>),
    Listener(Box<ListenerMail>),
    Watch(Box<WatchMail>),
}

pub(super) struct LinkMail {
    pub(super) waker: Waker,
    stages: Arc<StagePool>,
    /// The operations in flight, and the ends of those that are not, until the link takes them: the
    /// memory stays in its cargo as long.
    pub(super) send_op: Option<Key>,
    pub(super) sent: Option<(Cargo, i32)>,
    /// A receive, whether direct or staged: one at most per socket (memory-model rule 5).
    pub(super) read_op: Option<Key>,
    pub(super) direct_end: Option<(Cargo, i32)>,
    /// How a staged receive ended, other than by bytes: zero for the end of the stream.
    pub(super) stage_end: Option<i32>,
    /// Its completions in a row that another thread harvested.
    pub(super) strays: u8,
    /// A cancellation of the receive is on its way.
    pub(super) read_cancelled: bool,
    pub(super) poll_op: Option<Key>,
    pub(super) polled: Option<i32>,
    /// Bytes that came and are not told yet, in order, before `stage_end`: first those copied out
    /// of their buffers, then those still there.
    copied: VecDeque<u8>,
    pub(super) arrived: VecDeque<Arrived>,
}

/// Of who makes the calls itself, and waits for readiness only.
pub(super) struct WatchMail {
    pub(super) waker: Waker,
    /// The polls in flight.
    pub(super) reading: Option<Key>,
    pub(super) writing: Option<Key>,
}

impl WatchMail {
    pub(super) fn new(waker: Waker) -> Self {
        WatchMail {
            waker,
            reading: None,
            writing: None,
        }
    }

    pub(super) fn side(&mut self, side: Side) -> &mut Option<Key> {
        match side {
            Side::Read => &mut self.reading,
            Side::Write => &mut self.writing,
        }
    }
}

#[derive(Default)]
pub(super) struct ListenerMail {
    pub(super) waker: Option<Waker>,
    pub(super) accepted: VecDeque<OwnedFd>,
    pub(super) op: Option<Key>,
    pub(super) stopping: bool,
    pub(super) error: Option<i32>,
}

impl LinkMail {
    pub(super) fn new(waker: Waker, stages: Arc<StagePool>) -> Self {
        LinkMail {
            waker,
            stages,
            send_op: None,
            sent: None,
            read_op: None,
            direct_end: None,
            stage_end: None,
            strays: 0,
            read_cancelled: false,
            poll_op: None,
            polled: None,
            copied: VecDeque::new(),
            arrived: VecDeque::new(),
        }
    }

    pub(super) fn arrived_bytes(&self) -> usize {
        let arrived = self.arrived.iter().map(Arrived::len);
        self.copied.len() + arrived.sum::<usize>()
    }

    /// True if bytes or an end wait to be told.
    pub(super) fn has_news(&self) -> bool {
        !self.copied.is_empty() || !self.arrived.is_empty() || self.stage_end.is_some()
    }

    /// The next bytes, at most `size_max`.
    pub(super) fn take_arrived(
        &mut self,
        buffers: &mut BufferRing,
        size_max: usize,
    ) -> Option<Stage> {
        if !self.copied.is_empty() {
            let mut stage = self.stages.take();
            let count = self.copied.len().min(size_max).min(stage.spare().len());
            let (first, second) = self.copied.as_slices();
            let (first, second) = match first.get(..count) {
                Some(all) => (all, &[][..]),
                None => (first, &second[..count - first.len()]),
            };
            let (room, rest) = stage.spare().split_at_mut(first.len());
            room.copy_from_slice(first);
            rest[..second.len()].copy_from_slice(second);
            stage.fill(count);
            self.copied.drain(..count);
            if self.copied.is_empty() {
                self.copied = VecDeque::new();
            }
            return Some(stage);
        }
        self.arrived.front()?;
        let mut stage = self.stages.take();
        while let Some(mut front) = self.arrived.pop_front() {
            let left = size_max - stage.len();
            if buffers.move_to(&mut front, &mut stage, left) {
                buffers.give_back(front);
                continue;
            }
            self.arrived.push_front(front);
            break;
        }
        Some(stage)
    }

    /// Puts bytes back that the receive they were taken for did not want.
    pub(super) fn put_back(&mut self, stage: Stage) {
        let rest = mem::take(&mut self.copied);
        self.copied = stage.iter().copied().chain(rest).collect();
    }

    /// Copies what has arrived out of its buffers.
    pub(super) fn copy_out(&mut self, buffers: &mut BufferRing) {
        while let Some(front) = self.arrived.pop_front() {
            self.copied.extend(buffers.bytes(&front));
            buffers.give_back(front);
        }
    }
}
