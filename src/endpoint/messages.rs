//! Messages as a stream: receives that are kept posted, and posted again as they are read.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures::Stream;
use futures::stream::FusedStream;

use crate::error::{Error, ErrorKind, Result};
use crate::progress::CloseWatch;
use crate::sync::{ProgressWaiter, WaiterKey};

use super::{Endpoint, Op, RdmEndpoint, Received, SharedReceiveContext};

impl Endpoint {
    /// The messages that arrive, as a stream: from now on `depth` receives of `size` bytes each
    /// (both at least 1) are kept posted. See [`Messages`].
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
        Messages::new(Incoming::Connection(self.clone()), size, depth)
    }
}

impl RdmEndpoint {
    /// The untagged messages of all peers, as a stream: from now on `depth` receives of `size`
    /// bytes each (both at least 1) are kept posted. [`Message::received`] contains the sender of
    /// each. See [`Messages`].
    pub fn messages(&self, size: usize, depth: usize) -> Messages {
        Messages::new(Incoming::Peers(self.clone()), size, depth)
    }
}

impl SharedReceiveContext {
    /// The messages of all endpoints that share the context, as a stream: from now on `depth`
    /// receives of `size` bytes each (both at least 1) are kept posted. [`Message::received`]
    /// contains the endpoint whose connection brought each. See [`Messages`].
    pub fn messages(&self, size: usize, depth: usize) -> Messages {
        Messages::new(Incoming::Shared(self.clone()), size, depth)
    }
}

/// A [`Stream`](futures::Stream) of the messages that an endpoint receives.
///
/// You get one from [`Endpoint::messages`], [`RdmEndpoint::messages`] and
/// [`SharedReceiveContext::messages`].
///
/// The stream keeps `depth` receives posted, and posts another one for each message that you take.
/// A server that does not read the stream therefore holds the peer back: at most `depth` messages
/// are taken from the endpoint in advance. If the receive context has fewer than `depth` slots, it
/// uses those.
///
/// A message that is longer than `size` gives the error [`Truncated`](crate::ErrorKind::Truncated),
/// after which the stream continues. The stream returns `None` when the connection was closed
/// gracefully, by [`shutdown`](Endpoint::shutdown) on either side. Otherwise it returns the error
/// once, then `None`. For a connectionless endpoint or a shared receive context it continues until
/// that is closed, even if peers are lost.
///
/// The stream reuses its memory: `depth` buffers, and those of messages that are not dropped yet.
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
/// let mut messages = b.messages(64, 4); // Of up to 64 bytes, four receives at a time.
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
/// Dropping the future of [`next`](Self::next) loses no message. Dropping the stream withdraws its
/// receives: messages that were already matched to them return to the endpoint, for the next
/// receive.
#[must_use = "dropped, a stream withdraws its receives"]
pub struct Messages {
    from: Incoming,
    /// Oldest first.
    posted: VecDeque<Op<Vec<u8>, Received>>,
    buffers: Arc<Buffers>,
    depth: usize,
    ended: bool,
    /// Of the connection's end, while that is awaited.
    end_waiter: Option<WaiterKey>,
    /// Of who waits for the end of the connection; each receive has one of its own.
    waiter: ProgressWaiter,
}

/// Where messages come to.
enum Incoming {
    Connection(Endpoint),
    Peers(RdmEndpoint),
    Shared(SharedReceiveContext),
}

/// Buffers that lie ready for the next receives.
struct Buffers {
    size: usize,
    depth: usize,
    free: Mutex<Vec<Vec<u8>>>,
}

impl Buffers {
    fn take(&self) -> Vec<u8> {
        let free = self.lock().pop();
        free.unwrap_or_else(|| vec![0; self.size])
    }

