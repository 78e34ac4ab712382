//! From received bytes to the ends of operations.

use crate::buf::{Leases, Payload};
use crate::error::{Error, ErrorKind, OperationKind, Phase, Refusal};
use crate::limits::{DIRECT_PIECE_MAX, DIRECT_RECEIVE_MIN, READ_REQUESTS_MAX};
use crate::mr::{Access, Claim, Tag};
use crate::proto::event::Event;
use crate::proto::matching::EarlyMessage;
use crate::proto::matching::first_come::Early;
use crate::proto::op::OpKey;
use crate::proto::{Host, Receives};
use crate::wire::{Capabilities, CloseReason, FrameHeader, RemoteSegment, Segments, WireError};

use super::refusal::AwaitedRead;
use super::rx::{Landing, Rx, Target};
use super::{Connection, Lifecycle, Received, violation};

/// Where the next bytes of the connection shall go.
#[derive(Debug)]
pub(crate) enum ReceivePlan {
    /// Nowhere: the connection does not read now.
    Paused,
    /// Into a staging buffer, to be fed to [`Connection::handle_stage`].
    Stage,
    /// Straight into memory: `len` bytes at `offset` of the payload.
    Direct {
        payload: Payload,
        offset: usize,
        len: usize,
        leases: Leases,
    },
}

impl<T> Connection<T> {
    /// Where the next bytes shall land. Called only when nothing is armed and no staged bytes are
    /// left.
    pub(crate) fn poll_receive(&mut self) -> ReceivePlan {
        if !self.is_reading() || self.fault.is_some() || self.rx.is_paused() {
            return ReceivePlan::Paused;
        }
        let refusals = self.has_refusals();
        let Rx::Payload(landing) = &mut self.rx else {
            return ReceivePlan::Stage;
        };
        let wanted = usize::try_from(landing.wanted()).unwrap_or(usize::MAX);
        if wanted < DIRECT_RECEIVE_MIN {
            return ReceivePlan::Stage;
        }
        let Some(payload) = landing.payload.take() else {
            return ReceivePlan::Paused;
        };
        match payload.lease() {
            Ok(leases) => {
                let offset = usize::try_from(landing.done).expect("done ≤ capacity, a usize");
                ReceivePlan::Direct {
                    payload,
                    offset,
                    len: wanted.min(DIRECT_PIECE_MAX),
                    leases,
                }
            }
            Err(closed) if refusals => {
                landing.refuse(closed.into());
                ReceivePlan::Stage
            }
            Err(closed) => {
                landing.payload = Some(payload);
                self.fail(taken_away(closed.into()));
                ReceivePlan::Paused
            }
        }
    }

    /// True while bytes of the peer are looked at. An acceptor waits for its HELLO, and looks at
    /// nothing behind it until it is connected (ruling 9).
    fn is_reading(&self) -> bool {
        match self.lifecycle {
            _ if self.extension.is_refusing() => false,
            // Behind the end of the stream comes only that end again, for ever.
            _ if self.ending.is_done() => false,
            Lifecycle::Connecting | Lifecycle::Connected => true,
            Lifecycle::Accepting => self.extension.is_opening(),
            Lifecycle::Idle | Lifecycle::Closed => false,
        }
    }

    /// The transport gives a direct receive back after `len` more bytes landed (0: cancelled).
    pub(crate) fn handle_direct(&mut self, payload: Payload, len: usize, host: &mut impl Host<T>) {
        if let Rx::Payload(landing) = &mut self.rx {
            debug_assert!(len as u64 <= landing.wanted());
            landing.payload = Some(payload);
            landing.done += len as u64;
            let ours = matches!(
                landing.target,
                Target::Read { .. } | Target::ReadData { .. }
            );
            if ours {
                self.ending.work += len as u64;
            }
            self.count_read(len);
        }
        self.finish_landing(host);
        self.invariants();
    }

