//! A call from its description to its end: one record, which is also the call's future.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};
use tokio_fabric::{Domain, RemoteRegion};

use super::Channel;
use super::connection::{ClientConnection, NewCall, Reservation, Unsent};
use super::items::ReceivedItems;
use super::request::{CallRecord, Extras, Items, complete};
use crate::codec::{Arguments, CodecOf};
use crate::cx::Cx;
use crate::drive::within_runtime;
use crate::method::Method;
use crate::observe;
use crate::proto::{CallKey, CallProgress};
use crate::status::{CallFailure, Code, Result, Started, Status};
use crate::streaming::Streaming;
use crate::wire::{CodecName, FrameBuf, Streams, TraceContext, budget_us};

#[derive(Clone, Copy, Debug)]
enum Limit {
    OfChannel,
    Within(Duration),
    Unlimited,
}

/// Decodes the end of a call: its code and its body.
type Decode<T, E> = fn(u32, Bytes) -> Result<T, E>;

/// Makes the result of a call whose stream has begun.
type Begin<T> = fn(ReceivedItems) -> T;

/// A call, as the methods of a generated client return it: a future, which sends the call when it
/// is first polled, and returns the result.
///
/// Until then its settings can be changed. `E` is [`Status`], or
/// [`CallError`](crate::CallError) of the method's own error type.
///
/// ```
/// use std::time::Duration;
/// use tokio_fabric_rpc::{Code, Cx, Result, service, testing};
///
/// #[service]
/// trait Clock {
///     async fn wait(&self, cx: &Cx, seconds: u64) -> Result<()>;
/// }
///
/// # struct Sleeper;
/// # impl Clock for Sleeper {
/// #     async fn wait(&self, _: &Cx, seconds: u64) -> Result<()> {
/// #         Ok(tokio::time::sleep(Duration::from_secs(seconds)).await)
/// #     }
/// # }
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<()> {
/// # let (channel, _server) = testing::pair(ClockServer::new(Sleeper)).await?;
/// let clock = ClockClient::over(channel);
/// let call = clock.wait(60).deadline(Duration::from_secs(1)).meta("caller", "example");
/// let status = call.await.unwrap_err();
/// assert_eq!(status.code(), Code::DeadlineExceeded);
/// clock.wait(60).no_deadline().await?;
/// # Ok(()) }
/// ```
///
/// A call that a handler makes ends no later than the handler's own call, in whichever task it is
/// awaited.
///
/// # Cancel safety
/// Dropping a call that was polled cancels it: the handler is dropped at its next await, with the
/// calls and transfers that it is making. A call that was waiting for the window is not sent.
#[must_use = "nothing is called until this is awaited; dropped, the call is cancelled"]
pub struct Call<T, E = Status> {
    call: AnyCall,
    decode: Decode<T, E>,
    /// Makes the result of a method that returns a stream.
    begin: Option<Begin<T>>,
}

/// A call is moved from the method that makes it to where it is awaited: two cache lines at most
/// without the time of its first poll.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Call<()>>() <= 128 + size_of::<Option<Instant>>());

/// A call without the type of its result.
struct AnyCall {
    record: CallRecord,
    state: State,
    /// The call's number at its connection, and the connection, once the call has begun.
    key: CallKey,
    connection: Option<Arc<ClientConnection>>,
    /// The request, behind room for its header; empty once the request is sent. `Err`: the reason
    /// why the request could not be made.
    frame: Result<FrameBuf>,
    /// `None`: the request uses no codec.
    codec: Option<CodecName>,
    /// Counts from the first poll on.
    limit: Limit,
    waits: bool,
    receives: bool,
    /// Until the first poll: a deadline set earlier, such as that of the call whose handler makes
    /// this call. From the first poll on: the earlier of this and the call's own.
    deadline: Option<Instant>,
    /// Settings that few calls have.
    extras: Option<Box<Extras>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Described,
    /// The call waits for a connection.
    Waiting,
    Begun,
    /// Code of the program may be running: the call begins, or its response is decoded. If the code
    /// panics, the call counts as dropped.
    AtProgram,
    Done,
}

impl Channel {
    /// Creates a call of a method, for the code that `#[service]` generates.
    #[doc(hidden)]
    pub fn call<T, E: From<Status> + CallFailure>(
        &self,
        method: &'static Method,
        arguments: Arguments,
        decode: fn(u32, Bytes) -> Result<T, E>,
    ) -> Call<T, E> {
        let (deadline, trace) = Cx::inherited();
        Call {
            call: AnyCall {
                record: CallRecord::new(&self.inner, method),
                state: State::Described,
                key: CallKey::default(),
                connection: None,
                frame: arguments.frame,
                codec: arguments.codec,
                limit: Limit::OfChannel,
                waits: false,
                receives: false,
                deadline,
                extras: trace.map(|trace| Box::new(Extras::inherit(trace))),
            },
            decode,
            begin: None,
        }
    }
}

impl<T, E: From<Status> + CallFailure> Call<T, E> {
    /// Adds a stream to be sent, for the code that `#[service]` generates.
    #[doc(hidden)]
    pub fn sending<C: CodecOf<I>, I: 'static>(mut self, items: Streaming<I>) -> Self {
        self.call.extras().items = Items::Source(items.into_source::<C>());
        self
    }

    /// Makes a stream the result, for the code that `#[service]` generates.
    #[doc(hidden)]
    pub fn receiving(mut self, begin: fn(ReceivedItems) -> T) -> Self {
        (self.begin, self.call.receives) = (Some(begin), true);
        self
    }

    /// Limits the time of the call, from its first poll on; then the call fails with
    /// [`Code::DeadlineExceeded`]. Default: the channel's, 10 s. A call that a handler makes ends
    /// no later than the handler's own call.
    pub fn deadline(mut self, within: Duration) -> Self {
        self.call.limit = Limit::Within(within);
        self
    }

    /// Removes the deadline. A call that a handler makes still ends no later than the handler's own
    /// call, and every call no later than its server allows
    /// ([`Server::deadline_max`](crate::Server::deadline_max), 1 h by default).
    pub fn no_deadline(mut self) -> Self {
        self.call.limit = Limit::Unlimited;
        self
    }

    /// Moves the call to another channel.
    pub(crate) fn over(mut self, channel: &Channel) -> Self {
        self.call.record.channel = Arc::clone(&channel.inner);
        self
    }

    /// If there is no connection, waits for one, within the deadline. Default: the call fails at
    /// once, as not started, unless its channel is [lazy](crate::ChannelBuilder::connect_lazy) and
    /// connecting for the first time.
    pub fn wait_for_ready(mut self) -> Self {
        self.call.waits = true;
        self
    }

    /// Adds an entry to the call's metadata. With more than 16 entries, or more than 1 KiB, the
    /// call fails with [`Code::TooLarge`].
    pub fn meta(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        let pushed = self.call.extras().metadata.push(name, value.as_ref());
        if let Err(status) = pushed {
            self.call.frame = Err(status);
        }
        self
    }

    /// The trace that the call belongs to. `None` changes nothing, so that the result of
    /// [`TraceContext::from_traceparent`] can be passed. Default: the trace of the call whose
    /// handler makes this call; with the feature `opentelemetry`, the trace of the span in which
    /// the call is first polled.
    pub fn trace(mut self, trace: impl Into<Option<TraceContext>>) -> Self {
        if let Some(trace) = trace.into() {
            let extras = self.call.extras();
            (extras.trace, extras.inherits_trace) = (Some(trace), false);
        }
        self
    }

    /// Adds regions that the call lends.
    pub(crate) fn lend(mut self, lent: &[RemoteRegion]) -> Self {
        self.call.extras().lent = lent.iter().copied().collect();
        self
    }

    /// Holds the room reserved for the call until the call has begun.
    pub(crate) fn holding(mut self, reserved: Option<Reservation>) -> Self {
        if reserved.is_some() {
            self.call.extras().reserved = reserved;
        }
        self
    }
}

