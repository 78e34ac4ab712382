//! What a TLS link is made of: a session, the link that its records go by, and where both are.
//!
//! ```text
//!   outer batch ─▶ gathered ─▶ sealed ─▶ records ─▶ link     phase  Dialing ─▶ Shaking ─▶ Open
//!   outer receive ◀─ opened ◀─ session ◀─ stage ◀── link               └─────────┴──────┴─▶ Failed
//! ```
//! Records are sealed once: what a batch was sealed into goes out in full before anything else is
//! sealed, even if the batch is taken back meanwhile. Without a receive of the outer link nothing
//! is read, so that whatever is held is bounded by one staging buffer and one record.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::buf::{AccessError, OutFrame, Payload, Stage};
use crate::edges::{MachineState, check_edge};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::TLS_SEAL_MAX;
use crate::sync::Lock;
use crate::transport::stream::Submissions;
use crate::transport::{Link, Outcome, RawLink, Receive, Received, SendBatch, Transport};

use super::session::Session;

/// How far a channel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) enum ChannelPhase {
    /// The link is not connected yet.
    Dialing,
    /// The handshake is under way.
    Shaking,
    Open,
    /// Nothing goes out any more but the alert that says why, and nothing comes in.
    Failed,
}

impl MachineState for ChannelPhase {
    const EDGES: &'static [(ChannelPhase, ChannelPhase)] = {
        use ChannelPhase::*;
        &[
            (Dialing, Shaking),
            (Dialing, Failed),
            (Shaking, Open),
            (Shaking, Failed),
            (Open, Failed),
        ]
    };
}

/// What of the link's receive is submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkReceive {
    Idle,
    Armed,
    Watching,
}

/// How far the end of this side's stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamEnd {
    Open,
    /// It is sealed, and what was sealed is on its way.
    Sealed,
    /// The link's stream has ended too.
    Finished,
}

/// Why the link brings nothing more.
enum LinkLoss {
    /// Its stream has ended, which anybody between the peers can bring about.
    Cut,
    /// It broke, or the session did.
    Broken(Error),
}

/// What moves with a connection from one runtime to another.
pub(super) struct ChannelParts {
    session: Session,
    phase: ChannelPhase,
    /// Bytes of records that the session has not taken in.
    stage: Option<Stage>,
}

impl ChannelParts {
    pub(super) fn connecting(session: Session) -> Self {
        ChannelParts {
            session,
            phase: ChannelPhase::Dialing,
            stage: None,
        }
    }

    pub(super) fn accepted(session: Session) -> Self {
        ChannelParts {
            session,
            phase: ChannelPhase::Shaking,
            stage: None,
        }
    }
}

/// Records on their way to the link: their bytes while idle, their frame while submitted.
#[derive(Default)]
pub(super) struct RecordBuffer {
    frames: VecDeque<OutFrame>,
    bytes: Vec<u8>,
}

/// Buffers for records, lent while something is sent.
pub(super) struct RecordPool {
    idle: Lock<Vec<RecordBuffer>>,
    idle_max: usize,
}

impl RecordPool {
    pub(super) fn new(idle_max: usize) -> Arc<Self> {
        Arc::new(RecordPool {
            idle: Lock::new(Vec::new()),
            idle_max,
        })
    }

    fn take(&self) -> RecordBuffer {
        let idle = self.idle.lock("take a record buffer").pop();
        idle.unwrap_or_default()
    }

    fn put(&self, mut buffer: RecordBuffer) {
        buffer.bytes.clear();
        let mut idle = self.idle.lock("return a record buffer");
        if idle.len() < self.idle_max {
            idle.push(buffer);
        }
    }
}

/// A TLS session over a link.
pub(super) struct Channel {
    pub(super) link: Box<dyn Link>,
    pub(super) session: Session,
    pub(super) phase: ChannelPhase,
    stage: Option<Stage>,
    recv: LinkReceive,
    /// The link has records of ours.
    is_sending: bool,
    /// Bytes of the outer batch that they are of.
    sealed: usize,
    end: StreamEnd,
    /// Why nothing more comes in but the end that the session may know of.
    loss: Option<LinkLoss>,
    /// Why nothing more goes out.
    fault: Option<Error>,
    transport: Arc<dyn Transport>,
    records: Arc<RecordPool>,
}

