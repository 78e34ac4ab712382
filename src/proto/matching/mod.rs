//! Matching of messages with receives. A connected endpoint matches in FIFO order ([`fifo`]); a
//! connectionless endpoint matches the messages of all its connections by tag and by sender
//! ([`SharedMatcher`]). This file defines the values that connections and matchers exchange.

mod admission;
pub(crate) mod fifo;
pub(crate) mod inbox;
mod message_index;
mod multi_list;
mod posted;
mod shared;
#[cfg(test)]
mod tests;

use crate::buf::Payload;
use crate::proto::op::{MessageOrigin, OpKey, Operation};

use super::peers::{ConnectionId, SourceId};

pub(crate) use admission::UnexpectedBudget;
pub(crate) use shared::{
    ArmOutcome, ClaimKey, ClaimedReceive, MatchResult, ReceiveKey, SharedMatcher,
};

/// Untagged or tagged. A receive of one kind never takes a message of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum MessageKind {
    Message,
    Tagged { tag: u64 },
}

impl MessageKind {
    /// Returns the kind of a message with this tag, or without one.
    pub(crate) fn of(tag: Option<u64>) -> Self {
        tag.map_or(MessageKind::Message, |tag| MessageKind::Tagged { tag })
    }

    pub(crate) fn tag(self) -> Option<u64> {
        match self {
            MessageKind::Message => None,
            MessageKind::Tagged { tag } => Some(tag),
        }
    }
}

/// The kind of messages, and the tags, that a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum MatchCriteria {
    Message,
    /// Bits that are set in `ignore` are not compared (fi_tagged(3)).
    Tagged {
        tag: u64,
        ignore: u64,
    },
}

impl MatchCriteria {
    /// fi_tagged(3): `send_tag & ~ignore == recv_tag & ~ignore`.
    pub(crate) fn takes(self, kind: MessageKind) -> bool {
        match (self, kind) {
            (MatchCriteria::Message, MessageKind::Message) => true,
            (MatchCriteria::Tagged { tag, ignore }, MessageKind::Tagged { tag: sent }) => {
                sent & !ignore == tag & !ignore
            }
            _ => false,
        }
    }
}

/// The envelope of a message that begins or is announced. A message for a connection's own receives
/// has [no peer](Arrival::for_own).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) source: SourceId,
    pub(crate) connection: ConnectionId,
    pub(crate) kind: MessageKind,
    /// Length in bytes, as stated by the peer: untrusted.
    pub(crate) len: u64,
    /// CQ data.
    pub(crate) data: Option<u64>,
    /// Sequence number among all messages, assigned when the matcher admits the message (0 before).
    /// A requeued message keeps its number, so that a sender's messages stay in order.
    pub(crate) order: u64,
}

impl Arrival {
    /// Returns the envelope of a message of a connection that has its own receives: all its
    /// messages come from one peer.
    #[inline]
    pub(crate) fn for_own(len: u64, data: Option<u64>, order: u64) -> Self {
        Arrival {
            source: SourceId(u64::MAX),
            connection: ConnectionId::NONE,
            kind: MessageKind::Message,
            len,
            data,
            order,
        }
    }

    /// Returns the message's origin, if several connections share the receives.
    #[inline]
    pub(crate) fn origin(&self) -> Option<MessageOrigin> {
        (self.connection != ConnectionId::NONE).then_some(MessageOrigin::Peer {
            source: self.source,
            connection: self.connection,
        })
    }
}

/// A posted receive, as the matcher sees it. Its record stays in its receive context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PostedReceive {
    pub(crate) wanted: MatchCriteria,
    /// The only peer whose messages it takes, or all peers of one authorization key; `None`: any.
    pub(crate) source: Option<SourceId>,
    /// Sequence number among the posted receives, assigned by the matcher. A requeued receive keeps
    /// its number.
    pub(crate) order: u64,
    /// The receive's key in the receive context.
    pub(crate) key: OpKey,
}

/// A receive that was matched with a message.
#[derive(Debug)]
pub(crate) struct MatchedReceive {
    pub(crate) receive: PostedReceive,
    /// The part of a multi-receive buffer for the message; `None`: all of the receive.
    pub(crate) part: Option<Payload>,
}

impl From<PostedReceive> for MatchedReceive {
    fn from(receive: PostedReceive) -> Self {
        MatchedReceive {
            receive,
            part: None,
        }
    }
}

/// A message that has come in full: before its receive (libfabric: unexpected message), or in the
/// memory of its receive.
#[derive(Debug)]
pub(crate) struct ReceivedMessage {
    pub(crate) arrival: Arrival,
    pub(crate) payload: Payload,
    /// Bytes of the message that are in `payload`.
    pub(crate) len: usize,
    /// Bytes that were cut off by a receive that was too small and has been dropped since.
    pub(crate) overflow: usize,
}

impl ReceivedMessage {
    /// Returns the message of a receive that has ended, to be requeued. It is a copy, since a
    /// region's owner may write to the region or revoke it, and since the user's memory is not
    /// dropped under a lock. `None`: the region is revoked, and the message is lost with it.
    pub(crate) fn of_receive<T>(op: &Operation<T>) -> Option<Self> {
        let end = &op.end;
        let payload = op.payload.as_ref()?.copy_front(end.len).ok()?;
        let len = (end.len as u64).saturating_add(end.overflow as u64);
        let mut arrival = Arrival::for_own(len, end.data, end.order);
        arrival.kind = MessageKind::of(end.tag);
        if let Some(MessageOrigin::Peer { source, connection }) = end.origin {
            (arrival.source, arrival.connection) = (source, connection);
        }
        Some(ReceivedMessage {
            arrival,
            payload,
            len: end.len,
            overflow: end.overflow,
        })
    }
}

/// A message whose payload stays with its sender until a clear-to-send asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announcement {
    pub(crate) arrival: Arrival,
    /// The message's rendezvous index on its connection.
    pub(crate) index: u8,
}

/// A receive matched with an announced message: the message's connection asks the sender for the
/// payload (the clear-to-send of a rendezvous).
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClearToSend {
    pub(crate) receive: OpKey,
    pub(crate) announcement: Announcement,
}

/// The matcher's decision about a message that begins or is announced; `R` names a receive.
#[derive(Debug)]
pub(crate) enum ArrivalOutcome<R> {
    /// This receive takes the message.
    Matched(R),
    /// No receive takes the message, and there is room: the connection stores the payload in its
    /// own memory; an announcement is stored as it is.
    Store,
    /// No receive takes the message, and there is no room: the message's connection stops reading,
    /// and is woken to ask again.
    Stalled,
}

impl<R> ArrivalOutcome<R> {
    pub(crate) fn map<S>(self, of: impl FnOnce(R) -> S) -> ArrivalOutcome<S> {
        match self {
            ArrivalOutcome::Matched(receive) => ArrivalOutcome::Matched(of(receive)),
            ArrivalOutcome::Store => ArrivalOutcome::Store,
            ArrivalOutcome::Stalled => ArrivalOutcome::Stalled,
        }
    }
}
