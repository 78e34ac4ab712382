//! Operations that one side refuses and the connection survives, if both sides agreed on it
//! (`docs/extension.md`, section 4; ruling 15): the initiator's part, and how often a target lets a
//! peer guess.

use std::fmt;
use std::time::{Duration, Instant};

use crate::buf::Payload;
use crate::error::{Error, ErrorKind, Phase, Refusal};
use crate::limits::{READ_DATA_MAX, REFUSALS_MAX, REFUSALS_PERIOD};
use crate::proto::Host;
use crate::proto::op::{OpKey, OpKind};
use crate::wire::{Capabilities, FrameHeader};

use super::rx::{Landing, Rx, Target};
use super::{Connection, Lifecycle, violation};

/// What both sides have refused of the kinds that only a peer in error asks for.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// What the owner's clock says.
    now: Option<Instant>,
    /// Operations of the peer's.
    theirs: GuessCount,
    /// Operations of ours, as the peer told.
    ours: GuessCount,
    /// The peer's were too many: nothing of it is looked at any more.
    enough: bool,
    /// The peer is told why this side ends the connection.
    pub(super) is_reason_sent: bool,
}

/// Refused operations of one side within [`REFUSALS_PERIOD`], which begins with the first of them.
#[derive(Clone, Copy, Debug, Default)]
struct GuessCount {
    since: Option<Instant>,
    last: Option<Instant>,
    count: u32,
}

impl GuessCount {
    fn add(&mut self, now: Option<Instant>) {
        let elapsed = |(since, now): (Instant, Instant)| now - since;
        let is_over = (self.since.zip(now)).is_some_and(|both| elapsed(both) >= REFUSALS_PERIOD);
        if self.count == 0 || is_over {
            *self = GuessCount {
                since: now,
                ..GuessCount::default()
            };
        }
        self.last = now;
        self.count = self.count.saturating_add(1);
    }

    /// From the first to the last of them.
    fn duration(&self) -> Duration {
        let elapsed = |(since, last): (Instant, Instant)| last - since;
        self.since.zip(self.last).map_or(Duration::ZERO, elapsed)
    }
}

impl fmt::Display for GuessCount {
    /// In full, in units of a person.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} within {:.1?}", self.count, self.duration())
    }
}

/// A read whose answer is awaited.
#[derive(Clone, Copy, Debug)]
pub(super) struct AwaitedRead {
    pub(super) op: OpKey,
    /// Bytes asked for.
    pub(super) len: u64,
    /// Bytes that have come.
    pub(super) done: u64,
}

impl AwaitedRead {
    pub(super) fn new(op: OpKey, len: usize) -> Self {
        AwaitedRead {
            op,
            len: len as u64,
            done: 0,
        }
    }
}

impl<T> Connection<T> {
    /// True if one operation can be refused on this connection.
    pub(super) fn has_refusals(&self) -> bool {
        self.agreed().contains(Capabilities::REFUSAL)
    }

    /// So many refused operations both sides live with; 0: the first one ends the connection.
    fn refusals_agreed(&self) -> u32 {
        let ours = self.extension.terms.refusals_max;
        self.extension
            .peer
            .map_or(0, |peer| peer.refusals_max.min(ours))
    }

    /// What the owner's clock says: by it refused operations are counted together.
    pub(crate) fn handle_time(&mut self, now: Instant) {
        self.refusals.now = Some(now);
    }

    // The initiator.

    /// The peer answers the oldest frame that awaits an answer. Answers have no names: what has
    /// ended before its answer came still has its place.
    pub(super) fn handle_answer(&mut self, answer: Result<(), Refusal>) -> Result<(), Error> {
        let Some(key) = self.acks.pop_front() else {
            return Err(violation("an acknowledgement that nothing awaits"));
        };
        let Some(op) = self.ops.get_mut(key) else {
            self.place_answered();
            self.live_with(answer);
            return Ok(());
        };
        let is_refusable = matches!(op.kind, OpKind::Write { .. } | OpKind::Atomic(_));
        if answer.is_err() && !is_refusable {
            self.acks.push_front(key);
            return Err(violation("a message that was refused"));
        }
        match (op.phase, op.payload.take()) {
            (Phase::AwaitingPeer, Some(payload)) => self.end_answered(key, answer, payload),
            (_, kept) => {
                op.payload = kept;
                op.answer = Some(answer);
            }
        }
        Ok(())
    }

