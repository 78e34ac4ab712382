//! The submissions of a link, and their outcomes until they are reported.
//!
//! ```text
//!   connection   Connecting ──▶ Established ──▶ Open ──▶ Broken
//!                     │              └────────────────────▲
//!                     └────────▶ Failed ──────────────────┘
//!
//!   send         Idle ──▶ Submitted ──▶ Ended ──▶ Idle
//!                          │  ▲  ▲
//!                          ▼  │  │           (only a ring has anything in flight)
//!                        InFlight │
//!                          ▼      │
//!                        Cancelling
//!
//!   receive      Idle ──▶ Armed ──▶ Ended ──▶ Idle
//!                 ▲ │      ▲ │ ▲ ▲      ▲
//!                 │ ▼      │ ▼ │ │      │
//!                Watching ─┘ InFlight ──┼──▶ Cancelling ──▶ Armed
//!                 └─────────────────────┘
//! ```
//! `Established`, `Failed` and `Ended` hold an outcome until
//! [`Link::poll_outcome`](crate::transport::Link::poll_outcome) takes it. So each submission has
//! exactly one outcome, and no queue of outcomes is needed.

use std::mem;
use std::net::SocketAddr;
use std::task::Waker;

use crate::buf::Stage;
use crate::edges::{check_edge, check_step, state_machine};
use crate::error::{Error, OperationKind, Result};
use crate::transport::{
    ByteCounts, DirectBuffer, IoSizes, Outcome, Receive, Received, SendBatch, Submitted,
};

/// The state of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) enum ConnPhase {
    Connecting,
    /// Connected, but not reported yet.
    Established,
    Open,
    /// The connect failed, but that is not reported yet.
    Failed,
    /// All submissions end with an error.
    Broken,
}

state_machine! { ConnPhase {
    Connecting => [Established, Failed],
    Established => [Open, Broken],
    Open => [Broken],
    Failed => [Broken],
    Broken => [],
}}

/// The state of the send, with the batch.
pub(super) enum SendSlot {
    Idle,
    Submitted(Box<SendBatch>),
    /// The ring has the batch.
    InFlight,
    /// The ring has the batch, and was asked to return it.
    Cancelling,
    Ended(Box<SendBatch>, Result<usize>),
}

state_machine! { SendSlot {
    Idle => [Submitted],
    Submitted => [Ended, InFlight],
    InFlight => [Submitted, Cancelling],
    Cancelling => [Submitted],
    Ended => [Idle],
}}

impl SendSlot {
    /// Moves along a legal edge; returns the previous state.
    pub(super) fn go(&mut self, to: SendSlot) -> SendSlot {
        check_edge(self, &to);
        mem::replace(self, to)
    }
}

/// The state of the receive, or of the watch in its place.
pub(super) enum RecvSlot {
    Idle,
    /// Reading is paused, and the link watches for the peer's end.
    Watching,
    Armed(Receive),
    /// The ring has the destination.
    InFlight,
    /// The ring has the destination, and was asked to return it.
    Cancelling,
    Ended(Outcome),
}

// After a watch has ended, a receive may be armed before that end is reported: the receive finds
// the same end.
state_machine! { RecvSlot {
    Idle => [Armed, Watching],
    Watching => [Armed, Idle, Ended],
    Armed => [Ended, InFlight],
    InFlight => [Armed, Cancelling],
    Cancelling => [Armed],
    Ended => [Idle, Armed],
}}

impl RecvSlot {
    /// Moves along a legal edge; returns the previous state.
    pub(super) fn go(&mut self, to: RecvSlot) -> RecvSlot {
        check_edge(self, &to);
        mem::replace(self, to)
    }
}

/// The submissions of a link, and the outcomes that it has not reported.
pub(in crate::transport) struct Submissions {
    pub(super) conn: ConnPhase,
    /// The reason why the connection failed or broke.
    error: Option<Error>,
    pub(super) send: SendSlot,
    pub(super) recv: RecvSlot,
    /// The last submitted batch holds leases.
    send_leases: bool,
    /// The last submitted receive holds leases.
    receive_leases: bool,
    /// The maximum number of bytes of one send and one receive.
    pub(in crate::transport) sizes: IoSizes,
    pub(in crate::transport) waker: Waker,
    pub(in crate::transport) peer: SocketAddr,
    pub(in crate::transport) local: SocketAddr,
    pub(in crate::transport) counts: ByteCounts,
    /// True if the send is tried first when both directions could move.
    pub(super) send_first: bool,
    /// True if the last try had an outcome, so that the caller polls again and needs no wake.
    pub(super) will_be_polled: bool,
}

