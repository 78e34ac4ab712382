//! A running handler: polled once by the task that read its request, then in its own task, until it
//! returns an answer or the call is cancelled.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{Sleep, sleep_until};
use tracing::Span;

use super::connection::{ServerConnection, ServerTurn};
use super::items::SentItems;
use super::listening::CallPermit;
use super::service::{Handling, Incoming, Reply};
use crate::caught::{caught, drop_caught, log};
use crate::cx::{CancelReason, Cx};
use crate::drive::spawn;
use crate::observe;
use crate::status::{Code, Result, Started, Status};
use crate::wire::Streams;

/// A call after its first steps.
pub(super) struct Begun {
    /// Whether the call is open at its connection.
    is_open: bool,
    /// Whether the handler may be polled on this thread.
    polls: bool,
    /// The reason why no handler has begun.
    refused: Option<Status>,
    handling: Option<Handling>,
    reply: Option<Reply>,
    span: Option<Span>,
}

/// Begins a call: decodes it and polls its handler once, unless its method is `#[rpc(spawn)]` or
/// this thread is a blocking thread (`polls` is false).
#[inline]
pub(super) fn begin(mut call: Incoming<'_>, is_open: bool, polls: bool) -> Begun {
    let mut begun = Begun {
        is_open,
        polls,
        refused: None,
        handling: None,
        reply: None,
        span: None,
    };
    let cx = call.cx;
    let ran = cx.sync_scope(|| catch_unwind(AssertUnwindSafe(|| begun.take_steps(&mut call))));
    if let Err(panic) = ran {
        begun.catch(cx, panic);
    }
    begun
}

impl Begun {
    fn take_steps(&mut self, call: &mut Incoming<'_>) {
        let (connection, cx) = (call.connection, call.cx);
        let handling = match connection.server.dispatch(call) {
            Ok(handling) => self.handling.insert(handling),
            Err(status) => return self.refused = Some(status),
        };
        if !self.is_open && call.streams != Streams::default() {
            self.is_open = true;
            connection.open_call(cx, call.streams);
        }
        self.span = observe::server_span(cx);
        if self.polls && !cx.call().method.spawn {
            let _entered = self.span.as_ref().map(Span::enter);
            // The task, if there is one, polls the handler again with its own waker.
            if let Poll::Ready(ready) = handling.poll(&mut Context::from_waker(Waker::noop())) {
                self.reply = Some(ready);
            }
        }
    }

    /// Answers for a handler that has panicked, or refuses the call if decoding has panicked.
    #[cold]
    fn catch(&mut self, cx: &Cx, panic: Box<dyn Any + Send>) {
        drop_caught(panic);
        match self.handling.take() {
            Some(handling) => {
                drop_caught(handling);
                self.reply = Some(panicked(cx));
            }
            None => {
                let what = "what decodes the call has panicked";
                log(|| tracing::error!(method = cx.method(), "decoding a call has panicked"));
                self.refused = Some(Status::not_started(Code::Internal, what));
            }
        }
    }

    /// Answers the call, or spawns its handler if the handler waits. The call takes the turn's
    /// permit.
    ///
    /// # Errors
    /// The reason why no handler has begun.
    #[inline]
    pub(super) fn go_on(
        mut self,
        connection: &Arc<ServerConnection>,
        cx: Cx,
        turn: &mut ServerTurn,
    ) -> Result<()> {
        if let Some(status) = self.refused {
            return Err(status);
        }
        if turn.measure() && self.polls {
            notice_time(connection, &cx, turn.took);
        }
        // A call that is answered at its first poll has nothing that other tasks could reach, and
        // is not opened at its connection.
        if !self.is_open
            && let Some(reply) = &mut self.reply
            && reply.items.is_none()
            && connection.fits(reply)
        {
            connection.answer_at_once(&cx, reply, turn);
            observe::end_span(self.span, reply.code);
            // The handler's memory is empty and can be reused. Values that the program has stored
            // end with the call.
            turn.kept.handling = self.handling;
            match cx.extensions().has_any() {
                false => turn.kept.cx = Some(cx),
                true => drop(drop_caught(cx)),
            }
            return Ok(());
        }
        self.keep(connection, cx, turn.kept.permit.take());
        Ok(())
    }

