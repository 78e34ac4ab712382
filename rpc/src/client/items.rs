//! The streams of a call, on the caller's side.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures::Stream;
use tokio_fabric::op::Op;

use super::connection::ClientConnection;
use super::request::{CallRecord, Extras, Items};
use crate::codec::{self, CodecOf};
use crate::drive::ItemSending;
use crate::limits::STREAM_ITEMS;
use crate::proto::{CallKey, CallProgress, ItemBody};
use crate::status::{Result, Started, Status};
use crate::streaming::{ItemSource, Streaming};
use crate::wire::FrameBuf;

/// The stream that a call sends. It is polled when there is credit for an item.
pub(super) struct ItemPump {
    /// `None` once the stream has ended.
    source: Option<ItemSource>,
    /// An item that waits for credit.
    next: Option<FrameBuf>,
    /// An item that waits for room within the library.
    sending: Option<Op<Vec<u8>>>,
}

impl ItemPump {
    pub(super) fn new(source: ItemSource) -> ItemPump {
        ItemPump {
            source: Some(source),
            next: None,
            sending: None,
        }
    }

    /// Sends the items that can be sent now; the task is woken when there is more to do.
    ///
    /// # Errors
    /// Errors of the source or of an item. Then the call must be given up, and counts as possibly
    /// run, whatever the source's own status says.
    pub(super) fn poll(
        &mut self,
        connection: &ClientConnection,
        key: CallKey,
        cx: &mut Context<'_>,
    ) -> Result<()> {
        let sent = self.send_items(connection, key, cx);
        sent.map_err(|status| status.with_started(Started::MaybeRan))
    }

    fn send_items(
        &mut self,
        connection: &ClientConnection,
        key: CallKey,
        cx: &mut Context<'_>,
    ) -> Result<()> {
        for _ in 0..STREAM_ITEMS {
            let Some(source) = &mut self.source else {
                return Ok(());
            };
            if let Some(sending) = &mut self.sending {
                if Pin::new(sending).poll(cx).is_pending() {
                    return Ok(());
                }
                self.sending = None;
            }
            let frame = match self.next.take() {
                Some(frame) => frame,
                None => match source.as_mut().poll_next(cx) {
                    Poll::Pending => return Ok(()),
                    Poll::Ready(Some(frame)) => frame?,
                    Poll::Ready(None) => {
                        self.source = None;
                        connection.end_items(key);
                        return Ok(());
                    }
                },
            };
            match connection.send_item(key, frame, cx.waker())? {
                ItemSending::Sent => {}
                ItemSending::NoRoom(sending) => self.sending = Some(sending),
                ItemSending::NoCredit(frame) => {
                    self.next = Some(frame);
                    return Ok(());
                }
            }
        }
        // Other tasks have their turn.
        cx.waker().wake_by_ref();
        Ok(())
    }
}

/// The rest of a call whose stream has begun: the items, then its end.
#[allow(
    missing_debug_implementations,
    reason = "programs have it as a `Streaming`"
)]
pub struct ReceivedItems {
    /// `None` once the call has ended.
    call: Option<(Arc<ClientConnection>, CallKey)>,
    /// With the stream that it sends, and the request, if that is by reference.
    extras: Option<Box<Extras>>,
    record: CallRecord,
}

impl ReceivedItems {
    pub(super) fn new(
        connection: Arc<ClientConnection>,
        key: CallKey,
        extras: Option<Box<Extras>>,
        record: CallRecord,
    ) -> ReceivedItems {
        ReceivedItems {
            call: Some((connection, key)),
            extras,
            record,
        }
    }

    fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ItemBody>>> {
        let Some((connection, key)) = &self.call else {
            return Poll::Ready(None);
        };
        // First, so that a server that always has an item cannot delay it.
        if let Some(extras) = &mut self.extras
            && let Items::Pump(pump) = &mut extras.items
            && let Err(status) = pump.poll(connection, *key, cx)
        {
            self.give_up(Some(&status));
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
        self.call = None;
        self.end(end.as_ref().map(|(code, _)| *code));
        Poll::Ready(match end {
            Ok((0, _)) => None,
            Ok(_) => Some(Err(codec::another_type())),
            Err(status) => Some(Err(status)),
        })
    }

    /// Revokes access to lent memory, then cancels the call. `why`: the reason; `None`: the caller
    /// drops it.
    fn give_up(&mut self, why: Option<&Status>) {
        self.drop_lent();
        if let Some((connection, key)) = self.call.take() {
            connection.abandon(key);
            match why {
                Some(status) => self.end(Err(status)),
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
        let item = item.map_err(|status| status.with_started(Started::MaybeRan));
        if let Err(status) = &item {
            self.items.give_up(Some(status));
        }
        Poll::Ready(Some(item))
    }
}
