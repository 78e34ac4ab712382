//! Notices to an endpoint's task, from its ports and from posts.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use crate::error::Error;
use crate::id::PeerAddr;
use crate::proto::{AttemptId, ConnectionId, Failure};

/// An event for the task.
#[derive(Debug)]
pub(super) enum Notice {
    /// A port was made, and must be dialled.
    Want { peer: PeerAddr },
    Connected {
        peer: PeerAddr,
        attempt: Option<AttemptId>,
        connection: ConnectionId,
        incarnation: u32,
    },
    Failed {
        peer: PeerAddr,
        attempt: AttemptId,
        failure: Failure,
        /// The peer's incarnation, if it reported one when it rejected the attempt.
        incarnation: Option<u32>,
        error: Error,
    },
    /// The port takes no posts any more.
    Ending { peer: PeerAddr, attempt: AttemptId },
    /// The port has ended.
    Closed {
        peer: PeerAddr,
        attempt: Option<AttemptId>,
        connection: ConnectionId,
        in_order: bool,
    },
}

/// Notices in FIFO order. The queue's lock is taken last and alone.
#[derive(Debug, Default)]
pub(super) struct NoticeQueue {
    list: Mutex<NoticeState>,
}

#[derive(Debug, Default)]
struct NoticeState {
    notices: VecDeque<Notice>,
    task: Option<Waker>,
}

impl NoticeQueue {
    fn lock(&self) -> MutexGuard<'_, NoticeState> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a notice; returns a waker to be woken once no lock is held.
    #[must_use]
    pub(super) fn push(&self, notice: Notice) -> Option<Waker> {
        let mut list = self.lock();
        list.notices.push_back(notice);
        list.task.take()
    }

    pub(super) fn wake(&self) {
        let task = self.lock().task.take();
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Takes the next notice; if there is none, registers the task's waker.
    pub(super) fn pop(&self, task: Option<&Waker>) -> Option<Notice> {
        let mut list = self.lock();
        let notice = list.notices.pop_front();
        if let (None, Some(task)) = (&notice, task) {
            list.task = Some(task.clone());
        }
        notice
    }
}
