//! A handler at work: polled once where its frame was read, then in a task of its own, until it has
//! an answer or the call is not wanted any more.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use tokio::time::{Instant, Sleep, sleep_until};
use tracing::Span;

use super::connection::ServerConnection;
use super::items::SentItems;
use super::listening::CallPermit;
use super::service::{Handling, Reply};
use crate::cx::{CancelReason, Cx};
use crate::drive::Clock;
use crate::limits::FIRST_POLL_MAX;
use crate::observe;
use crate::status::{Code, Status};

/// Polls the handler once, and spawns it if it waits.
pub(super) fn start(
    connection: Arc<ServerConnection>,
    cx: Cx,
    handling: Handling,
    permit: CallPermit,
    clock: &mut Clock,
) {
    let mut running = Running {
        span: observe::server_span(&cx),
        connection,
        cx,
        handling: Some(handling),
        items: None,
        timer: None,
        permit: Some(permit),
    };
    // The task, if there is one, polls it again with a waker of its own.
    let first = running.poll_handler(&mut Context::from_waker(Waker::noop()));
    let now = match first {
        Poll::Ready(ended) => ended,
        Poll::Pending => Instant::now(),
    };
    let took = now.saturating_duration_since(clock.last);
    clock.last = now;
    if took > FIRST_POLL_MAX {
        tracing::warn!(
            method = running.cx.method(),
            ?took,
            "a handler keeps its thread"
        );
    }
    if first.is_pending() {
        if let Some(deadline) = running.cx.deadline() {
            running.timer = Some(Box::pin(sleep_until(deadline)));
        }
        tokio::spawn(running);
    }
}

struct Running {
    connection: Arc<ServerConnection>,
    cx: Cx,
    /// Until it has ended, or was dropped.
    handling: Option<Handling>,
    /// What it has given to be sent, until that is over.
    items: Option<SentItems>,
    timer: Option<Pin<Box<Sleep>>>,
    span: Span,
    /// Given back before the answer goes out: who has that may call again.
    permit: Option<CallPermit>,
}

impl Running {
    /// Ready once the handler is no more: when that was found.
    fn poll_handler(&mut self, task: &mut Context<'_>) -> Poll<Instant> {
        let reply = match self.items {
            Some(_) => ready!(self.poll_items(task)),
            None if self.handling.is_none() => return Poll::Ready(Instant::now()),
            None => {
                let mut reply = ready!(self.poll_handling(task));
                match reply.items.take() {
                    // A stream that is not wanted any more is not begun.
                    Some(items) if self.cx.cancel_reason().is_none() => {
                        self.items = Some(SentItems::new(items));
                        ready!(self.poll_items(task))
                    }
                    _ => reply,
                }
            }
        };
        observe::record_end(&self.span, reply.code);
        self.permit = None;
        let now = Instant::now();
        self.connection.answer(&self.cx, reply, now);
        Poll::Ready(now)
    }

    fn poll_handling(&mut self, task: &mut Context<'_>) -> Poll<Reply> {
        let handling = &mut self.handling;
        let _entered = self.span.enter();
        let polled = self.cx.sync_scope(|| {
            let poll = || match handling {
                Some(handling) => handling.as_mut().poll(task),
                None => Poll::Pending,
            };
            let polled = catch_unwind(AssertUnwindSafe(poll));
            // Its end, and the end of what it holds, are within the call too.
            let is_over = !matches!(polled, Ok(Poll::Pending));
            (polled, is_over && drop_caught(handling.take()))
        });
        self.reply_of(polled)
    }

    /// The same of the stream that it has given.
    fn poll_items(&mut self, task: &mut Context<'_>) -> Poll<Reply> {
        let (items, connection, cx) = (&mut self.items, &self.connection, &self.cx);
        let _entered = self.span.enter();
        let polled = cx.sync_scope(|| {
            let poll = || match items {
                Some(items) => items.poll(connection, cx, task),
                None => Poll::Pending,
            };
            let polled = catch_unwind(AssertUnwindSafe(poll));
            let is_over = !matches!(polled, Ok(Poll::Pending));
            (polled, is_over && drop_caught(items.take()))
        });
        self.reply_of(polled)
    }

    fn reply_of(&self, polled: (std::thread::Result<Poll<Reply>>, bool)) -> Poll<Reply> {
        match polled {
            (Ok(Poll::Pending), _) => Poll::Pending,
            (Ok(Poll::Ready(reply)), false) => Poll::Ready(reply),
            (Err(_), _) | (_, true) => {
                tracing::error!(method = self.cx.method(), "a handler panicked");
                let status = Status::maybe_ran(Code::HandlerPanicked, self.cx.method());
                Poll::Ready(Reply::status(&status))
            }
        }
    }

    /// Of what it holds, too, destructors may panic.
    fn drop_handler(&mut self) {
        let all = (self.handling.take(), self.items.take());
        let _entered = self.span.enter();
        if self.cx.sync_scope(|| drop_caught(all)) {
            tracing::error!(method = self.cx.method(), "what a handler held panicked");
        }
        self.permit = None;
    }

    /// The call is not wanted any more: it is answered now, whatever its handler does.
    fn give_up(&mut self, reason: CancelReason) {
        // To its end goes a handler, not what it streams to a caller that has gone.
        if !self.cx.call().method.to_end || self.items.is_some() {
            self.drop_handler();
        }
        let status = match reason {
            CancelReason::Caller => Status::maybe_ran(Code::Cancelled, "by its caller"),
            CancelReason::Deadline => Status::maybe_ran(Code::DeadlineExceeded, "at the server"),
            CancelReason::Drain => Status::maybe_ran(Code::Draining, "and waits no longer"),
            CancelReason::Connection => return,
        };
        let reply = Reply::status(&status);
        observe::record_end(&self.span, reply.code);
        self.connection.answer(&self.cx, reply, Instant::now());
    }
}

/// True if it panicked.
fn drop_caught<T>(what: T) -> bool {
    catch_unwind(AssertUnwindSafe(|| drop(what))).is_err()
}

impl Future for Running {
    type Output = ();

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        // Registered first: a cancellation from now on wakes the task.
        this.cx.register(task);
        if let Some(timer) = &mut this.timer
            && timer.as_mut().poll(task).is_ready()
        {
            this.timer = None;
            this.cx.cancel(CancelReason::Deadline);
        }
        if let Some(reason) = this.cx.cancel_reason() {
            this.give_up(reason);
        }
        this.poll_handler(task).map(drop)
    }
}
