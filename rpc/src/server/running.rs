//! A handler at work: polled once where its frame was read, then in a task of its own, until it has
//! an answer or the call is not wanted any more.

use std::any::Any;
use std::future::Future;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{Sleep, sleep_until};
use tracing::Span;

use super::connection::{ServerConnection, ServerTurn};
use super::items::SentItems;
use super::listening::{CallPermit, ServerShared};
use super::service::{Handling, Reply};
use crate::caught::{caught, drop_caught, log};
use crate::cx::{CancelReason, Cx};
use crate::observe;
use crate::status::{Code, Result, Started, Status};
use crate::wire::Streams;

/// Begins a call with what decodes it and gives its handler, polls that once, unless its method
/// says otherwise, and spawns it if it waits. A call that its connection does not know of yet comes
/// with its streams.
///
/// # Errors
/// Why it has not begun.
pub(super) fn start<S: Deref<Target = ServerShared>>(
    connection: &Arc<ServerConnection>,
    cx: Cx,
    permit: Option<CallPermit<S>>,
    mut unopened: Option<Streams>,
    turn: &mut ServerTurn,
    begin: impl FnOnce(&Cx, &mut ServerTurn) -> Result<Handling>,
) -> Result<()> {
    let (mut begun, mut handling, mut reply) = (Ok(()), None, None);
    let mut span = Span::none();
    // The task, if there is one, polls it again with a waker of its own.
    let mut unwoken = Context::from_waker(Waker::noop());
    let ran = cx.sync_scope(|| {
        catch_unwind(AssertUnwindSafe(|| {
            let handling = match begin(&cx, turn) {
                Ok(begun) => handling.insert(begun),
                Err(status) => return begun = Err(status),
            };
            if let Some(streams) = unopened.take_if(|it| *it != Streams::default()) {
                connection.open_call(&cx, streams);
            }
            span = observe::server_span(&cx);
            if !cx.call().method.spawn {
                let _entered = span.enter();
                if let Poll::Ready(ready) = handling.poll(&mut unwoken) {
                    reply = Some(ready);
                }
            }
        }))
    });
    if let Err(panic) = ran {
        reply = Some(catch_first(&cx, panic, &mut handling)?);
    }
    begun?;
    if turn.measure() {
        notice_time(connection, &cx, turn.took);
    }
    // What is answered at its first poll has nothing that others could reach meanwhile, and needs
    // no place at its connection.
    if unopened.is_some()
        && let Some(reply) = &mut reply
        && reply.items.is_none()
        && connection.fits(reply)
    {
        // Before the answer: who has that may call again.
        drop(permit);
        connection.answer_at_once(&cx, reply, turn);
        observe::end_span(span, reply.code);
        // Nothing of the handler is left there.
        (turn.kept.cx, turn.kept.handling) = (Some(cx), handling);
        return Ok(());
    }
    if let Some(streams) = unopened {
        connection.open_call(&cx, streams);
    }
    let mut running = Running {
        connection: Arc::clone(connection),
        cx,
        handling: handling.filter(|_| reply.is_none()),
        items: None,
        timer: None,
        span,
        permit: permit.map(|it| it.own(&connection.server)),
    };
    if running.go_on(reply, &mut unwoken).is_ready() {
        return Ok(());
    }
    if let Some(deadline) = running.cx.deadline() {
        running.timer = Some(Box::pin(sleep_until(deadline)));
    }
    tokio::spawn(running);
    Ok(())
}

/// What has panicked as the call began: its handler, which is answered, or what decodes it.
#[cold]
fn catch_first(
    cx: &Cx,
    panic: Box<dyn Any + Send>,
    handling: &mut Option<Handling>,
) -> Result<Reply> {
    drop_caught(panic);
    match handling.take() {
        Some(handling) => {
            drop_caught(handling);
            Ok(panicked(cx))
        }
        None => {
            let what = "what decodes the call has panicked";
            log(|| tracing::error!(method = cx.method(), what));
            Err(Status::not_started(Code::Internal, what))
        }
    }
}

/// The answer of a handler that has panicked.
fn panicked(cx: &Cx) -> Reply {
    log(|| tracing::error!(method = cx.method(), "a handler panicked"));
    let status = Status::maybe_ran(Code::HandlerPanicked, cx.method());
    Reply::status(&status)
}

/// A handler that was polled where frames are read has kept them waiting for long.
#[cold]
fn notice_time(connection: &ServerConnection, cx: &Cx, took: Duration) {
    let routed = connection.server.routes.at(cx.call().route);
    routed.counters.poll_slowly();
    log(|| tracing::warn!(method = cx.method(), ?took, "a handler keeps its thread"));
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
    /// Given to the answer, and back before that goes out: who has it may call again.
    permit: Option<CallPermit>,
}

