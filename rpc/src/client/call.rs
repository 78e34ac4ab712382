//! A call, described and then awaited.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tokio_fabric::{Domain, RemoteRegion};
use tracing::Span;

use super::connection::{ClientConnection, Reservation};
use super::{Channel, ChannelInner};
use crate::codec::Arguments;
use crate::cx::{Cx, TraceContext};
use crate::limits::BUDGET_US_MAX;
use crate::observe;
use crate::proto::{CallEnd, CallKey};
use crate::server::Method;
use crate::status::{Code, Result, Status};
use crate::wire::{
    CallId, CodecName, FrameBuf, FrameHead, Metadata, insert_prefix, write_request_head,
};

/// The time that a call has.
#[derive(Clone, Copy, Debug)]
enum Limit {
    OfChannel,
    Within(Duration),
    Unlimited,
}

/// Decodes the end of a call: its code and its body.
type Decode<T, E> = fn(u32, &[u8]) -> Result<T, E>;

/// A call to be made; it is sent when it is awaited. `E` is [`Status`], or
/// [`CallError`](crate::CallError) of the method's own error.
#[must_use = "nothing is called until this is awaited"]
pub struct Call<T, E = Status> {
    channel: Arc<ChannelInner>,
    method: &'static Method,
    arguments: Arguments,
    limit: Limit,
    metadata: Metadata,
    trace: Option<TraceContext>,
    waits: bool,
    decode: Decode<T, E>,
}

impl Channel {
    /// A call of a method, for what `#[service]` writes.
    #[doc(hidden)]
    pub fn call<T, E: From<Status>>(
        &self,
        method: &'static Method,
        arguments: Arguments,
        decode: fn(u32, &[u8]) -> Result<T, E>,
    ) -> Call<T, E> {
        Call {
            channel: Arc::clone(&self.inner),
            method,
            arguments,
            limit: Limit::OfChannel,
            metadata: Metadata::default(),
            trace: None,
            waits: false,
            decode,
        }
    }
}

impl<T, E: From<Status>> Call<T, E> {
    /// Ends the call with [`Code::DeadlineExceeded`] when it has taken so long, from its first poll
    /// on. Default: the
    /// channel's, 10 s. A call that a handler makes ends with that handler's call at the latest.
    pub fn deadline(mut self, within: Duration) -> Self {
        self.limit = Limit::Within(within);
        self
    }

    /// The call takes as long as it takes, or as long as the call whose handler makes it.
    pub fn no_deadline(mut self) -> Self {
        self.limit = Limit::Unlimited;
        self
    }

    /// The same call over another channel.
    pub(crate) fn over(mut self, channel: &Channel) -> Self {
        self.channel = Arc::clone(&channel.inner);
        self
    }

    /// Waits for a connection if there is none, within the call's deadline. Default: the call fails
    /// at once, as not started.
    pub fn wait_for_ready(mut self) -> Self {
        self.waits = true;
        self
    }

    /// Sends a pair of metadata along. More than 16 of them, or 1 KiB, end the call with
    /// [`Code::TooLarge`].
    pub fn meta(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        if let Err(status) = self.metadata.push(name, value.as_ref()) {
            self.arguments.frame = Err(status);
        }
        self
    }

    /// The trace that the call is of. Default: that of the call whose handler makes it.
    pub fn trace(mut self, trace: TraceContext) -> Self {
        self.trace = Some(trace);
        self
    }
}

#[cfg(feature = "tower")]
impl<T, E> Call<T, E> {
    /// It may be made again though it may have run.
    pub(crate) fn is_idempotent(&self) -> bool {
        self.method.idempotent
    }

    /// So much of its time is over; `false` if all is.
    pub(crate) fn shorten(&mut self, by: Duration) -> bool {
        let limit = match self.limit {
            Limit::OfChannel => self.channel.deadline,
            Limit::Within(time) => Some(time),
            Limit::Unlimited => None,
        };
        let Some(left) = limit.map(|it| it.saturating_sub(by)) else {
            return true;
        };
        self.limit = Limit::Within(left);
        !left.is_zero()
    }
}

/// To be made once more, by who decides that it may be.
impl<T, E> Clone for Call<T, E> {
    fn clone(&self) -> Self {
        Call {
            channel: Arc::clone(&self.channel),
            method: self.method,
            arguments: self.arguments.clone(),
            limit: self.limit,
            metadata: self.metadata.clone(),
            trace: self.trace,
            waits: self.waits,
            decode: self.decode,
        }
    }
}