#[cfg_attr(
    not(feature = "io-uring"),
    allow(dead_code, reason = "only a ring has anything in flight")
)]
impl Submissions {
    pub(super) fn new(conn: ConnPhase, local: SocketAddr, peer: SocketAddr, waker: Waker) -> Self {
        Submissions {
            conn,
            error: None,
            send: SendSlot::Idle,
            recv: RecvSlot::Idle,
            send_leases: false,
            receive_leases: false,
            sizes: IoSizes::default(),
            waker,
            peer,
            local,
            counts: ByteCounts::default(),
            send_first: false,
            will_be_polled: false,
        }
    }

    fn set_conn(&mut self, to: ConnPhase) {
        check_edge(&self.conn, &to);
        self.conn = to;
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.conn, ConnPhase::Established | ConnPhase::Open)
    }

    /// Returns the error with which everything submitted ends, if the link is broken.
    pub(in crate::transport) fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    /// Returns true if nothing is submitted.
    pub(super) fn is_idle(&self) -> bool {
        matches!((&self.send, &self.recv), (SendSlot::Idle, RecvSlot::Idle))
    }

    /// See [`Link::submitted`].
    ///
    /// [`Link::submitted`]: crate::transport::Link::submitted
    pub(super) fn submitted(&self) -> Submitted {
        let send = !matches!(self.send, SendSlot::Idle);
        let (receive, watch) = match &self.recv {
            RecvSlot::Idle => (false, false),
            RecvSlot::Watching | RecvSlot::Ended(Outcome::PeerGone(_)) => (false, true),
            _ => (true, false),
        };
        Submitted {
            send,
            receive,
            watch,
            leases: send && self.send_leases || receive && self.receive_leases,
        }
    }

    /// Returns true if a submission has ended, and has not been reported.
    #[cfg(feature = "tls")]
    pub(in crate::transport) fn has_ended(&self) -> bool {
        matches!(self.send, SendSlot::Ended(..)) || matches!(self.recv, RecvSlot::Ended(_))
    }

    /// Returns true while the link watches for the peer's end.
    #[cfg(feature = "tls")]
    pub(in crate::transport) fn is_watching(&self) -> bool {
        matches!(self.recv, RecvSlot::Watching)
    }

    /// Wakes, unless the caller polls anyway.
    pub(in crate::transport) fn notify(&self) {
        if !self.will_be_polled {
            self.waker.wake_by_ref();
        }
    }

    /// Wakes if the receive or watch has ended, unless the caller polls anyway.
    pub(in crate::transport) fn notify_if_received(&self) {
        if matches!(self.recv, RecvSlot::Ended(_)) {
            self.notify();
        }
    }

    // The send.

    /// Submits a batch. Returns false if the link is broken, and the batch has ended already.
    #[must_use]
    pub(super) fn submit_send(&mut self, batch: Box<SendBatch>) -> bool {
        assert!(
            matches!(self.send, SendSlot::Idle),
            "one batch is submitted at a time"
        );
        debug_assert!(
            !batch.leases.is_empty()
                || (batch.frames()).all(|frame| frame.payload().needs_no_lease()),
            "the regions of a batch are leased"
        );
        self.send_leases = !batch.leases.is_empty();
        self.send.go(SendSlot::Submitted(batch));
        self.end_if_broken()
    }

    /// Returns the batch to be sent.
    pub(in crate::transport) fn batch(&self) -> Option<&SendBatch> {
        match &self.send {
            SendSlot::Submitted(batch) => Some(batch),
            _ => None,
        }
    }

    pub(in crate::transport) fn is_send_in_flight(&self) -> bool {
        matches!(self.send, SendSlot::InFlight | SendSlot::Cancelling)
    }

    /// Takes the submitted batch, for the ring.
    pub(in crate::transport) fn take_batch(&mut self) -> Option<Box<SendBatch>> {
        self.batch()?;
        match self.send.go(SendSlot::InFlight) {
            SendSlot::Submitted(batch) => Some(batch),
            _ => None,
        }
    }

    /// Takes the batch back from the ring. Returns true if the ring was asked for it.
    pub(in crate::transport) fn return_batch(&mut self, batch: Box<SendBatch>) -> bool {
        let was = self.send.go(SendSlot::Submitted(batch));
        matches!(was, SendSlot::Cancelling)
    }

    /// Ends the submitted send, if there is one.
    pub(in crate::transport) fn end_send(&mut self, result: Result<usize>) {
        if self.batch().is_none() {
            return;
        }
        let result = result.map_err(|error| error.with_peer(self.peer));
        self.counts.sent += *result.as_ref().unwrap_or(&0) as u64;
        if let SendSlot::Submitted(batch) = mem::replace(&mut self.send, SendSlot::Idle) {
            check_step::<SendSlot>("Submitted", "Ended");
            self.send = SendSlot::Ended(batch, result);
        }
    }

    // The receive.

    /// Submits a receive. Returns false if the link is broken, and the receive has ended already.
    #[must_use]
    pub(super) fn submit_receive(&mut self, receive: Receive) -> bool {
        assert!(
            matches!(
                self.recv,
                RecvSlot::Idle | RecvSlot::Watching | RecvSlot::Ended(Outcome::PeerGone(_))
            ),
            "one receive is armed at a time"
        );
        self.receive_leases = false;
        if let Receive::Direct(direct) = &receive {
            self.receive_leases = !direct.leases.is_empty();
            assert!(direct.len > 0, "a direct receive asks for a byte at least");
            // The unsafe code of a backend relies on this, so it is checked in every build.
            assert!(
                direct.payload.is_writable(),
                "bytes are received into writable memory"
            );
            assert!(
                direct.payload.needs_no_lease() || !direct.leases.is_empty(),
                "the regions of a receive are leased"
            );
        }
        self.recv.go(RecvSlot::Armed(receive));
        self.end_if_broken()
    }

    /// Submits a watch. Returns false if the link is broken, and the watch has ended already.
    #[must_use]
    pub(super) fn submit_watch(&mut self) -> bool {
        if !matches!(self.recv, RecvSlot::Watching) {
            self.recv.go(RecvSlot::Watching);
        }
        self.end_if_broken()
    }

    /// Returns the armed receive.
    pub(in crate::transport) fn armed(&self) -> Option<&Receive> {
        match &self.recv {
            RecvSlot::Armed(receive) => Some(receive),
            _ => None,
        }
    }

    /// Returns the destination of the armed receive, if it is a direct one.
    pub(in crate::transport) fn armed_direct(&mut self) -> Option<&mut DirectBuffer> {
        match &mut self.recv {
            RecvSlot::Armed(Receive::Direct(direct)) => Some(direct),
            _ => None,
        }
    }

    pub(in crate::transport) fn is_receive_in_flight(&self) -> bool {
        matches!(self.recv, RecvSlot::InFlight | RecvSlot::Cancelling)
    }

    /// Takes the destination of the armed receive, for the ring.
    pub(in crate::transport) fn take_direct(&mut self) -> Option<DirectBuffer> {
        self.armed_direct()?;
        match self.recv.go(RecvSlot::InFlight) {
            RecvSlot::Armed(Receive::Direct(direct)) => Some(direct),
            _ => None,
        }
    }

    /// Takes the destination back from the ring. Returns true if the ring was asked for it.
    pub(in crate::transport) fn return_direct(&mut self, direct: DirectBuffer) -> bool {
        let was = self.recv.go(RecvSlot::Armed(Receive::Direct(direct)));
        matches!(was, RecvSlot::Cancelling)
    }

    /// Ends the armed receive with `len` bytes, in its destination or in a staging buffer.
    pub(in crate::transport) fn end_receive(&mut self, len: usize, stage: Option<Stage>) {
        self.counts.received += len as u64;
        self.end_receive_with(|direct| match direct {
            Some(direct) => Received::Direct { direct, len },
            None => Received::Stage(stage.expect("bytes without a destination are in a stage")),
        });
    }

    /// Ends the armed receive with the end of the peer's stream.
    pub(in crate::transport) fn end_stream(&mut self) {
        self.end_receive_with(|returned| Received::End { returned });
    }

    /// Ends the armed receive without bytes: it was cancelled, or its region refuses access.
    pub(in crate::transport) fn end_cancelled(&mut self) {
        self.end_receive_with(|returned| Received::Cancelled { returned });
    }

    fn end_receive_with(&mut self, received: impl FnOnce(Option<DirectBuffer>) -> Received) {
        if self.armed().is_none() {
            return;
        }
        if let RecvSlot::Armed(receive) = mem::replace(&mut self.recv, RecvSlot::Idle) {
            let returned = match receive {
                Receive::Stage | Receive::StageOf { .. } => None,
                Receive::Direct(direct) => Some(direct),
            };
            check_step::<RecvSlot>("Armed", "Ended");
            self.recv = RecvSlot::Ended(Outcome::Received(received(returned)));
        }
    }

    /// Ends the armed receive with an error.
    pub(in crate::transport) fn fail_receive(&mut self, error: Error) {
        let error = error.with_peer(self.peer);
        self.end_receive_with(|returned| Received::Failed { error, returned });
    }

    /// Ends the watch: the peer has closed, or is gone.
    pub(in crate::transport) fn end_watch(&mut self, error: Error) {
        let error = error.with_peer(self.peer);
        self.recv.go(RecvSlot::Ended(Outcome::PeerGone(error)));
    }

    // The connection.

    /// Ends the connect.
    pub(in crate::transport) fn end_connect(&mut self, result: Result<SocketAddr>) {
        match result {
            Ok(local) => {
                self.local = local;
                self.set_conn(ConnPhase::Established);
            }
            Err(error) => {
                self.set_conn(ConnPhase::Failed);
                self.break_off(error.with_operation(OperationKind::Connect));
            }
        }
    }

    /// Breaks the link: all submissions end with `error`, now and later. An operation in flight
    /// ends when the ring returns it.
    pub(super) fn break_off(&mut self, error: Error) {
        if self.is_up() {
            self.set_conn(ConnPhase::Broken);
        }
        self.error = Some(error.with_peer(self.peer));
        self.end_if_broken();
    }

    /// Ends everything submitted with the error of a broken link. Returns true if the link is not
    /// broken.
    fn end_if_broken(&mut self) -> bool {
        if self.error.is_none() {
            return true;
        }
        self.end_by_error();
        false
    }

    #[cold]
    fn end_by_error(&mut self) {
        let Some(error) = self.error.clone() else {
            return;
        };
        self.end_send(Err(error.clone()));
        match self.recv {
            RecvSlot::Armed(_) => self.fail_receive(error),
            RecvSlot::Watching => self.end_watch(error),
            _ => {}
        }
    }

    /// Takes the next outcome: the connection's first, then those of the two directions in turns.
    #[inline]
    pub(super) fn take_outcome(&mut self) -> Option<Outcome> {
        let is_reported = matches!(self.conn, ConnPhase::Open | ConnPhase::Broken);
        let has_ended =
            matches!(self.send, SendSlot::Ended(..)) || matches!(self.recv, RecvSlot::Ended(_));
        match is_reported && !has_ended {
            true => None,
            false => self.take_ended(),
        }
    }

    #[inline(never)]
    fn take_ended(&mut self) -> Option<Outcome> {
        match (self.conn, &self.error) {
            (ConnPhase::Established, _) => {
                self.set_conn(ConnPhase::Open);
                return Some(Outcome::Connected);
            }
            (ConnPhase::Failed, Some(error)) => {
                let error = error.clone();
                self.set_conn(ConnPhase::Broken);
                return Some(Outcome::Failed(error));
            }
            _ => {}
        }
        match self.send_first {
            true => self.take_sent().or_else(|| self.take_received()),
            false => self.take_received().or_else(|| self.take_sent()),
        }
    }

    fn take_sent(&mut self) -> Option<Outcome> {
        if !matches!(self.send, SendSlot::Ended(..)) {
            return None;
        }
        self.send_first = false;
        match self.send.go(SendSlot::Idle) {
            SendSlot::Ended(batch, result) => Some(Outcome::Sent { batch, result }),
            _ => None,
        }
    }

    pub(super) fn take_received(&mut self) -> Option<Outcome> {
        if !matches!(self.recv, RecvSlot::Ended(_)) {
            return None;
        }
        self.send_first = true;
        match self.recv.go(RecvSlot::Idle) {
            RecvSlot::Ended(outcome) => Some(outcome),
            _ => None,
        }
    }
}
