//! Checks whether a peer reads the messages that are sent to it.
//!
//! A server frees a slot once the response is on its way. So a client that endlessly sends requests
//! and reads nothing would make the server keep all responses. An honest client reads the response
//! before it uses the slot again: once it has sent more requests than it has slots, it has read at
//! least one response.
//!
//! The same holds for items of streams, in either direction: the sender gets credit for items that
//! were read, and must read the credit to send more. (The sender of items limits the items
//! themselves: [`send_item`](super::send_item).)

use std::sync::atomic::{AtomicU64, Ordering};

use tokio_fabric::Endpoint;

use crate::limits::{READING_CHECK_ITEMS, READING_CHECK_SHARE};
use crate::wire::Violation;

#[derive(Debug, Default)]
pub(crate) struct ReadingCheck {
    /// Number of messages that were passed to the endpoint.
    messages: AtomicU64,
    requests: Look,
    items: Look,
}

/// The state of the last check.
#[derive(Debug, Default)]
struct Look {
    /// Number of requests or items that have arrived since the last check.
    came: AtomicU64,
    /// The value of `messages` at the last check.
    messages: AtomicU64,
}

/// A frame of the peer that makes this side send something.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Came {
    Request,
    Item,
}

impl ReadingCheck {
    pub(crate) fn count_message(&self) {
        self.messages.fetch_add(1, Ordering::Relaxed);
    }

    /// Checks whether the peer reads, if a check is due. Called only by the task that reads the
    /// peer's frames.
    ///
    /// # Errors
    /// The peer does not read.
    #[inline]
    pub(crate) fn check(
        &self,
        came: Came,
        calls_max: u32,
        endpoint: &Endpoint,
    ) -> Result<(), Violation> {
        let (look, each, what) = match came {
            Came::Request => {
                let what = "requests of a peer that does not read";
                (&self.requests, READING_CHECK_SHARE, what)
            }
            Came::Item => {
                let what = "items of a peer that does not read";
                (&self.items, READING_CHECK_ITEMS, what)
            }
        };
        let came = look.came.load(Ordering::Relaxed) + 1;
        if came < u64::from(each * calls_max) {
            look.came.store(came, Ordering::Relaxed);
            return Ok(());
        }
        look.came.store(0, Ordering::Relaxed);
        let messages = self.messages.load(Ordering::Relaxed);
        let before = look.messages.swap(messages, Ordering::Relaxed);
        match endpoint.stats().operations.sends.ended() >= before {
            true => Ok(()),
            false => Err(Violation(what)),
        }
    }
}
