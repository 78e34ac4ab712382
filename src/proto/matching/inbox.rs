//! The inboxes of a connected endpoint: messages that a stream takes as they come, without
//! receives.
//!
//! ```text
//!   free ──a message begins──▶ storing ──whole──▶ messages ──taken──▶ lent ──read──▶ free
//!             └───── it is here as a whole, the usual case ─▶
//! ```
//! Each of the `depth` places is in one of these states. The peer counts a free place as a posted
//! receive. A message that is taken out of an inbox because its stream was dropped is an unexpected
//! message again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::buf::{ConvertMany, zeroed};

use super::ReceivedMessage;

/// Id of an inbox within its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InboxId(u64);

/// Number of messages of an inbox that its reader has read. The reader counts without a lock. The
/// inbox reads the count when it has no place for a message, so only one message of a burst has to
/// wait elsewhere. Only the count is shared without a lock: messages move under the connection's
/// lock.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadCount(Arc<AtomicU64>);

impl ReadCount {
    /// Counts one more message. Only the inbox's one reader calls this.
    #[inline]
    pub(crate) fn add_one(&self) {
        let read = self.0.load(Ordering::Relaxed);
        self.0.store(read + 1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A message in an inbox.
#[derive(Debug)]
pub(crate) struct InboxMessage {
    /// A buffer of the inbox's size, or empty; the message is at its front.
    pub(crate) buffer: Vec<u8>,
    pub(crate) len: usize,
    /// Bytes that did not fit.
    pub(crate) overflow: usize,
    /// CQ data.
    pub(crate) data: Option<u64>,
    /// The message's sequence number among all messages of the connection.
    pub(crate) order: u64,
}

/// Number of messages that have come into inboxes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InboxCounts {
    pub(crate) whole: u64,
    /// Messages longer than the inbox's buffers.
    pub(crate) truncated: u64,
    /// Bytes of the whole messages.
    pub(crate) bytes: u64,
}

#[derive(Debug)]
struct MessageInbox {
    id: InboxId,
    /// Largest number of bytes of a message that fit.
    size: usize,
    /// Number of messages that the inbox may still take.
    places: usize,
    messages: VecDeque<InboxMessage>,
    /// A message is being received into the inbox.
    is_storing: bool,
    /// Number of messages read, when `read_count` was last looked up.
    read: u64,
    read_count: ReadCount,
    /// Buffers for reuse.
    free: Vec<Vec<u8>>,
    /// Messages that the owner has not counted yet.
    counts: InboxCounts,
}

impl MessageInbox {
    /// Frees the places of messages that were read since the last call.
    fn look_up_reads(&mut self) {
        let read = self.read_count.get();
        self.places += (read - self.read) as usize; // at most its depth
        self.read = read;
    }

    /// Returns a buffer; it is empty if the system has no memory, and the message is truncated
    /// then.
    #[inline]
    fn buffer(&mut self) -> Vec<u8> {
        let free = self.free.pop();
        free.unwrap_or_else(|| zeroed(self.size as u64).unwrap_or_default())
    }
}

/// The inboxes of a connection: usually none or one.
#[derive(Debug, Default)]
pub(crate) struct Inboxes {
    /// A boxed slice, since most connections never have an inbox.
    list: Box<[MessageInbox]>,
}

impl Inboxes {
    /// Opens another inbox, for `depth` messages of at most `size` bytes each. Its reader counts
    /// the messages that it reads in `read_count`. No other inbox had this `number`.
    pub(crate) fn open(
        &mut self,
        number: u64,
        size: usize,
        depth: usize,
        read_count: ReadCount,
    ) -> InboxId {
        let id = InboxId(number);
        let mut list = std::mem::take(&mut self.list).into_vec();
        list.push(MessageInbox {
            id,
            size,
            places: depth,
            messages: VecDeque::new(),
            is_storing: false,
            read: 0,
            read_count,
            free: Vec::new(),
            counts: InboxCounts::default(),
        });
        self.list = list.into();
        id
    }

    /// Removes an inbox whose messages were all counted, and returns the messages in it.
    pub(crate) fn close(&mut self, id: InboxId) -> VecDeque<InboxMessage> {
        let at = self.list.iter().position(|inbox| inbox.id == id);
        let mut list = std::mem::take(&mut self.list).into_vec();
        let closed = at.map(|at| list.remove(at));
        self.list = list.into();
        debug_assert!(!(closed.as_ref()).is_some_and(|inbox| inbox.counts.has_any()));
        closed.map(|inbox| inbox.messages).unwrap_or_default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Number of messages that the inboxes may still take. The peer counts each as a posted
    /// receive.
    pub(crate) fn places(&self) -> u64 {
        let places = self.list.iter().map(|inbox| inbox.places as u64);
        places.fold(0, u64::saturating_add)
    }

    #[inline]
    fn with_place(list: &mut [MessageInbox]) -> Option<&mut MessageInbox> {
        list.iter_mut().find(|inbox| inbox.places > 0)
    }

    pub(crate) fn has_place(&self) -> bool {
        self.list.iter().any(|inbox| inbox.places > 0)
    }

    /// Looks up how many messages the readers have read.
    pub(crate) fn look_up_reads(&mut self) {
        self.list.iter_mut().for_each(MessageInbox::look_up_reads);
    }

    fn find(list: &mut [MessageInbox], id: InboxId) -> Option<&mut MessageInbox> {
        list.iter_mut().find(|inbox| inbox.id == id)
    }

    /// Stores a complete message. False: no inbox has a place.
    #[inline]
    pub(crate) fn push(
        &mut self,
        bytes: &[u8],
        data: Option<u64>,
        order: impl FnOnce() -> u64,
    ) -> bool {
        let Some(inbox) = Self::with_place(&mut self.list) else {
            return false;
        };
        inbox.places -= 1;
        let mut buffer = inbox.buffer();
        let len = bytes.len().min(buffer.len());
        buffer[..len].copy_from_slice(&bytes[..len]);
        let message = InboxMessage {
            buffer,
            len,
            overflow: bytes.len() - len,
            data,
            order: order(),
        };
        inbox.counts.count(&message);
        inbox.messages.push_back(message);
        true
    }

    /// Returns an inbox, and memory for a message that begins. `None`: no inbox has a place.
    pub(crate) fn begin(&mut self) -> Option<(InboxId, Vec<u8>)> {
        let inbox = Self::with_place(&mut self.list)?;
        inbox.places -= 1;
        inbox.is_storing = true;
        Some((inbox.id, inbox.buffer()))
    }

    /// Stores the message that has [begun](Self::begin), once it is complete. Returns the message
    /// if its inbox is gone.
    pub(crate) fn complete(
        &mut self,
        id: InboxId,
        message: ReceivedMessage,
    ) -> Option<ReceivedMessage> {
        let Some(inbox) = Self::find(&mut self.list, id) else {
            return Some(message);
        };
        inbox.is_storing = false;
        let stored = InboxMessage {
            buffer: Vec::from_payload(message.payload).expect("the inbox has given it"),
            len: message.len,
            overflow: message.overflow,
            data: message.arrival.data,
            order: message.arrival.order,
        };
        inbox.counts.count(&stored);
        inbox.messages.push_back(stored);
        None
    }

    /// Stores an unexpected message, in its order. Call only if there [is a
    /// place](Self::has_place).
    pub(crate) fn insert(&mut self, message: ReceivedMessage) {
        let inbox = Self::with_place(&mut self.list).expect("there is a place");
        inbox.places -= 1;
        let mut buffer = inbox.buffer();
        let len = message.len.min(buffer.len());
        let copied = message.payload.copy_out(0, &mut buffer[..len]);
        debug_assert!(copied.is_ok(), "it waits in memory of our own");
        let inserted = InboxMessage {
            buffer,
            len,
            overflow: message.overflow + (message.len - len),
            data: message.arrival.data,
            order: message.arrival.order,
        };
        let at = (inbox.messages).partition_point(|held| held.order < inserted.order);
        inbox.counts.count(&inserted);
        inbox.messages.insert(at, inserted);
    }

    /// Takes back the buffers that the reader of an inbox is done with. Calls `buffers` for them
    /// only if the inbox has no free buffers.
    pub(crate) fn on_read(&mut self, id: InboxId, buffers: impl FnOnce(&mut Vec<Vec<u8>>)) {
        if let Some(inbox) = Self::find(&mut self.list, id)
            && inbox.free.is_empty()
        {
            buffers(&mut inbox.free);
        }
    }

    /// Appends the messages in an inbox to `into`, those that its reader has.
    pub(crate) fn take(&mut self, id: InboxId, into: &mut VecDeque<InboxMessage>) {
        let Some(inbox) = Self::find(&mut self.list, id) else {
            return;
        };
        match into.is_empty() {
            true => std::mem::swap(into, &mut inbox.messages),
            false => into.append(&mut inbox.messages),
        }
    }

    /// Gives up messages that have [begun](Self::begin): the connection ends.
    pub(crate) fn abort(&mut self) {
        for inbox in self.list.iter_mut() {
            inbox.places += usize::from(std::mem::take(&mut inbox.is_storing));
        }
    }

    /// True if messages have come since the last count.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.list.iter().any(|inbox| inbox.counts.has_any())
    }

    pub(crate) fn take_counts(&mut self) -> InboxCounts {
        let mut all = InboxCounts::default();
        for inbox in self.list.iter_mut() {
            let counts = std::mem::take(&mut inbox.counts);
            all.whole += counts.whole;
            all.truncated += counts.truncated;
            all.bytes += counts.bytes;
        }
        all
    }

    pub(crate) fn shrink(&mut self) {
        for inbox in self.list.iter_mut() {
            inbox.free = Vec::new();
            inbox.messages.shrink_to_fit();
        }
    }
}

impl InboxCounts {
    fn has_any(&self) -> bool {
        self.whole + self.truncated > 0
    }

    #[inline]
    fn count(&mut self, message: &InboxMessage) {
        match message.overflow {
            0 => {
                self.whole += 1;
                self.bytes += message.len as u64;
            }
            _ => self.truncated += 1,
        }
    }
}
