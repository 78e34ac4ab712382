//! The interface through which a connection uses the receives that it shares with the other
//! connections of its endpoint.
//!
//! Whether a connection's own receives take its messages, or some that connections share, is fixed
//! when the connection is made (`conn/receive_side.rs`). A connection that shares has no matcher
//! and asks its host through this trait. A receive that is matched becomes an operation of the
//! connection that brings the message, and ends there. If the connection ends first, the receive is
//! posted again in its place, unless it was for that peer or that message alone.
//!
//! A message that the receiver may have no room for is announced first
//! (`conn/rendezvous_sender.rs`, `conn/rendezvous_receiver.rs`), and its bytes come when a receive
//! has been matched. A receive that matches an announcement is queued for the connection of the
//! announcement, whose machine polls it in its next turn (`Receives::poll_clear_to_send`) and asks
//! for the message, or puts the receive back.
//!
//! Matching (`matching/shared.rs`) takes one hash lookup per mask. Each connection is promised
//! bytes of the store; a message without room stalls its connection alone, which is woken in turn.
//!
//! A connectionless endpoint's connection (`conn/rdm_binding.rs`) takes posts before it is up.
//! Their frames wait in their lanes, and survive an attempt to connect that is given up. So do
//! messages for which the peer has no receive when it ends an idle connection: they go over the
//! next one.

use super::matching::{
    Announcement, Arrival, ArrivalOutcome, ClearToSend, PostedReceive, UnexpectedMessage,
};
use super::op::OpKey;
use crate::error::Error;

/// The shared receives, as one connection sees them. A receive that is matched here becomes an
/// operation of the connection, which completes it with the message's source and tag.
pub(crate) trait Receives<T> {
    /// Begins a message, and assigns its order. After [`ArrivalOutcome::Store`] the connection
    /// calls [`store_message`](Self::store_message) or [`abort_message`](Self::abort_message) for
    /// it, exactly once; after [`ArrivalOutcome::Stalled`] it stops reading, and asks again in its
    /// next turn.
    fn begin_message(&mut self, arrival: &mut Arrival) -> ArrivalOutcome<T>;

    /// Stores an admitted message that has come in full, or completes a receive that was posted
    /// meanwhile. Behind receives that are not reported yet the message is held before.
    fn store_message(&mut self, message: UnexpectedMessage);

    /// True while a message is held: the connection reads no further, so that its messages are
    /// matched and reported in order.
    fn is_holding(&self) -> bool {
        false
    }

    /// Gives up an admitted message that will not come in full.
    fn abort_message(&mut self, arrival: &Arrival);

    /// Begins a message that is announced, and assigns its order. After [`ArrivalOutcome::Store`]
    /// the announcement is stored until a receive matches it, which
    /// [`poll_clear_to_send`](Self::poll_clear_to_send) hands to the connection; after
    /// [`ArrivalOutcome::Stalled`] it waits as a message does.
    fn begin_announcement(&mut self, announcement: &mut Announcement) -> ArrivalOutcome<T>;

    /// Takes the next receive that was matched with a stored announcement of this connection. The
    /// connection is woken for each, and either asks its peer for the message or [requeues the
    /// receive](Self::requeue_receive).
    fn poll_clear_to_send(&mut self) -> Option<ClearToSend<T>>;

    /// Withdraws a stored announcement. If a receive was matched with it meanwhile, the connection
    /// requeues that receive when it polls it.
    fn withdraw_announcement(&mut self, announcement: &Announcement);

    /// Notes that the connection completes a matched receive. Called exactly once for each matched
    /// receive that is not [requeued](Self::requeue_receive).
    fn receive_ended(&mut self, receive: OpKey);

    /// Posts a receive again, in its order, since the message that it was matched with does not
    /// come. A receive of a claimed message ends with `gone` instead.
    fn requeue_receive(&mut self, receive: PostedReceive<T>, gone: Error);

    /// Removes the stored announcements of the connection, which will not answer them.
    fn forget_announcements(&mut self);

    /// Takes back a message that was placed in a receive whose owner is gone: the message goes to
    /// the head of the unexpected messages, or to the next receive (ruling 4).
    fn requeue_message(&mut self, message: UnexpectedMessage);

    /// The number of messages of this connection in the store, including announcements and messages
    /// that are being received.
    fn held_messages(&self) -> u64;

    /// Notes that the peer holds a message back: the connection is woken as soon as any of its
    /// messages leaves the store, instead of once per quarter of its promise. A message that left
    /// the store before this call wakes no connection: call [`held_messages`](Self::held_messages)
    /// after it.
    fn request_credit_wake(&mut self);
}