    fn put(&self, buffer: Vec<u8>) {
        let mut free = self.lock();
        if free.len() < self.depth {
            free.push(buffer);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Vec<u8>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Messages {
    fn new(from: Incoming, size: usize, depth: usize) -> Self {
        let (size, depth) = (size.max(1), depth.max(1));
        let waiter = ProgressWaiter::new(match &from {
            Incoming::Connection(endpoint) => endpoint.domain().progress_by_hand(),
            Incoming::Peers(_) | Incoming::Shared(_) => None,
        });
        let mut messages = Messages {
            from,
            posted: VecDeque::new(),
            buffers: Arc::new(Buffers {
                size,
                depth,
                free: Mutex::default(),
            }),
            depth,
            ended: false,
            end_waiter: None,
            waiter,
        };
        // What refuses it now does so again when the stream is read, which gives the error.
        let _ = messages.post();
        messages
    }

    /// The next message; `None` once the stream has ended.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Result<Message>> {
        poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// Keeps `depth` receives posted, as far as they can be; else the reason.
    fn post(&mut self) -> Result<()> {
        while self.posted.len() < self.depth {
            let buffer = self.buffers.take();
            let posted = match &self.from {
                Incoming::Connection(endpoint) => endpoint.recv(buffer).post(),
                Incoming::Peers(endpoint) => endpoint.recv(buffer).post(),
                Incoming::Shared(context) => context.recv(buffer).post(),
            };
            match posted {
                Ok(op) => self.posted.push_back(op),
                Err(failed) => {
                    let (error, buffer) = failed.into_parts();
                    buffer.into_iter().for_each(|it| self.buffers.put(it));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// The end of the first receive that has ended. Those of a connection end in the order in which
    /// they were posted.
    fn poll_posted(&mut self, cx: &mut Context<'_>) -> Poll<Result<Message>> {
        let looks = match &self.from {
            Incoming::Connection(_) => 1,
            Incoming::Peers(_) | Incoming::Shared(_) => self.depth,
        };
        for at in 0..looks.min(self.posted.len()) {
            let Poll::Ready(ended) = Pin::new(&mut self.posted[at]).poll(cx) else {
                continue;
            };
            self.posted.remove(at);
            return Poll::Ready(match ended {
                Ok((received, buffer)) => Ok(Message {
                    received,
                    buffer,
                    buffers: Arc::clone(&self.buffers),
                }),
                Err(failed) => {
                    let (error, buffer) = failed.into_parts();
                    buffer.into_iter().for_each(|it| self.buffers.put(it));
                    Err(error)
                }
            });
        }
        Poll::Pending
    }

    /// Nothing is to be received any more, if so, for this reason; `None` after an orderly end.
    fn end(&mut self, error: Error) -> Option<Result<Message>> {
        let in_order = match &self.from {
            Incoming::Connection(endpoint) => endpoint.inner.port.is_closed_in_order(),
            Incoming::Peers(endpoint) => {
                endpoint.is_closing() && error.kind() != ErrorKind::DriverGone
            }
            Incoming::Shared(context) => {
                context.is_closed() && error.kind() != ErrorKind::DriverGone
            }
        };
        self.ended = true;
        self.posted.clear();
        (!in_order).then_some(Err(error))
    }

    /// Whether a receive's failure is the end of all.
    fn is_last(&self, error: &Error) -> bool {
        match &self.from {
            Incoming::Connection(_) => !error.is_truncated(),
            Incoming::Peers(endpoint) => {
                error.kind() == ErrorKind::DriverGone || endpoint.is_closing()
            }
            Incoming::Shared(context) => {
                error.kind() == ErrorKind::DriverGone || context.is_closed()
            }
        }
    }
}

impl Stream for Messages {
    type Item = Result<Message>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Message>>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        let refused = this.post().err();
        match this.poll_posted(cx) {
            Poll::Ready(Ok(message)) => Poll::Ready(Some(Ok(message))),
            Poll::Ready(Err(error)) if this.is_last(&error) => Poll::Ready(this.end(error)),
            Poll::Ready(Err(error)) => Poll::Ready(Some(Err(error))),
            Poll::Pending => match refused {
                // It is about to end; how it does is seen when it has.
                Some(error) if this.posted.is_empty() => {
                    if let Incoming::Connection(endpoint) = &this.from
                        && (error.is_connection_lost() || error.kind() == ErrorKind::BadState)
                        && this
                            .waiter
                            .poll(cx, |cx| {
                                let port = &endpoint.inner.port;
                                port.poll_closed(&mut this.end_waiter, cx.waker())
                            })
                            .is_pending()
                    {
                        return Poll::Pending;
                    }
                    Poll::Ready(this.end(error))
                }
                _ => Poll::Pending,
            },
        }
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        if let Incoming::Connection(endpoint) = &self.from {
            endpoint.inner.port.forget_waiter(&mut self.end_waiter);
        }
    }
}

impl FusedStream for Messages {
    fn is_terminated(&self) -> bool {
        self.ended
    }
}

debug_fields!(Messages, self =>
    size: self.buffers.size, depth: self.depth, posted: self.posted.len(), ended: self.ended
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
        // Given away, there is none.
        if !self.buffer.is_empty() {
            self.buffers.put(std::mem::take(&mut self.buffer));
        }
    }
}

// Shows how much, never what: the bytes are the user's.
debug_fields!(Message, self => received: self.received);
