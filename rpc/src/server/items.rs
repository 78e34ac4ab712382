//! The streams of a call, on the handler's side.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use futures::Stream;
use tokio_fabric::op::Op;

use super::connection::ServerConnection;
use super::service::Reply;
use crate::codec::{self, CodecOf};
use crate::cx::{CancelReason, Cx};
use crate::drive::ItemSending;
use crate::limits::{HEADER_LEN, STREAM_ITEMS};
use crate::proto::{ItemRead, ItemSend};
use crate::status::{Code, Result, Status};
use crate::streaming::ItemSource;
use crate::wire::{FrameBuf, encode_begun, encode_credit, write_item_head};

/// The items that the client sends.
pub(super) struct ReceivedItems<C, T> {
    connection: Arc<ServerConnection>,
    cx: Cx,
    is_over: bool,
    of: PhantomData<fn() -> (C, T)>,
}

impl<C, T> ReceivedItems<C, T> {
    pub(super) fn new(connection: &Arc<ServerConnection>, cx: &Cx) -> ReceivedItems<C, T> {
        ReceivedItems {
            connection: Arc::clone(connection),
            cx: cx.clone(),
            is_over: false,
            of: PhantomData,
        }
    }
}

impl<C: CodecOf<T>, T> Stream for ReceivedItems<C, T> {
    type Item = Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Result<T>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let item = match self.connection.read_item(&self.cx, task.waker()) {
            ItemRead::Pending => return Poll::Pending,
            ItemRead::Item(body, _) => Some(codec::decode_item::<C, T>(&body)),
            ItemRead::Over => None,
            ItemRead::Gone => {
                let code = self
                    .cx
                    .cancel_reason()
                    .map_or(Code::Cancelled, CancelReason::code);
                Some(Err(Status::new(code, "its call is over")))
            }
        };
        self.is_over = !matches!(item, Some(Ok(_)));
        Poll::Ready(item)
    }
}

impl ServerConnection {
    /// Sends an item. Without credit, the call's task is woken when there is credit.
    ///
    /// # Errors
    /// The item is too large, or the call is over.
    fn send_item(&self, cx: &Cx, mut frame: FrameBuf) -> Result<ItemSending> {
        if frame.len() > self.frame_max() {
            let (len, max) = (frame.len(), self.frame_max());
            let what = format!("an item of {len} bytes, the client takes {max}");
            return Err(Status::new(Code::TooLarge, what));
        }
        let len = frame.len() - HEADER_LEN;
        match self.with_machine(|machine| machine.send_item(cx.id(), len)) {
            ItemSend::Now => {
                write_item_head(&mut frame, cx.id());
                Ok(self.send_within_room(&mut frame))
            }
            ItemSend::Later => Ok(ItemSending::NoCredit(frame)),
            ItemSend::Gone => Err(Status::new(Code::Cancelled, "")),
        }
    }

    fn begin_items(&self, cx: &Cx) {
        if self.with_machine(|machine| machine.is_running(cx.id())) {
            self.send_bare(&encode_begun(cx.id()));
        }
    }

    fn read_item(&self, cx: &Cx, task: &Waker) -> ItemRead {
        // Wakers are cloned and dropped without the lock, since they run code of another layer.
        let mut other = None;
        loop {
            let (mut machine, mut last) = (self.lock(), None);
            if cx.is_answered() {
                return ItemRead::Gone;
            }
            let read = machine.read_item(cx.id());
            if read == ItemRead::Pending && machine.is_unwatched(cx.id(), |it| it.will_wake(task)) {
                let Some(reader) = other.take() else {
                    drop(machine);
                    other = Some(task.clone());
                    continue;
                };
                last = machine.watch_items(cx.id(), reader);
            }
            // The credit is sent under the lock, so that it precedes the answer.
            if let ItemRead::Item(_, Some(credit)) = &read {
                self.send_bare(&encode_credit(cx.id(), *credit));
            }
            drop(machine);
            drop(last);
            return read;
        }
    }
}

/// The stream that a handler has returned, and its items to be sent.
pub(super) struct SentItems {
    source: ItemSource,
    /// An item that waits for credit.
    next: Option<FrameBuf>,
    /// An item that waits for room within the library.
    sending: Option<Op<Vec<u8>>>,
    /// Whether the client knows that the stream has begun.
    has_begun: bool,
}

impl SentItems {
    pub(super) fn new(source: ItemSource) -> SentItems {
        SentItems {
            source,
            next: None,
            sending: None,
            has_begun: false,
        }
    }

    /// Sends the items that can be sent now. Called by the call's task, which sends the answer
    /// after the items; ready with that answer.
    pub(super) fn poll(
        &mut self,
        connection: &ServerConnection,
        cx: &Cx,
        task: &mut Context<'_>,
    ) -> Poll<Reply> {
        for _ in 0..STREAM_ITEMS {
            if let Some(sending) = &mut self.sending {
                // If sending fails, the connection is lost.
                let _ = ready!(Pin::new(sending).poll(task));
                self.sending = None;
            }
            let frame = match self.next.take() {
                Some(frame) => frame,
                None => match self.source.as_mut().poll_next(task) {
                    Poll::Ready(Some(Ok(frame))) => frame,
                    Poll::Ready(Some(Err(status))) => return Poll::Ready(Reply::status(&status)),
                    Poll::Ready(None) => return Poll::Ready(Reply::bytes(Bytes::new())),
                    Poll::Pending => {
                        if !std::mem::replace(&mut self.has_begun, true) {
                            connection.begin_items(cx);
                        }
                        return Poll::Pending;
                    }
                },
            };
            match connection.send_item(cx, frame) {
                Ok(ItemSending::Sent) => self.has_begun = true,
                Ok(ItemSending::NoRoom(sending)) => {
                    (self.sending, self.has_begun) = (Some(sending), true);
                }
                Ok(ItemSending::NoCredit(frame)) => {
                    self.next = Some(frame);
                    return Poll::Pending;
                }
                Err(status) => return Poll::Ready(Reply::status(&status)),
            }
        }
        // Lets other tasks run.
        task.waker().wake_by_ref();
        Poll::Pending
    }
}
