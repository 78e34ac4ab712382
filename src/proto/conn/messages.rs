//! Receives messages: each goes into the buffer of the receive that it is matched with, or into
//! memory for the store of unexpected messages. The receives are the connection's own
//! (`own_receives.rs`), or shared with other connections ([`Receives`](crate::proto::Receives)).

use tracing::Level;

use crate::buf::{AccessError, Payload, zeroed};
use crate::error::{Error, ErrorKind};
use crate::limits::READ_REQUESTS_MAX;
use crate::log::{hold_event, is_logged};
use crate::proto::Host;
use crate::proto::matching::{Arrival, ArrivalOutcome, MessageKind, ReceivedMessage};
use crate::proto::op::OpKey;
use crate::wire::FrameHeader;

use super::Connection;
use super::receive::is_received;
use super::receive_side::LongMessages;
use super::receive_state::{PayloadInProgress, PayloadTarget, ReceiveState};

impl<T> Connection<T> {
    /// The fast path for a message whose whole payload is in `input`, the usual case of small
    /// messages: the message ends one of the connection's own receives, or is stored. Returns the
    /// length of the payload; `None`: the message has to be received like any other frame.
    #[inline]
    pub(super) fn take_own_message(
        &mut self,
        (data, ack, len): (Option<u64>, bool, u64),
        input: &[u8],
        host: &impl Host<T>,
    ) -> Option<usize> {
        let bytes = usize::try_from(len).ok().and_then(|len| input.get(..len))?;
        if self.tx.queued_answers() > READ_REQUESTS_MAX {
            return None;
        }
        let mut own = self.own_view()?;
        if let Some(receive) = own.take_posted() {
            own.end_posted(receive, data, bytes);
        } else if !own.push_to_inbox(data, bytes) && !self.store_whole_message(data, bytes, host) {
            return None;
        }
        self.account_for(len, data, ack);
        Some(bytes.len())
    }

    /// Stores a complete message.
    #[cold]
    fn store_whole_message(
        &mut self,
        data: Option<u64>,
        bytes: &[u8],
        host: &impl Host<T>,
    ) -> bool {
        let own = self.own_view().filter(|_| is_received(None, host));
        own.is_some_and(|mut own| own.store_whole(data, bytes))
    }

    /// Like `take_own_message`, for receives that connections share.
    pub(super) fn take_shared_message(
        &mut self,
        header: &FrameHeader,
        input: &[u8],
        host: &mut impl Host<T>,
    ) -> Option<usize> {
        let (FrameHeader::Message { len, data, ack } | FrameHeader::Tagged { len, data, ack, .. }) =
            *header
        else {
            return None;
        };
        let bytes = usize::try_from(len).ok().and_then(|len| input.get(..len))?;
        if self.tx.queued_answers() > READ_REQUESTS_MAX
            || self.close.is_received()
            || header.tag().is_some() && !self.is_connectionless()
            || self.message_max().is_some_and(|max| len > max)
            || !is_received(header.tag(), host)
        {
            return None;
        }
        let mut arrival = self.arrival(header.tag(), len, data);
        if !host.shared()?.take_message(&mut arrival, bytes) {
            return None;
        }
        self.account_for(len, data, ack);
        self.work += 1;
        Some(bytes.len())
    }

    /// Counts a complete message, and acknowledges it if the peer has asked for an ack.
    #[inline]
    fn account_for(&mut self, len: u64, data: Option<u64>, ack: bool) {
        if is_logged(Level::TRACE) {
            hold_event(move || tracing::trace!(len, ?data, ack, "received a message"));
        }
        self.receive_credit.count_message(len);
        if ack {
            self.tx.push_ack(self.has_refusals());
        }
    }

    /// Returns the envelope of a message.
    #[inline]
    pub(super) fn arrival(&self, tag: Option<u64>, len: u64, data: Option<u64>) -> Arrival {
        match self.ids() {
            None => Arrival::for_own(len, data, 0),
            Some(ids) => Arrival {
                source: ids.source,
                connection: ids.connection,
                kind: MessageKind::of(tag),
                len,
                data,
                order: 0,
            },
        }
    }

