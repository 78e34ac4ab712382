//! Messages of a connection that shares its receives with others. A receive that is matched becomes
//! an operation of the connection; a message without a receive goes to the shared store.

use crate::buf::{Payload, zeroed};
use crate::error::{Error, ErrorKind, Phase};
use crate::proto::Host;
use crate::proto::matching::{Arrival, ArrivalOutcome, MatchCriteria, MessageKind, PostedReceive};
use crate::proto::op::OpKey;
use crate::proto::peers::SourceId;
use crate::wire::FrameHeader;

use super::Connection;
use super::receive::is_received;
use super::receive_side::LongMessages;
use super::receive_state::{PayloadInProgress, PayloadTarget, ReceiveState};

/// A shared receive that is an operation of the connection until its message is placed, with what
/// is needed to requeue it.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatchedReceive {
    pub(super) op: OpKey,
    wanted: MatchCriteria,
    /// It takes messages of this peer only, or of all peers of one key.
    source: Option<SourceId>,
    order: u64,
    /// Its key among the shared receives.
    pub(super) key: OpKey,
}

impl MatchedReceive {
    /// True if it takes messages of this connection's peer only.
    pub(super) fn is_for_one_peer(&self) -> bool {
        self.source.is_some_and(|source| !source.is_all())
    }
}

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

    /// Begins a message: its payload is received into the buffer of a matched receive, or into new
    /// memory for the store; or it is stalled.
    pub(super) fn begin_shared_message(
        &mut self,
        header: FrameHeader,
        mut arrival: Arrival,
        host: &mut impl Host<T>,
    ) {
        let Arrival {
            kind, len, data, ..
        } = arrival;
        let Some(shared) = host.shared() else {
            debug_assert!(false, "the owner of such a connection shares receives");
            return;
        };
        let (target, mut payload) = match shared.begin_message(&mut arrival) {
            ArrivalOutcome::Matched(receive) => {
                let (matched, payload) = self.adopt_receive(receive, Phase::Moving);
                let op = matched.op;
                self.set_matched_receive(Some(matched));
                let (tag, order) = (kind.tag(), arrival.order);
                let target = PayloadTarget::Receive {
                    op,
                    data,
                    tag,
                    order,
                };
                (target, payload)
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

    /// Enters a matched receive as an operation of the connection; returns how to requeue it, and
    /// its buffer.
    pub(super) fn adopt_receive(
        &mut self,
        receive: PostedReceive<T>,
        phase: Phase,
    ) -> (MatchedReceive, Payload) {
        let PostedReceive {
            mut record,
            wanted,
            source,
            order,
            key,
        } = receive;
        record.phase = phase;
        let payload = record.take_payload();
        let op = self.ops.insert(record);
        let matched = MatchedReceive {
            op,
            wanted,
            source,
            order,
            key,
        };
        (matched, payload)
    }

    /// All matched receives of the connection that have not completed.
    pub(super) fn matched_receives(&self) -> impl Iterator<Item = MatchedReceive> {
        let bindings = self.binding().into_iter();
        bindings.flat_map(|it| it.incoming.awaiting().chain(it.receiving))
    }

    /// Requeues a matched receive whose message does not come: it is posted again in its order, or
    /// ends with `gone` if it was the receive of a claimed message.
    pub(super) fn requeue_receive(
        &mut self,
        matched: MatchedReceive,
        payload: Payload,
        gone: Error,
        host: &mut impl Host<T>,
    ) {
        let (Some(mut record), Some(shared)) = (self.ops.remove(matched.op), host.shared()) else {
            debug_assert!(false, "a matched receive is an operation");
            return;
        };
        record.payload = Some(payload);
        let receive = PostedReceive {
            record,
            wanted: matched.wanted,
            source: matched.source,
            order: matched.order,
            key: matched.key,
        };
        shared.requeue_receive(receive, gone);
    }
}