    /// Feeds received bytes; returns how many were consumed. Fewer than given means that the
    /// connection pauses (or is faulty) and wants the rest later.
    pub(crate) fn handle_stage(&mut self, input: &[u8], host: &mut impl Host<T>) -> usize {
        let mut at = 0;
        while at < input.len() && self.is_reading() && self.fault.is_none() && !self.rx.is_paused()
        {
            let step = self.consume(&input[at..], host);
            match step {
                Ok(n) => at += n,
                Err(error) => self.fail(error),
            }
        }
        self.count_read(at);
        self.invariants();
        at
    }

    fn count_read(&mut self, n: usize) {
        if let Some(left) = &mut self.last_bytes {
            *left = left.saturating_sub(n as u64);
        }
    }

    fn consume(&mut self, input: &[u8], host: &mut impl Host<T>) -> Result<usize, Error> {
        if self.handshake.is_some() {
            return self.consume_handshake(input);
        }
        if self.extension.is_opening() {
            return self.consume_opening(input);
        }
        let refusals = self.has_refusals();
        match &mut self.rx {
            Rx::Header => {
                let (taken, header) = self.partial.collect(input, self.order)?;
                if let Some(header) = header {
                    tracing::trace!(%header, "received");
                    self.check_agreed(&header)?;
                    self.check_closing(&header)?;
                    if let Some(landed) = self.land_whole(&header, &input[taken..])? {
                        return Ok(taken + landed);
                    }
                    self.begin_frame(header, host)?;
                }
                Ok(taken)
            }
            Rx::Payload(landing) => {
                let left = landing.len - landing.done;
                let take = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
                let fits = usize::try_from(landing.wanted())
                    .unwrap_or(usize::MAX)
                    .min(take);
                if fits > 0 {
                    let offset = usize::try_from(landing.done).expect("done ≤ capacity, a usize");
                    let payload = landing
                        .payload
                        .as_mut()
                        .expect("no direct receive is out while staging");
                    match payload.copy_in(offset, &input[..fits]) {
                        Ok(()) => {}
                        Err(closed) if refusals && landing.is_refusable() => {
                            landing.refuse(closed.into());
                        }
                        Err(closed) => return Err(taken_away(closed.into())),
                    }
                }
                landing.done += take as u64;
                self.finish_landing(host);
                Ok(take)
            }
            Rx::AwaitReceive { .. }
            | Rx::AwaitRoom { .. }
            | Rx::AwaitCommit { .. }
            | Rx::Closed => Ok(0),
        }
    }

    /// A message that is there as a whole lands in the oldest posted receive at once, the usual
    /// case of small ones. Gives its bytes; `None`: it goes the longer way, as all other frames do.
    fn land_whole(&mut self, header: &FrameHeader, input: &[u8]) -> Result<Option<usize>, Error> {
        let FrameHeader::Message { data, ack, len } = *header else {
            return Ok(None);
        };
        let bytes = usize::try_from(len).ok().and_then(|len| input.get(..len));
        let Some(bytes) = bytes else { return Ok(None) };
        if self.peer.is_some() || self.tx.queued_answers() > READ_REQUESTS_MAX {
            return Ok(None);
        }
        let Some(key) = self.matcher.take_posted() else {
            return Ok(None);
        };
        let order = self.matcher.next_order();
        let op = self.ops.get_mut(key);
        let op = op.expect("a posted receive is in the table");
        op.phase = Phase::Moving;
        let buffer = op.payload.as_mut();
        let buffer = buffer.expect("a posted receive holds its buffer");
        let fits = bytes.len().min(buffer.len());
        // Refused, it ends with the connection, and has its buffer until then.
        (buffer.copy_in(0, &bytes[..fits])).map_err(|closed| taken_away(closed.into()))?;
        let payload = op.payload.take().unwrap_or_else(Payload::empty);
        self.receive_credit.arrive(len);
        if ack {
            self.tx.push_ack(self.has_refusals());
        }
        let received = Received {
            len: fits,
            overflow: bytes.len() - fits,
            data,
            tag: None,
            order,
        };
        self.end_receive(key, received.result(), received, payload);
        Ok(Some(bytes.len()))
    }