impl Channel {
    pub(super) fn new(
        link: Box<dyn Link>,
        parts: ChannelParts,
        transport: Arc<dyn Transport>,
        records: Arc<RecordPool>,
    ) -> Self {
        let ChannelParts {
            session,
            phase,
            stage,
        } = parts;
        Channel {
            link,
            session,
            phase,
            stage,
            recv: LinkReceive::Idle,
            is_sending: false,
            sealed: 0,
            end: StreamEnd::Open,
            loss: None,
            fault: None,
            transport,
            records,
        }
    }

    fn set_phase(&mut self, to: ChannelPhase) {
        check_edge(self.phase, to);
        self.phase = to;
    }

    /// Moves what can be moved, until something submitted has ended, or the link has no outcome:
    /// then it has registered the waker. `serves`: what is submitted is served.
    pub(super) fn pump(&mut self, io: &mut Submissions, serves: bool) {
        loop {
            self.step(io, serves);
            if io.has_ended() {
                return;
            }
            let Some(outcome) = self.link.poll_outcome() else {
                return;
            };
            self.handle_outcome(outcome, io);
        }
    }

    fn step(&mut self, io: &mut Submissions, serves: bool) {
        if self.phase == ChannelPhase::Shaking {
            self.shake_hands();
        }
        self.flush();
        if serves {
            self.open_into(io);
            self.seal_from(io);
            self.end_watch(io);
        }
        self.arm_link(io);
        self.finish_link();
    }

    /// Takes an outcome of the link.
    fn handle_outcome(&mut self, outcome: Outcome, io: &mut Submissions) {
        match outcome {
            Outcome::Connected => self.set_phase(ChannelPhase::Shaking),
            Outcome::Failed(error) => self.break_off(error),
            Outcome::Sent { batch, result } => self.handle_sent(batch, result, io),
            Outcome::Received(received) => {
                self.recv = LinkReceive::Idle;
                match received {
                    Received::Stage(stage) => self.stage = Some(stage),
                    Received::End { .. } => self.loss = Some(LinkLoss::Cut),
                    Received::Failed { error, .. } => self.loss = Some(LinkLoss::Broken(error)),
                    Received::Cancelled { .. } | Received::Direct { .. } => {}
                }
            }
            Outcome::PeerGone(error) => {
                self.recv = LinkReceive::Idle;
                if io.is_watching() {
                    io.end_watch(error);
                }
            }
        }
    }

    fn handle_sent(&mut self, mut batch: SendBatch, result: Result<usize>, io: &mut Submissions) {
        let left = match (&result, batch.frames.front_mut()) {
            (Ok(sent), Some(frame)) => {
                frame.advance(*sent);
                frame.remaining()
            }
            _ => 0,
        };
        if left > 0 {
            return self.link.send(batch);
        }
        self.is_sending = false;
        let sealed = std::mem::take(&mut self.sealed);
        let SendBatch { mut frames, .. } = batch;
        let buffers = frames
            .pop_front()
            .map(|frame| frame.into_payload().into_buffers());
        let bytes = buffers.into_iter().flatten().next();
        let bytes = bytes.and_then(|buffer| buffer.downcast::<Vec<u8>>().ok());
        let bytes = bytes.unwrap_or_default();
        self.records.put(RecordBuffer { frames, bytes });
        match result {
            Ok(_) if sealed > 0 => io.end_send(Ok(sealed)),
            Ok(_) => {}
            Err(error) => {
                if self.phase == ChannelPhase::Shaking {
                    self.break_off(error.clone());
                }
                self.fault.get_or_insert(error);
            }
        }
    }

    /// Why nothing comes in, to a receive.
    fn lost(&self) -> Option<Error> {
        if let LinkLoss::Broken(error) = self.loss.as_ref()? {
            return Some(error.clone());
        }
        let (kind, what) = match self.phase {
            ChannelPhase::Open => (
                ErrorKind::ConnectionReset,
                "TLS: the stream was cut: its end is not the peer's word (close_notify)",
            ),
            _ => (
                ErrorKind::PeerClosed,
                "TLS: the peer ended the connection within the handshake, as one without TLS does",
            ),
        };
        Some(Error::new(kind, what))
    }

    // The session.

    fn shake_hands(&mut self) {
        self.take_in();
        if self.phase == ChannelPhase::Failed {
            return;
        }
        if self.session.is_handshaking() {
            if let Some(error) = self.lost() {
                self.break_off(error);
            }
        } else if !self.is_sending && !self.session.has_records() {
            match self.session.check_agreed() {
                Ok(()) => self.set_phase(ChannelPhase::Open),
                Err(error) => self.refuse(error),
            }
        }
    }

