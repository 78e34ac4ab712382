//! A call, described and then awaited.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tokio_fabric::{Domain, RemoteRegion};

use super::connection::{CallStep, ClientConnection, NewCall, Reservation};
use super::items::{ItemPump, ReceivedItems};
use super::request::{CallRecord, Described};
use super::{Channel, ChannelInner};
use crate::codec::{Arguments, CodecOf};
use crate::cx::{Cx, TraceContext};
use crate::limits::BUDGET_US_MAX;
use crate::observe;
use crate::proto::{CallEnd, CallKey};
use crate::server::Method;
use crate::status::{Code, Result, Status};
use crate::streaming::{ItemSource, Streaming};
use crate::wire::{
    CallId, CodecName, FrameBuf, FrameHead, Metadata, Prefix, Streams, write_request_head,
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

/// Makes the result of a call whose stream has begun.
type Begin<T> = fn(ReceivedItems) -> T;

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
    /// Of a method that gives a stream.
    begin: Option<Begin<T>>,
    items: Items,
}

/// The stream that a call sends.
enum Items {
    None,
    Source(ItemSource),
    /// The stream is that of the call which this is a clone of.
    OfOriginal,
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
            begin: None,
            items: Items::None,
        }
    }
}

impl<T, E: From<Status>> Call<T, E> {
    /// The same call with a stream to be sent, for what `#[service]` writes.
    #[doc(hidden)]
    pub fn sending<C: CodecOf<I>, I: 'static>(mut self, items: Streaming<I>) -> Self {
        self.items = Items::Source(items.into_source::<C>());
        self
    }

    /// The same call with a stream as its result, for what `#[service]` writes.
    #[doc(hidden)]
    pub fn receiving(mut self, begin: fn(ReceivedItems) -> T) -> Self {
        self.begin = Some(begin);
        self
    }

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

/// To be made once more, by who decides that it may be. A stream that it sends cannot be read once
/// more: such a clone fails as [`Code::BadRequest`], not started.
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
            begin: self.begin,
            items: match self.items {
                Items::None => Items::None,
                Items::Source(_) | Items::OfOriginal => Items::OfOriginal,
            },
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
        let items = match self.items {
            Items::None => Ok(None),
            Items::Source(source) => Ok(Some(Box::new(ItemPump::new(source)))),
            Items::OfOriginal => Err(Status::not_started(
                Code::BadRequest,
                "the stream that it sends was given to the call that this is a clone of",
            )),
        };
        let streams = Streams {
            sends: matches!(items, Ok(Some(_))),
            receives: self.begin.is_some(),
        };
        let described = items.and_then(|items| {
            let prefix = Prefix {
                trace: trace.as_ref(),
                metadata: &self.metadata,
                lent,
                streams,
                is_by_reference: false,
            };
            let described = Described::new(self.arguments.frame?, &prefix, self.channel.domain())?;
            Ok((described, items))
        });
        let (state, items) = match described {
            Ok((described, items)) => (State::Described(described), items),
            Err(status) => (State::Refused(status), None),
        };
        CallFuture {
            codec: self.arguments.codec,
            limit,
            waits: self.waits,
            deadline: within.as_ref().and_then(Cx::deadline),
            record: CallRecord {
                channel: self.channel,
                method: self.method,
                span: observe::client_span(self.method, trace),
                #[cfg(feature = "metrics")]
                begun: None,
            },
            reserved: None,
            state,
            streams,
            items,
            decode: self.decode,
            begin: self.begin,
        }
    }
}

enum State {
    Described(Described),
    Refused(Status),
    /// For a connection.
    Waiting(Described, Pin<Box<dyn Future<Output = ()> + Send>>),
    /// Its frame is empty once it is sent.
    Begun(Arc<ClientConnection>, CallKey, Described),
    Done,
}

/// A call under way.
///
/// # Cancel safety
/// Dropping it cancels the call: the handler is dropped at its next await, with what it has called
/// and what it transfers. A call that waits for the window is never made.
#[must_use = "dropped, the call is cancelled"]
pub struct CallFuture<T, E = Status> {
    codec: Option<CodecName>,
    /// From its first poll on.
    limit: Option<Duration>,
    waits: bool,
    /// Of the call whose handler makes it; from the first poll on its own, too.
    deadline: Option<Instant>,
    state: State,
    record: CallRecord,
    /// Until it has begun.
    reserved: Option<Reservation>,
    streams: Streams,
    items: Option<Box<ItemPump>>,
    decode: Decode<T, E>,
    begin: Option<Begin<T>>,
}

/// What becomes of a call.
enum Outcome {
    End(CallEnd),
    Begun(ReceivedItems),
}

