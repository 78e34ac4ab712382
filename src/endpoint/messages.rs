//! Messages as a stream. The stream of a connected endpoint takes messages as they arrive
//! (`progress/inbox.rs`); other streams keep receives posted and post another one for each that is
//! read.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use futures::Stream;
use futures::stream::FusedStream;
use tokio::task::coop;

use crate::buf::zeroed;
use crate::error::{Error, ErrorKind, OperationKind, Result};
use crate::info::Caps;
use crate::progress::{InboxId, InboxMessage, ReadCount, truncated};
use crate::sync::{ProgressWaiter, WaiterKey};

use super::{Endpoint, Op, RdmEndpoint, Received, SharedReceiveContext};

impl Endpoint {
    /// The messages that arrive, as a stream: from now on it takes up to `depth` of them in
    /// advance, of up to `size` bytes each (both at least 1). See [`Messages`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
    /// # let (a, b) = tokio_fabric::testing::Net::loopback().pair().await?;
    /// let sending = async {
    ///     a.send("one").await?;
    ///     a.send("two").await?;
    ///     a.shutdown().await
    /// };
    /// let receiving = async {
    ///     let mut messages = b.messages(4096, 8);
    ///     while let Some(message) = messages.next().await {
    ///         let message = message?;
    ///         println!("{} bytes: {:?}", message.len(), &message[..]);
    ///     }
    ///     Ok(())
    /// };
    /// tokio::try_join!(sending, receiving)?;
    /// # Ok(()) }
    /// ```
    pub fn messages(&self, size: usize, depth: usize) -> Messages {
        let source = match check(size, depth).and_then(|()| InboxReader::open(self, size, depth)) {
            Ok(reader) => MessageSource::Inbox(reader),
            Err(error) => MessageSource::Refused(Some(error)),
        };
        Messages::new(source, size, depth)
    }
}

impl RdmEndpoint {
    /// The untagged messages of all peers, as a stream: from now on `depth` receives of `size`
    /// bytes each (both at least 1) are kept posted. [`Message::received`] contains the sender of
    /// each. See [`Messages`].
    pub fn messages(&self, size: usize, depth: usize) -> Messages {
        Messages::posted(Incoming::Peers(self.clone()), size, depth)
    }
}

impl SharedReceiveContext {
    /// The messages of all endpoints that share the context, as a stream: from now on `depth`
    /// receives of `size` bytes each (both at least 1) are kept posted. [`Message::received`]
    /// contains the endpoint whose connection brought each. See [`Messages`].
    pub fn messages(&self, size: usize, depth: usize) -> Messages {
        Messages::posted(Incoming::Shared(self.clone()), size, depth)
    }
}

/// A [`Stream`] of the messages that an endpoint receives.
///
/// You get one from [`Endpoint::messages`], [`RdmEndpoint::messages`] and
/// [`SharedReceiveContext::messages`].
///
/// The stream of a connected endpoint takes the messages that no receive is posted for, without
/// posting receives of its own. Other streams keep `depth` receives posted, and post another one
/// for each message that you take; if the receive context has fewer slots, they use those. A server
/// that does not read its stream therefore holds the peer back: at most `depth` messages are taken
/// from the endpoint in advance. Of several streams of an endpoint, the one that was opened first
/// takes a message if it has room.
///
/// With a `size` or a `depth` of 0 the stream returns
/// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) and ends.
///
/// A message that is longer than `size`, or that the system has no memory for, gives the error
/// [`Truncated`](crate::ErrorKind::Truncated), after which the stream continues. The stream returns
/// `None` when the connection was closed gracefully, by [`shutdown`](Endpoint::shutdown) on either
/// side. Otherwise it returns the error once, then `None`. For a connectionless endpoint or a
/// shared receive context it continues until that is closed, even if peers are lost.
///
/// The stream reuses its memory: at most twice `depth` buffers, and those of messages that are not
/// dropped yet. While nothing arrives, the stream of a connected endpoint has no buffers.
///
/// ```
/// use tokio_fabric::testing::Net;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let (a, b) = Net::loopback().pair().await?;
/// for text in ["one", "two"] {
///     a.send(text).await?;
/// }
/// let closing = tokio::spawn(async move { a.shutdown().await });
/// let mut messages = b.messages(64, 4); // Of up to 64 bytes, four in advance.
/// let mut seen = Vec::new();
/// while let Some(message) = messages.next().await {
///     seen.push(message?.to_vec());
/// }
/// assert_eq!(seen, [b"one", b"two"]);
/// closing.await.expect("no panic")?;
/// # Ok(()) }
/// ```
///
/// # Cancel safety
/// Dropping the future of [`next`](Self::next) loses no message. Dropping the stream loses none
/// either: messages that it had taken and not returned go back to the endpoint, for the next
/// receive.
#[must_use = "dropped, a stream takes no more messages"]
pub struct Messages {
    source: MessageSource,
    buffers: Arc<Buffers>,
    ended: bool,
}

