//! Which receive takes which message: of one connection, first come first matched
//! ([`first_come`]), and of all connections of a connectionless endpoint together, by tag and by
//! sender ([`SharedMatcher`]). This file holds the values that are matched.

mod budget;
mod early;
pub(crate) mod first_come;
mod lists;
mod posted;
mod shared;
#[cfg(test)]
mod tests;

use crate::buf::Payload;
use crate::proto::op::OpKey;

use super::peers::{ConnectionId, SourceId};

pub(crate) use budget::Budget;
pub(crate) use posted::Withdrawn as WithdrawnReceive;
pub(crate) use shared::{Armed, ClaimKey, Fetched, Found, ReceiveKey, SharedMatcher};

/// What kind of message it is. The two kinds never meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Message,
    Tagged { tag: u64 },
}

impl Kind {
    /// Of a message with this tag, if it has one.
    pub(crate) fn of(tag: Option<u64>) -> Self {
        tag.map_or(Kind::Message, |tag| Kind::Tagged { tag })
    }

    pub(crate) fn tag(self) -> Option<u64> {
        match self {
            Kind::Message => None,
            Kind::Tagged { tag } => Some(tag),
        }
    }
}

/// What a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Wanted {
    Message,
    /// Bits that are set in `ignore` do not matter (fi_tagged(3)).
    Tagged {
        tag: u64,
        ignore: u64,
    },
}

impl Wanted {
    /// fi_tagged(3): `send_tag & ~ignore == recv_tag & ~ignore`.
    pub(crate) fn takes(self, kind: Kind) -> bool {
        match (self, kind) {
            (Wanted::Message, Kind::Message) => true,
            (Wanted::Tagged { tag, ignore }, Kind::Tagged { tag: sent }) => {
                sent & !ignore == tag & !ignore
            }
            _ => false,
        }
    }
}

/// A message that begins, or is announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) source: SourceId,
    pub(crate) connection: ConnectionId,
    pub(crate) kind: Kind,
    /// Bytes; a peer's word.
    pub(crate) len: u64,
    /// CQ data.
    pub(crate) data: Option<u64>,
    /// Its place among all that have come: given by the matcher when it is taken in or announced
    /// (0 before), and kept when it is given back, so that a sender's messages stay in order.
    pub(crate) order: u64,
}

/// A receive that no message has been matched to, or one that a message was just matched to.
#[derive(Debug)]
pub(crate) struct PostedReceive<T> {
    pub(crate) token: T,
    /// Where the message lands; of a buffer for many messages, the part that is this one's.
    pub(crate) payload: Payload,
    pub(crate) wanted: Wanted,
    /// Takes messages of this peer only.
    pub(crate) source: Option<SourceId>,
    /// Its place among the posted ones: given by the matcher, and kept when it is given back.
    pub(crate) order: u64,
    /// Its name in the receive context.
    pub(crate) key: OpKey,
}

/// A message that came in full before its receive.
#[derive(Debug)]
pub(crate) struct EarlyMessage {
    pub(crate) arrival: Arrival,
    pub(crate) payload: Payload,
    /// Bytes of the message that are in `payload`.
    pub(crate) len: usize,
    /// Bytes of it that a too small, since dropped, receive lost.
    pub(crate) overflow: usize,
}

/// A message whose bytes its sender keeps until it is asked for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announcement {
    pub(crate) arrival: Arrival,
    /// Its name on its connection.
    pub(crate) index: u8,
}

/// A receive that was matched with an announced message: the message's connection asks the sender
/// for it (the clear-to-send of a rendezvous).
#[derive(Debug)]
pub(crate) struct ClearToSend<T> {
    pub(crate) receive: PostedReceive<T>,
    pub(crate) announcement: Announcement,
}

/// What becomes of a message that begins, or is announced.
#[derive(Debug)]
pub(crate) enum Arrived<T> {
    /// This receive takes it.
    Receive(PostedReceive<T>),
    /// It is kept: a message that begins in memory of its own, and an announcement as it is.
    Store,
    /// It has to wait in its connection, which stops reading and is woken when to ask again.
    NoRoom,
}