    /// Takes up what happened outside since: receives that were matched with announced messages,
    /// and what a pause waits for: a posted receive, room in a completion queue, room in the queue
    /// of answers.
    pub(crate) fn resume(&mut self, host: &mut impl Host<T>) {
        self.answer_announcements(host);
        let header = match &self.rx {
            Rx::AwaitReceive { header } | Rx::AwaitRoom { header } => header.clone(),
            _ => return,
        };
        if self.fault.is_some() {
            return;
        }
        if let Err(error) = self.begin_frame(header, host) {
            self.fail(error);
        }
    }

    /// True while reading is paused for want of a receive or of room.
    pub(crate) fn is_read_paused(&self) -> bool {
        self.lifecycle == Lifecycle::Connected && self.rx.is_paused()
    }

    /// The peer has sent its last byte, and `unread` bytes of it wait in the socket and in staging.
    /// A message that waits for a receive is now kept whatever the budget says, since what the
    /// socket holds bounds it; one that can never be whole ends the connection.
    pub(crate) fn handle_last_bytes(&mut self, unread: u64, host: &mut impl Host<T>) {
        self.last_bytes = Some(unread);
        self.resume(host);
        if let Rx::AwaitReceive { header } = &self.rx {
            // Where receives are shared one that is whole waits for its own, in the socket.
            let is_whole = header.payload_len() <= unread;
            if self.peer.is_some() && is_whole && !matches!(header, FrameHeader::Rts { .. }) {
                return;
            }
            self.fail(Error::new(
                ErrorKind::PeerClosed,
                "in the middle of a message",
            ));
        }
    }

    /// The stream ended (the peer's FIN).
    pub(crate) fn handle_end(&mut self) {
        if self.end_is_in_order() {
            return;
        }
        let what = if self.handshake.is_some() || self.extension.is_opening() {
            "during the handshake"
        } else if !self.is_at_boundary() {
            "in the middle of a frame"
        } else if self.agreed().contains(Capabilities::CLOSE) {
            "its stream ended without the CLOSE of an orderly end, as when its process ends"
        } else {
            "it ended its stream, which is all that a peer without the extension says"
        };
        self.fail(Error::new(ErrorKind::PeerClosed, what));
    }