/// Source of the stream's messages.
enum MessageSource {
    /// The inbox of a connected endpoint, which takes messages as they arrive.
    Inbox(InboxReader),
    /// Posted receives.
    Posted(ReceiveReader),
    /// No source: the stream returns this error once, and ends.
    Refused(Option<Error>),
}

/// Free buffers for the next messages.
struct Buffers {
    size: usize,
    depth: usize,
    free: Mutex<Vec<Vec<u8>>>,
}

impl Buffers {
    fn take(&self) -> Vec<u8> {
        let free = self.lock().pop();
        free.unwrap_or_else(|| zeroed(self.size as u64).unwrap_or_default())
    }

    fn put(&self, buffer: Vec<u8>) {
        let mut free = self.lock();
        // The buffer is empty if there was no memory for its message.
        if free.len() < self.depth && buffer.len() == self.size {
            free.push(buffer);
        }
    }

    /// Swaps the free buffers with `list`, which is empty.
    fn swap(&self, list: &mut Vec<Vec<u8>>) {
        std::mem::swap(&mut *self.lock(), list);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Vec<u8>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Messages {
    fn new(source: MessageSource, size: usize, depth: usize) -> Self {
        Messages {
            source,
            buffers: Arc::new(Buffers {
                size,
                depth,
                free: Mutex::default(),
            }),
            ended: false,
        }
    }

    fn posted(from: Incoming, size: usize, depth: usize) -> Self {
        if let Err(error) = check(size, depth) {
            return Messages::new(MessageSource::Refused(Some(error)), size, depth);
        }
        let receives = ReceiveReader {
            from,
            posted: VecDeque::new(),
            depth,
        };
        let mut messages = Messages::new(MessageSource::Posted(receives), size, depth);
        if let MessageSource::Posted(receives) = &mut messages.source {
            // If posting is refused now, it is refused again when the stream is read, which returns
            // the error.
            let _ = receives.post(&messages.buffers);
        }
        messages
    }

    /// The next message; `None` once the stream has ended.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Result<Message>> {
        poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

/// Checks the arguments of a stream of messages: with a 0 the stream would wait indefinitely.
fn check(size: usize, depth: usize) -> Result<()> {
    let what = match (size, depth) {
        (0, _) => "messages: size is 0, give the bytes of the largest message",
        (_, 0) => "messages: depth is 0, give the number of messages that are taken in advance",
        _ => return Ok(()),
    };
    Err(Error::new(ErrorKind::InvalidArgument, what))
}

impl Stream for Messages {
    type Item = Result<Message>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Message>>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        let next = match &mut this.source {
            MessageSource::Inbox(reader) => ready!(reader.poll_next(cx, &this.buffers)),
            MessageSource::Posted(receives) => ready!(receives.poll_next(cx, &this.buffers)),
            MessageSource::Refused(error) => Next::End(error.take()),
        };
        Poll::Ready(match next {
            Next::Message(message) => Some(message),
            Next::End(error) => {
                this.ended = true;
                error.map(Err)
            }
        })
    }
}

impl FusedStream for Messages {
    fn is_terminated(&self) -> bool {
        self.ended
    }
}

/// The next result of a stream.
enum Next {
    Message(Result<Message>),
    /// The stream's end, with an error if the connection was not closed gracefully.
    End(Option<Error>),
}

/// The reader of the messages that a connected endpoint takes in.
struct InboxReader {
    endpoint: Endpoint,
    inbox: InboxId,
    /// Messages taken from the inbox and not read yet, oldest first.
    unread: VecDeque<InboxMessage>,
    read_count: ReadCount,
    /// Takes more messages when no more than this many are unread.
    refill_at: usize,
    /// Key under which the reader waits for messages.
    waiting: Option<WaiterKey>,
    waiter: ProgressWaiter,
}

impl InboxReader {
    fn open(endpoint: &Endpoint, size: usize, depth: usize) -> Result<Self> {
        let common = &endpoint.inner.common;
        let may = common.caps.check(Caps::MSG | Caps::RECV);
        let may = may.and_then(|()| common.check_unregistered());
        may.map_err(|error| error.with_operation(OperationKind::Receive))?;
        let read_count = ReadCount::default();
        let port = &endpoint.inner.port;
        Ok(InboxReader {
            inbox: port.open_inbox(size, depth, read_count.clone())?,
            read_count,
            endpoint: endpoint.clone(),
            unread: VecDeque::new(),
            refill_at: 0,
            waiting: None,
            waiter: ProgressWaiter::new(endpoint.domain().progress_by_hand()),
        })
    }

    #[inline]
    fn poll_next(&mut self, cx: &mut Context<'_>, buffers: &Arc<Buffers>) -> Poll<Next> {
        let budget = ready!(coop::poll_proceed(cx));
        if self.unread.len() <= self.refill_at
            && let Err(error) = ready!(self.refill(cx, buffers))
        {
            budget.made_progress();
            let in_order = self.endpoint.inner.port.is_closed_in_order();
            return Poll::Ready(Next::End((!in_order).then_some(error)));
        }
        let Some(message) = self.unread.pop_front() else {
            return Poll::Pending;
        };
        self.read_count.add_one();
        budget.made_progress();
        let InboxMessage {
            buffer,
            len,
            overflow,
            data,
            ..
        } = message;
        if overflow > 0 {
            buffers.put(buffer);
            return Poll::Ready(Next::Message(Err(self.too_long(len, overflow))));
        }
        Poll::Ready(Next::Message(Ok(Message {
            received: Received::of_connection(len, data),
            buffer,
            buffers: Arc::clone(buffers),
        })))
    }

    /// Takes more messages; waits only if none is left.
    fn refill(&mut self, cx: &mut Context<'_>, buffers: &Arc<Buffers>) -> Poll<Result<()>> {
        let InboxReader {
            endpoint,
            inbox,
            unread,
            waiting,
            waiter,
            ..
        } = self;
        let port = &endpoint.inner.port;
        let returned = |list: &mut Vec<Vec<u8>>| buffers.swap(list);
        match unread.is_empty() {
            false => port.take_messages(*inbox, unread, returned),
            true => ready!(waiter.poll(cx, |cx| {
                port.poll_messages(*inbox, unread, returned, waiting, cx.waker())
            }))?,
        }
        // Refill when half of the messages are read, so that the peer can continue meanwhile.
        self.refill_at = self.unread.len() / 2;
        Poll::Ready(Ok(()))
    }

    #[cold]
    fn too_long(&self, len: usize, overflow: usize) -> Error {
        let error = truncated(len, overflow).with_operation(OperationKind::Receive);
        match self.endpoint.peer_addr() {
            Some(peer) => error.with_peer(peer),
            None => error,
        }
    }
}

impl Drop for InboxReader {
    fn drop(&mut self) {
        let unread = std::mem::take(&mut self.unread);
        let port = &self.endpoint.inner.port;
        port.close_inbox(self.inbox, unread, &mut self.waiting);
    }
}

/// A number of receives that are kept posted.
struct ReceiveReader {
    from: Incoming,
    /// The posted receives, oldest first.
    posted: VecDeque<Op<Vec<u8>, Received>>,
    depth: usize,
}

/// The object that receives are posted to.
enum Incoming {
    Peers(RdmEndpoint),
    Shared(SharedReceiveContext),
}

impl ReceiveReader {
    /// Posts receives until `depth` are posted; returns the error if one is refused.
    fn post(&mut self, buffers: &Buffers) -> Result<()> {
        while self.posted.len() < self.depth {
            let buffer = buffers.take();
            let posted = match &self.from {
                Incoming::Peers(endpoint) => endpoint.recv(buffer).post(),
                Incoming::Shared(context) => context.recv(buffer).post(),
            };
            match posted {
                Ok(op) => self.posted.push_back(op),
                Err(failed) => {
                    let (error, buffer) = failed.into_parts();
                    buffer.into_iter().for_each(|it| buffers.put(it));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Returns the result of the first receive in the list that has ended.
    fn poll_posted(
        &mut self,
        cx: &mut Context<'_>,
        buffers: &Arc<Buffers>,
    ) -> Poll<Result<Message>> {
        for at in 0..self.posted.len() {
            let Poll::Ready(ended) = Pin::new(&mut self.posted[at]).poll(cx) else {
                continue;
            };
            self.posted.remove(at);
            return Poll::Ready(match ended {
                Ok((received, buffer)) => Ok(Message {
                    received,
                    buffer,
                    buffers: Arc::clone(buffers),
                }),
                Err(failed) => {
                    let (error, buffer) = failed.into_parts();
                    buffer.into_iter().for_each(|it| buffers.put(it));
                    Err(error)
                }
            });
        }
        Poll::Pending
    }

    fn poll_next(&mut self, cx: &mut Context<'_>, buffers: &Arc<Buffers>) -> Poll<Next> {
        let refused = self.post(buffers).err();
        match self.poll_posted(cx, buffers) {
            Poll::Ready(Err(error)) if self.is_last(&error) => Poll::Ready(self.end(error)),
            Poll::Ready(message) => Poll::Ready(Next::Message(message)),
            Poll::Pending => match refused {
                Some(error) if self.posted.is_empty() => Poll::Ready(self.end(error)),
                _ => Poll::Pending,
            },
        }
    }

    fn is_closing(&self) -> bool {
        match &self.from {
            Incoming::Peers(endpoint) => endpoint.is_closing(),
            Incoming::Shared(context) => context.is_closed(),
        }
    }

    /// Returns whether a receive's failure ends the stream.
    fn is_last(&self, error: &Error) -> bool {
        error.kind() == ErrorKind::DriverGone || self.is_closing()
    }

    /// Ends the stream for this reason: cancels the posted receives.
    fn end(&mut self, error: Error) -> Next {
        let in_order = self.is_closing() && error.kind() != ErrorKind::DriverGone;
        self.posted.clear();
        Next::End((!in_order).then_some(error))
    }
}

debug_fields!(Messages, self =>
    size: self.buffers.size, depth: self.buffers.depth, ended: self.ended
);

/// A message of a [`Messages`] stream: its bytes, as a slice, and its description.
///
/// When it is dropped, its memory is returned to the stream.
/// [`Bytes::from_owner`](bytes::Bytes::from_owner) turns it into shared bytes without a copy.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use bytes::Bytes;
/// use tokio_fabric::testing::Net;
///
/// let (a, b) = Net::loopback().pair().await?;
/// a.send("hello").imm(7).await?;
/// let mut messages = b.messages(64, 4);
/// let message = messages.next().await.expect("it is connected")?;
/// assert_eq!((&message[..], message.received().data), (&b"hello"[..], Some(7)));
/// let shared = Bytes::from_owner(message); // Keeps the memory.
/// assert_eq!(shared, "hello");
/// # Ok(()) }
/// ```
pub struct Message {
    received: Received,
    buffer: Vec<u8>,
    buffers: Arc<Buffers>,
}

impl Message {
    /// The description of the message: its length, CQ data, and, with connectionless endpoints, its
    /// sender.
    pub fn received(&self) -> &Received {
        &self.received
    }

    /// The bytes, to be kept; their memory is not returned to the stream.
    pub fn into_vec(mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.buffer);
        bytes.truncate(self.received.len);
        bytes
    }
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[..self.received.len]
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        // Empty if the bytes were given away.
        if !self.buffer.is_empty() {
            self.buffers.put(std::mem::take(&mut self.buffer));
        }
    }
}

// Shows the length, never the bytes, which are the user's.
debug_fields!(Message, self => received: self.received);
