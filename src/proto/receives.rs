//! What a connection asks of the receives that it shares with the other connections of its
//! endpoint.

use super::matching::{Announcement, Arrival, Arrived, ClearToSend, EarlyMessage, PostedReceive};
use super::op::OpKey;
use crate::error::Error;

/// The shared receives, as one connection sees them. Whatever is matched here is the connection's:
/// it ends the receive, with the message's source and tag.
pub(crate) trait Receives<T> {
    /// A message begins; its order is given to it. After [`Arrived::Store`] the connection calls
    /// `landed` or `abandoned` for it, exactly once; after [`Arrived::NoRoom`] it reads nothing,
    /// and asks again when it has a turn.
    fn arrive(&mut self, arrival: &mut Arrival) -> Arrived<T>;

    /// A message that was to be stored has come in full: it is kept, or given to a receive that
    /// was posted meanwhile, whose end is not the connection's to tell.
    fn landed(&mut self, early: EarlyMessage);

    /// A message that was to be stored never will come in full.
    fn abandoned(&mut self, arrival: &Arrival);

    /// A message is announced; its order is given to it. After [`Arrived::Store`] it is kept until
    /// a receive matches, which [`poll_clear_to_send`](Self::poll_clear_to_send) hands to the
    /// connection; after [`Arrived::NoRoom`] it waits as a message does.
    fn announced(&mut self, announcement: &mut Announcement) -> Arrived<T>;

    /// The next receive that was matched with a kept announcement of this connection. The
    /// connection is woken for each, and either asks its peer for the message or
    /// [puts the receive back](Self::put_back).
    fn poll_clear_to_send(&mut self) -> Option<ClearToSend<T>>;

    /// A kept announcement is withdrawn. If it was matched meanwhile, the connection puts the
    /// receive back when it polls it.
    fn withdrawn(&mut self, announcement: &Announcement);

    /// A receive that was matched ends with the connection's word: it will not be
    /// [put back](Self::put_back). Told exactly once of each that is not.
    fn finished(&mut self, receive: OpKey);

    /// This receive does not get the message that it was matched with: it is posted again, in its
    /// place. If it was for that message alone, it ends, since that is `gone`.
    fn put_back(&mut self, receive: PostedReceive<T>, gone: Error);

    /// Announcements of this connection that are kept will not be answered: they are forgotten.
    fn forget_announcements(&mut self);

    /// The owner of the receive that this message landed in has gone: it goes to the head of those
    /// that are kept, or to the next receive (ruling 4).
    fn give_back(&mut self, early: EarlyMessage);

    /// Messages of this connection that are kept, announcements and those that are landing
    /// included.
    fn held(&self) -> u64;

    /// The peer holds a message back: the connection is to have a turn as soon as any of its
    /// messages leaves the store. Otherwise it has one when a quarter of what was promised to it
    /// has come free. What leaves before this call wakes nobody: look at `held` after it.
    fn awaits_credit(&mut self);
}