impl<T, E: CallFailure> Call<T, E> {
    /// Decodes the response. `at`: when it arrived, if known.
    #[inline]
    fn decode(&mut self, code: u32, body: Bytes, at: Option<Instant>) -> Result<T, E> {
        let mut result = (self.decode)(code, body);
        if let Err(error) = &mut result
            && let Some(status) = error.status_mut()
        {
            self.call.describe(status);
        }
        // A result that cannot be decoded is an error.
        let code = match result.is_ok() || code != 0 {
            true => code,
            false => Code::Internal.number(),
        };
        self.call.end(Ok(code), at);
        result
    }
}

impl<T, E> Call<T, E> {
    /// Adds this call's details to the status.
    pub(super) fn describe(&self, status: &mut Status) {
        self.call.describe(status);
    }

    pub(super) fn record(&self) -> CallRecord {
        self.call.record.clone()
    }

    /// Returns the status of an unpolled call that has waited since `begun` until its deadline.
    pub(super) fn late(&mut self, what: &'static str, begun: Instant) -> Status {
        self.call.record.begun.get_or_insert(begun);
        let mut status = self.call.late(what);
        self.call.describe(&mut status);
        status
    }

    /// Returns the runtime of the call's channel.
    pub(crate) fn runtime(&self) -> &Handle {
        self.call.record.channel.runtime()
    }

