//! Whether a post on an idle connection is sent within its call (ruling 5).
//!
//! ```text
//!            sent within the call
//!   Ready ───────────────────────▶ Spent
//!    │ ▲ ◀───── the driver runs ─────│
//!    │ │                             │ another post
//!    │ └─ a batch of one frame ─ Gathering ◀─┘
//!    └── a post that is left to the driver ──▲
//! ```
//! Posts that come faster than they go out are gathered: a system call for the first of each burst
//! costs a quarter of the processor time per message (a window of 64 messages of 64 B).

use crate::edges::{MachineState, check_edge};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum InlineSend {
    /// The next post on an idle connection is sent within its call.
    #[default]
    Ready,
    /// One was, since the driver last ran.
    Spent,
    /// Posts are left to the driver, or go out when enough are queued.
    Gathering,
}

impl MachineState for InlineSend {
    const EDGES: &'static [(Self, Self)] = {
        use InlineSend::{Gathering, Ready, Spent};
        &[
            (Ready, Spent),
            (Ready, Gathering),
            (Spent, Ready),
            (Spent, Gathering),
            (Gathering, Ready),
        ]
    };
}

impl InlineSend {
    fn go(&mut self, to: InlineSend) {
        check_edge(*self, to);
        *self = to;
    }

    /// True if the next post on an idle connection is to be sent within its call, which spends it.
    pub(super) fn take(&mut self) -> bool {
        let is_ready = *self == InlineSend::Ready;
        if is_ready {
            self.go(InlineSend::Spent);
        }
        is_ready
    }

    /// A post was left to the driver.
    pub(super) fn on_post_queued(&mut self) {
        if *self != InlineSend::Gathering {
            self.go(InlineSend::Gathering);
        }
    }

    /// A batch was handed to the link.
    pub(super) fn on_batch(&mut self, is_burst: bool) {
        match *self {
            InlineSend::Gathering if !is_burst => self.go(InlineSend::Ready),
            InlineSend::Ready | InlineSend::Spent if is_burst => self.go(InlineSend::Gathering),
            _ => {}
        }
    }

    /// The driver runs.
    pub(super) fn on_turn(&mut self) {
        if *self == InlineSend::Spent {
            self.go(InlineSend::Ready);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::InlineSend::{self, Gathering, Ready, Spent};
    use crate::edges::EdgeCoverage;

    /// Its name, and what it does.
    type Event = (&'static str, fn(&mut InlineSend));

    /// Ruling 5, edge by edge: what may become of each state, by which event.
    #[test]
    fn inline_sends_follow_the_drawn_edges() {
        let events: [Event; 5] = [
            ("taken", |it| {
                it.take();
            }),
            ("queued", InlineSend::on_post_queued),
            ("one frame", |it| it.on_batch(false)),
            ("a burst", |it| it.on_batch(true)),
            ("a turn", InlineSend::on_turn),
        ];
        let coverage = EdgeCoverage::<InlineSend>::begin();
        let mut edges = Vec::new();
        for from in [Ready, Spent, Gathering] {
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
            (Gathering, "one frame", Ready),
        ];
        assert_eq!(edges, drawn);
        coverage.expect_all();
    }
}