    /// Gives the session what the link has brought.
    fn take_in(&mut self) {
        let Some(stage) = &mut self.stage else { return };
        let taken = self.session.take_in(stage);
        if stage.is_empty() {
            self.stage = None;
        }
        if let Err(error) = taken {
            self.stage = None;
            self.refuse(error);
        }
    }

    /// The peer is refused; the session may have an alert to be sent, which ends the stream.
    fn refuse(&mut self, error: Error) {
        self.break_off(error);
        self.session.close();
        self.end = StreamEnd::Sealed;
    }

    /// Nothing more comes in or goes out.
    fn break_off(&mut self, error: Error) {
        if self.phase != ChannelPhase::Failed {
            self.set_phase(ChannelPhase::Failed);
        }
        self.loss = Some(LinkLoss::Broken(error.clone()));
        self.fault = Some(error);
    }

    /// Why the handshake failed.
    pub(super) fn failure(&self) -> Option<&Error> {
        let is_failed = self.phase == ChannelPhase::Failed;
        self.fault.as_ref().filter(|_| is_failed)
    }

    /// Ends this side's stream, behind all that was sent.
    pub(super) fn finish(&mut self) {
        if self.end == StreamEnd::Open {
            self.session.close();
            self.end = StreamEnd::Sealed;
        }
    }

    // Out.

    /// Hands the session's records to the link.
    fn flush(&mut self) {
        if self.is_sending || self.phase == ChannelPhase::Dialing || !self.session.has_records() {
            return;
        }
        let RecordBuffer {
            mut frames,
            mut bytes,
        } = self.records.take();
        self.session.take_records(&mut bytes);
        frames.push_back(OutFrame::new(&[], Payload::from_vec(bytes), 0));
        let leases = Vec::new();
        self.is_sending = true;
        self.link.send(SendBatch { frames, leases });
    }

    /// Seals what comes next of the submitted batch.
    fn seal_from(&mut self, io: &mut Submissions) {
        let Some(batch) = io.batch() else { return };
        if let Some(fault) = self.fault.clone() {
            self.sealed = 0;
            return io.end_send(Err(fault));
        }
        if self.is_sending || self.phase != ChannelPhase::Open || self.session.has_records() {
            return;
        }
        let mut gathered = self.transport.take_stage();
        let size_max = TLS_SEAL_MAX.min(io.sizes.send);
        let gathering = gather(batch, &mut gathered.spare()[..size_max]);
        let (count, fault) = gathering;
        if count == 0 {
            return io.end_send(match fault {
                Some(fault @ AccessError::Fault(_)) => Err(fault.error("sending")),
                _ => Ok(0),
            });
        }
        gathered.fill(count);
        if let Err(error) = self.session.seal(&gathered) {
            self.fault = Some(error);
            return;
        }
        self.sealed = count;
        self.flush();
    }

    /// The batch is taken back: how many of its bytes are sealed, and go out without it.
    pub(super) fn withdraw_batch(&mut self) -> usize {
        std::mem::take(&mut self.sealed)
    }

    /// Ends the link's stream once all is out.
    fn finish_link(&mut self) {
        if self.end == StreamEnd::Sealed && !self.is_sending && !self.session.has_records() {
            self.end = StreamEnd::Finished;
            self.link.finish();
        }
    }

    // In.

