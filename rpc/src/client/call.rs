//! A call, described and then awaited.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tokio_fabric::{Domain, RemoteRegion};

use super::connection::{ClientConnection, NewCall, Reservation};
use super::items::{ItemPump, ReceivedItems};
use super::request::{CallRecord, Described};
use super::{Channel, ChannelInner};
use crate::codec::{Arguments, CodecOf};
use crate::cx::{Cx, TraceContext};
use crate::observe;
use crate::proto::{CallKey, CallProgress};
use crate::server::Method;
use crate::status::{Code, Result, Status};
use crate::streaming::{ItemSource, Streaming};
use crate::wire::{CallId, CodecName, FrameHead, Metadata, Prefix, Streams, budget_us};

/// The time that a call has.
#[derive(Clone, Copy, Debug)]
enum Limit {
    OfChannel,
    Within(Duration),
    #[cfg(feature = "tower")]
    Until(Instant),
    Unlimited,
}

/// Decodes the end of a call: its code and its body.
type Decode<T, E> = fn(u32, &[u8]) -> Result<T, E>;

/// Makes the result of a call whose stream has begun.
type Begin<T> = fn(ReceivedItems) -> T;

/// A call that has not been sent yet, as the methods of a generated client return it.
///
/// Awaiting it sends it and returns the result. `E` is [`Status`], or
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
/// # Cancel safety
/// As for [`CallFuture`].
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

    /// The time that the call may take, from the first poll of its future on; then it fails with
    /// [`Code::DeadlineExceeded`]. Default: the channel's, 10 s. A call that a handler makes ends
    /// no later than the handler's own call.
    pub fn deadline(mut self, within: Duration) -> Self {
        self.limit = Limit::Within(within);
        self
    }

    /// Removes the deadline. A call that a handler makes still ends no later than the handler's own
    /// call, and every call no later than its server allows
    /// ([`Server::deadline_max`](crate::Server::deadline_max), 1 h by default).
    pub fn no_deadline(mut self) -> Self {
        self.limit = Limit::Unlimited;
        self
    }

    /// The same call over another channel.
    pub(crate) fn over(mut self, channel: &Channel) -> Self {
        self.channel = Arc::clone(&channel.inner);
        self
    }

    /// If there is no connection, waits for one, within the deadline. Default: the call fails at
    /// once, as not started.
    pub fn wait_for_ready(mut self) -> Self {
        self.waits = true;
        self
    }

    /// Adds an entry to the call's metadata. With more than 16 entries, or more than 1 KiB, the
    /// call fails with [`Code::TooLarge`].
    pub fn meta(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        if let Err(status) = self.metadata.push(name, value.as_ref()) {
            self.arguments.frame = Err(status);
        }
        self
    }

    /// The trace that the call belongs to. Default: that of the call whose handler makes this one.
    pub fn trace(mut self, trace: TraceContext) -> Self {
        self.trace = Some(trace);
        self
    }
}

#[cfg(feature = "tower")]
impl<T, E> Call<T, E> {
    /// It sends no stream, which is read once.
    pub(crate) fn can_be_made_again(&self) -> bool {
        matches!(self.items, Items::None)
    }

    /// It may be made again though it may have run.
    pub(crate) fn is_idempotent(&self) -> bool {
        self.method.idempotent
    }

    /// Fixes the deadline, for clones too, counting from `begun`; returns it.
    pub(crate) fn fix_deadline(&mut self, begun: Instant) -> Option<Instant> {
        let deadline = match self.limit {
            Limit::OfChannel => self.channel.deadline.and_then(|it| begun.checked_add(it)),
            Limit::Within(time) => begun.checked_add(time),
            Limit::Until(deadline) => Some(deadline),
            Limit::Unlimited => None,
        };
        self.limit = deadline.map_or(Limit::Unlimited, Limit::Until);
        deadline
    }
}

/// A clone is the same call, to be made once more. It cannot send the stream of the original, which
/// is read only once: such a clone fails with [`Code::BadRequest`], as not started.
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
        let inherited = within.as_ref().and_then(Cx::deadline);
        let (limit, deadline) = match self.limit {
            Limit::OfChannel => (self.channel.deadline, inherited),
            Limit::Within(time) => (Some(time), inherited),
            #[cfg(feature = "tower")]
            Limit::Until(at) => (None, Some(inherited.map_or(at, |it| it.min(at)))),
            Limit::Unlimited => (None, inherited),
        };
        let trace = self.trace.or_else(|| within.as_ref()?.trace());
        let mut state = State::Described;
        let mut described = Described::default();
        match self.arguments.frame {
            Ok(frame) => described.frame = frame,
            Err(status) => state = State::Refused(status),
        }
        let items = match self.items {
            Items::None => None,
            Items::Source(source) => Some(Box::new(ItemPump::new(source))),
            Items::OfOriginal => {
                state = State::Refused(Status::not_started(
                    Code::BadRequest,
                    "the stream that it sends was given to the call that this is a clone of",
                ));
                None
            }
        };
        let streams = Streams {
            sends: items.is_some(),
            receives: self.begin.is_some(),
        };
        let prefix = Prefix {
            trace: trace.as_ref(),
            metadata: &self.metadata,
            lent,
            streams,
            is_by_reference: false,
        };
        if matches!(state, State::Described)
            && let Err(status) = described.complete(&prefix, self.channel.domain())
        {
            state = State::Refused(status);
        }
        CallFuture {
            codec: self.arguments.codec,
            limit,
            waits: self.waits,
            deadline,
            record: CallRecord {
                channel: self.channel,
                method: self.method,
                span: observe::client_span(self.method, trace),
                #[cfg(feature = "metrics")]
                begun: None,
            },
            reserved: None,
            described,
            state,
            streams,
            items,
            decode: self.decode,
            begin: self.begin,
        }
    }
}

