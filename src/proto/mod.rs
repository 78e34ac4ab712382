//! The protocol without I/O: what happens to posted operations and received bytes on one
//! connection. No sockets, clock, tasks, wakers or locks live here.
//!
//! A [`Connection`] has four families of methods, and its owner (the progress engine) drains them
//! in this order after each input:
//!
//! 1. getters (`&self`): state and what is wanted next;
//! 2. application mutators: `post`, `cancel`, `withdraw`, `close`;
//! 3. `handle_*`: something came from outside: bytes, a sent batch, a lost link;
//! 4. `poll_*`: what the owner must now do: `take_events` (publish), `poll_transmit` (give these
//!    frames to the transport), `poll_receive` (where the next bytes shall land).
//!
//! What a connection needs from the outside while it works is passed in as a [`Host`].

#![forbid(unsafe_code)]

mod atomic;
mod conn;
mod dgram;
mod event;
mod matching;
mod op;
mod peers;
mod receives;
#[cfg(test)]
mod tests;

pub(crate) use conn::{
    Challenge, ChallengeResult, ConnIds, Connection, ExtensionParams, InjectedEnds, Lifecycle,
    LongMessages, OFFERED, ProvenKey, RdmParams, ReceivePlan, SendOrder, SharedParams, Sizes,
    UnsentMessages, Withdrawn, no_contexts,
};
pub(crate) use dgram::{Dgram, DgramSizes};
pub(crate) use event::ConnEvent;
#[cfg(any(test, loom, feature = "__instructions"))]
pub(crate) use matching::MessageKind;
pub(crate) use matching::inbox::{InboxCounts, InboxId, InboxMessage, ReadCount};
pub(crate) use matching::{
    Announcement, ArmOutcome, Arrival, ArrivalOutcome, ClaimKey, ClaimedReceive, ClearToSend,
    MatchCriteria, MatchResult, MatchedReceive, PostedReceive, ReceiveKey, SharedMatcher,
    UnexpectedBudget, UnexpectedMessage,
};
pub(crate) use op::{
    AtomicRequest, OpEnd, OpKey, OpKind, Operation, PostOptions, RefusedPost, truncated,
};
pub(crate) use peers::{
    Answer, AttemptId, Close, Command, ConnectionId, Failure, GiveUp, HostShares, PeerSettings,
    Peers, Request, SourceId, VerificationOutcome, host_of,
};
pub(crate) use receives::Receives;

use crate::error::Refusal;
use crate::info::Caps;
use crate::mr::AccessRequest;
use crate::sync::OwnedRecord;

/// What a connection asks of its owner in the middle of an input.
pub(crate) trait Host<T> {
    /// Completes the reservation that lets the operation's end be reported (a completion slot).
    /// `false`: no room now; the operation waits in its context's queue.
    fn reserve(&mut self, operation: &mut OwnedRecord<Operation<T>>) -> bool;

    /// Reserves room for a completion without an operation (remote CQ data). `false`: the
    /// connection stops reading until [`Connection::resume`] finds room.
    fn reserve_unasked(&mut self) -> bool;

    /// Finds the region a peer names, if it grants what the peer claims.
    fn resolve(&mut self, request: &AccessRequest) -> Result<crate::buf::RegionUse, Refusal>;

    /// True if the endpoint's capabilities let its peer do this.
    fn admits(&self, need: Caps) -> bool;

    /// True if each segment of a peer's access is followed by an empty one with the proof of its
    /// key (`FI_MR_RAW`).
    fn demands_tags(&self) -> bool {
        false
    }

    /// The receives that this connection shares with others; `None`: it has its own, in the order
    /// in which they were posted.
    fn shared(&mut self) -> Option<&mut dyn Receives> {
        None
    }
}
