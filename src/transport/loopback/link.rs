//! One in-process connection, as a link.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Waker;

use super::End;
#[cfg(any(test, feature = "test-util"))]
use super::attempt::Attempt;
use super::pipe::{Front, PIPE_SIZE};
use crate::buf::{AccessError, StagePool};
use crate::error::{Error, ErrorKind, OperationKind};
use crate::transport::submitted::{Reading, Submitted};
use crate::transport::{
    Direct, KeepAlive, Link, Outcome, RawLink, Receive, Received, SendBatch, Vitals,
};

pub(super) struct LoopbackLink {
    /// `None` exactly when the link is broken.
    end: Option<End>,
    local: SocketAddr,
    peer: SocketAddr,
    stages: Arc<StagePool>,
    submitted: Submitted,
    /// Where a send gathers its bytes; empty between calls, and only ever small between them.
    gathered: Vec<u8>,
    /// On its way to another host.
    #[cfg(any(test, feature = "test-util"))]
    attempt: Option<Arc<Attempt>>,
}

/// What reading from the pipe into some destination came to.
enum Read {
    Bytes(usize),
    Nothing,
    End,
    Reset,
    Refused,
    /// The destination is not there.
    Fault(AccessError),
}

impl LoopbackLink {
    pub(super) fn new(end: End, waker: Waker, stages: Arc<StagePool>) -> Self {
        let (local, peer) = (end.local_addr(), end.peer_addr());
        LoopbackLink {
            end: Some(end),
            local,
            peer,
            stages,
            submitted: Submitted::new(peer, waker),
            gathered: Vec::new(),
            #[cfg(any(test, feature = "test-util"))]
            attempt: None,
        }
    }

    /// As [`LoopbackLink::new`], whose [`LoopbackLink::begin`] this attempt decides.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn attempting(mut self, attempt: Arc<Attempt>) -> Self {
        self.attempt = Some(attempt);
        self
    }

    /// True while the other host has not answered yet.
    fn is_attempting(&mut self) -> bool {
        #[cfg(any(test, feature = "test-util"))]
        if let Some(attempt) = &self.attempt {
            let Some(accepted) = attempt.poll(&self.submitted.waker) else {
                return true;
            };
            self.attempt = None;
            if self.end.is_some() {
                self.begin(accepted);
            }
        }
        false
    }

    /// Tells how the attempt to connect ended.
    pub(super) fn begin(&mut self, accepted: bool) {
        if accepted {
            self.submitted.tell(Outcome::Connected);
            return;
        }
        let error = Error::new(ErrorKind::ConnectionRefused, "nobody accepts there")
            .with_operation(OperationKind::Connect)
            .with_peer(self.peer);
        self.end = None;
        self.submitted.tell(Outcome::Failed(error.clone()));
        self.submitted.break_off(error);
    }

    fn poll_send(&mut self) -> Option<Outcome> {
        let end = self.end.as_ref()?;
        let batch = self.submitted.batch.as_ref()?;
        let room = match end.outgoing.poll_room(&self.submitted.waker) {
            Ok(0) => return None,
            Ok(room) => room,
            Err(error) => return self.submitted.sent(Err(error)),
        };
        let room = room.min(self.submitted.sizes.send);
        // A frame whose region refuses ends the batch before it; alone it moves nothing, and its
        // owner learns why from the gate.
        let gathered = gather(batch, room, &mut self.gathered);
        let count = self.gathered.len();
        if count > 0 {
            end.outgoing.write(&mut self.gathered);
        }
        let result = match gathered {
            Err(fault @ AccessError::Fault(_)) if count == 0 => Err(fault.error("sending")),
            _ => Ok(count),
        };
        self.submitted.sent(result)
    }

    fn poll_read(&mut self) -> Option<Outcome> {
        let end = self.end.as_ref()?;
        let size_max = self.submitted.sizes.receive;
        let waker = &self.submitted.waker;
        let (read, stage) = match &mut self.submitted.reading {
            Reading::Idle | Reading::Lent => return None,
            Reading::Watching => {
                let error = end.incoming.poll_gone(waker)?;
                return Some(self.submitted.peer_gone(error));
            }
            Reading::Armed(Receive::Stage) => {
                let mut stage = None;
                let read = read(end, waker, size_max.min(STAGE_READ_MAX), |bytes, _| {
                    let stage = stage.get_or_insert_with(|| self.stages.take());
                    let room = stage.spare();
                    let count = bytes.len().min(room.len());
                    room[..count].copy_from_slice(&bytes[..count]);
                    stage.fill(count);
                    Ok(count)
                });
                (read, stage)
            }
            Reading::Armed(Receive::Direct(direct)) => {
                let size_max = size_max.min(direct.len);
                let Direct {
                    payload, offset, ..
                } = direct;
                let read = read(end, waker, size_max, |bytes, done| {
                    payload.copy_in(*offset + done, bytes)?;
                    Ok(bytes.len())
                });
                (read, None)
            }
        };
        if let Read::Reset = read {
            let error = Error::new(ErrorKind::ConnectionReset, "by its other end");
            return Some(self.submitted.receive_failed(error));
        }
        if let Read::Fault(fault) = read {
            return Some(self.submitted.receive_failed(fault.error("receiving")));
        }
        if let Read::Nothing = read {
            return None;
        }
        let returned = self.submitted.disarm();
        Some(Outcome::Received(match (read, returned, stage) {
            (Read::Bytes(len), Some(direct), _) => Received::Direct { direct, len },
            (Read::Bytes(_), None, Some(stage)) => Received::Stage(stage),
            (Read::Refused, returned, _) => Received::Cancelled { returned },
            (_, returned, _) => Received::End { returned },
        }))
    }
}

