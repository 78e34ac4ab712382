//! The streams of calls, on the caller's side.

use super::super::flow::{Inflow, Outflow};
use super::{CallKey, CallProgress, CallState, ClientMachine, SlotUse};
use crate::wire::{CallId, Credit, Item, Streams, Violation};

/// The streams of a call: items after the request, and items before the response.
#[derive(Debug)]
pub struct CallStreams {
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
    pub fn of(streams: Streams) -> Option<Box<CallStreams>> {
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

impl<W> ClientMachine<W> {
    /// Returns the next progress of the server's stream, if there is any.
    pub(super) fn progress_received(&mut self, key: CallKey) -> Option<CallProgress> {
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

    /// Returns the id of a call that was sent and has no response.
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
    /// It belongs to no open call, or to one without such a stream, or exceeds the granted credit.
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
    /// It belongs to no open call, or to one without such a stream, or exceeds what was sent.
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

    /// Returns the open call that a frame belongs to; `None` if its caller is gone.
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
}