impl<T, E> CallFuture<T, E> {
    /// With room that was kept for it.
    pub(crate) fn holding(mut self, reserved: Option<Reservation>) -> Self {
        self.reserved = reserved;
        self
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

    fn poll_outcome(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        let mut begun = None;
        match std::mem::replace(&mut self.state, State::Done) {
            State::Refused(status) => {
                self.record.channel.counters.begin();
                return Poll::Ready(Outcome::End(Err(status)));
            }
            State::Described(described) => {
                self.record.channel.counters.begin();
                let now = Instant::now();
                begun = Some(now);
                #[cfg(feature = "metrics")]
                {
                    self.record.begun = begun;
                }
                let begin = self.set_deadline(now);
                if let Err(status) = begin.and_then(|()| self.begin(described)) {
                    return Poll::Ready(Outcome::End(Err(status)));
                }
            }
            state => self.state = state,
        }
        loop {
            let end = match &mut self.state {
                State::Waiting(_, waiting) => {
                    ready!(waiting.as_mut().poll(&mut Context::from_waker(cx.waker())));
                    let State::Waiting(described, _) =
                        std::mem::replace(&mut self.state, State::Done)
                    else {
                        unreachable!("matched above");
                    };
                    let late = self.deadline.is_some_and(|it| it <= Instant::now());
                    let begun = match late {
                        true => Err(Status::not_started(
                            Code::DeadlineExceeded,
                            "it waited for a connection",
                        )),
                        false => self.begin(described),
                    };
                    match begun {
                        Ok(()) => continue,
                        Err(status) => return Poll::Ready(Outcome::End(Err(status))),
                    }
                }
                State::Begun(connection, key, described) => {
                    let (method, deadline) = (self.record.method.id, self.deadline);
                    let request = |call| {
                        // What it has waited for the window is gone.
                        let now = begun.unwrap_or_else(Instant::now);
                        let left = deadline.map(|it| it.saturating_duration_since(now));
                        request_of(std::mem::take(&mut described.frame), call, method, left)
                    };
                    match connection.poll_call(*key, cx.waker(), request) {
                        Poll::Ready(CallStep::Ended(end)) => end,
                        Poll::Ready(CallStep::Begun) => {
                            return Poll::Ready(Outcome::Begun(self.take_items()));
                        }
                        Poll::Ready(CallStep::Item(_)) => unreachable!("its stream begins first"),
                        Poll::Pending => {
                            if let Some(items) = &mut self.items
                                && described.frame.is_empty()
                                && let Err(status) = items.poll(connection, *key, cx)
                            {
                                connection.abandon(*key);
                                self.state = State::Done;
                                return Poll::Ready(Outcome::End(Err(status)));
                            }
                            return Poll::Pending;
                        }
                    }
                }
                _ => unreachable!("a call is not polled after its end"),
            };
            let state = std::mem::replace(&mut self.state, State::Done);
            match (end, state) {
                // It waited for the window of a connection that takes no more calls.
                (Err(status), State::Begun(_, _, described))
                    if self.waits && !described.frame.is_empty() && is_of_connection(&status) =>
                {
                    self.wait(described);
                }
                (end, _) => return Poll::Ready(Outcome::End(end)),
            }
        }
    }

    /// The call goes on as its stream.
    fn take_items(&mut self) -> ReceivedItems {
        match std::mem::replace(&mut self.state, State::Done) {
            State::Begun(connection, key, described) => {
                let record = self.record.take();
                ReceivedItems::new(connection, key, self.items.take(), described.body, record)
            }
            _ => unreachable!("only what was sent begins"),
        }
    }

    /// Begins the call on the connection there is, or waits for one.
    fn begin(&mut self, described: Described) -> Result<()> {
        let connection = self.record.channel.current();
        let call = NewCall {
            len: described.frame.len(),
            body_len: described.body_len,
            deadline: self.deadline,
            streams: self.streams,
        };
        let begun = match self.codec {
            Some(codec) => connection.check_codec(codec),
            None => Ok(()),
        };
        let begun = begun.and_then(|()| connection.begin(&call));
        self.reserved = None;
        match begun {
            Ok(key) => {
                self.state = State::Begun(connection, key, described);
                Ok(())
            }
            Err(status) if self.waits && is_of_connection(&status) => {
                self.wait(described);
                Ok(())
            }
            Err(status) => Err(status),
        }
    }

    fn wait(&mut self, described: Described) {
        let (channel, deadline) = (Arc::clone(&self.record.channel), self.deadline);
        let waiting = async move {
            match deadline {
                // Late or not is seen behind it.
                Some(deadline) => drop(timeout_at(deadline, channel.ready()).await),
                None => channel.ready().await,
            }
        };
        self.state = State::Waiting(described, Box::pin(waiting));
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
        this.poll_outcome(cx)
            .map(|outcome| match (outcome, this.begin) {
                (Outcome::End(end), _) => {
                    this.record.end(&end);
                    match end {
                        Ok((code, body)) => (this.decode)(code, &body),
                        Err(status) => Err(status.into()),
                    }
                }
                (Outcome::Begun(items), Some(begin)) => Ok(begin(items)),
                (Outcome::Begun(_), None) => unreachable!("it receives no items"),
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
        self.record.drop_call();
    }
}

impl<T, E> fmt::Debug for CallFuture<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Described(_) | State::Refused(_) => "not begun",
            State::Waiting(..) => "waiting for a connection",
            State::Begun(_, _, it) if !it.frame.is_empty() => "waiting for the window",
            State::Begun(..) => "sent",
            State::Done => "ended",
        };
        f.debug_struct("CallFuture")
            .field("state", &state)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
