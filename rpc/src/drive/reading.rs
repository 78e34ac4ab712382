//! Whether a peer reads what it is sent.
//!
//! A slot is free at the server once its answer is on its way, so a client that sends requests
//! without end, and reads nothing, would have the server keep all of the answers. An honest one has
//! read the answer before it uses a slot again. So once it has sent more requests than it has
//! slots, it has read an answer to one of them.
//!
//! Items of streams are the same, in either direction: their sender gets credit for items that were
//! read, and must read it to send more. (Items are kept in bounds by the
//! side that sends them: [`send_item`](super::send_item).)

use std::sync::atomic::{AtomicU64, Ordering};

use tokio_fabric::Endpoint;

use crate::limits::{READING_CHECK_ITEMS, READING_CHECK_SHARE};
use crate::wire::Violation;

#[derive(Debug, Default)]
pub(crate) struct ReadingCheck {
    /// Messages that were given to the endpoint.
    messages: AtomicU64,
    requests: Look,
    items: Look,
}

/// The last check.
#[derive(Debug, Default)]
struct Look {
    /// What has come since.
    came: AtomicU64,
    /// How many messages there were then.
    messages: AtomicU64,
}

/// What makes this side send something.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Came {
    Request,
    Item,
}

impl ReadingCheck {
    pub(crate) fn count_message(&self) {
        self.messages.fetch_add(1, Ordering::Relaxed);
    }

    /// Checks, if one is due. Called by the one task that reads what the peer sends.
    ///
    /// # Errors
    /// The peer does not read.
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
        let came = look.came.fetch_add(1, Ordering::Relaxed) + 1;
        if came < u64::from(each * calls_max) {
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