enum State {
    Described,
    Refused(Status),
    /// For a connection.
    Waiting(Pin<Box<dyn Future<Output = ()> + Send>>),
    Begun(Arc<ClientConnection>, CallKey),
    /// Its answer is decoded.
    Answered,
    Done,
}

/// The future of a call; it returns the result.
///
/// # Cancel safety
/// Dropping the future cancels the call: the handler is dropped at its next await, with the calls
/// and transfers that it is making. A call that was waiting for the window is not sent.
#[must_use = "dropped, the call is cancelled"]
pub struct CallFuture<T, E = Status> {
    codec: Option<CodecName>,
    /// From its first poll on.
    limit: Option<Duration>,
    waits: bool,
    /// Of the call whose handler makes it, or of all attempts; from the first poll on its own, too.
    deadline: Option<Instant>,
    described: Described,
    state: State,
    record: CallRecord,
    /// Until it has begun.
    reserved: Option<Reservation>,
    streams: Streams,
    items: Option<Box<ItemPump>>,
    decode: Decode<T, E>,
    begin: Option<Begin<T>>,
}

impl<T, E> CallFuture<T, E> {
    /// With room that was kept for it.
    pub(crate) fn holding(mut self, reserved: Option<Reservation>) -> Self {
        self.reserved = reserved;
        self
    }

    /// Puts the earlier of both deadlines in force, and gives the time until then.
    fn set_deadline(&mut self, now: Instant) -> Result<Option<Duration>> {
        let own = self.limit.and_then(|it| now.checked_add(it));
        let left = match (own, self.deadline) {
            (own, Some(inherited)) if own.is_none_or(|own| inherited < own) => {
                Some(inherited.saturating_duration_since(now))
            }
            (own, _) => {
                self.deadline = own;
                own.and(self.limit)
            }
        };
        match left {
            Some(Duration::ZERO) => {
                Err(Status::not_started(Code::DeadlineExceeded, "none was left"))
            }
            left => Ok(left),
        }
    }

    /// The time that the call has still.
    fn time_left(&self) -> Option<Duration> {
        let deadline = self.deadline?;
        Some(deadline.saturating_duration_since(Instant::now()))
    }

    /// Begins the call if it has not begun; how far it is then.
    fn poll_progress(&mut self, cx: &mut Context<'_>, into: &mut CallProgress) {
        let mut has_begun = false; // It keeps this waker already.
        match &mut self.state {
            State::Refused(status) => {
                self.record.channel.counters.begin();
                *into = CallProgress::Ended(Err(status.clone()));
                self.state = State::Done;
                return;
            }
            State::Described => {
                self.state = State::Done;
                self.record.channel.counters.begin();
                let now = Instant::now();
                #[cfg(feature = "metrics")]
                {
                    self.record.begun = Some(now);
                }
                let begun = self.set_deadline(now);
                if let Err(status) = begun.and_then(|left| self.begin(left, cx.waker())) {
                    *into = CallProgress::Ended(Err(status));
                    return;
                }
                has_begun = true;
            }
            _ => {}
        }
        loop {
            if let State::Waiting(waiting) = &mut self.state {
                if waiting.as_mut().poll(cx).is_pending() {
                    return;
                }
                self.state = State::Done;
                let begun = match self.time_left() {
                    Some(Duration::ZERO) => Err(Status::not_started(
                        Code::DeadlineExceeded,
                        "it waited for a connection",
                    )),
                    left => self.begin(left, cx.waker()),
                };
                if let Err(status) = begun {
                    *into = CallProgress::Ended(Err(status));
                    return;
                }
                has_begun = true;
                continue;
            }
            let State::Begun(connection, key) = &self.state else {
                unreachable!("a call is not polled after its end")
            };
            if !has_begun {
                let (method, deadline) = (self.record.method.id, self.deadline);
                let described = &mut self.described;
                // What it has waited for the window is gone.
                connection.poll_call(*key, cx.waker(), into, |call| {
                    let left = deadline.map(|it| it.saturating_duration_since(Instant::now()));
                    described.named(head_of(call, method, left))
                });
            }
            match into {
                CallProgress::Pending => {
                    if let Some(items) = &mut self.items
                        && self.described.is_sent()
                        && let Err(status) = items.poll(connection, *key, cx)
                    {
                        connection.abandon(*key);
                        self.state = State::Done;
                        *into = CallProgress::Ended(Err(status));
                    }
                    return;
                }
                CallProgress::Ended(end) => {
                    self.state = State::Done;
                    // It waited for the window of a connection that takes no more calls.
                    if !matches!(end, Err(status) if self.may_wait(status)) {
                        return;
                    }
                    self.wait();
                    *into = CallProgress::Pending;
                }
                CallProgress::Begun => return,
                CallProgress::Send(_) | CallProgress::Item(..) => {
                    unreachable!("it is sent there, and its stream begins first")
                }
            }
        }
    }