    /// Opens the call if it is not open, and runs the handler in its own task.
    fn keep(self, connection: &Arc<ServerConnection>, cx: Cx, permit: Option<CallPermit>) {
        if !self.is_open {
            connection.open_call(&cx, Streams::default());
        }
        let mut running = Running {
            connection: Arc::clone(connection),
            cx,
            handling: self.handling.filter(|_| self.reply.is_none()),
            items: None,
            timer: None,
            span: self.span,
            permit,
        };
        let mut unwoken = Context::from_waker(Waker::noop());
        if running.go_on(self.reply, &mut unwoken).is_ready() {
            return;
        }
        if let Some(deadline) = running.cx.deadline() {
            running.timer = Some(Box::pin(sleep_until(deadline)));
        }
        spawn(running);
    }
}

/// Returns the answer for a handler that has panicked.
fn panicked(cx: &Cx) -> Reply {
    log(|| tracing::error!(method = cx.method(), "a handler panicked"));
    // The client names the method in its error.
    let status = Status::maybe_ran(Code::HandlerPanicked, "");
    Reply::status(&status)
}

/// Counts and logs a handler whose first poll has delayed the reading of frames.
#[cold]
fn notice_time(connection: &ServerConnection, cx: &Cx, took: Duration) {
    let routed = connection.server.routes.at(cx.call().route);
    routed.counters.poll_slowly();
    if let Some(left_out) = connection.server.slow_logged.admit() {
        let method = cx.method();
        log(|| tracing::warn!(method, ?took, left_out, "a handler keeps its thread"));
    }
}

struct Running {
    connection: Arc<ServerConnection>,
    cx: Cx,
    /// `None` once the handler has ended or was dropped.
    handling: Option<Handling>,
    /// The stream that the handler has returned, until the stream has ended.
    items: Option<SentItems>,
    timer: Option<Pin<Box<Sleep>>>,
    span: Option<Span>,
    /// Passed to the answer, which drops the permit before sending, since a client that has the
    /// answer may call again.
    permit: Option<CallPermit>,
}

impl Running {
    fn poll_call(&mut self, task: &mut Context<'_>) -> Poll<()> {
        // Registered first, so that any later cancellation wakes the task.
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

    /// Polls the handler. Ready once there is no handler.
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

    /// Continues with the handler's reply, if there is one: sends the items of its stream, then
    /// answers.
    fn go_on(&mut self, mut reply: Option<Reply>, task: &mut Context<'_>) -> Poll<()> {
        let items = reply.as_mut().and_then(|it| it.items.take());
        // A cancelled call's stream is not begun.
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

    /// Drops the handler and its stream, whose destructors may panic too.
    fn drop_handler(&mut self) {
        let mut all = Some((self.handling.take(), self.items.take()));
        let method = self.cx.method();
        caught(format_args!("what a handler of {method} held"), || {
            self.cx.sync_scope(|| {
                let _entered = self.span.as_ref().map(Span::enter);
                all = None;
            });
        });
        drop_caught(all);
    }

    /// Answers a call that was just cancelled, whatever its handler does.
    fn give_up(&mut self, reason: CancelReason) {
        // A `to_end` handler continues to its end, but its stream to an absent caller does not.
        let is_dropped = !self.cx.call().method.to_end || self.items.is_some();
        if is_dropped {
            self.drop_handler();
            self.permit = None;
        }
        let mut status = match reason {
            CancelReason::Caller => Status::maybe_ran(Code::Cancelled, "by its caller"),
            CancelReason::Deadline => {
                let most = self.connection.server.limits.deadline;
                let what = match self.cx.call().budget < most {
                    true => "at the server".to_owned(),
                    false => format!("the server allows {most:?} (Server::deadline_max)"),
                };
                Status::maybe_ran(Code::DeadlineExceeded, what)
            }
            CancelReason::Drain => Status::maybe_ran(Code::Draining, "and waits no longer"),
            CancelReason::Connection => return,
        };
        // A layer held the call until now, and the handler will never start.
        if is_dropped && !self.cx.has_started() {
            status = status.with_started(Started::NotStarted);
        }
        self.answer(Reply::refusal(&status), None);
    }

    fn answer(&mut self, reply: Reply, permit: Option<CallPermit>) {
        let served = self.cx.call().received.elapsed();
        let code = self.connection.answer(&self.cx, reply, served, permit);
        observe::end_span(self.span.take(), code);
    }
}

/// Polls a part of a call within the call's context and span. Sets `reply` when the part has ended;
/// drops a part that panics.
fn poll_within<T>(
    cx: &Cx,
    span: &Option<Span>,
    part: &mut Option<T>,
    reply: &mut Option<Reply>,
    poll: impl FnOnce(&mut T) -> Poll<Reply>,
) {
    let has_panicked = cx.sync_scope(|| {
        let polled = catch_unwind(AssertUnwindSafe(|| {
            let _entered = span.as_ref().map(Span::enter);
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
