//! The protocol without I/O: the posted operations and the received bytes of one connection. This
//! module has no sockets, clock, tasks, wakers or locks.
//!
//! A [`Connection`] has four families of methods, and its owner (the progress engine) drains them
//! in this order after each input:
//!
//! 1. getters (`&self`): the state, and what the connection wants next;
//! 2. application mutators: `post`, `cancel`, `withdraw`, `close`;
//! 3. `handle_*`: input from outside: bytes, a sent batch, a lost link;
//! 4. `poll_*`: what the owner has to do now: `take_events` (publish), `poll_transmit` (give these
//!    frames to the transport), `poll_receive` (place the next bytes).
//!
//! The owner passes in a [`Host`] for whatever a connection needs from outside while it works.

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
    MatchCriteria, MatchResult, MatchedReceive, PostedReceive, ReceiveKey, ReceivedMessage,
    SharedMatcher, UnexpectedBudget,
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

/// The requests of a connection to its owner while it handles an input.
pub(crate) trait Host<T> {
    /// Completes the reservation of a completion slot for the operation. `false`: no slot is free
    /// now, and the operation waits in its context's queue.
    fn reserve(&mut self, operation: &mut OwnedRecord<Operation<T>>) -> bool;

    /// Reserves a slot for a completion without an operation (remote CQ data). `false`: no slot is
    /// free, and the connection stops reading until [`Connection::resume`] reserves one.
    fn reserve_remote_completion(&mut self) -> bool;

    /// Finds the region that a peer's request names, or refuses the access.
    fn resolve(&mut self, request: &AccessRequest) -> Result<crate::buf::RegionUse, Refusal>;

    /// True if the endpoint's capabilities let its peer use what `need` names.
    fn admits(&self, need: Caps) -> bool;

    /// True if the peer has to follow each segment of an access by an empty segment that carries
    /// the proof of its key (`FI_MR_RAW`).
    fn demands_tags(&self) -> bool {
        false
    }

    /// Returns the receives that this connection shares with others. `None`: the connection has its
    /// own receives, matched in the order in which they were posted.
    fn shared(&mut self) -> Option<&mut dyn Receives> {
        None
    }
}