impl<T, E> fmt::Debug for Call<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("method", &self.method.name)
            .field("limit", &self.limit)
            .field("metadata", &self.metadata)
            .finish_non_exhaustive()
    }
}

impl<T, E: From<Status>> IntoFuture for Call<T, E> {
    type Output = Result<T, E>;
    type IntoFuture = CallFuture<T, E>;

    fn into_future(self) -> CallFuture<T, E> {
        self.into_future_lending(&[])
    }
}

impl<T, E: From<Status>> Call<T, E> {
    /// Where memory that it lends is registered.
    pub(crate) fn domain(&self) -> &Domain {
        self.channel.domain()
    }

    /// With what it lends.
    pub(crate) fn into_future_lending(self, lent: &[RemoteRegion]) -> CallFuture<T, E> {
        let within = Cx::current();
        let limit = match self.limit {
            Limit::OfChannel => self.channel.deadline,
            Limit::Within(time) => Some(time),
            Limit::Unlimited => None,
        };
        let trace = self.trace.or_else(|| within.as_ref()?.trace());
        let frame = self.arguments.frame.map(|mut frame| {
            if trace.is_some() || !self.metadata.is_empty() || !lent.is_empty() {
                insert_prefix(&mut frame, trace.as_ref(), &self.metadata, lent);
            }
            frame
        });
        CallFuture {
            channel: self.channel,
            method: self.method,
            codec: self.arguments.codec,
            limit,
            waits: self.waits,
            deadline: within.as_ref().and_then(Cx::deadline),
            span: observe::client_span(self.method, trace),
            reserved: None,
            #[cfg(feature = "metrics")]
            begun: None,
            state: match frame {
                Ok(frame) => State::Described(frame),
                Err(status) => State::Refused(status),
            },
            decode: self.decode,
        }
    }
}

enum State {
    Described(FrameBuf),
    Refused(Status),
    /// For a connection.
    Waiting(FrameBuf, Pin<Box<dyn Future<Output = ()> + Send>>),
    /// With its frame, until that is sent.
    Begun(Arc<ClientConnection>, CallKey, FrameBuf),
    Done,
}

/// A call under way.
///
/// # Cancel safety
/// Dropping it cancels the call: the handler is dropped at its next await, with what it has called
/// and what it transfers. A call that waits for the window is never made.
#[must_use = "dropped, the call is cancelled"]
pub struct CallFuture<T, E = Status> {
    channel: Arc<ChannelInner>,
    method: &'static Method,
    codec: Option<CodecName>,
    /// From its first poll on.
    limit: Option<Duration>,
    waits: bool,
    /// Of the call whose handler makes it; from the first poll on its own, too.
    deadline: Option<Instant>,
    state: State,
    span: Option<Box<Span>>,
    /// Until it has begun.
    reserved: Option<Reservation>,
    #[cfg(feature = "metrics")]
    begun: Option<Instant>,
    decode: Decode<T, E>,
}

impl<T, E> CallFuture<T, E> {
    /// With room that was kept for it.
    pub(crate) fn holding(mut self, reserved: Option<Reservation>) -> Self {
        self.reserved = reserved;
        self
    }

    /// The one end of a call that was polled.
    fn record(&self, end: &CallEnd) {
        self.channel.counters.end(end);
        let code = observe::code_of(end);
        if let Some(span) = &self.span {
            observe::record_end(span, code);
        }
        #[cfg(feature = "metrics")]
        if let Some(begun) = self.begun {
            observe::metrics::called(self.method, code, begun.elapsed());
        }
    }

    /// Puts the earlier of both deadlines in force.
    fn set_deadline(&mut self, now: Instant) -> Result<()> {
        let own = self.limit.and_then(|it| now.checked_add(it));
        self.deadline = match (own, self.deadline) {
            (Some(own), Some(inherited)) => Some(own.min(inherited)),
            (own, inherited) => own.or(inherited),
        };
        match self.deadline {
            Some(deadline) if deadline <= now => {
                Err(Status::not_started(Code::DeadlineExceeded, "none was left"))
            }
            _ => Ok(()),
        }
    }