    /// Returns the domain of the call's channel, in which the call's lent memory is registered.
    pub(crate) fn domain(&self) -> &Domain {
        self.call.record.channel.domain()
    }
}

impl<T, E> Call<T, E> {
    /// Fixes and returns the deadline, counted from `begun`, for this call and its clones.
    pub(crate) fn fix_deadline(&mut self, begun: Instant) -> Option<Instant> {
        let call = &mut self.call;
        let own = call.limit().and_then(|it| begun.checked_add(it));
        call.limit = Limit::Unlimited;
        call.deadline = [own, call.deadline].into_iter().flatten().min();
        call.deadline
    }
}

#[cfg(feature = "tower")]
impl<T, E> Call<T, E> {
    /// Returns whether the call can be made again: it sends no stream, since a stream is read only
    /// once.
    pub(crate) fn can_be_made_again(&self) -> bool {
        let extras = self.call.extras.as_ref();
        extras.is_none_or(|it| matches!(it.items, Items::None))
    }

    pub(crate) fn method(&self) -> &'static Method {
        self.call.record.method
    }

    /// Makes this call and its clones a further attempt. `begun`: when the first attempt began;
    /// `started`: whether the last attempt started.
    pub(crate) fn attempt_again(&mut self, begun: Instant, started: Started) {
        let extras = self.call.extras();
        extras.first_begun = Some(begun);
        extras.attempts = extras.attempts.saturating_add(1);
        extras.may_have_run |= started != Started::NotStarted;
    }
}

/// A clone makes the same call once more; the original was not polled. A clone cannot send the
/// original's stream, which is read only once: it fails with [`Code::BadRequest`], as not started.
impl<T, E> Clone for Call<T, E> {
    fn clone(&self) -> Self {
        let call = &self.call;
        Call {
            call: AnyCall {
                record: CallRecord::new(&call.record.channel, call.record.method),
                state: State::Described,
                key: CallKey::default(),
                connection: None,
                frame: match call.state {
                    State::Described => call.frame.clone(),
                    _ => {
                        let what = "the call that this is a clone of was made before";
                        Err(Status::not_started(Code::BadRequest, what))
                    }
                },
                codec: call.codec,
                limit: call.limit,
                waits: call.waits,
                receives: call.receives,
                deadline: call.deadline,
                extras: call.extras.as_ref().map(|it| Box::new(it.of_clone())),
            },
            decode: self.decode,
            begin: self.begin,
        }
    }
}

