//! The streams of calls, at the caller's end.

use super::super::flow::{Inflow, Outflow};
use super::{CallKey, CallProgress, CallState, ClientMachine, SlotUse};
use crate::wire::{CallId, Credit, Item, Streams, Violation};

/// Beside the request, and before the response.
#[derive(Debug)]
pub struct CallStreams {
    sent: Option<Outflow>,
    received: Option<Received>,
}

/// The server's stream.
#[derive(Debug)]
struct Received {
    items: Inflow,
    has_begun: bool,
    /// The caller has been notified of that.
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
    /// What there is of the server's stream.
    pub(super) fn progress_received(&mut self, key: CallKey) -> Option<CallProgress> {
        let call = &mut self.calls[key.0];
        let received = call.streams.as_mut()?.received.as_mut()?;
        if received.has_begun && !std::mem::replace(&mut received.is_known, received.has_begun) {
            return Some(CallProgress::Begun);
        }
        let (body, credit) = received.items.read()?;
        // A call that has ended gives no credit.
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

    /// An item with so many bytes is there to be sent: the call's name if it can be now.
    pub fn send_item(&mut self, key: CallKey, len: usize) -> Option<CallId> {
        let id = self.sending(key)?;
        let sent = self.calls[key.0].streams.as_mut()?.sent.as_mut()?;
        sent.take(len).then_some(id)
    }

    /// The caller's stream is over: the call's name, if that is to be said.
    pub fn end_items(&mut self, key: CallKey) -> Option<CallId> {
        let id = self.sending(key)?;
        let streams = self.calls[key.0].streams.as_ref()?;
        streams.sent.as_ref().map(|_| id)
    }

    /// The name of a call that was sent and is not answered.
    fn sending(&self, key: CallKey) -> Option<CallId> {
        let CallState::Sent { slot } = self.calls[key.0].state else {
            return None;
        };
        let used = &self.slots[usize::from(slot)];
        let is_open = matches!(used.used, SlotUse::Open(_));
        let generation = used.generation;
        is_open.then_some(CallId { slot, generation })
    }

    /// An ITEM: who is to be woken.
    ///
    /// # Errors
    /// It is of no open call, or of one without such a stream, or was not granted.
    pub fn handle_item(&mut self, call: CallId, item: Item<'_>) -> Result<Option<W>, Violation> {
        let Some(key) = self.open_call(call)? else {
            return Ok(None);
        };
        let call = &mut self.calls[key.0];
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

    /// A CREDIT: who is to be woken.
    ///
    /// # Errors
    /// It is of no open call, or of one without such a stream, or more than was sent.
    pub fn handle_credit(&mut self, call: CallId, more: Credit) -> Result<Option<W>, Violation> {
        let Some(key) = self.open_call(call)? else {
            return Ok(None);
        };
        let call = &mut self.calls[key.0];
        let sent = call.streams.as_mut().and_then(|it| it.sent.as_mut());
        let sent = sent.ok_or(Violation("credit of a call without a stream"))?;
        sent.handle_credit(more)?;
        Ok(call.watcher.take())
    }

    /// The call of a frame before its response; `None` if its caller has gone.
    fn open_call(&self, call: CallId) -> Result<Option<CallKey>, Violation> {
        let none = Violation("a frame of a stream of no open call");
        let used = self.slots.get(usize::from(call.slot)).ok_or(none)?;
        match used.used {
            _ if used.generation != call.generation => Err(none),
            SlotUse::Idle | SlotUse::Fetching { .. } => Err(none),
            SlotUse::Retiring => Ok(None),
            SlotUse::Open(key) => match self.calls[key.0].state {
                CallState::Sent { .. } => Ok(Some(key)),
                // Nothing was sent under that name.
                _ => Err(none),
            },
        }
    }
}
