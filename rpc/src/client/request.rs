//! The settings that few calls have, the request in the form in which it is sent, the stream that
//! follows it, and the record of a call.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tokio_fabric::Domain;
use tokio_fabric::op::Op;
use tracing::Span;

use super::channel::ChannelInner;
use super::connection::{ClientConnection, Reservation, too_large};
use crate::call_info::CallInfo;
use crate::cx::Cx;
use crate::drive::ItemSending;
use crate::lend::{Lend, LentRead};
use crate::limits::{BODY_MAX, FRAME_MAX, HEADER_LEN, STREAM_ITEMS, TRACE_STATE_MAX};
use crate::method::Method;
use crate::observe::{self, otel};
use crate::proto::CallKey;
use crate::status::{Code, Result, Started, Status};
use crate::streaming::ItemSource;
use crate::wire::{
    FrameBuf, LentRegions, Metadata, Prefix, Streams, TRACE_STATE, TraceContext, insert_prefix,
    reference_frame,
};

/// Settings that few calls have.
#[derive(Default)]
pub(super) struct Extras {
    pub(super) metadata: Metadata,
    pub(super) trace: Option<TraceContext>,
    /// Whether the trace is inherited from the call whose handler makes this call.
    pub(super) inherits_trace: bool,
    /// The trace's W3C `tracestate`.
    trace_state: Vec<u8>,
    pub(super) items: Items,
    pub(super) lent: LentRegions,
    /// A body that is too large for the frame; the frame then describes where the body is. The body
    /// is a copy that belongs to the call: access is revoked at the call's end, and the copy is
    /// freed when nothing uses it.
    body: Option<Box<LentRead<Bytes>>>,
    body_len: u64,
    pub(super) reserved: Option<Reservation>,
    /// The call's span, if a subscriber wants it.
    pub(super) span: Option<Span>,
    /// The future that waits for a connection.
    pub(super) waiting: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Number of attempts before this one, and, below, when the first attempt began.
    pub(super) attempts: u32,
    pub(super) first_begun: Option<Instant>,
    pub(super) may_have_run: bool,
}

/// The stream that a call sends.
#[derive(Default)]
pub(super) enum Items {
    #[default]
    None,
    Source(ItemSource),
    /// A stream that is sent, from the first poll on.
    Pump(Box<ItemPump>),
    /// The call is a clone, and the stream belongs to its original.
    OfOriginal,
}

impl Extras {
    /// Creates the settings of a call that a handler makes; the handler's own call belongs to
    /// `trace`.
    #[cold]
    pub(super) fn inherit(trace: TraceContext) -> Extras {
        let current = Cx::current();
        let trace_state = current.map_or_else(Vec::new, |it| it.trace_state().to_vec());
        Extras {
            trace: Some(trace),
            inherits_trace: true,
            trace_state,
            ..Extras::default()
        }
    }

    /// Begins the call's span, as a child of the program's current span. A trace that the program
    /// sets takes precedence over that span. The server's span is a child of the call's.
    pub(super) fn begin_span(&mut self, span: Span) {
        let mut is_exported = true;
        if let Some(trace) = self.trace
            && !(self.inherits_trace && otel::is_within_trace())
        {
            is_exported = otel::join(&span, trace, self.trace_state());
        }
        if is_exported && let Some((trace, state)) = otel::sent_on(&span) {
            (self.trace, self.trace_state) = (Some(trace), state);
        }
        self.span = Some(span);
    }

    /// Returns the `tracestate` that the program has set, or else the trace's own.
    fn trace_state(&self) -> &[u8] {
        let of_program = self.metadata.value(TRACE_STATE);
        of_program.unwrap_or(&self.trace_state)
    }

    pub(super) fn of_clone(&self) -> Extras {
        Extras {
            metadata: self.metadata.clone(),
            trace: self.trace,
            inherits_trace: self.inherits_trace,
            trace_state: self.trace_state.clone(),
            items: match self.items {
                Items::None => Items::None,
                _ => Items::OfOriginal,
            },
            lent: self.lent.clone(),
            attempts: self.attempts,
            first_begun: self.first_begun,
            may_have_run: self.may_have_run,
            ..Extras::default()
        }
    }

    /// Returns whether the call sends items, and the length of its body by reference.
    pub(super) fn sent(&self) -> (bool, u64) {
        (matches!(self.items, Items::Pump(_)), self.body_len)
    }

    /// Drops the stream and the body, and revokes access to the body.
    pub(super) fn drop_lent(&mut self) {
        (self.items, self.body) = (Items::None, None);
    }
}

/// The stream that a call sends. It is polled when an item has credit.
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

    /// Sends the items that can be sent now; the task is woken when it can send more.
    ///
    /// # Errors
    /// Errors of the source or of an item. The caller must then give the call up, as possibly run,
    /// whatever the source's status says.
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
        // Lets other tasks run.
        cx.waker().wake_by_ref();
        Ok(())
    }
}

