//! Receives messages at one endpoint of this process, from any peer.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_fabric::{ErrorKind, av::FabricAddr, op::Received};

use crate::control::{CONTROL, Control, LEN_MAX, NUMBER};
use crate::message;
use crate::options::Options;
use crate::party::{Local, Party};

/// What each peer has sent so far.
#[derive(Debug, Default)]
pub struct Inbox {
    senders: Mutex<HashMap<FabricAddr, Sender>>,
}

#[derive(Debug, Default)]
struct Sender {
    incarnation: u64,
    /// The number of the next expected message.
    number: u64,
    received: u64,
    /// How many messages the peer has sent in all, once it has announced that.
    last: Option<u64>,
}

impl Sender {
    /// Starts anew if the peer has come back at the same address. The peer's last control message
    /// may arrive before its first data message, since they match different receives.
    fn enter(&mut self, incarnation: u64) {
        if self.incarnation != incarnation {
            *self = Sender {
                incarnation,
                ..Sender::default()
            };
        }
    }
}

impl Inbox {
    fn with<R>(&self, peer: FabricAddr, look: impl FnOnce(&mut Sender) -> R) -> R {
        let mut senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
        look(senders.entry(peer).or_default())
    }

    /// Returns how many of this peer's messages are missing; `None` while the peer may send more.
    pub fn missing(&self, peer: FabricAddr) -> Option<u64> {
        self.with(peer, |sender| {
            Some(sender.last?.saturating_sub(sender.received))
        })
    }
}

/// Number of receives that an endpoint posts at a time: untagged, tagged, and one for control
/// messages. Receives beyond the endpoint's room would wait for each other.
pub fn receives(options: &Options) -> usize {
    2 * posted_of(options) + 1
}

fn posted_of(options: &Options) -> usize {
    2 * options.window()
}

/// Receives messages, all untagged ones or all tagged ones, until the endpoint is shut down.
///
/// Receives belong to the endpoint: each takes the first message that it matches, from any peer.
pub async fn receive(party: Arc<Party>, local: Arc<Local>, tagged: bool) {
    let post = |buffer: Vec<u8>| match tagged {
        true => {
            let receive = local.endpoint.recv_tagged(buffer, 0);
            // Matches any number, but not `CONTROL`.
            receive.ignore(NUMBER).post()
        }
        false => local.endpoint.recv(buffer).post(),
    };
    let empty = || vec![0; party.options.size()];
    let mut posted: VecDeque<_> = (0..posted_of(&party.options))
        .map(|_| post(empty()))
        .collect();
    while let Some(Ok(receive)) = posted.pop_front() {
        let buffer = match receive.await {
            Ok((received, buffer)) => {
                take(&party, &local, &received, &buffer[..received.len]);
                buffer
            }
            // A message that is too long, from a process with another --size. Only that message is
            // lost.
            Err(failed) if failed.kind() == ErrorKind::Truncated => {
                party.board.error(failed.kind());
                failed.into_parts().1.unwrap_or_else(empty)
            }
            Err(_) => return,
        };
        posted.push_back(post(buffer));
    }
}

/// Checks a message.
fn take(party: &Party, local: &Local, received: &Received, bytes: &[u8]) {
    let Some(peer) = sender_of(local, received) else {
        return;
    };
    let Some((incarnation, number)) = message::read(bytes) else {
        party.board.wrong.fetch_add(1, Relaxed);
        return;
    };
    let board = &party.board;
    if received.tag.is_some_and(|tag| tag != number & !CONTROL) {
        board.wrong.fetch_add(1, Relaxed);
        return;
    }
    board.verified.fetch_add(1, Relaxed);
    local.inbox.with(peer, |sender| {
        sender.enter(incarnation);
        if sender.received > 0 {
            // Messages of one sender arrive in order. Missing messages were lost with a connection,
            // and the sender's operations failed.
            match number.checked_sub(sender.number) {
                Some(skipped) => board.skipped.fetch_add(skipped, Relaxed),
                None => board.misordered.fetch_add(1, Relaxed),
            };
        }
        sender.number = number + 1;
        sender.received += 1;
    });
    party.has_changed();
}

/// Receives control messages until the endpoint is shut down.
pub async fn listen(party: Arc<Party>, local: Arc<Local>) {
    let mut buffer = vec![0; LEN_MAX];
    while let Ok((received, bytes)) = local.endpoint.recv_tagged(buffer, CONTROL).await {
        let control = Control::from_bytes(&bytes[..received.len]);
        buffer = bytes;
        let Some(peer) = sender_of(&local, &received) else {
            continue;
        };
        match control {
            Some(Control::Members(members)) => party.learn(members),
            Some(Control::Last { incarnation, sent }) => {
                local.inbox.with(peer, |sender| {
                    sender.enter(incarnation);
                    sender.last = Some(sent);
                });
                party.is_leaving(peer);
            }
            None => {
                party.board.wrong.fetch_add(1, Relaxed);
            }
        }
        party.has_changed();
    }
}

/// Returns the address of the sender. Inserts a sender that is not in the address vector yet: each
/// message carries the address at which its sender listens.
fn sender_of(local: &Local, received: &Received) -> Option<FabricAddr> {
    match received.source {
        Some(peer) => Some(peer),
        None => local.endpoint.insert(received.source_addr?).ok(),
    }
}