    fn begin_frame(&mut self, header: FrameHeader, host: &mut impl Host<T>) -> Result<(), Error> {
        let passes = header.is_answer() || matches!(header, FrameHeader::Ping { .. });
        if self.tx.queued_answers() > READ_REQUESTS_MAX && !passes {
            // Its answers pile up because the peer does not read: it may not ask for more.
            self.rx = Rx::AwaitRoom { header };
            return Ok(());
        }
        if let FrameHeader::Message { data, len, .. } | FrameHeader::Tagged { data, len, .. } =
            header
            && let Some(arrival) = self.arrival(header.tag(), len, data)
        {
            self.begin_shared(header, arrival, host);
            self.finish_landing(host);
            return Ok(());
        }
        match header {
            FrameHeader::Message { data, ack, len } => self.begin_message(data, ack, len),
            FrameHeader::Tagged { .. } => return Err(WireError::TaggedOnMsg.into()),
            FrameHeader::Rts { .. } => return self.handle_rts(header, host),
            FrameHeader::Cts { index } => {
                self.rx = Rx::Header;
                return self.handle_cts(index);
            }
            FrameHeader::Data { index, len, .. } => self.begin_data(index, len)?,
            FrameHeader::Withdraw { index } => {
                self.rx = Rx::Header;
                return self.handle_withdraw(index, host);
            }
            FrameHeader::Withdrawn { index } => {
                self.rx = Rx::Header;
                return self.handle_withdrawn(index);
            }
            FrameHeader::Ack => {
                self.rx = Rx::Header;
                return self.handle_answer(Ok(()));
            }
            FrameHeader::Acks { count } => {
                self.rx = Rx::Header;
                return self.handle_acks(count);
            }
            FrameHeader::Refused { reason } => {
                self.rx = Rx::Header;
                return self.handle_answer(Err(reason));
            }
            FrameHeader::ReadRequest { segments } => self.begin_read(&segments, host)?,
            FrameHeader::ReadResponse { len } => self.begin_read_response(len)?,
            FrameHeader::ReadData { len } => self.begin_read_data(len)?,
            FrameHeader::ReadEnd { refused } => {
                self.rx = Rx::Header;
                return self.handle_read_end(refused);
            }
            FrameHeader::Ping { token } => {
                self.tx.signs_mut().answer(token);
                self.rx = Rx::Header;
            }
            FrameHeader::Pong { .. } => self.rx = Rx::Header,
            FrameHeader::Credit { posted } => {
                self.handle_credit(posted);
                self.rx = Rx::Header;
            }
            FrameHeader::Stalled { .. } => {
                self.handle_stalled(host);
                self.rx = Rx::Header;
            }
            FrameHeader::Close {
                reason: CloseReason::Refusals,
            } => {
                self.rx = Rx::Closed;
                self.handle_end_of_patience();
            }
            FrameHeader::Close {
                reason: CloseReason::Done,
            } => {
                self.rx = Rx::Header;
                self.handle_close()?;
            }
            FrameHeader::Hello { .. } => return Err(violation("a second hello")),
            FrameHeader::Write {
                data,
                ack,
                commit,
                ref segments,
            } => {
                let ack = ack || commit;
                if self.has_refusals() && !ack {
                    return Err(violation("a write that wants no answer"));
                }
                let len = segments.total();
                match resolve_all(segments, Access::REMOTE_WRITE, commit, host) {
                    Ok(_) if data.is_some() && !host.reserve_unasked() => {
                        self.rx = Rx::AwaitRoom { header };
                        return Ok(());
                    }
                    Ok(memory) => {
                        self.rx = Rx::Payload(Landing {
                            target: Target::Region { data, commit },
                            payload: Some(memory),
                            capacity: len,
                            len,
                            done: 0,
                            // Of a commit it says more than that the bytes are here, later.
                            ack: ack && !commit,
                        });
                    }
                    Err(reason) if self.has_refusals() => self.refuse_write(reason, len),
                    Err(reason) => return Err(denied(reason)),
                }
            }
            FrameHeader::Atomic {
                call,
                ref segments,
                len,
            } => self.begin_atomic(call, segments, len, host)?,
        }
        self.finish_landing(host);
        Ok(())
    }

    fn begin_message(&mut self, data: Option<u64>, ack: bool, len: u64) {
        // Of one that has to wait a place is left out.
        let order = self.matcher.next_order();
        let landing = if let Some(op) = self.matcher.take_posted() {
            let entry = self
                .ops
                .get_mut(op)
                .expect("a posted receive is in the table");
            entry.phase = Phase::Moving;
            let payload = entry
                .payload
                .take()
                .expect("a posted receive holds its buffer");
            let capacity = payload.len() as u64;
            let target = Target::Receive {
                op,
                data,
                tag: None,
                order,
            };
            Landing {
                target,
                payload: Some(payload),
                capacity,
                len,
                done: 0,
                ack,
            }
        } else if self.matcher.has_room(len) || self.last_bytes.is_some_and(|left| len <= left) {
            let Some(store) = zeroed(len) else {
                self.rx = Rx::AwaitReceive {
                    header: FrameHeader::Message { data, ack, len },
                };
                return;
            };
            self.matcher.begin_early(store.len());
            let payload = Payload::from_vec(store);
            let target = Target::Early { data, order };
            Landing {
                target,
                payload: Some(payload),
                capacity: len,
                len,
                done: 0,
                ack,
            }
        } else {
            self.rx = Rx::AwaitReceive {
                header: FrameHeader::Message { data, ack, len },
            };
            return;
        };
        self.receive_credit.arrive(len);
        self.rx = Rx::Payload(landing);
    }

