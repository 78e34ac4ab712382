//! The receives of a context. The record of each stays here, from its post to its end.
//!
//! ```text
//!            room              a message                 the message is in its buffer
//!   Backlogged ─┬──▶ Posted ───────────▶ Matched ──────────────────────────────▶ Ended
//!               ├──────── a message ─────▶ │ ▲ │ canceled, or its time passed      ▲
//!               │             ▲            │ └─┘ └─▶ MatchedCanceled ──────────────┤
//!               │             └────────────┘ the message does not come: requeued    │
//!               └──▶ Multi ───── consumed, or canceled ────────────────────────────┤
//!   Claimed, Part ───── its message is delivered, or its sender is gone ───────────┘
//! ```
//! Backlogged and Posted end when they are canceled, or matched with a complete message. Matched
//! moves to Matched when a requeued receive matches another announcement.

use std::sync::Arc;

use crate::buf::BufferCursor;
use crate::cq::CqSlot;
use crate::edges::{check_edge, state_machine};
use crate::progress::report::OpRecord;
use crate::proto::{ConnectionId, OpKey, PostedReceive, ReceiveKey, SourceId};
use crate::slab::Slab;

use super::{MultiReceive, ReceiveSelector};

/// A receive that has not ended.
#[derive(Debug)]
pub(super) struct ReceiveEntry {
    /// Has no buffer while bytes are received into the buffer, or while the cursor in `state` has
    /// it.
    pub(super) record: OpRecord,
    pub(super) state: ReceiveOpState,
    /// The connection that brings its message, or has announced it.
    pub(super) sender: Option<ConnectionId>,
}

/// A posted multi-receive buffer.
#[derive(Debug)]
pub(super) struct PostedBuffer {
    pub(super) receive: ReceiveKey,
    pub(super) multi: Arc<MultiReceive>,
    /// The slot of its next message; `None`: the buffer is not armed.
    pub(super) slot: Option<CqSlot>,
    /// The slot of the message after that, while the next message takes its part.
    pub(super) slot_after: Option<CqSlot>,
}

/// The state of a receive.
#[derive(Debug)]
pub(super) enum ReceiveOpState {
    /// It waits in the backlog for room; with a cursor, it is a multi-receive buffer.
    Backlogged(ReceiveSelector, Option<BufferCursor>),
    /// The matcher has it.
    Posted(ReceiveKey),
    /// The matcher has it: a multi-receive buffer.
    Multi(PostedBuffer),
    /// A connection brings its message, or asks for it.
    Matched(PostedReceive),
    /// As Matched, but it is not posted again if the message does not come.
    MatchedCanceled(PostedReceive),
    /// It takes a claimed message and no other.
    Claimed,
    /// A part of the multi-receive buffer with this key, for one message. If there is a sender, the
    /// buffer takes messages of that sender only.
    Part(OpKey, Option<SourceId>),
}

state_machine! { ReceiveOpState {
    Backlogged => [Posted, Multi, Matched],
    Posted => [Matched],
    Multi => [],
    Matched => [Posted, Matched, MatchedCanceled],
    MatchedCanceled => [],
    Claimed => [],
    Part => [],
}}

/// The receives of a context that have not ended, by their keys.
#[derive(Debug)]
pub(super) struct ReceiveTable {
    receives: Slab<ReceiveEntry>,
}

impl ReceiveTable {
    pub(super) fn new() -> Self {
        ReceiveTable {
            receives: Slab::new(),
        }
    }

    /// Enters a receive, which begins Backlogged, Claimed or Part.
    pub(super) fn insert(&mut self, record: OpRecord, state: ReceiveOpState) -> OpKey {
        debug_assert!(matches!(
            state,
            ReceiveOpState::Backlogged(..) | ReceiveOpState::Claimed | ReceiveOpState::Part(..)
        ));
        self.receives.insert(ReceiveEntry {
            record,
            state,
            sender: None,
        })
    }

    pub(super) fn get(&self, key: OpKey) -> Option<&ReceiveEntry> {
        self.receives.get(key)
    }

    pub(super) fn state(&self, key: OpKey) -> Option<&ReceiveOpState> {
        self.receives.get(key).map(|it| &it.state)
    }

    /// Returns the number by which matched receives are ordered; 0 for other receives.
    pub(super) fn order(&self, key: OpKey) -> u64 {
        match self.state(key) {
            Some(ReceiveOpState::Matched(receive) | ReceiveOpState::MatchedCanceled(receive)) => {
                receive.order
            }
            _ => 0,
        }
    }

    pub(super) fn get_mut(&mut self, key: OpKey) -> Option<&mut ReceiveEntry> {
        self.receives.get_mut(key)
    }

    pub(super) fn record_mut(&mut self, key: OpKey) -> Option<&mut OpRecord> {
        self.receives.get_mut(key).map(|it| &mut it.record)
    }

    /// Takes the selector of a receive that is being admitted, and the cursor of a multi-receive
    /// buffer.
    pub(super) fn take_backlogged(
        &mut self,
        key: OpKey,
    ) -> (ReceiveSelector, Option<BufferCursor>) {
        match self.receives.get_mut(key).map(|it| &mut it.state) {
            Some(ReceiveOpState::Backlogged(selector, cursor)) => (*selector, cursor.take()),
            _ => unreachable!("a receive is admitted once"),
        }
    }

    /// Returns the multi-receive buffer of this key.
    pub(super) fn buffer_mut(&mut self, key: OpKey) -> Option<&mut PostedBuffer> {
        match &mut self.receives.get_mut(key)?.state {
            ReceiveOpState::Multi(buffer) => Some(buffer),
            _ => None,
        }
    }

    /// Returns the records of receives that wait for a message or for room, without posted
    /// multi-receive buffers.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &OpRecord> {
        let waits = |it: &&ReceiveEntry| {
            matches!(
                it.state,
                ReceiveOpState::Backlogged(..) | ReceiveOpState::Posted(_)
            )
        };
        let receives = self.receives.iter().map(|(_, it)| it);
        receives.filter(waits).map(|it| &it.record)
    }

    /// Moves a receive along a legal edge, if it has not ended.
    pub(super) fn set(&mut self, key: OpKey, to: ReceiveOpState) {
        if let Some(ReceiveEntry { state, .. }) = self.receives.get_mut(key) {
            check_edge(state, &to);
            *state = to;
        }
    }

    /// Ends a receive; returns it in its last state.
    pub(super) fn remove(&mut self, key: OpKey) -> Option<ReceiveEntry> {
        self.receives.remove(key)
    }

    pub(super) fn keys_by_age(&self) -> Vec<OpKey> {
        self.receives.keys_by_age()
    }

    #[cfg(loom)]
    pub(super) fn len(&self) -> usize {
        self.receives.len()
    }

    pub(super) fn shrink(&mut self) {
        self.receives.shrink();
    }
}
