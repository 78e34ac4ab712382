//! The stream that a call returns, on the caller's side.

use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures::Stream;
use tokio::time::Instant;

use super::connection::ClientConnection;
use super::request::{CallRecord, Extras, Items};
use crate::codec::{self, CodecOf};
use crate::proto::{CallKey, CallProgress, ItemBody};
use crate::status::{Result, Started, Status};
use crate::streaming::Streaming;

/// The rest of a call whose stream has begun: the items, then its end.
#[allow(
    missing_debug_implementations,
    reason = "programs have it as a `Streaming`"
)]
pub struct ReceivedItems {
    /// `None` once the call has ended.
    call: Option<(Arc<ClientConnection>, CallKey)>,
    /// The call's outgoing stream, and its request if the request is sent by reference.
    extras: Option<Box<Extras>>,
    record: CallRecord,
    deadline: Option<Instant>,
}

impl ReceivedItems {
    pub(super) fn new(
        connection: Arc<ClientConnection>,
        key: CallKey,
        extras: Option<Box<Extras>>,
        record: CallRecord,
        deadline: Option<Instant>,
    ) -> ReceivedItems {
        ReceivedItems {
            call: Some((connection, key)),
            extras,
            record,
            deadline,
        }
    }

    /// Adds this call's details to the status; the call was on `connection`.
    fn describe(&self, status: &mut Status, connection: Option<&ClientConnection>) {
        let extras = self.extras.as_deref();
        (self.record).describe(status, connection, extras, self.deadline);
    }

    fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ItemBody>>> {
        let Some((connection, key)) = &self.call else {
            return Poll::Ready(None);
        };
        // Polls the outgoing stream first, so that a server that always has an item cannot delay
        // it.
        if let Some(extras) = &mut self.extras
            && let Items::Pump(pump) = &mut extras.items
            && let Err(mut status) = pump.poll(connection, *key, cx)
        {
            self.give_up(Some(&mut status));
            return Poll::Ready(Some(Err(status)));
        }
        let unsent = || unreachable!("it was sent before its stream began");
        let end = match connection.poll_call(*key, cx.waker(), unsent) {
            CallProgress::Pending => return Poll::Pending,
            CallProgress::Item(body, _) => return Poll::Ready(Some(Ok(body))),
            CallProgress::Ended(end) => end,
            CallProgress::Send(_) | CallProgress::Begun => {
                unreachable!("it was sent, and begins once")
            }
        };
        self.drop_lent();
        let connection = self.call.take().map(|(connection, _)| connection);
        self.end(end.as_ref().map(|(code, _)| *code));
        let mut status = match end {
            Ok((0, _)) => return Poll::Ready(None),
            Ok(_) => codec::another_type(),
            Err(status) => status,
        };
        self.describe(&mut status, connection.as_deref());
        Poll::Ready(Some(Err(status)))
    }

    /// Revokes access to lent memory, then cancels the call. `why`: the reason; `None`: the caller
    /// dropped the stream.
    fn give_up(&mut self, why: Option<&mut Status>) {
        self.drop_lent();
        if let Some((connection, key)) = self.call.take() {
            connection.abandon(key);
            match why {
                Some(status) => {
                    self.describe(status, Some(&connection));
                    self.end(Err(status));
                }
                None => self.record.drop_call(),
            }
        }
    }

    fn drop_lent(&mut self) {
        if let Some(extras) = &mut self.extras {
            extras.drop_lent();
        }
    }

    fn end(&self, end: Result<u32, &Status>) {
        let span = self.extras.as_ref().and_then(|it| it.span.as_ref());
        self.record.end(end, None, span);
    }
}

impl Drop for ReceivedItems {
    fn drop(&mut self) {
        self.give_up(None);
    }
}

/// Makes the result of a call that returns a stream, for the code that `#[service]` generates.
pub fn received<C: CodecOf<T>, T: 'static>(items: ReceivedItems) -> Streaming<T> {
    Streaming::new(DecodedItems::<C, T> {
        items,
        of: PhantomData,
    })
}

struct DecodedItems<C, T> {
    items: ReceivedItems,
    of: PhantomData<fn() -> (C, T)>,
}

impl<C: CodecOf<T>, T> Stream for DecodedItems<C, T> {
    type Item = Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<T>>> {
        let body = match ready!(self.items.poll_item(cx)) {
            Some(Ok(body)) => body,
            Some(Err(status)) => return Poll::Ready(Some(Err(status))),
            None => return Poll::Ready(None),
        };
        let item = codec::decode_item::<C, T>(&body);
        let mut item = item.map_err(|status| status.with_started(Started::MaybeRan));
        if let Err(status) = &mut item {
            self.items.give_up(Some(status));
        }
        Poll::Ready(Some(item))
    }
}