/// Completes a request that consists only of a header and a body.
#[inline]
pub(super) fn complete(
    frame: &mut FrameBuf,
    extras: &mut Option<Box<Extras>>,
    receives: bool,
    domain: &Domain,
) -> Result<()> {
    match extras.is_none() && !receives && frame.len() <= FRAME_MAX {
        true => Ok(()),
        false => complete_with(frame, extras.get_or_insert_default(), receives, domain),
    }
}

fn complete_with(
    frame: &mut FrameBuf,
    extras: &mut Extras,
    receives: bool,
    domain: &Domain,
) -> Result<()> {
    extras.items = match std::mem::take(&mut extras.items) {
        Items::Source(source) => Items::Pump(Box::new(ItemPump::new(source))),
        Items::OfOriginal => {
            let what = "the stream that it sends was given to the call that this is a clone of";
            return Err(Status::not_started(Code::BadRequest, what));
        }
        items => items,
    };
    let state = std::mem::take(&mut extras.trace_state);
    let is_sent = !state.is_empty() && state.len() <= TRACE_STATE_MAX && extras.trace.is_some();
    if is_sent && extras.metadata.value(TRACE_STATE).is_none() {
        // The program's entries come first; if `tracestate` has no room, the call joins the trace
        // without it.
        let _ = extras.metadata.push(TRACE_STATE, &state);
    }
    let prefix = Prefix {
        trace: extras.trace.as_ref(),
        metadata: &extras.metadata,
        lent: &extras.lent,
        streams: Streams {
            sends: matches!(extras.items, Items::Pump(_)),
            receives,
        },
        is_by_reference: false,
    };
    if frame.len() > FRAME_MAX - prefix.len() {
        let bytes = Bytes::from(std::mem::take(frame).into_vec()).slice(HEADER_LEN..);
        if bytes.len() > BODY_MAX {
            return Err(too_large(bytes.len() as u64, BODY_MAX as u64));
        }
        extras.body_len = bytes.len() as u64;
        let mut lent = Lend::read(bytes);
        *frame = reference_frame(&lent.lend(domain)?);
        extras.body = Some(Box::new(lent));
    }
    let prefix = Prefix {
        is_by_reference: extras.body.is_some(),
        ..prefix
    };
    if !prefix.is_empty() {
        insert_prefix(frame, &prefix);
    }
    Ok(())
}

/// The record of a call, for its channel's counters and its errors.
#[derive(Clone)]
pub(super) struct CallRecord {
    pub(super) channel: Arc<ChannelInner>,
    pub(super) method: &'static Method,
    /// The time of the call's first poll.
    pub(super) begun: Option<Instant>,
}

impl CallRecord {
    /// Creates the record of a call that has not been polled yet.
    #[inline]
    pub(super) fn new(channel: &Arc<ChannelInner>, method: &'static Method) -> CallRecord {
        CallRecord {
            channel: Arc::clone(channel),
            method,
            begun: None,
        }
    }

    /// Records the end of a call that was polled; called once for each of them. `end`: the code of
    /// the response, or the reason why there is none; `at`: when the response arrived, if known.
    #[inline]
    pub(super) fn end(&self, end: Result<u32, &Status>, at: Option<Instant>, span: Option<&Span>) {
        self.channel.counters.end(end);
        if let Some(span) = span {
            observe::record_end(span, observe::code_of(end));
        }
        #[cfg(feature = "metrics")]
        if let Some(begun) = self.begun {
            let times = &self.channel.counters.times;
            let took = at.unwrap_or_else(Instant::now) - begun;
            times.record(self.method, observe::code_of(end), took);
        }
        #[cfg(not(feature = "metrics"))]
        let _ = at;
    }

    /// Returns the status of an unsent call at its deadline. If the channel is not connected, the
    /// status has the reason for that as its cause.
    #[cold]
    pub(super) fn late(&self, status: Status) -> Status {
        let current = self.channel.current();
        match current.with_machine(|machine| machine.why_ended().cloned()) {
            Some(why) => status.because_of(&why),
            None => status,
        }
    }

    /// Adds this call's details to the status: its deadline, and its connection if it is on one.
    /// Called only for a call that fails.
    #[cold]
    pub(super) fn describe(
        &self,
        status: &mut Status,
        connection: Option<&ClientConnection>,
        extras: Option<&Extras>,
        deadline: Option<Instant>,
    ) {
        let begun = extras.and_then(|it| it.first_begun).or(self.begun);
        let (address, name) = self.channel.server(connection);
        status.set_call(CallInfo {
            method: self.method.name,
            address,
            name,
            elapsed: begun.map_or(Duration::ZERO, |begun| begun.elapsed()),
            limit: begun.and_then(|begun| Some(deadline?.saturating_duration_since(begun))),
            attempt: extras.map_or(1, |it| it.attempts.saturating_add(1)),
        });
    }

    /// Records that the caller has dropped the call.
    pub(super) fn drop_call(&self) {
        self.channel.counters.drop_call();
    }
}