    /// The call goes on as its stream.
    fn take_items(&mut self) -> ReceivedItems {
        match std::mem::replace(&mut self.state, State::Done) {
            State::Begun(connection, key) => {
                let (items, body) = (self.items.take(), self.described.body.take());
                ReceivedItems::new(connection, key, items, body, self.record.take())
            }
            _ => unreachable!("only what was sent begins"),
        }
    }

    /// Begins the call on the connection there is, or waits for one.
    fn begin(&mut self, left: Option<Duration>, task: &Waker) -> Result<()> {
        let connection = self.record.channel.current();
        let (method, deadline) = (self.record.method.id, self.deadline);
        let call = NewCall {
            len: self.described.frame.len(),
            body_len: self.described.body_len,
            deadline,
            streams: self.streams,
        };
        let begun = match self.codec {
            Some(codec) => connection.check_codec(codec),
            None => Ok(()),
        };
        let described = &mut self.described;
        let begun = begun.and_then(|()| {
            connection.begin(&call, task, |call| {
                described.named(head_of(call, method, left))
            })
        });
        self.reserved = None;
        match begun {
            Ok(key) => self.state = State::Begun(connection, key),
            Err(status) if self.may_wait(&status) => self.wait(),
            Err(status) => return Err(status),
        }
        Ok(())
    }

    /// Another connection may take the call that has failed so.
    fn may_wait(&self, status: &Status) -> bool {
        let codes = [Code::Draining, Code::ConnectionLost, Code::Unavailable];
        let passes = status.is_not_started() && codes.contains(&status.code());
        self.waits && passes && !self.described.is_sent() && !self.record.channel.is_closed()
    }

    fn wait(&mut self) {
        let (channel, deadline) = (Arc::clone(&self.record.channel), self.deadline);
        let waiting = async move {
            match deadline {
                // Late or not is seen behind it.
                Some(deadline) => drop(timeout_at(deadline, channel.ready()).await),
                None => channel.ready().await,
            }
        };
        self.state = State::Waiting(Box::pin(waiting));
    }
}

/// The head of a request that is sent now.
fn head_of(call: CallId, method: u32, left: Option<Duration>) -> FrameHead {
    FrameHead {
        call,
        method_or_code: method,
        time_us: left.map_or(0, budget_us),
    }
}

impl<T, E> Unpin for CallFuture<T, E> {}

impl<T, E: From<Status>> Future for CallFuture<T, E> {
    type Output = Result<T, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let mut progress = CallProgress::Pending;
        this.poll_progress(cx, &mut progress);
        Poll::Ready(match progress {
            CallProgress::Ended(Err(status)) => {
                this.record.end(Err(&status));
                Err(status.into())
            }
            CallProgress::Ended(Ok((code, ref body))) => {
                // Whose codec panics counts it as dropped.
                this.state = State::Answered;
                let result = (this.decode)(code, body);
                this.state = State::Done;
                // No result is one that cannot be decoded.
                this.record.end(Ok(match result.is_ok() || code != 0 {
                    true => code,
                    false => Code::Internal.number(),
                }));
                result
            }
            CallProgress::Begun => match this.begin {
                Some(begin) => Ok(begin(this.take_items())),
                None => unreachable!("it receives no items"),
            },
            _ => return Poll::Pending,
        })
    }
}

impl<T, E> Drop for CallFuture<T, E> {
    fn drop(&mut self) {
        match &self.state {
            State::Begun(connection, key) => connection.abandon(*key),
            State::Waiting(..) | State::Answered => {}
            _ => return,
        }
        self.record.drop_call();
    }
}

impl<T, E> fmt::Debug for CallFuture<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Described | State::Refused(_) => "not begun",
            State::Waiting(..) => "waiting for a connection",
            State::Begun(..) if !self.described.is_sent() => "waiting for the window",
            State::Begun(..) => "sent",
            State::Answered | State::Done => "ended",
        };
        f.debug_struct("CallFuture")
            .field("state", &state)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