    /// Begins a message that is not complete, or that stalled: its payload is received into the
    /// buffer of a matched receive, or into new memory for the store; or the message stalls.
    pub(super) fn begin_message(&mut self, header: FrameHeader, host: &mut impl Host<T>) {
        let (FrameHeader::Message { len, data, ack } | FrameHeader::Tagged { len, data, ack, .. }) =
            header
        else {
            return;
        };
        let mut arrival = self.arrival(header.tag(), len, data);
        let outcome = if let Some(mut own) = self.own_view() {
            own.begin_message(&mut arrival)
        } else if let Some(shared) = host.shared() {
            let begun = shared.begin_message(&mut arrival);
            begun.map(|(receive, buffer)| (PayloadTarget::of_receive(receive, arrival), buffer))
        } else {
            debug_assert!(false, "the owner of such a connection shares receives");
            return;
        };
        let (target, mut payload) = match outcome {
            ArrivalOutcome::Matched(matched) => matched,
            ArrivalOutcome::Store => match zeroed(len) {
                Some(store) => (
                    PayloadTarget::Unexpected { arrival },
                    Payload::from_vec(store),
                ),
                None => {
                    self.abort_message(&arrival, host);
                    self.rx.go(ReceiveState::AwaitReceive { header });
                    return;
                }
            },
            ArrivalOutcome::Stalled => {
                self.rx.go(ReceiveState::AwaitReceive { header });
                return;
            }
        };
        self.receive_credit.count_message(len);
        self.rx.go(ReceiveState::Payload(PayloadInProgress {
            target,
            capacity: payload.room_for(len) as u64,
            payload: Some(payload),
            len,
            done: 0,
            ack,
        }));
    }

    /// Ends the receive that a message was received into.
    pub(super) fn end_receive(
        &mut self,
        receive: OpKey,
        message: ReceivedMessage,
        failed: Option<AccessError>,
        host: &mut impl Host<T>,
    ) {
        if let Some(mut own) = self.own_view() {
            own.end_receive(receive, message, failed);
        } else if let Some(shared) = host.shared() {
            shared.end_receive(receive, message, failed);
            self.work += 1;
        }
    }

    /// Stores a complete message.
    pub(super) fn store_message(&mut self, message: ReceivedMessage, host: &mut impl Host<T>) {
        if let Some(mut own) = self.own_view() {
            own.store_message(message);
        } else if let Some(shared) = host.shared() {
            shared.store_message(message);
        }
    }

    /// Gives up a message that was to be stored, and will not be completed.
    pub(super) fn abort_message(&mut self, arrival: &Arrival, host: &mut impl Host<T>) {
        if let Some(own) = self.own_mut() {
            own.matcher.abort_unexpected(arrival.len);
        } else if let Some(shared) = host.shared() {
            shared.abort_message(arrival);
        }
    }

    /// The longest message that the peer may send; `None`: there is no limit.
    #[inline]
    pub(super) fn message_max(&self) -> Option<u64> {
        match self.binding()?.params.long_messages {
            LongMessages::Announced { .. } => None,
            LongMessages::Refused { max } => Some(max),
        }
    }

    /// True if a message has to be complete before it takes a receive, and is not complete. `here`:
    /// bytes that have come after its header.
    #[inline]
    pub(super) fn is_collected(
        &self,
        header: &FrameHeader,
        here: usize,
        host: &impl Host<T>,
    ) -> bool {
        match *header {
            FrameHeader::Message { len, .. } | FrameHeader::Tagged { len, .. } => {
                len > here as u64
                    && self.message_max().is_some_and(|max| len <= max)
                    && is_received(header.tag(), host)
            }
            _ => false,
        }
    }

    /// True if there are bytes of a collected message, which waits for a receive.
    pub(super) fn has_collected(&self) -> bool {
        self.binding().is_some_and(|it| !it.collected.is_empty())
    }

    /// Collects bytes of a message of this length; the last byte begins the message.
    pub(super) fn collect_message(
        &mut self,
        len: u64,
        input: &[u8],
        host: &mut impl Host<T>,
    ) -> Result<usize, Error> {
        let Some(binding) = self.binding_mut() else {
            return Ok(0);
        };
        let left = len - binding.collected.len() as u64;
        let take = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
        // The memory grows with the bytes that have come, not at once to the length that the peer
        // states, and never beyond that length.
        let collected = &mut binding.collected;
        if collected.capacity() - collected.len() < take {
            let more = collected.len().min(left as usize).max(take); // at most `left`
            let reserved = collected.try_reserve_exact(more);
            reserved.map_err(|_| Error::new(ErrorKind::LimitReached, "no memory for a message"))?;
        }
        collected.extend_from_slice(&input[..take]);
        if take as u64 == left
            && let ReceiveState::Collecting { header } = self.rx.go(ReceiveState::Header)
        {
            self.begin_frame(header, host)?;
            self.place_collected(host)?;
        }
        Ok(take)
    }

    /// Places a collected message that has begun. A message that waits is placed later.
    pub(super) fn place_collected(&mut self, host: &mut impl Host<T>) -> Result<(), Error> {
        if let ReceiveState::Payload(_) = self.rx
            && let Some(binding) = self.binding_mut()
            && !binding.collected.is_empty()
        {
            let message = std::mem::take(&mut binding.collected);
            self.consume_payload(&message, host)?;
        }
        Ok(())
    }
}
