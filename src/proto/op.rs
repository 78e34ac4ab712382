//! Operations: what can be posted, and what the connection remembers of each until it ends.
//!
//! ```text
//! Waiting ──room──▶ Queued ──handed out──▶ Moving ──all moved──▶ AwaitingPeer ──▶ ended
//!    └─────cancel─────┴──▶ ended (Canceled)      └──nothing to await──▶ ended
//! ```
//! A receive is Queued while posted and Moving while a message lands in it.

use crate::buf::Payload;
use crate::error::{Error, OperationKind, Phase, Refusal};
use crate::slab::Key;
use crate::wire::{AtomicCall, Segments};

/// Names an operation within its connection.
pub(crate) type OpKey = Key;

/// What an application posts.
#[derive(Debug)]
pub(crate) enum Post {
    /// A message; `ack`: complete when it is in the peer's memory.
    Send {
        payload: Payload,
        data: Option<u64>,
        ack: bool,
        /// Of a tagged message.
        tag: Option<u64>,
    },
    /// A message whose bytes were copied, reported nowhere.
    Inject {
        payload: Payload,
        data: Option<u64>,
        tag: Option<u64>,
    },
    /// A buffer for one message.
    Receive { payload: Payload },
    /// Bytes into the peer's regions.
    Write {
        payload: Payload,
        data: Option<u64>,
        ack: bool,
        /// Complete when it is persistent.
        commit: bool,
        segments: Segments,
    },
    /// Bytes out of the peer's regions.
    Read {
        payload: Payload,
        segments: Segments,
    },
    /// Numbers in the peer's regions, changed atomically.
    Atomic {
        post: AtomicPost,
        segments: Segments,
    },
}

/// An atomic operation.
#[derive(Debug)]
pub(crate) struct AtomicPost {
    pub(crate) call: AtomicCall,
    /// The operands, and behind them what is compared; nothing of an operation that only reads.
    pub(crate) operands: Payload,
    /// Where what the numbers were is to be put, of one that tells. Boxed, so that no other post is
    /// larger for it.
    pub(crate) results: Option<Box<Payload>>,
}

impl AtomicPost {
    /// The memory that its owner gets back.
    fn into_payload(self) -> Payload {
        match self.results {
            Some(results) => *results,
            None => self.operands,
        }
    }
}

impl Post {
    pub(crate) fn operation(&self) -> OperationKind {
        match self {
            Post::Send { .. } => OperationKind::Send,
            Post::Inject { .. } => OperationKind::Inject,
            Post::Receive { .. } => OperationKind::Receive,
            Post::Write { .. } => OperationKind::Write,
            Post::Read { .. } => OperationKind::Read,
            Post::Atomic { post, .. } => match post.results {
                None => OperationKind::Atomic,
                Some(_) => OperationKind::FetchAtomic,
            },
        }
    }

    pub(crate) fn is_receive(&self) -> bool {
        matches!(self, Post::Receive { .. })
    }

    pub(crate) fn into_payload(self) -> Payload {
        match self {
            Post::Send { payload, .. }
            | Post::Inject { payload, .. }
            | Post::Receive { payload }
            | Post::Write { payload, .. }
            | Post::Read { payload, .. } => payload,
            Post::Atomic { post, .. } => post.into_payload(),
        }
    }
}

/// How an operation is posted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PostFlags {
    /// A full context makes it wait instead of failing with Again.
    pub(crate) wait: bool,
    /// It goes out only after all transmit operations that were posted before have ended
    /// (`FI_FENCE`), and nothing overtakes it.
    pub(crate) fence: bool,
}

/// A post that was not accepted: why, and its memory back.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) error: Error,
    pub(crate) payload: Payload,
}

/// What the connection remembers of an accepted operation.
#[derive(Debug)]
pub(crate) struct Op<T> {
    pub(crate) token: T,
    pub(crate) operation: OperationKind,
    pub(crate) phase: Phase,
    /// The memory, while it is neither queued in a frame nor with the transport.
    pub(crate) payload: Option<Payload>,
    pub(crate) len: usize,
    pub(crate) ack: bool,
    /// The peer's answer, if it came before the transport said that the frame was sent.
    pub(crate) answer: Option<Result<(), Refusal>>,
    /// It waits for the ends of those before it.
    pub(crate) fence: bool,
    /// Of an accepted transmit operation: its frame's place among all.
    pub(crate) number: u64,
    /// The owner of a receive went away while a message was landing in it.
    pub(crate) orphaned: bool,
}
