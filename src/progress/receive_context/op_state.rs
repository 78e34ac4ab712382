//! The states of a receive in its context.
//!
//! ```text
//!            room              a message                 the connection completes it
//!   Backlogged ─┬──▶ Posted ───────────▶ Matched ──────────────────────────────▶ Ended
//!               ├──────── a message ─────▶ │ ▲ │ canceled, or its time passed      ▲
//!               │             ▲            │ └─┘ └─▶ MatchedCanceled ──────────────┤
//!               │             └────────────┘ the message does not come: requeued    │
//!               └──▶ Multi ───── consumed, or canceled ────────────────────────────┤
//!   Claimed ───── its message is delivered, or its sender is gone ─────────────────┘
//! ```
//! Backlogged and Posted end when they are canceled, and when a stored message is delivered at
//! once. Matched moves to Matched when a requeued receive matches another announcement.

use std::sync::Arc;

use crate::edges::{check_edge, state_machine};
use crate::proto::{OpKey, ReceiveKey};
use crate::slab::Slab;

use super::MultiReceive;

/// The state of a receive.
#[derive(Debug)]
pub(super) enum ReceiveOpState {
    /// It waits in the backlog for room.
    Backlogged,
    /// The matcher has it.
    Posted(ReceiveKey),
    /// The matcher has it: a multi-receive buffer.
    Multi(ReceiveKey, Arc<MultiReceive>),
    /// The connection that brings its message, or asks for it, has it.
    Matched,
    /// As Matched, but it is not posted again if the message does not come.
    MatchedCanceled,
    /// It takes a claimed message and no other.
    Claimed,
}

state_machine! { ReceiveOpState {
    Backlogged => [Posted, Multi, Matched],
    Posted => [Matched],
    Multi => [],
    Matched => [Posted, Matched, MatchedCanceled],
    MatchedCanceled => [],
    Claimed => [],
}}

/// The receives of a context that have not ended, by their keys.
#[derive(Debug)]
pub(super) struct ReceiveTable {
    receives: Slab<ReceiveOpState>,
}

impl ReceiveTable {
    pub(super) fn new() -> Self {
        ReceiveTable {
            receives: Slab::new(),
        }
    }

    /// Enters a receive, which begins Backlogged or Claimed.
    pub(super) fn insert(&mut self, state: ReceiveOpState) -> OpKey {
        debug_assert!(matches!(
            state,
            ReceiveOpState::Backlogged | ReceiveOpState::Claimed
        ));
        self.receives.insert(state)
    }

    pub(super) fn get(&self, key: OpKey) -> Option<&ReceiveOpState> {
        self.receives.get(key)
    }

    /// Moves a receive along a legal edge, if it has not ended.
    pub(super) fn set(&mut self, key: OpKey, to: ReceiveOpState) {
        if let Some(state) = self.receives.get_mut(key) {
            check_edge(state, &to);
            *state = to;
        }
    }

    /// Ends a receive; returns its last state.
    pub(super) fn remove(&mut self, key: OpKey) -> Option<ReceiveOpState> {
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