    fn begin_read(&mut self, segments: &Segments, host: &mut impl Host<T>) -> Result<(), Error> {
        self.rx = Rx::Header;
        match resolve_all(segments, Access::REMOTE_READ, false, host) {
            Ok(memory) if self.has_refusals() => self.tx.reads.give(memory),
            Ok(memory) => {
                let len = segments.total();
                self.tx
                    .push_control(FrameHeader::ReadResponse { len }, memory);
            }
            Err(reason) if self.has_refusals() => {
                self.tx.reads.refuse(reason);
                self.count_refusal(reason);
            }
            Err(reason) => return Err(denied(reason)),
        }
        Ok(())
    }

    fn begin_read_response(&mut self, len: u64) -> Result<(), Error> {
        if self.has_refusals() {
            return Err(violation("a read response where READ_DATA was agreed on"));
        }
        let Some(&AwaitedRead { op, len: asked, .. }) = self.reads.front() else {
            return Err(violation("a read response that nothing awaits"));
        };
        if asked != len {
            return Err(violation(
                "a read response of another length than the request's",
            ));
        }
        self.reads.pop_front();
        // Of a read that has ended before, the bytes are dropped.
        let payload = self.ops.get_mut(op).and_then(|entry| {
            entry.phase = Phase::AwaitingPeer;
            entry.payload.take()
        });
        self.rx = Rx::Payload(Landing {
            target: Target::Read { op },
            capacity: if payload.is_some() { len } else { 0 },
            payload: Some(payload.unwrap_or_else(Payload::empty)),
            len,
            done: 0,
            ack: false,
        });
        Ok(())
    }

    /// If the landing payload is whole, ends what it belongs to and looks for the next header.
    fn finish_landing(&mut self, host: &mut impl Host<T>) {
        match &self.rx {
            Rx::Payload(landing) if landing.is_done() && landing.payload.is_some() => {}
            _ => return,
        }
        let Rx::Payload(landing) = std::mem::replace(&mut self.rx, Rx::Header) else {
            return;
        };
        let payload = landing.payload.expect("checked above");
        let len = usize::try_from(landing.len.min(landing.capacity)).expect("fits the buffer");
        let overflow = usize::try_from(landing.len).unwrap_or(usize::MAX) - len;
        if let Target::Refused { reason, reserved } = landing.target {
            if reserved {
                self.events.push_back(Event::RemoteDataVoid);
            }
            self.answer_refused(reason);
            return;
        }
        if landing.ack {
            // The payload is in memory, also when it waits for its receive or was cut.
            self.tx.push_ack(self.has_refusals());
        }
        match landing.target {
            Target::Receive {
                op,
                data,
                tag,
                order,
            } => {
                let received = Received {
                    len,
                    overflow,
                    data,
                    tag,
                    order,
                };
                self.message_landed(op, payload, received, host.shared());
            }
            Target::Stored { arrival } => {
                if let Some(shared) = host.shared() {
                    shared.landed(EarlyMessage {
                        arrival,
                        payload,
                        len,
                        overflow,
                    });
                }
            }
            Target::Early { data, order } => {
                let early = Early {
                    payload,
                    len,
                    overflow,
                    data,
                    order,
                };
                if let Some((op, early)) = self.matcher.finish_early(early) {
                    self.deliver_early(op, early);
                }
            }
            Target::Region { data, commit: true } => {
                self.rx = Rx::AwaitCommit {
                    data,
                    memory: Some(payload),
                };
            }
            Target::Region { data, .. } => {
                self.events.push_back(Event::RemoteAccess {
                    operation: OperationKind::RemoteWrite,
                    data,
                    memory: payload,
                });
            }
            Target::Read { op } if self.ops.get(op).is_none() => self.place_answered(),
            Target::Read { op } => self.end_op(op, Ok(()), len, payload),
            Target::ReadData { op } => self.read_data_landed(op, landing.len, payload),
            Target::Atomic(asked) => self.atomic_landed(*asked, payload),
            Target::Refused { .. } => {} // Told above.
        }
    }