impl Running {
    fn poll_call(&mut self, task: &mut Context<'_>) -> Poll<()> {
        // Registered first: a cancellation from now on wakes the task.
        self.cx.register(task);
        if let Some(timer) = &mut self.timer
            && timer.as_mut().poll(task).is_ready()
        {
            self.timer = None;
            self.cx.cancel(CancelReason::Deadline);
        }
        if let Some(reason) = self.cx.cancel_reason() {
            self.give_up(reason);
        }
        self.poll_handler(task)
    }

    /// Ready once the handler is no more.
    fn poll_handler(&mut self, task: &mut Context<'_>) -> Poll<()> {
        let mut reply = None;
        if self.items.is_none() {
            if self.handling.is_none() {
                return Poll::Ready(());
            }
            poll_within(&self.cx, &self.span, &mut self.handling, &mut reply, |it| {
                it.poll(task)
            });
            if reply.is_some() {
                self.handling = None;
            }
        }
        self.go_on(reply, task)
    }

    /// With the handler's reply, if there is one: sends what it streams, then answers.
    fn go_on(&mut self, mut reply: Option<Reply>, task: &mut Context<'_>) -> Poll<()> {
        let items = reply.as_mut().and_then(|it| it.items.take());
        // A stream that is not wanted any more is not begun.
        if let Some(items) = items.filter(|_| self.cx.cancel_reason().is_none()) {
            self.items = Some(SentItems::new(items));
        }
        if self.items.is_some() {
            reply = None;
            poll_within(&self.cx, &self.span, &mut self.items, &mut reply, |it| {
                it.poll(&self.connection, &self.cx, task)
            });
            if reply.is_some() {
                self.drop_handler();
            }
        }
        let Some(reply) = reply else {
            return Poll::Pending;
        };
        let permit = self.permit.take();
        self.answer(reply, permit);
        Poll::Ready(())
    }

    /// Of what it holds, too, destructors may panic.
    fn drop_handler(&mut self) {
        let mut all = Some((self.handling.take(), self.items.take()));
        let what = format_args!("what a handler of {} held", self.cx.method());
        caught(what, || {
            self.cx.sync_scope(|| {
                let _entered = self.span.enter();
                all = None;
            });
        });
        drop_caught(all);
    }

    /// The call is not wanted any more: it is answered now, whatever its handler does.
    fn give_up(&mut self, reason: CancelReason) {
        // To its end goes a handler, not what it streams to a caller that has gone.
        let is_dropped = !self.cx.call().method.to_end || self.items.is_some();
        if is_dropped {
            self.drop_handler();
            self.permit = None;
        }
        let mut status = match reason {
            CancelReason::Caller => Status::maybe_ran(Code::Cancelled, "by its caller"),
            CancelReason::Deadline => Status::maybe_ran(Code::DeadlineExceeded, "at the server"),
            CancelReason::Drain => Status::maybe_ran(Code::Draining, "and waits no longer"),
            CancelReason::Connection => return,
        };
        // Held by a layer so far, and from now on by none.
        if is_dropped && !self.cx.has_started() {
            status = status.with_started(Started::NotStarted);
        }
        self.answer(Reply::refusal(&status), None);
    }

    fn answer(&mut self, reply: Reply, permit: Option<CallPermit>) {
        let served = self.cx.call().received.elapsed();
        let code = self.connection.answer(&self.cx, reply, served, permit);
        observe::end_span(std::mem::replace(&mut self.span, Span::none()), code);
    }
}

/// Polls a part of a call within that. Once it is over there is a reply; what has panicked is
/// dropped there.
fn poll_within<T>(
    cx: &Cx,
    span: &Span,
    part: &mut Option<T>,
    reply: &mut Option<Reply>,
    poll: impl FnOnce(&mut T) -> Poll<Reply>,
) {
    let has_panicked = cx.sync_scope(|| {
        let polled = catch_unwind(AssertUnwindSafe(|| {
            let _entered = span.enter();
            if let Some(part) = part
                && let Poll::Ready(ready) = poll(part)
            {
                *reply = Some(ready);
            }
        }));
        polled.is_err() && {
            drop_caught(part.take());
            drop_caught(polled);
            true
        }
    });
    if has_panicked {
        *reply = Some(panicked(cx));
    }
}

impl Future for Running {
    type Output = ();

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        caught("what serves a call", || this.poll_call(task)).unwrap_or_else(|| {
            this.connection.answer_panicked(&this.cx);
            Poll::Ready(())
        })
    }
}
