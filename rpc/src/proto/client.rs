//! The caller's end of a connection: calls, their slots on the wire, and the window.
//!
//! ```text
//! Waiting --slot, window--> Admitted --send--> Sent --RESPONSE--> Ended
//!    | drop, deadline          | drop            | drop, deadline: CANCEL
//!    v                         v                 v
//!  gone, or Ended         slot free       slot Retiring --RESPONSE--> slot free
//!
//! slot Open or Retiring --RESPONSE by reference--> Fetching --the body is read: TAKEN--> slot free
//! ```
//!
//! A slot is occupied until the RESPONSE, or until the TAKEN if the body is by reference; a call
//! exists only until its caller has taken its end. So a caller that does not poll occupies no slot,
//! and a caller that cancels gains no slot. Items that have arrived belong to the call: the caller
//! can read them even if the call has ended.
//!
//! Invariants: `open` is the number of slots that are not idle, at most `calls_max`; `bytes` is the
//! size of their requests. A waiting call is in `waiting` exactly once.

use std::collections::VecDeque;

use bytes::Bytes;
use tokio_fabric::RemoteRegion;

use super::Time;
use super::flow::{Inflow, ItemBody, Outflow};
use crate::limits::CALLS_PER_CONNECTION_MAX;
use crate::status::{Code, Started, Status};
use crate::wire::{CallId, Credit, Hello, Item, Response, Streams, Violation, Window};

/// Identifies a call of this side, until the call's end is taken, or until
/// [`ClientMachine::abandon`] or [`ClientMachine::unsent`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallKey(u32);

impl CallKey {
    fn at(self) -> usize {
        self.0 as usize
    }
}

/// A response with its code, or the reason why there is none.
pub type CallEnd = Result<(u32, Bytes), Status>;

/// The progress of a call; see [`ClientMachine::progress`].
#[derive(Debug)]
pub enum CallProgress {
    /// The call waits for the window or for its response.
    Pending,
    /// The request must be sent now, with this id.
    Send(CallId),
    /// The server's stream has begun. Reported once, and only for calls that receive.
    Begun,
    /// An item of the stream, and the credit to grant to the server.
    Item(ItemBody, Option<(CallId, Credit)>),
    /// The call has ended, and all its items were read: code and body of the response, or the
    /// reason why there is none. The machine has removed the call.
    Ended(CallEnd),
}

/// The effect of a RESPONSE.
#[derive(Debug, PartialEq, Eq)]
pub enum ResponseOutcome<W> {
    /// The call has ended; has its caller's waker.
    Ended(Option<W>),
    /// The body must be read from this region, then passed to [`ClientMachine::handle_body`].
    Fetch(CallId, RemoteRegion),
    /// The body is no longer needed: TAKEN must be sent before anything else.
    Taken(CallId),
}

#[derive(Debug)]
enum CallState {
    Waiting { len: u32 },
    Admitted { slot: u16 },
    Sent { slot: u16 },
    Ended(CallEnd),
    Vacant,
}

#[derive(Debug)]
struct Call<W> {
    state: CallState,
    deadline: Option<Time>,
    watcher: Option<W>,
    streams: Option<Box<CallStreams>>,
}