    fn message_landed(
        &mut self,
        key: OpKey,
        payload: Payload,
        received: Received,
        shared: Option<&mut dyn Receives<T>>,
    ) {
        let Received {
            len,
            overflow,
            data,
            order,
            ..
        } = received;
        let mut shared = shared;
        if let (Some(shared), Some(taken)) = (&mut shared, self.take_landing_receive()) {
            shared.finished(taken.key);
        }
        if self.ops.get(key).is_some_and(|op| op.orphaned) {
            // Its owner went away: the message goes back, the receive ends as withdrawn.
            let error = Error::new(ErrorKind::Canceled, "");
            self.end_op(key, Err(error), 0, Payload::empty());
            match (self.identity(), shared) {
                (Some(identity), Some(shared)) => {
                    // At once: messages behind it are not to be matched before.
                    if let Ok(payload) = payload.apart_from_regions(len) {
                        shared.give_back(received.as_early(identity, payload));
                    }
                }
                _ => self.give_back(payload, len, overflow, data, order),
            }
            return;
        }
        self.end_receive(key, received.result(), received, payload);
    }

    /// Gives an early message to its receive.
    pub(super) fn deliver_early(&mut self, key: OpKey, early: Early) {
        let Some(op) = self.ops.get_mut(key) else {
            return;
        };
        op.phase = Phase::Moving;
        let mut payload = op
            .payload
            .take()
            .expect("a posted receive holds its buffer");
        let fits = early.len.min(payload.len());
        let overflow = early.overflow + (early.len - fits);
        match payload.copy_from(&early.payload, fits) {
            Ok(()) => {
                let received = Received {
                    len: fits,
                    overflow,
                    data: early.data,
                    order: early.order,
                    ..Received::default()
                };
                self.message_landed(key, payload, received, None);
            }
            Err(denied) => {
                let error = denied.error("a message was copied to it");
                self.end_op(key, Err(error), 0, payload);
            }
        }
    }
}

/// So many zero bytes; `None` if there is no memory for them. The length is a peer's word: within a
/// budget, but the budget is the application's, and may be more than this machine has.
pub(super) fn zeroed(len: u64) -> Option<Vec<u8>> {
    /// What is asked for without a second thought.
    const SMALL: usize = 1 << 20;
    let len = usize::try_from(len).ok()?;
    if len > SMALL {
        // Nothing can ask for zeroed memory and hear "no", so this asks first.
        Vec::<u8>::new().try_reserve_exact(len).ok()?;
    }
    Some(vec![0; len])
}

/// The memory that the segments of a peer's access mean, in order.
pub(super) fn resolve_all<T>(
    segments: &Segments,
    need: Access,
    persistent: bool,
    host: &mut impl Host<T>,
) -> Result<Payload, Refusal> {
    let mut memory = Payload::empty();
    let mut rest = segments.as_slice().iter();
    let tagged = host.demands_tags();
    while let Some(segment) = rest.next() {
        let tag = if tagged {
            rest.next().and_then(tag_of)
        } else {
            None
        };
        memory.push_region(host.resolve(&Claim {
            key: segment.key,
            tag,
            addr: segment.addr,
            len: segment.len,
            need,
            persistent,
        })?);
    }
    Ok(memory)
}

/// What an empty segment behind another proves.
fn tag_of(segment: &RemoteSegment) -> Option<Tag> {
    let mut tag = [0; 16];
    tag[..8].copy_from_slice(&segment.addr.to_le_bytes());
    tag[8..].copy_from_slice(&segment.key.to_le_bytes());
    (segment.len == 0).then_some(tag)
}

/// The end of a connection whose peer cannot be told that one operation was refused.
fn denied(reason: Refusal) -> Error {
    let what = format!("the peer was refused: {reason}");
    Error::new(kind_of(reason), what)
}

/// The same in the middle of a write.
fn taken_away(reason: Refusal) -> Error {
    let what = format!("while the peer wrote to it, {reason}");
    Error::new(kind_of(reason), what)
}

fn kind_of(reason: Refusal) -> ErrorKind {
    match reason {
        Refusal::Fault => ErrorKind::BadAddress,
        _ => ErrorKind::AccessDenied,
    }
}