    fn poll_end(&mut self, cx: &Context<'_>) -> Poll<CallEnd> {
        let mut begun = None;
        match std::mem::replace(&mut self.state, State::Done) {
            State::Refused(status) => {
                self.channel.counters.begin();
                return Poll::Ready(Err(status));
            }
            State::Described(frame) => {
                self.channel.counters.begin();
                let now = Instant::now();
                begun = Some(now);
                #[cfg(feature = "metrics")]
                {
                    self.begun = begun;
                }
                if let Err(status) = self.set_deadline(now) {
                    return Poll::Ready(Err(status));
                }
                self.begin(frame)?;
            }
            state => self.state = state,
        }
        loop {
            let end = match &mut self.state {
                State::Waiting(frame, waiting) => {
                    ready!(waiting.as_mut().poll(&mut Context::from_waker(cx.waker())));
                    let frame = std::mem::take(frame);
                    if self.deadline.is_some_and(|it| it <= Instant::now()) {
                        let what = "it waited for a connection";
                        Err(Status::not_started(Code::DeadlineExceeded, what))
                    } else {
                        self.begin(frame)?;
                        continue;
                    }
                }
                State::Begun(connection, key, frame) => {
                    let (method, deadline) = (self.method.id, self.deadline);
                    let request = |call| {
                        // What it has waited for the window is gone.
                        let now = begun.unwrap_or_else(Instant::now);
                        let left = deadline.map(|it| it.saturating_duration_since(now));
                        request_of(std::mem::take(frame), call, method, left)
                    };
                    ready!(connection.poll_call(*key, cx.waker(), request))
                }
                _ => unreachable!("a call is not polled after its end"),
            };
            let state = std::mem::replace(&mut self.state, State::Done);
            match (end, state) {
                // It waited for the window of a connection that takes no more calls.
                (Err(status), State::Begun(_, _, frame))
                    if self.waits && !frame.is_empty() && is_of_connection(&status) =>
                {
                    self.wait(frame);
                }
                (end, _) => return Poll::Ready(end),
            }
        }
    }

    /// Begins the call on the connection there is, or waits for one.
    fn begin(&mut self, frame: FrameBuf) -> Result<()> {
        let connection = self.channel.current();
        let begun = match self.codec {
            Some(codec) => connection.check_codec(codec),
            None => Ok(()),
        };
        let begun = begun.and_then(|()| connection.begin(frame.len(), self.deadline));
        self.reserved = None;
        match begun {
            Ok(key) => {
                self.state = State::Begun(connection, key, frame);
                Ok(())
            }
            Err(status) if self.waits && is_of_connection(&status) => {
                self.wait(frame);
                Ok(())
            }
            Err(status) => Err(status),
        }
    }

    fn wait(&mut self, frame: FrameBuf) {
        let (channel, deadline) = (Arc::clone(&self.channel), self.deadline);
        let waiting = async move {
            match deadline {
                // Late or not is seen behind it.
                Some(deadline) => drop(timeout_at(deadline, channel.ready()).await),
                None => channel.ready().await,
            }
        };
        self.state = State::Waiting(frame, Box::pin(waiting));
    }
}

/// Another connection may take the call.
fn is_of_connection(status: &Status) -> bool {
    let codes = [Code::Draining, Code::ConnectionLost, Code::Unavailable];
    status.is_not_started() && codes.contains(&status.code())
}

fn request_of(mut frame: FrameBuf, call: CallId, method: u32, left: Option<Duration>) -> FrameBuf {
    let micros = |it: Duration| {
        u32::try_from(it.as_micros())
            .unwrap_or(BUDGET_US_MAX)
            .max(1)
    };
    let budget_us = left.map_or(0, micros);
    let head = FrameHead {
        call,
        method_or_code: method,
        time_us: budget_us,
    };
    write_request_head(&mut frame, head);
    frame
}

impl<T, E> Unpin for CallFuture<T, E> {}

impl<T, E: From<Status>> Future for CallFuture<T, E> {
    type Output = Result<T, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.poll_end(cx).map(|end| {
            this.record(&end);
            match end {
                Ok((code, body)) => (this.decode)(code, &body),
                Err(status) => Err(status.into()),
            }
        })
    }
}

impl<T, E> Drop for CallFuture<T, E> {
    fn drop(&mut self) {
        match &self.state {
            State::Begun(connection, key, _) => connection.abandon(*key),
            State::Waiting(..) => {}
            _ => return,
        }
        self.channel.counters.drop_call();
    }
}

impl<T, E> fmt::Debug for CallFuture<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Described(_) | State::Refused(_) => "not begun",
            State::Waiting(..) => "waiting for a connection",
            State::Begun(_, _, frame) if !frame.is_empty() => "waiting for the window",
            State::Begun(..) => "sent",
            State::Done => "ended",
        };
        f.debug_struct("CallFuture")
            .field("state", &state)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