/// The most one staged receive takes; the room of a staging buffer.
const STAGE_READ_MAX: usize = crate::limits::STAGE_SIZE;

/// Moves up to `size_max` bytes out of the pipe through `copy`, which is given bytes and how many
/// went before, and says how many it took. Registers the waker only if there is nothing at all.
fn read(
    end: &End,
    waker: &Waker,
    size_max: usize,
    mut copy: impl FnMut(&[u8], usize) -> Result<usize, AccessError>,
) -> Read {
    let mut done = 0;
    while done < size_max {
        let chunk = match end.incoming.poll_front(waker) {
            Front::Chunk(chunk) => chunk,
            Front::Empty | Front::End if done > 0 => break,
            Front::Empty => return Read::Nothing,
            Front::End => return Read::End,
            Front::Reset => return Read::Reset,
        };
        let bytes = chunk.unread();
        let copied = copy(&bytes[..bytes.len().min(size_max - done)], done);
        end.incoming.give_back(chunk, copied.unwrap_or(0));
        match copied {
            // What was not taken stays in the pipe.
            Err(AccessError::Closed(_)) if done == 0 => return Read::Refused,
            Err(fault) if done == 0 => return Read::Fault(fault),
            Err(_) => break,
            Ok(count) => done += count,
        }
    }
    Read::Bytes(done)
}

/// Copies the front of the batch, at most `room` bytes, to `into`. A frame whose memory is refused
/// ends it.
fn gather(batch: &SendBatch, room: usize, into: &mut Vec<u8>) -> Result<(), AccessError> {
    debug_assert!(into.is_empty() && room <= PIPE_SIZE, "one pipe at most");
    for frame in &batch.frames {
        let start = into.len();
        let count = frame.remaining().min(room - start);
        into.resize(start + count, 0);
        if let Err(denied) = frame.copy_out(&mut into[start..]) {
            into.truncate(start);
            return Err(denied);
        }
        if count < frame.remaining() {
            break;
        }
    }
    Ok(())
}

impl Link for LoopbackLink {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    fn send(&mut self, batch: SendBatch) {
        if self.submitted.send(batch)
            && !self.is_attempting()
            && let Some(sent) = self.poll_send()
        {
            self.submitted.keep(sent);
        }
    }

    fn cancel_send(&mut self) {
        self.submitted.cancel_send();
    }

    fn receive(&mut self, receive: Receive) {
        // What is in the pipe is not looked at in here; asking again finds it or registers.
        let _ = self.submitted.receive(receive);
        self.submitted.announce();
    }

    fn cancel_receive(&mut self) {
        self.submitted.cancel_receive();
    }

    fn watch(&mut self) {
        let _ = self.submitted.watch();
        self.submitted.announce();
    }

    fn poll_outcome(&mut self) -> Option<Outcome> {
        let attempting = self.is_attempting();
        if let Some(outcome) = self.submitted.next_ended() {
            return Some(outcome);
        }
        if attempting {
            return None;
        }
        let outcome = if self.submitted.is_send_first() {
            self.poll_send().or_else(|| self.poll_read())
        } else {
            self.poll_read().or_else(|| self.poll_send())
        };
        self.submitted.tried(&outcome);
        outcome
    }

    fn finish(&mut self) {
        debug_assert!(
            self.submitted.batch.is_none(),
            "what is submitted is sent first"
        );
        if let Some(end) = &self.end {
            end.outgoing.finish();
        }
    }

    fn reset(&mut self) {
        let Some(end) = self.end.take() else { return };
        end.reset();
        drop(end);
        let error = Error::new(ErrorKind::ConnectionReset, "by this side");
        self.submitted.break_off(error);
    }

    fn unread(&self) -> usize {
        self.end.as_ref().map_or(0, End::unread)
    }

    fn vitals(&self) -> Option<Vitals> {
        None
    }

    /// Nothing gets lost between the ends of a pipe.
    fn keep_alive(&mut self, _keep_alive: KeepAlive) -> bool {
        self.end.as_ref().is_none_or(End::is_kept_alive)
    }

    fn take_raw(&mut self) -> Option<RawLink> {
        if self.submitted.is_anything() {
            return None;
        }
        self.end.take().map(RawLink::Loopback)
    }

    #[cfg(any(test, feature = "test-util"))]
    fn limit(&mut self, sizes: crate::transport::IoSizes) {
        debug_assert!(sizes.send > 0 && sizes.receive > 0, "nothing would move");
        self.submitted.sizes = sizes;
    }
}
