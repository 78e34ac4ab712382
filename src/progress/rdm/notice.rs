//! What an endpoint's task is told, by ports and by whoever posts.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use crate::error::Error;
use crate::proto::{AttemptId, ConnectionId, Failure};

/// Something that the task is to know.
#[derive(Debug)]
pub(super) enum Notice {
    /// A port was made that nobody has dialled.
    Want { peer: SocketAddr },
    Connected {
        peer: SocketAddr,
        attempt: Option<AttemptId>,
        connection: ConnectionId,
        incarnation: u32,
    },
    Failed {
        peer: SocketAddr,
        attempt: AttemptId,
        failure: Failure,
        /// The peer's, if it said so when it rejected us.
        incarnation: Option<u32>,
        error: Error,
    },
    /// Its port takes no posts any more.
    Ending {
        peer: SocketAddr,
        attempt: AttemptId,
    },
    /// Its port has ended.
    Closed {
        peer: SocketAddr,
        attempt: Option<AttemptId>,
        connection: ConnectionId,
        in_order: bool,
    },
}

/// Notices in the order in which they were given. Their lock is taken last and alone.
#[derive(Debug, Default)]
pub(super) struct Notices {
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    notices: VecDeque<Notice>,
    task: Option<Waker>,
}

impl Notices {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one; the waker is to be woken once no lock is held.
    #[must_use]
    pub(super) fn push(&self, notice: Notice) -> Option<Waker> {
        let mut list = self.lock();
        list.notices.push_back(notice);
        list.task.take()
    }

    /// Wakes the task.
    pub(super) fn wake(&self) {
        let task = self.lock().task.take();
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Takes the next; with none left the task is remembered.
    pub(super) fn pop(&self, task: Option<&Waker>) -> Option<Notice> {
        let mut list = self.lock();
        let notice = list.notices.pop_front();
        if let (None, Some(task)) = (&notice, task) {
            list.task = Some(task.clone());
        }
        notice
    }
}