    /// The peer acknowledges so many of the oldest frames that await an answer.
    pub(super) fn handle_acks(&mut self, count: u64) -> Result<(), Error> {
        if count == 0 || count > self.acks.len() as u64 {
            return Err(violation(
                "acknowledgements of none or of more than await one",
            ));
        }
        for _ in 0..count {
            self.handle_answer(Ok(()))?;
        }
        Ok(())
    }

    /// Ends an operation that has its answer and its memory back.
    pub(super) fn end_answered(
        &mut self,
        key: OpKey,
        answer: Result<(), Refusal>,
        payload: Payload,
    ) {
        let len = match answer {
            Ok(()) => self.ops.get(key).map_or(0, |op| op.len),
            Err(_) => 0,
        };
        self.end_op(key, answer.map_err(Error::refused), len, payload);
        self.live_with(answer);
    }

    /// fi_domain(3): "the connection is torn down", unless both sides live with refusals.
    fn live_with(&mut self, answer: Result<(), Refusal>) {
        let Err(reason) = answer else { return };
        if reason.is_guess() {
            self.refusals.ours.add(self.refusals.now);
        }
        if self.refusals_agreed() == 0 {
            let what = format!(
                "the connection ended with an operation that the peer refused: {reason}; with \
                 OnRefusal::Continue at both sides it would go on"
            );
            self.fail(Error::new(ErrorKind::Canceled, what));
        }
    }

    /// The peer has refused too many operations of this side, and says so with its last frame.
    pub(super) fn handle_end_of_patience(&mut self) {
        let what = format!(
            "it ended the connection since it had to refuse too many operations of this side, \
             {} for keys, ranges or rights that it has not given ({}); use a RemoteRegion as it \
             came from the peer, and no longer than its region lives",
            self.refusals.ours,
            self.guess_limit(),
        );
        self.fail(Error::new(ErrorKind::PeerClosed, what));
    }

    /// Bytes of the oldest read come.
    pub(super) fn begin_read_data(&mut self, len: u64) -> Result<(), Error> {
        let Some(&AwaitedRead {
            op,
            len: asked,
            done,
        }) = self.reads.front()
        else {
            return Err(violation("bytes of a read that nothing awaits"));
        };
        if len == 0 || len > READ_DATA_MAX as u64 || len > asked - done {
            return Err(violation("more bytes of a read than may come"));
        }
        let end = done + len;
        // Of a read that has ended before, the bytes are dropped.
        let payload = self.ops.get_mut(op).and_then(|entry| {
            entry.phase = Phase::AwaitingPeer;
            entry.payload.take()
        });
        self.rx.go(Rx::Payload(Landing {
            target: Target::ReadData { op },
            capacity: if payload.is_some() { end } else { 0 },
            payload: Some(payload.unwrap_or_else(Payload::empty)),
            len: end,
            done,
            ack: false,
        }));
        Ok(())
    }

    /// A frame of the oldest read's bytes has landed, up to `done`.
    pub(super) fn read_data_landed(&mut self, key: OpKey, done: u64, payload: Payload) {
        if let Some(read) = self.reads.front_mut() {
            debug_assert_eq!(read.op, key, "reads are answered in order");
            read.done = done;
        }
        if let Some(op) = self.ops.get_mut(key) {
            op.payload = Some(payload);
        }
    }

    /// The answer to the oldest read is over.
    pub(super) fn handle_read_end(&mut self, refused: Option<Refusal>) -> Result<(), Error> {
        let Some(&read) = self.reads.front() else {
            return Err(violation("the end of a read that nothing awaits"));
        };
        if refused.is_none() && read.done != read.len {
            return Err(violation("the end of a read before its last byte"));
        }
        self.reads.pop_front();
        let answer = refused.map_or(Ok(()), Err);
        let Some(op) = self.ops.get_mut(read.op) else {
            self.place_answered();
            self.live_with(answer);
            return Ok(());
        };
        op.phase = Phase::AwaitingPeer;
        let payload = op.payload.take();
        let payload = payload.expect("a read has its destination between two frames");
        self.end_answered(read.op, answer, payload);
        Ok(())
    }