impl AnyCall {
    fn extras(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    /// Returns the time limit, which counts from the first poll on.
    fn limit(&self) -> Option<Duration> {
        match self.limit {
            Limit::OfChannel => self.record.channel.deadline,
            Limit::Within(time) => Some(time),
            Limit::Unlimited => None,
        }
    }

    /// Sets the deadline to the earlier of the own and the inherited one; returns the time left.
    fn set_deadline(&mut self, now: Instant) -> Result<Option<Duration>> {
        let limit = self.limit();
        let own = limit.and_then(|it| now.checked_add(it));
        let left = match (own, self.deadline) {
            (own, Some(inherited)) if own.is_none_or(|own| inherited < own) => {
                Some(inherited.saturating_duration_since(now))
            }
            (own, _) => {
                self.deadline = own;
                own.and(limit)
            }
        };
        match left {
            Some(Duration::ZERO) => Err(self.late("none was left")),
            left => Ok(left),
        }
    }

    fn time_left(&self) -> Option<Duration> {
        let deadline = self.deadline?;
        Some(deadline.saturating_duration_since(Instant::now()))
    }

    /// Begins the call at its first poll.
    #[inline]
    fn start(&mut self, task: &Waker) -> Result<()> {
        self.record.channel.counters.begin();
        self.state = State::AtProgram;
        let trace = self.extras.as_ref().and_then(|it| it.trace);
        let target = &self.record.channel.connector.target;
        let server = (target.host(), target.port());
        if let Some(span) = observe::client_span(self.record.method, server, trace) {
            self.extras().begin_span(span);
        }
        match &mut self.frame {
            Ok(frame) => {
                let extras = &mut self.extras;
                complete(frame, extras, self.receives, self.record.channel.domain())?;
            }
            Err(status) => return Err(status.clone()),
        }
        let now = Instant::now();
        self.record.begun = Some(now);
        let left = self.set_deadline(now)?;
        self.begin(left, task)
    }

    /// Begins the call on the current connection, or waits for one.
    #[inline]
    fn begin(&mut self, left: Option<Duration>, task: &Waker) -> Result<()> {
        let connection = self.record.channel.current();
        let Ok(frame) = &mut self.frame else {
            unreachable!("it is described");
        };
        let (sends, body_len) = self.extras.as_ref().map_or((false, 0), |it| it.sent());
        let call = NewCall {
            method: self.record.method.id,
            codec: self.codec,
            budget_us: left.map_or(0, budget_us),
            body_len,
            deadline: self.deadline,
            streams: Streams {
                sends,
                receives: self.receives,
            },
        };
        let begun = connection.begin(&call, frame, task);
        if let Some(extras) = &mut self.extras {
            extras.reserved = None;
        }
        match begun {
            Ok(key) => {
                (self.state, self.key) = (State::Begun, key);
                self.connection = Some(connection);
            }
            Err(status) if self.may_wait(&status) => self.wait(),
            Err(status) => return Err(status),
        }
        Ok(())
    }

    /// Begins the call if it has not begun, and returns its progress.
    fn poll_progress(&mut self, cx: &mut Context<'_>) -> CallProgress {
        match self.state {
            State::Described => match self.start(cx.waker()) {
                Ok(()) => self.poll_begun(cx),
                Err(status) => CallProgress::Ended(Err(status)),
            },
            State::Begun => self.poll_open(cx),
            State::Waiting => self.poll_begun(cx),
            State::AtProgram | State::Done => unreachable!("a call is not polled after its end"),
        }
    }

    /// Waits for a connection if there is none, then sends the call's items.
    #[inline]
    fn poll_begun(&mut self, cx: &mut Context<'_>) -> CallProgress {
        while self.state == State::Waiting {
            let waiting = &mut self.extras().waiting;
            let waiting = waiting.as_mut().expect("it waits for something");
            if waiting.as_mut().poll(cx).is_pending() {
                return CallProgress::Pending;
            }
            self.state = State::Done;
            let begun = match self.time_left() {
                Some(Duration::ZERO) => Err(self.late("it waited for a connection")),
                left => self.begin(left, cx.waker()),
            };
            if let Err(status) = begun {
                return CallProgress::Ended(Err(status));
            }
        }
        match &self.extras {
            None => CallProgress::Pending,
            Some(_) => self.poll_items(cx),
        }
    }

    fn poll_items(&mut self, cx: &mut Context<'_>) -> CallProgress {
        let is_sent = self.frame.as_ref().is_ok_and(|it| it.is_empty());
        if let Some(extras) = &mut self.extras
            && let Items::Pump(pump) = &mut extras.items
            && is_sent
            && let Some(connection) = &self.connection
            && let Err(status) = pump.poll(connection, self.key, cx)
        {
            connection.abandon(self.key);
            self.state = State::Done;
            return CallProgress::Ended(Err(status));
        }
        CallProgress::Pending
    }

    /// Polls a call that waits for the window, has a stream, or was woken spuriously.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> CallProgress {
        let connection = self.connection.as_ref().expect("it has begun");
        let progress = connection.poll_call(self.key, cx.waker(), || Unsent {
            frame: self.frame.as_mut().expect("it is described"),
            method: self.record.method.id,
            deadline: self.deadline,
        });
        match progress {
            CallProgress::Pending => self.poll_begun(cx),
            CallProgress::Ended(Err(status)) => self.handle_failure(status, cx),
            CallProgress::Ended(end) => {
                self.state = State::AtProgram;
                CallProgress::Ended(end)
            }
            CallProgress::Begun => CallProgress::Begun,
            CallProgress::Send(_) | CallProgress::Item(..) => {
                unreachable!("it is sent there, and its stream begins first")
            }
        }
    }

    /// Waits for another connection if the call may wait; otherwise fails the call.
    fn handle_failure(&mut self, status: Status, cx: &mut Context<'_>) -> CallProgress {
        self.state = State::Done;
        // The call waited for the window of a connection that now takes no more calls.
        if self.may_wait(&status) {
            self.connection = None;
            self.wait();
            return self.poll_begun(cx);
        }
        CallProgress::Ended(Err(status))
    }

