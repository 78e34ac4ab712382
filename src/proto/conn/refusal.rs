//! Refused operations, which the connection survives if both sides have agreed to tolerate them
//! (`docs/extension.md`, section 4; ruling 15): the initiator's part, and the number of guesses
//! that a target allows its peer.

use std::fmt;
use std::time::{Duration, Instant};

use crate::buf::{AccessError, Payload};
use crate::error::{Error, ErrorKind, Refusal};
use crate::limits::{REFUSALS_MAX, REFUSALS_PERIOD};
use crate::proto::Host;
use crate::stats::RefusalStats;
use crate::wire::{Capabilities, CloseReason, FrameHeader};

use super::receive_state::{PayloadInProgress, PayloadTarget, ReceiveState};
use super::{Connection, Lifecycle};

/// The refused operations of both sides, and the reason for which they end the connection.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// The current time by the owner's clock.
    now: Option<Instant>,
    /// Boxed: most connections have no refusals.
    past: Option<Box<PastRefusals>>,
    /// The reason for which this side ends the connection because of its peer; once it is set, no
    /// more frames of the peer are processed.
    cause: Option<EndCause>,
    /// True if the CLOSE that carries `cause` has been queued.
    pub(super) is_reason_sent: bool,
}

/// The refused operations of both sides. Guesses, which only a peer in error makes, are counted
/// separately.
#[derive(Clone, Copy, Debug, Default)]
struct PastRefusals {
    /// The peer's guesses.
    theirs: GuessCount,
    /// All operations of the peer that this side refused, including those for which the peer is
    /// not at fault.
    stats: RefusalStats,
    /// This side's guesses, which the peer refused.
    ours: GuessCount,
}

/// The reason for which this side ends the connection, in order, because of its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndCause {
    /// The peer guessed too often.
    Guesses,
    /// The peer sent a message, tagged or not, to an endpoint that was opened to receive none.
    Unreceivable { tagged: bool },
    /// The peer sent a message of `len` bytes, but the shared receives take at most `max`.
    TooLong { len: u64, max: u64 },
}

/// Refused operations of one side within [`REFUSALS_PERIOD`], which begins with the first refusal.
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

    /// Returns the time from the first refusal to the last.
    fn duration(&self) -> Duration {
        let elapsed = |(since, last): (Instant, Instant)| last - since;
        self.since.zip(self.last).map_or(Duration::ZERO, elapsed)
    }
}

impl fmt::Display for GuessCount {
    /// Writes the number and the time, in units that people read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} within {:.1?}", self.count, self.duration())
    }
}

impl Refusals {
    fn past(&self) -> PastRefusals {
        self.past.as_deref().copied().unwrap_or_default()
    }

    /// Returns the statistics of the peer's operations that this side refused.
    pub(super) fn stats(&self) -> RefusalStats {
        self.past().stats
    }
}

impl<T> Connection<T> {
    /// True if single operations can be refused on this connection.
    pub(super) fn has_refusals(&self) -> bool {
        self.agreed().contains(Capabilities::REFUSAL)
    }

    /// Number of refused operations that both sides tolerate; 0: the first one ends the connection.
    fn refusals_agreed(&self) -> u32 {
        let ours = self.extension.params.refusals_max;
        let peer = self.peer_hello();
        peer.map_or(0, |peer| peer.refusals_max.min(ours))
    }

    /// Sets the time by the owner's clock. Refusals within one period are counted together.
    pub(crate) fn handle_time(&mut self, now: Instant) {
        self.refusals.now = Some(now);
    }

    // The initiator's part.

    /// Handles a refusal by the peer. fi_domain(3): "the connection is torn down", unless both
    /// sides tolerate refusals.
    #[inline]
    pub(super) fn handle_refused(&mut self, answer: Result<(), Refusal>) {
        if let Err(reason) = answer {
            self.was_refused(reason);
        }
    }

