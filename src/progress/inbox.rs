//! Inboxes of message streams: the messages that a port's connection has received, and their
//! readers.

use std::collections::VecDeque;
use std::task::{Poll, Waker};

use crate::error::{OperationKind, Result};
use crate::proto::{InboxCounts, InboxId, InboxMessage, ReadCount};
use crate::sync::WaiterKey;

use super::host::with_host;
use super::port::{Port, PortState};

impl PortState {
    /// Wakes the readers: messages have come, or none will.
    pub(super) fn wake_readers(&mut self) {
        if let Some(readers) = &mut self.readers {
            readers.take_all(&mut self.deferred.wakes);
        }
    }
}

impl Port {
    /// Opens an inbox of `depth` messages of at most `size` bytes, whose reader counts what it
    /// reads in `read_count`.
    pub(crate) fn open_inbox(
        &self,
        size: usize,
        depth: usize,
        read_count: ReadCount,
    ) -> Result<InboxId> {
        let mut state = self.lock("open an inbox");
        let opened = self.change_inboxes(&mut state, |state| {
            with_host!(self, state, |machine, host| machine
                .open_inbox(size, depth, read_count, host))
        });
        self.watch_peer(&mut state);
        opened.map_err(|error| error.with_operation(OperationKind::Receive))
    }

    /// Closes an inbox: messages that its reader has not read go back to the endpoint.
    pub(crate) fn close_inbox(
        &self,
        inbox: InboxId,
        unread: VecDeque<InboxMessage>,
        waiter: &mut Option<WaiterKey>,
    ) {
        let _stale; // Declared before the guard, and so dropped after it.
        let mut state = self.lock("close an inbox");
        let readers = state.readers.as_mut();
        _stale = readers.and_then(|readers| readers.remove(waiter));
        state.machine.close_inbox(inbox, unread);
        self.publish_and_wake(&mut state);
    }

    /// Appends new messages to `unread`; `buffers` returns the memory of read ones.
    pub(crate) fn take_messages(
        &self,
        inbox: InboxId,
        unread: &mut VecDeque<InboxMessage>,
        buffers: impl FnOnce(&mut Vec<Vec<u8>>),
    ) {
        let mut state = self.lock("take messages");
        self.move_messages(&mut state, inbox, unread, buffers);
    }

    /// Takes messages for a reader that has read all earlier ones. If there are none, registers the
    /// reader for the next ones. `Err`: the reason why no more will come.
    pub(crate) fn poll_messages(
        &self,
        inbox: InboxId,
        unread: &mut VecDeque<InboxMessage>,
        buffers: impl FnOnce(&mut Vec<Vec<u8>>),
        waiter: &mut Option<WaiterKey>,
        waker: &Waker,
    ) -> Poll<Result<()>> {
        let _stale; // Declared before the guard, and so dropped after it.
        let mut state = self.lock("wait for messages");
        self.move_messages(&mut state, inbox, unread, buffers);
        if !unread.is_empty() {
            return Poll::Ready(Ok(()));
        }
        if state.machine.lifecycle().is_closed() {
            let error = state.about_peer(state.machine.why_ended());
            return Poll::Ready(Err(error.with_operation(OperationKind::Receive)));
        }
        let readers = state.readers.get_or_insert_default();
        _stale = readers.register(waiter, waker);
        Poll::Pending
    }

    fn move_messages(
        &self,
        state: &mut PortState,
        inbox: InboxId,
        unread: &mut VecDeque<InboxMessage>,
        buffers: impl FnOnce(&mut Vec<Vec<u8>>),
    ) {
        self.change_inboxes(state, |state| {
            with_host!(self, state, |machine, host| machine
                .take_messages(inbox, unread, buffers, host));
        });
    }

    /// Changes inboxes, which may make room, then wakes the driver if reading or the peer waits for
    /// room.
    fn change_inboxes<R>(
        &self,
        state: &mut PortState,
        change: impl FnOnce(&mut PortState) -> R,
    ) -> R {
        let was_paused = state.machine.is_read_paused();
        let changed = change(state);
        if was_paused || state.io.stage.is_some() || state.machine.wants_credit() {
            self.waker.wake_by_ref();
        }
        self.publish_and_wake(state);
        changed
    }

    /// Counts messages that have come as received, and wakes their readers.
    #[inline(never)]
    pub(super) fn publish_messages(&self, state: &mut PortState) {
        let InboxCounts {
            whole,
            truncated,
            bytes,
        } = state.machine.take_inbox_counts();
        let receives = &mut state.counts.operations.receives;
        receives.succeeded += whole;
        receives.failed += truncated;
        receives.bytes += bytes;
        state.counts.published += whole + truncated;
        state.wake_readers();
        let Some(counter) = state.bindings.counter(OperationKind::Receive) else {
            return;
        };
        if whole > 0 {
            counter.add_into(whole, &mut state.deferred.wakes);
        }
        if truncated > 0 {
            counter.add_error_into(truncated, &mut state.deferred.wakes);
        }
    }
}
