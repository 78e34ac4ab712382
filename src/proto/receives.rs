//! The interface through which a connection uses the receives that it shares with the other
//! connections of its endpoint.
//!
//! Whether a connection has its own receives or shares receives is fixed when the connection is
//! made (`conn/receive_side.rs`). A connection that shares receives has no matcher and asks its
//! host through this trait. The record of a receive stays in its context from post to end: a
//! connection holds only the key of the receive that matched its message, and the buffer while
//! bytes come. If the connection ends first, the receive is posted again in its place, unless it
//! was for that peer or that message alone.
//!
//! A message that the receiver may have no room for is announced first
//! (`conn/rendezvous_sender.rs`, `conn/rendezvous_receiver.rs`), and its bytes come when a receive
//! has been matched. A receive that matches an announcement is queued for the announcement's
//! connection. In its next turn the connection polls the receive (`Receives::poll_clear_to_send`)
//! and asks for the message, or puts the receive back.
//!
//! Matching (`matching/shared.rs`) takes one hash lookup per mask. Each connection is promised
//! bytes of the store; a message without room stalls only its own connection, until that is woken
//! in turn.
//!
//! A connectionless endpoint's connection (`conn/rdm_binding.rs`) takes posts before it is up.
//! Their frames wait in their lanes, and survive a failed attempt to connect. Messages for which
//! the peer has no receive when it ends an idle connection survive too: they go over the next
//! connection.

use super::matching::{Announcement, Arrival, ArrivalOutcome, ClearToSend, ReceivedMessage};
use super::op::OpKey;
use crate::buf::{AccessError, Payload};
use crate::error::Error;

/// The shared receives, as one connection sees them. Each receive that is matched here is ended by
/// one call: [`end_receive`](Self::end_receive) with its message, or
/// [`requeue_receive`](Self::requeue_receive) or [`fail_receives`](Self::fail_receives) without.
pub(crate) trait Receives {
    /// Begins a message, and assigns its order. After [`ArrivalOutcome::Store`] the connection
    /// calls [`store_message`](Self::store_message) or [`abort_message`](Self::abort_message) for
    /// it, exactly once; after [`ArrivalOutcome::Stalled`] it stops reading, and asks again in its
    /// next turn.
    fn begin_message(&mut self, arrival: &mut Arrival) -> ArrivalOutcome<(OpKey, Payload)>;

    /// Takes a complete message: copies it to the receive that it is matched with, which ends, or
    /// to the store. `false`: the message is stalled, or there is no memory for it; the connection
    /// then [begins](Self::begin_message) it.
    fn take_message(&mut self, arrival: &mut Arrival, bytes: &[u8]) -> bool;

    /// Stores an admitted message that is complete, or completes a receive that was posted
    /// meanwhile.
    fn store_message(&mut self, message: ReceivedMessage);

    /// Gives up an admitted message that will not be completed.
    fn abort_message(&mut self, arrival: &Arrival);

    /// Begins an announced message, and assigns its order. After [`ArrivalOutcome::Store`] the
    /// announcement is stored until a receive matches it, and
    /// [`poll_clear_to_send`](Self::poll_clear_to_send) hands that receive to the connection. After
    /// [`ArrivalOutcome::Stalled`] the announcement waits as a message does.
    fn begin_announcement(&mut self, announcement: &mut Announcement) -> ArrivalOutcome<OpKey>;

    /// Takes the next receive that was matched with a stored announcement of this connection. The
    /// connection is woken for each, and either asks its peer for the message or [requeues the
    /// receive](Self::requeue_receive).
    fn poll_clear_to_send(&mut self) -> Option<ClearToSend>;

    /// Withdraws a stored announcement. If a receive was matched with it meanwhile, the connection
    /// polls that receive and requeues it.
    fn withdraw_announcement(&mut self, announcement: &Announcement);

    /// Takes the buffer of a receive that was matched with an announced message. The message's
    /// bytes come now.
    fn take_buffer(&mut self, receive: OpKey) -> Payload;

    /// Ends a matched receive whose message is in its buffer. `failed`: the copy to the buffer
    /// failed. If the receive's owner is gone, the message goes back to the unexpected messages, in
    /// its order, or to the next receive (ruling 4).
    fn end_receive(
        &mut self,
        receive: OpKey,
        message: ReceivedMessage,
        failed: Option<AccessError>,
    );

    /// Posts a receive again, in its order, since its matched message does not come. A receive of a
    /// claimed message ends with `gone` instead. `buffer`: the receive's buffer, if the connection
    /// has taken it.
    fn requeue_receive(&mut self, receive: OpKey, buffer: Option<Payload>, gone: Error);

    /// Ends receives with their connection; those that take any peer's message are posted again
    /// instead, the oldest first. Each comes with its buffer, if the connection has taken it. A
    /// receive whose buffer the transport never gives back ends.
    fn fail_receives(&mut self, receives: Vec<(OpKey, Option<Payload>)>, error: &Error);

    /// Removes the stored announcements of the connection, which will request none of them.
    fn forget_announcements(&mut self);

    /// The number of messages of this connection in the store, including announcements and messages
    /// that are being received.
    fn held_messages(&self) -> u64;

    /// Notes that the peer holds a message back: the connection is woken as soon as any of its
    /// messages leaves the store, instead of once per quarter of its promise. A message that left
    /// the store before this call wakes no connection: call [`held_messages`](Self::held_messages)
    /// after it.
    fn request_credit_wake(&mut self);
}