    /// Takes the response of a call without streams, and the time at which the response arrived, if
    /// it has. Most calls are polled once to begin, and once to take the response.
    #[inline]
    fn take_response(&mut self) -> Option<(u32, Bytes, Instant)> {
        if self.state != State::Begun {
            return None;
        }
        let response = self.connection.as_ref()?.take_response(self.key)?;
        self.state = State::AtProgram;
        Some(response)
    }

    /// Turns the call into its stream of received items.
    fn take_items(&mut self) -> ReceivedItems {
        self.state = State::Done;
        let connection = self.connection.take().expect("it has begun");
        ReceivedItems::new(
            connection,
            self.key,
            self.extras.take(),
            self.record.clone(),
            self.deadline,
        )
    }

    /// Returns whether another connection may take a call that failed with this status: the current
    /// connection, the first connection while it is being made, or a later connection if the call
    /// waits for one.
    fn may_wait(&self, status: &Status) -> bool {
        let codes = [Code::Draining, Code::ConnectionLost, Code::Unavailable];
        let passes = status.is_not_started() && codes.contains(&status.code());
        let is_unsent = self.frame.as_ref().is_ok_and(|it| !it.is_empty());
        let channel = &self.record.channel;
        let has_other = || channel.is_open() || !channel.has_tried();
        passes && is_unsent && !channel.is_closed() && (self.waits || has_other())
    }

    fn wait(&mut self) {
        let (channel, deadline) = (Arc::clone(&self.record.channel), self.deadline);
        let waits = self.waits;
        let runtime = channel.runtime().clone();
        let waiting = within_runtime(runtime, async move {
            let connected = async {
                match waits {
                    true => channel.ready().await,
                    false => channel.tried().await,
                }
            };
            match deadline {
                // The next iteration checks whether the deadline has passed.
                Some(deadline) => drop(timeout_at(deadline, connected).await),
                None => connected.await,
            }
        });
        self.state = State::Waiting;
        self.extras().waiting = Some(Box::pin(waiting));
    }

    /// Returns the status of a call that waited until its deadline and was not sent.
    fn late(&self, what: &'static str) -> Status {
        let late = Status::not_started(Code::DeadlineExceeded, what);
        self.record.late(late)
    }

    /// Adds this call's details to the status.
    fn describe(&self, status: &mut Status) {
        let (connection, extras) = (self.connection.as_deref(), self.extras.as_deref());
        if status.is_not_started() && extras.is_some_and(|it| it.may_have_run) {
            *status = status.clone().with_started(Started::MaybeRan);
        }
        (self.record).describe(status, connection, extras, self.deadline);
    }

    /// Records how the call has ended.
    #[inline]
    fn end(&mut self, end: Result<u32, &Status>, at: Option<Instant>) {
        self.state = State::Done;
        let span = self.extras.as_ref().and_then(|it| it.span.as_ref());
        self.record.end(end, at, span);
    }
}

impl<T, E> Unpin for Call<T, E> {}

impl<T, E: From<Status> + CallFailure> Future for Call<T, E> {
    type Output = Result<T, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let Some((code, body, at)) = this.call.take_response() {
            return Poll::Ready(this.decode(code, body, Some(at)));
        }
        Poll::Ready(match this.call.poll_progress(cx) {
            CallProgress::Ended(Ok((code, body))) => this.decode(code, body, None),
            CallProgress::Ended(Err(mut status)) => {
                this.call.describe(&mut status);
                this.call.end(Err(&status), None);
                Err(status.into())
            }
            CallProgress::Begun => match this.begin {
                Some(begin) => Ok(begin(this.call.take_items())),
                None => unreachable!("it receives no items"),
            },
            _ => return Poll::Pending,
        })
    }
}

impl Drop for AnyCall {
    fn drop(&mut self) {
        match (self.state, &self.connection) {
            (State::Described | State::Done, _) => return,
            (State::Begun, Some(connection)) => connection.abandon(self.key),
            _ => {}
        }
        self.record.drop_call();
    }
}

impl<T, E> fmt::Debug for Call<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let call = &self.call;
        let state = match &call.state {
            State::Described => "not begun",
            State::Waiting => "waiting for a connection",
            State::Begun if call.frame.as_ref().is_ok_and(|it| it.is_empty()) => "sent",
            State::Begun => "waiting for the window",
            State::AtProgram | State::Done => "ended",
        };
        f.debug_struct("Call")
            .field("method", &call.record.method.name)
            .field("state", &state)
            .field("limit", &call.limit)
            .field("metadata", &call.extras.as_ref().map(|it| &it.metadata))
            .finish_non_exhaustive()
    }
}
