//! Inboxes of a connected endpoint: streams take their messages as they come (`matching/inbox.rs`).

use std::collections::VecDeque;

use crate::buf::Payload;
use crate::error::Error;
use crate::proto::Host;
use crate::proto::matching::inbox::{InboxCounts, InboxId, InboxMessage, ReadCount};
use crate::proto::matching::{Arrival, ReceivedMessage};

use super::Connection;
use super::post::not_of_this_kind;

impl<T> Connection<T> {
    /// Opens an inbox for `depth` messages of at most `size` bytes, and moves unexpected messages
    /// into it. The reader counts the messages that it reads in `read_count`.
    pub(crate) fn open_inbox(
        &mut self,
        size: usize,
        depth: usize,
        read_count: ReadCount,
        host: &mut impl Host<T>,
    ) -> Result<InboxId, Error> {
        let own = self.own_mut().ok_or_else(not_of_this_kind)?;
        // This uses up a message number; the numbers have gaps anyway.
        let number = own.matcher.next_order();
        let inbox = own.inboxes.open(number, size, depth, read_count);
        self.fill_inboxes();
        self.resume(host);
        Ok(inbox)
    }

    /// Closes an inbox. Its messages, and those that its reader had taken but not read (`unread`),
    /// wait for the next receive.
    pub(crate) fn close_inbox(&mut self, inbox: InboxId, unread: VecDeque<InboxMessage>) {
        let Some(own) = self.own_mut() else { return };
        let left = own.inboxes.close(inbox);
        for message in unread.into_iter().chain(left) {
            let len = (message.len as u64).saturating_add(message.overflow as u64);
            self.requeue_own(ReceivedMessage {
                arrival: Arrival::for_own(len, message.data, message.order),
                payload: Payload::copied(&message.buffer[..message.len]),
                len: message.len,
                overflow: message.overflow,
            });
        }
    }

    /// Appends an inbox's messages to `unread`, the messages that its reader has not read yet.
    /// `buffers` returns the memory of messages that the reader has read.
    pub(crate) fn take_messages(
        &mut self,
        inbox: InboxId,
        unread: &mut VecDeque<InboxMessage>,
        buffers: impl FnOnce(&mut Vec<Vec<u8>>),
        host: &mut impl Host<T>,
    ) {
        let Some(own) = self.own_mut() else { return };
        own.inboxes.on_read(inbox, buffers);
        self.fill_inboxes();
        if let Some(own) = self.own_mut() {
            own.inboxes.take(inbox, unread);
        }
        self.resume(host);
    }

    /// True if messages have come into inboxes since they were last counted.
    #[inline]
    pub(crate) fn has_inbox_news(&self) -> bool {
        self.own().is_some_and(|own| own.inboxes.has_news())
    }

    /// Takes the counts of the messages that have come into inboxes since the last call.
    pub(crate) fn take_inbox_counts(&mut self) -> InboxCounts {
        let own = self.own_mut();
        own.map(|own| own.inboxes.take_counts()).unwrap_or_default()
    }

    /// Moves unexpected messages into inboxes that have a place for them. After the end, receives
    /// that waited for these messages end too.
    pub(super) fn fill_inboxes(&mut self) {
        if let Some(mut own) = self.own_view() {
            own.fill_inboxes();
        }
        self.end_unserved();
    }
}
