//! Messages of a connection that shares its receives with others. A message goes to the buffer of
//! the receive that it is matched with, or to the shared store.

use tracing::Level;

use crate::buf::{Payload, zeroed};
use crate::error::{Error, ErrorKind};
use crate::limits::READ_REQUESTS_MAX;
use crate::log::{hold_event, is_logged};
use crate::proto::Host;
use crate::proto::matching::{Arrival, ArrivalOutcome, MessageKind};
use crate::wire::FrameHeader;

use super::Connection;
use super::receive::is_received;
use super::receive_side::LongMessages;
use super::receive_state::{PayloadInProgress, PayloadTarget, ReceiveState};

impl<T> Connection<T> {
    /// Returns the envelope of a message; `None` if the connection does not share its receives.
    pub(super) fn arrival(&self, tag: Option<u64>, len: u64, data: Option<u64>) -> Option<Arrival> {
        self.ids().map(|ids| Arrival {
            source: ids.source,
            connection: ids.connection,
            kind: MessageKind::of(tag),
            len,
            data,
            order: 0,
        })
    }

    /// The fast path of a message whose payload is in `input` as a whole, the usual case of small
    /// messages: it completes a receive, or goes to the store. Returns the length of the payload;
    /// `None`: the message is received as any other frame.
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
        if self.close.is_received() {
            return None;
        }
        let mut arrival = self.arrival(header.tag(), len, data)?;
        if self.tx.queued_answers() > READ_REQUESTS_MAX
            || self.message_max().is_some_and(|max| len > max)
            || !is_received(header.tag(), host)
            || !host.shared()?.take_message(&mut arrival, bytes)
        {
            return None;
        }
        if is_logged(Level::TRACE) {
            hold_event(move || tracing::trace!(len, ?data, ack, "received a message"));
        }
        self.receive_credit.count_message(len);
        if ack {
            self.tx.push_ack(self.has_refusals());
        }
        self.work += 1;
        Some(bytes.len())
    }

    /// Begins a message: its payload is received into the buffer of a matched receive, or into new
    /// memory for the store; or it is stalled.
    pub(super) fn begin_shared_message(
        &mut self,
        header: FrameHeader,
        mut arrival: Arrival,
        host: &mut impl Host<T>,
    ) {
        let len = arrival.len;
        let Some(shared) = host.shared() else {
            debug_assert!(false, "the owner of such a connection shares receives");
            return;
        };
        let (target, mut payload) = match shared.begin_message(&mut arrival) {
            ArrivalOutcome::Matched((receive, buffer)) => {
                let target = PayloadTarget::SharedReceive {
                    receive,
                    arrival,
                    failed: None,
                };
                (target, buffer)
            }
            ArrivalOutcome::Store => match zeroed(len) {
                Some(store) => (
                    PayloadTarget::SharedUnexpected { arrival },
                    Payload::from_vec(store),
                ),
                None => {
                    shared.abort_message(&arrival);
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
            ack: header.wants_ack(),
        }));
    }

    /// The longest message that the peer may send; `None`: there is no limit.
    #[inline]
    pub(super) fn message_max(&self) -> Option<u64> {
        match self.binding()?.params.long_messages {
            LongMessages::Announced { .. } => None,
            LongMessages::Refused { max } => Some(max),
        }
    }

    /// True if a message is not here as a whole, but must be before it takes a receive. `here`
    /// bytes behind its header have come.
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

    /// Collects bytes of a message of this length; the last one begins it.
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
        // Grows with the bytes that have come, not to the length that the peer states, and never
        // beyond it.
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

    /// Places a collected message that has begun. One that waits is placed later.
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
