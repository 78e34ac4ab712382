//! What a connection asks of the receives that it shares with the other connections of its
//! endpoint.
//!
//! Whose receives take a connection's messages is fixed when the connection is made
//! (`conn/receive_side.rs`): its own, or some that connections share. A connection that shares has
//! no matcher and asks its host through this trait. A receive that is matched becomes an operation
//! of the connection that brings the message, and ends there. If the connection ends first, the
//! receive is posted again in its place, unless it was for that peer or that message alone.
//!
//! What the receiver may have no room for is announced first (`conn/rendezvous_sender.rs`,
//! `conn/rendezvous_receiver.rs`), and its bytes come when a receive has been matched. A receive
//! that matches an announcement is queued for the connection of the announcement, whose machine
//! polls it in its next turn (`Receives::poll_clear_to_send`) and asks for the message, or puts the
//! receive back.
//!
//! Matching (`matching/shared.rs`) takes one hash lookup per mask. Each connection is promised
//! bytes of the store; a message without room stalls its connection alone, which is woken in turn.
//!
//! A connectionless endpoint's connection (`conn/rdm_binding.rs`) takes posts before it is up.
//! Their frames wait in their lanes, and survive an attempt to connect that is given up. So does
//! what the peer has no receive for when it ends an idle connection: it goes over the next one.

use super::matching::{
    Announcement, Arrival, ArrivalOutcome, ClearToSend, PostedReceive, UnexpectedMessage,
};
use super::op::OpKey;
use crate::error::Error;

/// The shared receives, as one connection sees them. A receive that is matched here becomes an
/// operation of the connection, which completes it with the message's source and tag.
pub(crate) trait Receives<T> {
    /// A message begins; the call assigns its order. After [`ArrivalOutcome::Store`] the connection
    /// calls [`store_message`](Self::store_message) or [`abort_message`](Self::abort_message) for
    /// it, exactly once; after [`ArrivalOutcome::Stalled`] it stops reading, and asks again in its
    /// next turn.
    fn begin_message(&mut self, arrival: &mut Arrival) -> ArrivalOutcome<T>;

    /// An admitted message has come in full: it is stored, or completes a receive that was posted
    /// meanwhile. Behind receives that are not reported yet it is held before.
    fn store_message(&mut self, message: UnexpectedMessage);

    /// True while a message is held: the connection reads no further, so that its messages are
    /// matched and reported in order.
    fn is_holding(&self) -> bool {
        false
    }

    /// An admitted message will not come in full.
    fn abort_message(&mut self, arrival: &Arrival);

    /// A message is announced; the call assigns its order. After [`ArrivalOutcome::Store`] the
    /// announcement is stored until a receive matches it, which
    /// [`poll_clear_to_send`](Self::poll_clear_to_send) hands to the connection; after
    /// [`ArrivalOutcome::Stalled`] it waits as a message does.
    fn begin_announcement(&mut self, announcement: &mut Announcement) -> ArrivalOutcome<T>;

    /// The next receive that was matched with a stored announcement of this connection. The
    /// connection is woken for each, and either asks its peer for the message or
    /// [requeues the receive](Self::requeue_receive).
    fn poll_clear_to_send(&mut self) -> Option<ClearToSend<T>>;

    /// A stored announcement is withdrawn. If a receive was matched with it meanwhile, the
    /// connection requeues that receive when it polls it.
    fn withdraw_announcement(&mut self, announcement: &Announcement);

    /// The connection completes a matched receive. Called exactly once for each matched receive
    /// that is not [requeued](Self::requeue_receive).
    fn receive_ended(&mut self, receive: OpKey);

    /// The message that this receive was matched with does not come: the receive is posted again,
    /// in its order. A receive of a claimed message ends with `gone` instead.
    fn requeue_receive(&mut self, receive: PostedReceive<T>, gone: Error);

    /// The connection will not answer its stored announcements: they are removed.
    fn forget_announcements(&mut self);

    /// The owner of the receive that this message was placed in is gone: the message goes to the
    /// head of the unexpected messages, or to the next receive (ruling 4).
    fn requeue_message(&mut self, message: UnexpectedMessage);

    /// The number of messages of this connection in the store, including announcements and messages
    /// that are being received.
    fn held_messages(&self) -> u64;

    /// The peer holds a message back: wakes the connection as soon as any of its messages leaves
    /// the store, instead of once per quarter of its promise. A message that left the store before
    /// this call wakes no connection: call [`held_messages`](Self::held_messages) after it.
    fn request_credit_wake(&mut self);
}