    #[cold]
    fn was_refused(&mut self, reason: Refusal) {
        if reason.is_guess() {
            let past = self.refusals.past.get_or_insert_default();
            past.ours.add(self.refusals.now);
        }
        if self.refusals_agreed() == 0 {
            let what = format!(
                "the connection ended with an operation that the peer refused: {reason}; with \
                 OnRefusal::Continue at both sides it would go on"
            );
            self.fail(Error::new(ErrorKind::Canceled, what));
        }
    }

    /// Handles the peer's last frame: the peer has refused too many operations of this side.
    pub(super) fn handle_guess_limit(&mut self) {
        let what = format!(
            "it ended the connection since it had to refuse too many operations of this side, \
             {} for keys, ranges or rights that it has not given ({}); use a RemoteRegion as it \
             came from the peer, and no longer than its region lives",
            self.refusals.past().ours,
            self.guess_limit(),
        );
        self.fail(Error::new(ErrorKind::PeerClosed, what));
    }

    /// Handles the peer's last frame: the peer's endpoint receives no such messages.
    pub(super) fn handle_no_receive(&mut self) {
        let what = "the peer's endpoint was opened to receive no such messages";
        self.fail(Error::new(ErrorKind::NoReceive, what));
    }

    /// Handles the peer's last frame: a message was longer than the peer's receives take.
    pub(super) fn handle_too_long(&mut self) {
        let what = "the peer takes no message that is as long as one of those that were sent; the \
                    max_message_size of its receives says what it takes";
        self.fail(Error::new(ErrorKind::TooLarge, what).ending_connection());
    }

    // The target's part.

    /// Begins a refused write: its bytes are dropped, and then it is answered.
    pub(super) fn refuse_write(&mut self, reason: Refusal, len: u64) {
        self.rx.go(ReceiveState::Payload(PayloadInProgress {
            target: PayloadTarget::Refused { reason },
            payload: Some(Payload::empty()),
            capacity: 0,
            len,
            done: 0,
            ack: true,
        }));
    }

    /// Takes back a direct receive whose memory is not there; no byte was taken from the stream for
    /// it. False: the connection has to end, which is all that a plain peer can notice.
    pub(crate) fn handle_fault(&mut self, payload: Payload, host: &mut impl Host<T>) -> bool {
        let refusals = self.has_refusals();
        let ReceiveState::Payload(transfer) = &mut self.rx else {
            self.handle_direct(payload, 0, host);
            return false;
        };
        if refusals && transfer.is_refusable() {
            transfer.refuse(Refusal::Fault);
        } else if self.drop_failed(AccessError::NO_PAGE) {
            if let ReceiveState::Payload(transfer) = &mut self.rx {
                transfer.payload = Some(payload);
            }
        } else {
            self.handle_direct(payload, 0, host);
            return false;
        }
        self.invariants();
        true
    }

    /// Answers a refused write whose last byte has been dropped.
    pub(super) fn answer_refused(&mut self, reason: Refusal) {
        self.tx
            .push_control(FrameHeader::Refused { reason }, Payload::empty());
        self.count_refusal(reason);
    }

    /// Counts an operation that was answered by its refusal.
    #[cold]
    pub(super) fn count_refusal(&mut self, reason: Refusal) {
        let past = self.refusals.past.get_or_insert_default();
        past.stats.count(reason);
        if !reason.is_guess() {
            return;
        }
        past.theirs.add(self.refusals.now);
        if past.theirs.count >= self.guess_limit().0 {
            self.end_for(EndCause::Guesses);
        }
    }

    /// Returns the number of guesses that ends the connection.
    fn guess_limit(&self) -> GuessLimit {
        GuessLimit(match self.refusals_agreed() {
            // The peer should end the connection itself; if it does not, the usual maximum holds.
            0 => REFUSALS_MAX,
            agreed => agreed.min(REFUSALS_MAX),
        })
    }

    /// True if this side still has to send the CLOSE with its reason. It reads no more from the
    /// peer.
    pub(super) fn owes_reason(&self) -> bool {
        self.refusals.cause.is_some()
            && !self.refusals.is_reason_sent
            && self.fault.is_none()
            && self.lifecycle == Lifecycle::Connected
            && self.agreed().contains(Capabilities::CLOSE)
    }

