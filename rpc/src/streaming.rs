//! Streams of values, as arguments and results of methods.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};

use crate::codec::{self, CodecOf};
use crate::status::{CallError, Result};
use crate::wire::{FrameBuf, TYPED_ERROR};

/// A stream of values: an argument of a method, its result, or both.
///
/// The sending side polls the stream as the receiving side takes items: at most 16 items and 256
/// KiB are in flight. An item can have up to 64 KiB; lend memory for larger items.
///
/// - **As a result**: the caller's future is ready when the handler has returned the stream. An
///   error in the stream ends the call, and is the last item that the caller gets. The call's
///   deadline, 10 s by default, applies to the whole stream.
/// - **As an argument**: the stream is polled while the call, or the stream that the call returns,
///   is polled. An error in the stream cancels the call, which fails with that error. A handler may
///   return before the end of the stream; the rest is then not read.
///
/// # Cancel safety
/// Dropping a result cancels the call. A handler that drops an argument reads no more of it.
///
/// ```
/// use tokio_fabric_rpc::{Cx, Result, Streaming, service, testing};
///
/// #[service]
/// trait Numbers {
///     async fn count(&self, cx: &Cx, to: u32) -> Result<Streaming<u32>>;
///     async fn sum(&self, cx: &Cx, numbers: Streaming<u32>) -> Result<u32>;
/// }
/// struct Counter;
/// impl Numbers for Counter {
///     async fn count(&self, _: &Cx, to: u32) -> Result<Streaming<u32>> {
///         Ok(Streaming::of(0..to))
///     }
///     async fn sum(&self, _: &Cx, mut numbers: Streaming<u32>) -> Result<u32> {
///         let mut sum = 0;
///         while let Some(number) = numbers.next().await {
///             sum += number?;
///         }
///         Ok(sum)
///     }
/// }
///
/// #[tokio::main(flavor = "current_thread", start_paused = true)]
/// async fn main() -> Result<()> {
///     let (channel, _server) = testing::pair(NumbersServer::new(Counter)).await?;
///     let numbers = NumbersClient::over(channel);
///     let counted = numbers.count(100).await?;
///     assert_eq!(numbers.sum(counted).await?, 4950);
///     Ok(())
/// }
/// ```
pub struct Streaming<T>(Pin<Box<dyn Stream<Item = Result<T>> + Send>>);

impl<T> Streaming<T> {
    /// A stream of results from any [`Stream`].
    pub fn new(items: impl Stream<Item = Result<T>> + Send + 'static) -> Streaming<T> {
        Streaming(Box::pin(items))
    }

    /// A stream of values that are already available.
    pub fn of<I>(items: I) -> Streaming<T>
    where
        I: IntoIterator<Item = T>,
        I::IntoIter: Send + 'static,
        T: Send + 'static,
    {
        Streaming::new(stream::iter(items.into_iter().map(Ok)))
    }

    /// The next value; `None` at the end, and after an error.
    ///
    /// # Cancel safety
    /// Cancel safe: dropping the future loses no value.
    pub async fn next(&mut self) -> Option<Result<T>> {
        poll_fn(|cx| self.0.as_mut().poll_next(cx)).await
    }
}

impl<T> Stream for Streaming<T> {
    type Item = Result<T>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<T>>> {
        self.get_mut().0.as_mut().poll_next(cx)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl<T> fmt::Debug for Streaming<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streaming").finish_non_exhaustive()
    }
}

/// Items as frames whose headers are still empty.
pub(crate) type ItemSource = Pin<Box<dyn Stream<Item = Result<FrameBuf>> + Send>>;

impl<T: 'static> Streaming<T> {
    /// Encodes the items for sending.
    pub(crate) fn into_source<C: CodecOf<T>>(self) -> ItemSource {
        Box::pin(self.0.map(|item| codec::encode::<C, T>(&item?)))
    }
}

/// Decodes the end of a call that returns a stream, if it ends before the stream begins.
pub fn empty_stream<T: Send + 'static>(code: u32, _: Bytes) -> Result<Streaming<T>> {
    match code {
        0 => Ok(Streaming::of([])),
        _ => Err(codec::another_type()),
    }
}

/// Like `empty_stream`, for a method with its own error type.
pub fn typed_empty_stream<C, T, E>(code: u32, body: Bytes) -> Result<Streaming<T>, CallError<E>>
where
    C: CodecOf<E>,
    T: Send + 'static,
{
    match code {
        TYPED_ERROR => Err(codec::application_error::<C, E>(&body)),
        _ => Ok(empty_stream(code, body)?),
    }
}