    // The target.

    /// Begins a write that is refused: its bytes are dropped, and then it is answered.
    pub(super) fn refuse_write(&mut self, reason: Refusal, len: u64) {
        self.rx.go(Rx::Payload(Landing {
            target: Target::Refused {
                reason,
                reserved: false,
            },
            payload: Some(Payload::empty()),
            capacity: 0,
            len,
            done: 0,
            ack: true,
        }));
    }

    /// The transport gives a direct receive back since its memory is not there; nothing was taken
    /// from the stream for it. False: this takes the end of the connection.
    pub(crate) fn handle_fault(&mut self, payload: Payload, host: &mut impl Host<T>) -> bool {
        let refusals = self.has_refusals();
        let refused = match &mut self.rx {
            Rx::Payload(landing) if refusals && landing.is_refusable() => {
                landing.refuse(Refusal::Fault);
                true
            }
            _ => false,
        };
        if !refused {
            self.handle_direct(payload, 0, host);
        }
        self.invariants();
        refused
    }

    /// Answers a write that was refused, now that its last byte is gone.
    pub(super) fn answer_refused(&mut self, reason: Refusal) {
        self.tx
            .push_control(FrameHeader::Refused { reason }, Payload::empty());
        self.count_refusal(reason);
    }

    /// Counts an operation that was refused and answered so.
    pub(super) fn count_refusal(&mut self, reason: Refusal) {
        if !reason.is_guess() {
            return;
        }
        self.refusals.theirs.add(self.refusals.now);
        if self.refusals.theirs.count >= self.guess_limit().0 {
            self.refusals.enough = true;
            self.rx.close();
        }
    }

    /// So many guesses end the connection.
    fn guess_limit(&self) -> GuessLimit {
        GuessLimit(match self.refusals_agreed() {
            // The peer is to end the connection, and gets no more than others if it does not.
            0 => REFUSALS_MAX,
            agreed => agreed.min(REFUSALS_MAX),
        })
    }

    /// The peer, which this side hears no more, is still to be told why.
    pub(super) fn owes_reason(&self) -> bool {
        self.refusals.enough
            && !self.refusals.is_reason_sent
            && self.fault.is_none()
            && self.lifecycle == Lifecycle::Connected
            && self.agreed().contains(Capabilities::CLOSE)
    }

    /// True once the peer has guessed too often: the owner closes the connection in order, so that
    /// the peer still gets its answers.
    pub(crate) fn has_had_enough(&self) -> bool {
        self.refusals.enough
    }

    /// Why this side ended the connection, if that is why.
    pub(super) fn end_of_patience(&self) -> Option<Error> {
        self.refusals.enough.then(|| {
            let what = format!(
                "this side ended the connection since it had to refuse too many operations of the \
                 peer, {} for keys, ranges or rights that it was not given ({}); a peer that is in \
                 order uses each RemoteRegion as it got it, and no longer than its region lives",
                self.refusals.theirs,
                self.guess_limit(),
            );
            Error::new(ErrorKind::AccessDenied, what)
        })
    }
}

struct GuessLimit(u32);

impl fmt::Display for GuessLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let period = REFUSALS_PERIOD.as_secs();
        write!(
            f,
            "the limit is {} within {period} s, OnRefusal::Continue has it",
            self.0
        )
    }
}

impl Landing {
    /// True for a peer's write: it can be answered with a refusal.
    pub(super) fn is_refusable(&self) -> bool {
        matches!(self.target, Target::Region { .. })
    }

    /// The region in which a peer's write was landing refuses now: the rest is dropped. Gives the
    /// memory, which is not to be touched any more.
    pub(super) fn refuse(&mut self, reason: Refusal) {
        let reserved = matches!(self.target, Target::Region { data: Some(_), .. });
        self.target = Target::Refused { reason, reserved };
        self.payload = Some(Payload::empty());
        self.capacity = 0;
    }
}