impl<W> Call<W> {
    fn vacant() -> Call<W> {
        Call {
            state: CallState::Vacant,
            deadline: None,
            watcher: None,
            streams: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotUse {
    Idle,
    Open(CallKey),
    /// The caller is gone or has timed out; the slot still awaits the response.
    Retiring,
    /// The response has arrived, and its body is being read. `call`: the call, if its caller still
    /// exists.
    Fetching {
        call: Option<CallKey>,
        code: u32,
    },
}

#[derive(Debug)]
struct Slot {
    generation: u16,
    bytes: u32,
    used: SlotUse,
}

#[derive(Debug)]
enum State {
    Open,
    /// The server takes no new calls.
    Draining,
    /// No new calls can be made, for this reason.
    Ended(Status),
}

/// The streams of a call: items after the request, and items before the response.
#[derive(Debug)]
struct CallStreams {
    sent: Option<Outflow>,
    received: Option<Received>,
}

/// The stream from the server.
#[derive(Debug)]
struct Received {
    items: Inflow,
    has_begun: bool,
    /// Whether the caller has been notified that the stream has begun.
    is_known: bool,
}

impl CallStreams {
    #[inline]
    fn of(streams: Streams) -> Option<Box<CallStreams>> {
        if streams == Streams::default() {
            return None;
        }
        let received = Received {
            items: Inflow::new(),
            has_begun: false,
            is_known: false,
        };
        Some(Box::new(CallStreams {
            sent: streams.sends.then(Outflow::new),
            received: streams.receives.then_some(received),
        }))
    }
}

/// The client's protocol machine; see the module. `W` wakes the caller of a call.
#[derive(Debug)]
pub struct ClientMachine<W> {
    calls: Vec<Call<W>>,
    vacant: Vec<CallKey>,
    slots: Vec<Slot>,
    idle: Vec<u16>,
    waiting: VecDeque<CallKey>,
    calls_max: u32,
    /// The largest `calls_max` so far.
    calls_most: u32,
    bytes_max: u64,
    frame_max: usize,
    body_max: u64,
    open: u32,
    bytes: u64,
    state: State,
}

impl<W> ClientMachine<W> {
    /// Creates a machine with the server's limits.
    pub fn new(server: &Hello) -> Self {
        ClientMachine {
            calls: Vec::new(),
            vacant: Vec::new(),
            slots: Vec::new(),
            idle: Vec::new(),
            waiting: VecDeque::new(),
            calls_max: server.calls,
            calls_most: server.calls,
            bytes_max: server.bytes,
            frame_max: server.frame_max as usize,
            body_max: server.body_max,
            open: 0,
            bytes: 0,
            state: State::Open,
        }
    }

    /// Applies the limits in the server's HELLO.
    pub fn agree(&mut self, server: &Hello) {
        self.calls_max = server.calls;
        self.calls_most = server.calls;
        self.bytes_max = server.bytes;
        self.frame_max = server.frame_max as usize;
        self.body_max = server.body_max;
    }

    /// Returns how many calls may be open under the largest window so far.
    pub fn calls_most(&self) -> u32 {
        self.calls_most
    }

    /// Returns the largest frame that the server takes, in bytes.
    pub fn frame_max(&self) -> usize {
        self.frame_max
    }

    /// Returns the largest body by reference that the server takes, in bytes.
    pub fn body_max(&self) -> u64 {
        self.body_max
    }

    /// Returns the number of calls without a response, including abandoned ones.
    pub fn open(&self) -> usize {
        self.open as usize
    }

    /// Returns the number of calls that wait for the window.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns how many bytes of the window the request of an open call takes.
    #[cfg(test)]
    pub fn sent_len(&self, call: CallId) -> usize {
        self.slots[usize::from(call.slot)].bytes as usize
    }

    /// Returns whether a call would be sent at once.
    pub fn has_room(&self) -> bool {
        matches!(self.state, State::Open) && self.waiting.is_empty() && self.fits(0)
    }

    /// Returns how many calls would be sent at once.
    pub fn room(&self) -> usize {
        match self.has_room() {
            true => (self.calls_max - self.open) as usize,
            false => 0,
        }
    }

    /// Returns whether new calls can be made, now or later.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    pub fn has_ended(&self) -> bool {
        matches!(self.state, State::Ended(_))
    }

    /// Returns why the connection has ended, if it has: no more calls can be made.
    pub fn why_ended(&self) -> Option<&Status> {
        match &self.state {
            State::Ended(status) => Some(status),
            State::Open | State::Draining => None,
        }
    }

    /// Returns whether the server takes no new calls and no call is open.
    pub fn is_drained(&self) -> bool {
        matches!(self.state, State::Draining) && self.open == 0
    }

    /// Begins a call whose frame has `len` bytes. The request must be sent when
    /// [`progress`](Self::progress) says so, which may be immediately.
    ///
    /// # Errors
    /// The reason why no call, or not this call, can be made. The call has not started.
    #[inline]
    pub fn begin(
        &mut self,
        len: usize,
        deadline: Option<Time>,
        streams: Streams,
    ) -> Result<CallKey, Status> {
        match &self.state {
            State::Open => {}
            State::Draining => return Err(draining()),
            State::Ended(status) => return Err(status.clone()),
        }
        if len > self.frame_max || len as u64 > self.bytes_max {
            let what = format!(
                "a request of {len} bytes, the server takes {}: lend what is large",
                self.frame_max
            );
            return Err(Status::not_started(Code::TooLarge, what));
        }
        let len = len as u32;
        let key = self.vacant.pop().unwrap_or_else(|| {
            self.calls.push(Call::vacant());
            CallKey(self.calls.len() as u32 - 1)
        });
        let call = &mut self.calls[key.at()];
        call.state = CallState::Waiting { len };
        call.deadline = deadline;
        call.streams = CallStreams::of(streams);
        if self.waiting.is_empty() && self.fits(len) {
            self.admit(key, len);
        } else {
            self.waiting.push_back(key);
        }
        Ok(key)
    }

    /// Sets the waker for the call's progress, and returns the previous waker. Wakers are neither
    /// cloned nor dropped here, since that may run code of other layers.
    pub fn watch(&mut self, key: CallKey, watcher: W) -> Option<W> {
        self.calls[key.at()].watcher.replace(watcher)
    }

    /// Returns whether a call has not ended, and has no watcher for which `is_such` is true.
    pub fn is_unwatched(&self, key: CallKey, is_such: impl FnOnce(&W) -> bool) -> bool {
        let call = &self.calls[key.at()];
        let has_ended = matches!(call.state, CallState::Ended(_) | CallState::Vacant);
        !has_ended && !call.watcher.as_ref().is_some_and(is_such)
    }

    /// Takes the watcher, so that it is dropped before the call is removed.
    pub fn take_watcher(&mut self, key: CallKey) -> Option<W> {
        self.calls[key.at()].watcher.take()
    }

    /// Marks an admitted call as sent, and returns the id to send it with.
    #[inline]
    pub fn send(&mut self, key: CallKey) -> Option<CallId> {
        let call = &mut self.calls[key.at()];
        let CallState::Admitted { slot } = call.state else {
            return None;
        };
        call.state = CallState::Sent { slot };
        let generation = self.slots[usize::from(slot)].generation;
        Some(CallId { slot, generation })
    }

    pub fn progress(&mut self, key: CallKey) -> CallProgress {
        if self.calls[key.at()].streams.is_some()
            && let Some(received) = self.progress_received(key)
        {
            return received;
        }
        if let Some(call) = self.send(key) {
            return CallProgress::Send(call);
        }
        match self.take_end(key) {
            Some(end) => CallProgress::Ended(end),
            None => CallProgress::Pending,
        }
    }

    /// Takes the response of a call without streams, if it has arrived, and removes the call.
    #[inline]
    pub fn take_response(&mut self, key: CallKey) -> Option<(u32, Bytes)> {
        let call = &mut self.calls[key.at()];
        if !matches!(call.state, CallState::Ended(Ok(_))) || call.streams.is_some() {
            return None;
        }
        self.vacant.push(key);
        match std::mem::replace(&mut call.state, CallState::Vacant) {
            CallState::Ended(Ok(response)) => Some(response),
            _ => unreachable!("it has ended"),
        }
    }

    fn take_end(&mut self, key: CallKey) -> Option<CallEnd> {
        let call = &mut self.calls[key.at()];
        if !matches!(call.state, CallState::Ended(_)) {
            return None;
        }
        call.streams = None;
        self.vacant.push(key);
        match std::mem::replace(&mut call.state, CallState::Vacant) {
            CallState::Ended(end) => Some(end),
            _ => unreachable!("it has ended"),
        }
    }

    /// Handles a request that could not be sent, because the connection is about to end. Removes
    /// the call, which has not started.
    pub fn unsent(&mut self, key: CallKey) {
        if let CallState::Sent { slot } = self.forget(key) {
            self.slots[usize::from(slot)].used = SlotUse::Retiring;
        }
    }

    /// Abandons a call whose caller is gone. Returns the id to cancel at the server, if the call
    /// was sent.
    pub fn abandon(&mut self, key: CallKey) -> Option<CallId> {
        match self.forget(key) {
            CallState::Waiting { .. } => {
                self.waiting.retain(|it| *it != key);
                None
            }
            CallState::Admitted { slot } => {
                // The id was not used.
                let used = &mut self.slots[usize::from(slot)];
                used.generation = used.generation.wrapping_sub(1);
                self.free(slot);
                None
            }
            CallState::Sent { slot } => self.retire(slot),
            CallState::Ended(_) | CallState::Vacant => None,
        }
    }

    /// Ends the calls whose deadline has passed. Collects the calls to cancel at the server and the
    /// wakers of the callers; returns the next deadline.
    pub fn expire(
        &mut self,
        now: Time,
        cancel: &mut Vec<CallId>,
        wake: &mut Vec<W>,
    ) -> Option<Time> {
        let mut next: Option<Time> = None;
        for at in 0..self.calls.len() {
            let call = &mut self.calls[at];
            let Some(deadline) = call.deadline else {
                continue;
            };
            if deadline > now {
                let is_live = !matches!(call.state, CallState::Ended(_) | CallState::Vacant);
                if is_live {
                    next = Some(next.map_or(deadline, |it| it.min(deadline)));
                }
                continue;
            }
            let (started, what) = match call.state {
                CallState::Waiting { .. } => (Started::NotStarted, "it waited for the window"),
                CallState::Admitted { .. } => (Started::NotStarted, ""),
                CallState::Sent { .. } => (Started::MaybeRan, ""),
                CallState::Ended(_) | CallState::Vacant => continue,
            };
            let status = Status::new(Code::DeadlineExceeded, what).with_started(started);
            wake.extend(call.watcher.take());
            match std::mem::replace(&mut call.state, CallState::Ended(Err(status))) {
                CallState::Waiting { .. } => self.waiting.retain(|it| it.at() != at),
                CallState::Admitted { slot } => {
                    let used = &mut self.slots[usize::from(slot)];
                    used.generation = used.generation.wrapping_sub(1);
                    self.free(slot);
                }
                CallState::Sent { slot } => cancel.extend(self.retire(slot)),
                CallState::Ended(_) | CallState::Vacant => {}
            }
        }
        next
    }

    /// Admits the call that has waited longest, if the window has room for it, and returns its
    /// waker, if it has one. Call this again until it returns `None`.
    pub fn poll_admit(&mut self) -> Option<Option<W>> {
        let key = *self.waiting.front()?;
        let call = &self.calls[key.at()];
        let CallState::Waiting { len } = call.state else {
            unreachable!("only waiting calls are in the queue");
        };
        if !matches!(self.state, State::Open) || !self.fits(len) {
            return None;
        }
        self.waiting.pop_front();
        self.admit(key, len);
        Some(self.calls[key.at()].watcher.take())
    }

    /// Handles a RESPONSE.
    ///
    /// # Errors
    /// The response belongs to no open call.
    #[inline]
    pub fn handle_response(
        &mut self,
        response: &Response<'_>,
        keep: impl FnOnce(&[u8]) -> Bytes,
    ) -> Result<ResponseOutcome<W>, Violation> {
        let CallId { slot, generation } = response.call;
        let none = Violation("a response to no open call");
        let used = self.slots.get_mut(usize::from(slot)).ok_or(none)?;
        if used.generation != generation {
            return Err(none);
        }
        match (used.used, response.by_reference) {
            (SlotUse::Idle | SlotUse::Fetching { .. }, _) => Err(none),
            (SlotUse::Retiring, by_reference) => {
                self.free(slot);
                Ok(match by_reference {
                    Some(_) => ResponseOutcome::Taken(response.call),
                    None => ResponseOutcome::Ended(None),
                })
            }
            (SlotUse::Open(key), by_reference) => {
                if !matches!(self.calls[key.at()].state, CallState::Sent { .. }) {
                    return Err(none);
                }
                if let Some(region) = by_reference {
                    used.used = SlotUse::Fetching {
                        call: Some(key),
                        code: response.code,
                    };
                    return Ok(ResponseOutcome::Fetch(response.call, region));
                }
                let end = match (response.code, response.not_started) {
                    (code @ (0 | crate::wire::TYPED_ERROR), false) => {
                        Ok((code, keep(response.body)))
                    }
                    (code, not_started) => Err(Status::decode(code, not_started, response.body)),
                };
                let watcher = self.end_call(key, end);
                self.free(slot);
                Ok(ResponseOutcome::Ended(watcher))
            }
        }
    }

    /// Handles the body of a response by reference, or the failure to read it. Returns the waker of
    /// the caller; TAKEN must then be sent before anything else. `None`: the connection has ended.
    pub fn handle_body(
        &mut self,
        call: CallId,
        body: Result<Vec<u8>, Status>,
    ) -> Option<Option<W>> {
        let used = self.slots.get(usize::from(call.slot))?;
        let SlotUse::Fetching { call: key, code } = used.used else {
            return None;
        };
        self.free(call.slot);
        let end = body.map(|body| (code, Bytes::from(body)));
        Some(key.and_then(|key| self.end_call(key, end)))
    }

    #[inline]
    fn end_call(&mut self, key: CallKey, end: CallEnd) -> Option<W> {
        let call = &mut self.calls[key.at()];
        call.state = CallState::Ended(end);
        call.watcher.take()
    }

    /// Returns the next progress of the server's stream, if any.
    fn progress_received(&mut self, key: CallKey) -> Option<CallProgress> {
        let call = &mut self.calls[key.at()];
        let received = call.streams.as_mut()?.received.as_mut()?;
        if received.has_begun && !std::mem::replace(&mut received.is_known, received.has_begun) {
            return Some(CallProgress::Begun);
        }
        let (body, credit) = received.items.read()?;
        // No credit is granted for a call that has ended.
        let CallState::Sent { slot } = call.state else {
            return Some(CallProgress::Item(body, None));
        };
        let used = &self.slots[usize::from(slot)];
        let is_open = matches!(used.used, SlotUse::Open(_));
        let generation = used.generation;
        let credit = credit.filter(|_| is_open);
        let credit = credit.map(|it| (CallId { slot, generation }, it));
        Some(CallProgress::Item(body, credit))
    }

    /// Returns the call's id if an item of `len` bytes can be sent now.
    pub fn send_item(&mut self, key: CallKey, len: usize) -> Option<CallId> {
        let id = self.sending(key)?;
        let sent = self.calls[key.at()].streams.as_mut()?.sent.as_mut()?;
        sent.take(len).then_some(id)
    }

    /// Returns the call's id if the end of the caller's stream must be sent.
    pub fn end_items(&mut self, key: CallKey) -> Option<CallId> {
        let id = self.sending(key)?;
        let streams = self.calls[key.at()].streams.as_ref()?;
        streams.sent.as_ref().map(|_| id)
    }

    /// Returns the id of a call that was sent and has no response yet.
    fn sending(&self, key: CallKey) -> Option<CallId> {
        let CallState::Sent { slot } = self.calls[key.at()].state else {
            return None;
        };
        let used = &self.slots[usize::from(slot)];
        let is_open = matches!(used.used, SlotUse::Open(_));
        let generation = used.generation;
        is_open.then_some(CallId { slot, generation })
    }

    /// Handles an ITEM; returns the waker of the caller.
    ///
    /// # Errors
    /// The item belongs to no open call or stream, or exceeds the granted credit.
    pub fn handle_item(&mut self, call: CallId, item: Item<'_>) -> Result<Option<W>, Violation> {
        let Some(key) = self.open_call(call)? else {
            return Ok(None);
        };
        let call = &mut self.calls[key.at()];
        let received = call.streams.as_mut().and_then(|it| it.received.as_mut());
        let received = received.ok_or(Violation("an item of a call without a stream"))?;
        match item {
            Item::Body(body) => received.items.handle_item(body)?,
            Item::Begun if received.has_begun => {
                return Err(Violation("a stream that begins twice"));
            }
            Item::Begun => {}
            Item::Last => return Err(Violation("a server whose stream ends before its call")),
        }
        received.has_begun = true;
        Ok(call.watcher.take())
    }

    /// Handles a CREDIT; returns the waker of the caller.
    ///
    /// # Errors
    /// The credit belongs to no open call or stream, or exceeds the items or bytes sent.
    pub fn handle_credit(&mut self, call: CallId, more: Credit) -> Result<Option<W>, Violation> {
        let Some(key) = self.open_call(call)? else {
            return Ok(None);
        };
        let call = &mut self.calls[key.at()];
        let sent = call.streams.as_mut().and_then(|it| it.sent.as_mut());
        let sent = sent.ok_or(Violation("credit of a call without a stream"))?;
        sent.handle_credit(more)?;
        Ok(call.watcher.take())
    }

    /// Returns the open call that a frame belongs to; `None` if the caller is gone.
    fn open_call(&self, call: CallId) -> Result<Option<CallKey>, Violation> {
        let none = Violation("a frame of a stream of no open call");
        let used = self.slots.get(usize::from(call.slot)).ok_or(none)?;
        match used.used {
            _ if used.generation != call.generation => Err(none),
            SlotUse::Idle | SlotUse::Fetching { .. } => Err(none),
            SlotUse::Retiring => Ok(None),
            SlotUse::Open(key) => match self.calls[key.at()].state {
                CallState::Sent { .. } => Ok(Some(key)),
                // No request was sent with that id.
                _ => Err(none),
            },
        }
    }

    /// Handles a WINDOW. Call [`poll_admit`](Self::poll_admit) afterwards: calls may now be
    /// admitted.
    ///
    /// # Errors
    /// The window has no room for a call.
    pub fn handle_window(&mut self, window: Window) -> Result<(), Violation> {
        if window.calls == 0 || (window.bytes as usize) < self.frame_max {
            return Err(Violation("a window in which no call has room"));
        }
        self.calls_max = window.calls.min(CALLS_PER_CONNECTION_MAX);
        self.calls_most = self.calls_most.max(self.calls_max);
        self.bytes_max = window.bytes.into();
        Ok(())
    }

    /// Handles a GOAWAY: ends waiting calls, which can be made on another connection, and collects
    /// the wakers of their callers.
    pub fn handle_goaway(&mut self, wake: &mut Vec<W>) {
        if matches!(self.state, State::Open) {
            self.state = State::Draining;
            self.end_waiting(&draining(), wake);
        }
    }

    /// Ends all calls, because the connection has ended.
    pub fn handle_end(&mut self, why: &Status, wake: &mut Vec<W>) {
        if matches!(self.state, State::Ended(_)) {
            return;
        }
        let unavailable = why.clone().with_started(Started::NotStarted);
        self.end_waiting(&unavailable, wake);
        for at in 0..self.slots.len() {
            let (SlotUse::Open(key)
            | SlotUse::Fetching {
                call: Some(key), ..
            }) = self.slots[at].used
            else {
                continue;
            };
            let call = &mut self.calls[key.at()];
            let status = match call.state {
                CallState::Admitted { .. } => unavailable.clone(),
                _ => why.clone().with_started(Started::MaybeRan),
            };
            call.state = CallState::Ended(Err(status));
            wake.extend(call.watcher.take());
        }
        self.slots.clear();
        self.idle.clear();
        (self.open, self.bytes) = (0, 0);
        self.state = State::Ended(unavailable.of_later_calls());
    }

    /// Replaces the reason with which calls fail after the connection's end: no other connection
    /// can be made, because of `why`.
    pub fn explain(&mut self, why: &Status) {
        if let State::Ended(status) = &mut self.state {
            *status = why.clone().of_later_calls();
        }
    }

    fn end_waiting(&mut self, status: &Status, wake: &mut Vec<W>) {
        while let Some(key) = self.waiting.pop_front() {
            let call = &mut self.calls[key.at()];
            call.state = CallState::Ended(Err(status.clone()));
            wake.extend(call.watcher.take());
        }
    }

    fn fits(&self, len: u32) -> bool {
        self.open < self.calls_max && self.bytes + u64::from(len) <= self.bytes_max
    }

    #[inline]
    fn admit(&mut self, key: CallKey, len: u32) {
        let slot = match self.idle.pop() {
            Some(slot) => slot,
            None => {
                // So the slot's first call has generation 0.
                self.slots.push(Slot {
                    generation: u16::MAX,
                    bytes: 0,
                    used: SlotUse::Idle,
                });
                (self.slots.len() - 1) as u16
            }
        };
        let used = &mut self.slots[usize::from(slot)];
        used.generation = used.generation.wrapping_add(1);
        used.bytes = len;
        used.used = SlotUse::Open(key);
        self.open += 1;
        self.bytes += u64::from(len);
        self.calls[key.at()].state = CallState::Admitted { slot };
    }

    #[inline]
    fn free(&mut self, slot: u16) {
        let used = &mut self.slots[usize::from(slot)];
        used.used = SlotUse::Idle;
        self.open -= 1;
        self.bytes -= u64::from(used.bytes);
        self.idle.push(slot);
    }

    /// Retires the slot of a call whose caller is gone. Returns the id to cancel, unless the
    /// response has arrived.
    fn retire(&mut self, slot: u16) -> Option<CallId> {
        let Slot {
            generation, used, ..
        } = &mut self.slots[usize::from(slot)];
        if let SlotUse::Fetching { call, .. } = used {
            *call = None;
            return None;
        }
        *used = SlotUse::Retiring;
        let generation = *generation;
        Some(CallId { slot, generation })
    }

    fn forget(&mut self, key: CallKey) -> CallState {
        self.vacant.push(key);
        let call = &mut self.calls[key.at()];
        (call.deadline, call.watcher, call.streams) = (None, None, None);
        std::mem::replace(&mut call.state, CallState::Vacant)
    }

    /// Checks the invariants that hold after every step.
    #[cfg(test)]
    pub fn invariants(&self) {
        let used = self.slots.iter().filter(|it| it.used != SlotUse::Idle);
        let bytes: u64 = used.clone().map(|it| u64::from(it.bytes)).sum();
        assert_eq!((used.count(), bytes), (self.open as usize, self.bytes));
        assert_eq!(self.idle.len() + self.open as usize, self.slots.len());
        let waits = |call: &&Call<W>| matches!(call.state, CallState::Waiting { .. });
        assert_eq!(self.calls.iter().filter(waits).count(), self.waiting.len());
        let vacant = |call: &&Call<W>| matches!(call.state, CallState::Vacant);
        assert_eq!(self.calls.iter().filter(vacant).count(), self.vacant.len());
    }
}

fn draining() -> Status {
    let what = "it takes no new calls: wait_for_ready() waits for a server that does";
    Status::not_started(Code::Draining, what)
}
