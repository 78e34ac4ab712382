//! Decides whether a post is sent within its call or left to the driver (ruling 5).
//!
//! ```text
//!            sent within the call
//!   Ready ───────────────────────▶ Spent
//!    │ ▲ ◀───── the driver runs ─────│
//!    │ │                             │ another post
//!    │ └─ a batch of one frame ─ Gathering ◀─┘
//!    └── a post that is left to the driver ──▲
//!
//!             the first frames of a burst are sent
//!   Gathering ────────────────────────────────────▶ Flowing
//!             ◀───────── the driver runs ──────────
//! ```
//! Posts that come faster than they are sent are gathered: a system call for the first post of each
//! burst costs a quarter of the processor time per message (with a window of 64 messages of 64 B).
//! But once a few frames are queued they are sent without waiting for the driver: they wake the
//! peer, which works while the rest is posted, unless the peer is on the same processor.

use crate::edges::{check_edge, state_machine};
use crate::limits::{GATHER_FRAMES_ENOUGH, GATHER_FRAMES_FIRST, PROCESSOR_CHECK_TURNS};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum InlineSend {
    /// The next post on an idle connection is sent within its call.
    #[default]
    Ready,
    /// A post has been sent within its call since the driver last ran.
    Spent,
    /// Posts are left to the driver, or sent when a few are queued.
    Gathering,
    /// The first few have been sent: posts are left to the driver, or sent when many are queued.
    Flowing,
}

state_machine! { InlineSend {
    Ready => [Spent, Gathering],
    Spent => [Ready, Gathering],
    Gathering => [Ready, Flowing],
    Flowing => [Gathering],
}}

impl InlineSend {
    fn go(&mut self, to: InlineSend) {
        check_edge(self, &to);
        *self = to;
    }

    /// Returns true if the next post on an idle connection is to be sent within its call. If so,
    /// moves to Spent.
    pub(super) fn take(&mut self) -> bool {
        let is_ready = *self == InlineSend::Ready;
        if is_ready {
            self.go(InlineSend::Spent);
        }
        is_ready
    }

    /// Returns the number of queued frames that are sent without waiting for the driver. Early
    /// sends are of no use to a peer on the same processor, which cannot run before this task
    /// yields.
    pub(super) fn frames_enough(self, peer: PeerProcessor) -> usize {
        match self {
            _ if peer.is_shared => usize::MAX,
            InlineSend::Flowing => GATHER_FRAMES_ENOUGH,
            _ => GATHER_FRAMES_FIRST,
        }
    }

    /// Called when `frames_enough` frames are sent.
    pub(super) fn on_gathered(&mut self) {
        if *self == InlineSend::Gathering {
            self.go(InlineSend::Flowing);
        }
    }

    /// Called when a post is left to the driver.
    pub(super) fn on_post_queued(&mut self) {
        if matches!(self, InlineSend::Ready | InlineSend::Spent) {
            self.go(InlineSend::Gathering);
        }
    }

    /// Called when a batch is handed to the link.
    pub(super) fn on_batch(&mut self, is_burst: bool) {
        match *self {
            InlineSend::Gathering if !is_burst => self.go(InlineSend::Ready),
            InlineSend::Ready | InlineSend::Spent if is_burst => self.go(InlineSend::Gathering),
            _ => {}
        }
    }

    /// Called when the driver runs.
    pub(super) fn on_turn(&mut self) {
        match self {
            InlineSend::Spent => self.go(InlineSend::Ready),
            InlineSend::Flowing => self.go(InlineSend::Gathering),
            InlineSend::Ready | InlineSend::Gathering => {}
        }
    }
}

/// Whether the peer runs on the same processor, so that it cannot work while a burst is posted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerProcessor {
    pub(super) is_shared: bool,
    /// Turns until the processor is looked up again.
    turns: u8,
}

impl PeerProcessor {
    #[cfg(test)]
    pub(super) fn known(is_shared: bool) -> Self {
        PeerProcessor {
            is_shared,
            turns: PROCESSOR_CHECK_TURNS,
        }
    }

    /// Called when something has come from the peer, so that its processor can be looked up.
    pub(super) fn on_connected(&mut self) {
        self.turns = 0;
    }

    /// Called when the driver runs.
    pub(super) fn on_turn(&mut self, is_shared: impl FnOnce() -> bool) {
        match self.turns.checked_sub(1) {
            Some(left) => self.turns = left,
            None => {
                self.turns = PROCESSOR_CHECK_TURNS;
                self.is_shared = is_shared();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::InlineSend::{self, Flowing, Gathering, Ready, Spent};
    use super::*;
    use crate::edges::EdgeCoverage;

    /// Name of an event, and its function.
    type Event = (&'static str, fn(&mut InlineSend));

    /// Ruling 5, edge by edge: what may become of each state, by which event.
    #[test]
    fn inline_sends_follow_the_drawn_edges() {
        let events: [Event; 6] = [
            ("taken", |it| {
                it.take();
            }),
            ("queued", InlineSend::on_post_queued),
            ("gathered", InlineSend::on_gathered),
            ("one frame", |it| it.on_batch(false)),
            ("a burst", |it| it.on_batch(true)),
            ("a turn", InlineSend::on_turn),
        ];
        let coverage = EdgeCoverage::begin("InlineSend");
        let mut edges = Vec::new();
        for from in [Ready, Spent, Gathering, Flowing] {
            for (name, event) in events {
                let mut state = from;
                event(&mut state);
                if state != from {
                    edges.push((from, name, state));
                }
            }
        }
        let drawn = [
            (Ready, "taken", Spent),
            (Ready, "queued", Gathering),
            (Ready, "a burst", Gathering),
            (Spent, "queued", Gathering),
            (Spent, "a burst", Gathering),
            (Spent, "a turn", Ready),
            (Gathering, "gathered", Flowing),
            (Gathering, "one frame", Ready),
            (Flowing, "a turn", Gathering),
        ];
        assert_eq!(edges, drawn);
        coverage.expect_all();
    }

    /// "For the first send of a burst [...]. Not for a peer on the same processor"; the peer's
    /// processor is looked up again after some turns.
    #[test]
    fn a_burst_to_a_peer_on_the_same_processor_is_not_split() {
        let mut peer = PeerProcessor::default();
        assert_eq!(Gathering.frames_enough(peer), GATHER_FRAMES_FIRST);
        peer.on_turn(|| true);
        assert_eq!(Gathering.frames_enough(peer), usize::MAX);
        for _ in 0..PROCESSOR_CHECK_TURNS {
            peer.on_turn(|| panic!("it is not due"));
        }
        peer.on_turn(|| false);
        assert_eq!(Gathering.frames_enough(peer), GATHER_FRAMES_FIRST);
        peer.on_connected();
        peer.on_turn(|| true);
        assert_eq!(Gathering.frames_enough(peer), usize::MAX);
        assert_eq!(Flowing.frames_enough(peer), usize::MAX);
    }
}