    /// Notes why the connection ends: no more frames of the peer are processed.
    fn end_for(&mut self, cause: EndCause) {
        self.refusals.cause = Some(cause);
        self.rx.close();
    }

    /// Ends the connection for a message that the endpoint can never receive: the message would
    /// wait for a receive, and hold up all later frames. A peer without the extension notices only
    /// the end of the connection; for such a peer the error is returned.
    #[cold]
    pub(super) fn refuse_message(&mut self, tagged: bool) -> Result<(), Error> {
        self.refuse_for(EndCause::Unreceivable { tagged }, unreceivable(tagged))
    }

    /// Like `refuse_message`, for a message that is longer than the shared receives take.
    #[cold]
    pub(super) fn refuse_long_message(&mut self, len: u64, max: u64) -> Result<(), Error> {
        self.refuse_for(EndCause::TooLong { len, max }, too_long(len, max))
    }

    fn refuse_for(&mut self, cause: EndCause, error: Error) -> Result<(), Error> {
        if !self.agreed().contains(Capabilities::CLOSE) {
            return Err(error);
        }
        self.end_for(cause);
        Ok(())
    }

    /// True once this side ends the connection because of its peer. The owner closes the connection
    /// in order, so that the peer still gets its answers.
    pub(crate) fn is_ending_for_cause(&self) -> bool {
        self.refusals.cause.is_some()
    }

    /// Returns the reason in this side's last frame.
    pub(super) fn close_reason(&self) -> CloseReason {
        match self.refusals.cause {
            None => CloseReason::Done,
            Some(EndCause::Guesses) => CloseReason::Refusals,
            Some(EndCause::Unreceivable { .. }) => CloseReason::NoReceive,
            Some(EndCause::TooLong { .. }) => CloseReason::TooLong,
        }
    }

    /// Returns the error with which this side ended the connection because of its peer, if it did.
    pub(super) fn cause_error(&self) -> Option<Error> {
        self.refusals.cause.map(|cause| {
            let error = match cause {
                EndCause::Guesses => self.guess_limit_error(),
                EndCause::Unreceivable { tagged } => unreceivable(tagged),
                EndCause::TooLong { len, max } => too_long(len, max),
            };
            error.ending_connection()
        })
    }

    #[cold]
    fn guess_limit_error(&self) -> Error {
        let what = format!(
            "this side ended the connection since it had to refuse too many operations of the \
             peer, {} for keys, ranges or rights that it was not given ({}); a peer that is in \
             order uses each RemoteRegion as it got it, and no longer than its region lives",
            self.refusals.past().theirs,
            self.guess_limit(),
        );
        Error::new(ErrorKind::AccessDenied, what)
    }
}

#[cold]
fn unreceivable(tagged: bool) -> Error {
    let what = match tagged {
        false => "the peer sent a message, and this endpoint was opened without MSG and RECV",
        true => {
            "the peer sent a tagged message, and this endpoint was opened without TAGGED and RECV"
        }
    };
    Error::new(ErrorKind::NoCapability, what)
}

#[cold]
fn too_long(len: u64, max: u64) -> Error {
    let what = format!(
        "the peer sent a message of {len} bytes, and its receives take {max} \
         (max_message_size)"
    );
    Error::new(ErrorKind::TooLarge, what).ending_connection()
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

impl PayloadInProgress {
    /// True for a peer's write, which can be answered with a refusal.
    pub(super) fn is_refusable(&self) -> bool {
        matches!(self.target, PayloadTarget::Region { .. })
    }

    /// Drops the rest of a peer's write whose region refuses now, and releases the region's memory,
    /// which must not be touched any more.
    pub(super) fn refuse(&mut self, reason: Refusal) {
        self.target = PayloadTarget::Refused { reason };
        self.payload = Some(Payload::empty());
        self.capacity = 0;
    }
}