    /// Opens records into the armed receive, as far as it goes.
    fn open_into(&mut self, io: &mut Submissions) {
        if io.armed().is_none() || self.phase == ChannelPhase::Shaking {
            return;
        }
        let size_max = io.sizes.receive;
        let mut stage = None;
        let (mut len, mut refused) = (0, None);
        loop {
            if self.session.opened_len() == 0 {
                if self.stage.is_none() || self.phase != ChannelPhase::Open {
                    break;
                }
                self.take_in();
                continue;
            }
            let opened = self.session.opened();
            let copied = match io.armed_direct() {
                Some(direct) => {
                    let count = opened.len().min(size_max.min(direct.len) - len);
                    let at = direct.offset + len;
                    let copied = direct.payload.copy_in(at, &opened[..count]);
                    copied.map(|()| count)
                }
                None => {
                    let stage = stage.get_or_insert_with(|| self.transport.take_stage());
                    let room = stage.spare();
                    let count = opened.len().min(room.len()).min(size_max - len);
                    room[..count].copy_from_slice(&opened[..count]);
                    stage.fill(count);
                    Ok(count)
                }
            };
            match copied {
                Ok(0) => break,
                Ok(count) => {
                    self.session.consume(count);
                    len += count;
                }
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        match (len, refused) {
            (0, None) => self.end_receive(io),
            // What was not taken stays in the session.
            (0, Some(AccessError::Closed(_))) => io.end_cancelled(),
            (0, Some(fault)) => io.fail_receive(fault.error("receiving")),
            (len, _) => io.end_receive(len, stage),
        }
    }

    /// Nothing is there for the armed receive; whether nothing will come any more.
    fn end_receive(&mut self, io: &mut Submissions) {
        if self.phase == ChannelPhase::Open && self.session.is_peer_closed() {
            io.end_stream();
        } else if let Some(error) = self.lost() {
            io.fail_receive(error);
        }
    }

    /// Ends a watch if the peer's end is known already.
    fn end_watch(&mut self, io: &mut Submissions) {
        if !io.is_watching() {
            return;
        }
        match &self.loss {
            Some(LinkLoss::Broken(error)) => io.end_watch(error.clone()),
            // Whether that was the peer's word is for a receive to find out.
            None if !self.session.is_peer_closed() => {}
            _ => io.end_watch(Error::new(ErrorKind::PeerClosed, "it ended its stream")),
        }
    }

    /// True if there is something for a receive without the link's bringing any.
    pub(super) fn has_received(&self) -> bool {
        self.stage.is_some()
            || self.loss.is_some()
            || self.session.is_peer_closed()
            || self.session.opened_len() > 0
    }

    /// A receive or a watch was submitted: registers the waker for it, or wakes.
    pub(super) fn arm(&mut self, io: &Submissions) {
        match self.recv == LinkReceive::Armed || self.has_received() {
            true => io.notify(),
            false => self.arm_link(io),
        }
    }

    /// Submits to the link what brings what is waited for.
    fn arm_link(&mut self, io: &Submissions) {
        if self.recv == LinkReceive::Armed || self.loss.is_some() {
            return;
        }
        let wants_bytes = match self.phase {
            ChannelPhase::Shaking => true,
            ChannelPhase::Open => io.armed().is_some(),
            ChannelPhase::Dialing | ChannelPhase::Failed => return,
        };
        if wants_bytes && !self.has_received() {
            self.recv = LinkReceive::Armed;
            self.link.receive(Receive::Stage);
        } else if io.is_watching() && self.recv == LinkReceive::Idle {
            self.recv = LinkReceive::Watching;
            self.link.watch();
        }
    }

    /// Tries the link's receive without asking for readiness.
    pub(super) fn try_receive(&mut self, io: &mut Submissions) {
        if let Some(outcome) = self.link.try_receive() {
            self.handle_outcome(outcome, io);
            self.open_into(io);
            self.arm_link(io);
            if self.session.has_records() {
                // An answer of the session's own, which the next poll sends.
                io.notify();
            }
        }
    }

    /// Bytes that no receive has taken; of those that are sealed, with what seals them.
    pub(super) fn unread_bytes(&self) -> usize {
        let staged = self.stage.as_ref().map_or(0, |stage| stage.len());
        self.link.unread_bytes() + staged + self.session.opened_len()
    }

    /// True while nothing of it is submitted to the link, and the session is whole.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_sending
            && self.recv != LinkReceive::Armed
            && self.phase == ChannelPhase::Open
            && self.end == StreamEnd::Open
            && self.loss.is_none()
            && self.fault.is_none()
    }

    /// Takes the connection out of its link.
    pub(super) fn into_raw(mut self) -> Option<(RawLink, ChannelParts)> {
        self.link.cancel_receive();
        let raw = self.link.take_raw()?;
        let Channel {
            session,
            phase,
            stage,
            ..
        } = self;
        Some((
            raw,
            ChannelParts {
                session,
                phase,
                stage,
            },
        ))
    }
}

/// Copies the front of the batch; how many bytes, and why no more than that. A frame whose memory
/// is refused ends it.
fn gather(batch: &SendBatch, into: &mut [u8]) -> (usize, Option<AccessError>) {
    let mut count = 0;
    for frame in &batch.frames {
        match frame.copy_out(&mut into[count..]) {
            Ok(copied) => {
                count += copied;
                if copied < frame.remaining() {
                    break;
                }
            }
            Err(error) => return (count, Some(error)),
        }
    }
    (count, None)
}
