//! One in-process connection.

use std::net::SocketAddr;
#[cfg(any(test, feature = "test-util"))]
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::PipeEnd;
#[cfg(any(test, feature = "test-util"))]
use super::attempt::ConnectAttempt;
use super::pipe::Front;
use crate::buf::{AccessError, CopyTo, Stage};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{LOOPBACK_PIPE_SIZE, STAGE_SIZE};
use crate::transport::stream::{Stream, Submissions};
use crate::transport::{KeepAliveConfig, LinkStats, RawLink, SendBatch, TrafficMark};

pub(super) struct LoopbackStream {
    /// `None` once the connection is broken, or taken out.
    end: Option<PipeEnd>,
    connect: PipeConnect,
    /// Gathers the bytes of a send; empty and of small capacity between calls.
    gathered: Vec<u8>,
}

/// The state of the connect.
pub(super) enum PipeConnect {
    Accepted,
    Refused,
    /// The other host has not answered yet.
    #[cfg(any(test, feature = "test-util"))]
    Pending(Arc<ConnectAttempt>),
}

/// The result of reading from the pipe into a destination.
enum PipeRead {
    Bytes(usize),
    Empty,
    End,
    Reset,
    /// The destination's region refuses access.
    Refused,
    /// The destination's memory cannot be accessed.
    Fault(AccessError),
}

impl LoopbackStream {
    pub(super) fn new(end: PipeEnd, connect: PipeConnect) -> Self {
        LoopbackStream {
            end: Some(end),
            connect,
            gathered: Vec::new(),
        }
    }
}

/// Moves up to `size_max` bytes out of the pipe through `copy`, which gets bytes and the number of
/// bytes already moved, and returns how many bytes it took. Registers the waker only if the pipe is
/// empty.
fn read(
    end: &PipeEnd,
    waker: &Waker,
    size_max: usize,
    mut copy: impl FnMut(&[u8], usize) -> Result<usize, AccessError>,
) -> PipeRead {
    let mut done = 0;
    while done < size_max {
        let chunk = match end.incoming.poll_front(waker) {
            Front::Chunk(chunk) => chunk,
            Front::Empty | Front::End if done > 0 => break,
            Front::Empty => return PipeRead::Empty,
            Front::End => return PipeRead::End,
            Front::Reset => return PipeRead::Reset,
        };
        let bytes = chunk.unread();
        let copied = copy(&bytes[..bytes.len().min(size_max - done)], done);
        end.incoming
            .give_back(chunk, *copied.as_ref().unwrap_or(&0));
        match copied {
            // Bytes that were not taken stay in the pipe.
            Err(AccessError::Closed(_)) if done == 0 => return PipeRead::Refused,
            Err(fault) if done == 0 => return PipeRead::Fault(fault),
            Err(_) => break,
            Ok(count) => done += count,
        }
    }
    PipeRead::Bytes(done)
}

/// Copies the front of the batch, at most `room` bytes, to `into`. Stops at a frame whose region
/// refuses access.
fn gather(batch: &SendBatch, room: usize, into: &mut Vec<u8>) -> Result<(), AccessError> {
    debug_assert!(
        into.is_empty() && room <= LOOPBACK_PIPE_SIZE,
        "one pipe at most"
    );
    into.resize(batch.remaining().min(room), 0);
    let (count, refused) = batch.copy_out(0, CopyTo::Slice(into));
    into.truncate(count);
    refused.map_or(Ok(()), Err)
}

impl Stream for LoopbackStream {
    fn poll_connect(&mut self, io: &mut Submissions) -> Poll<Result<SocketAddr>> {
        let accepted = match &self.connect {
            PipeConnect::Accepted => true,
            PipeConnect::Refused => false,
            #[cfg(any(test, feature = "test-util"))]
            PipeConnect::Pending(attempt) => match attempt.poll(&io.waker) {
                Some(accepted) => accepted,
                None => return Poll::Pending,
            },
        };
        Poll::Ready(match accepted {
            true => Ok(io.local),
            false => Err(Error::new(
                ErrorKind::ConnectionRefused,
                "there is no listener",
            )),
        })
    }

    fn poll_send(&mut self, io: &mut Submissions) {
        let (Some(end), Some(batch)) = (&self.end, io.batch()) else {
            return;
        };
        let room = match end.outgoing.poll_room(&io.waker) {
            Ok(0) => return,
            Ok(room) => room.min(io.sizes.send),
            Err(error) => return io.end_send(Err(error)),
        };
        // A frame whose region refuses access ends the send before that frame. If it is the first
        // frame, nothing is moved, and the frame's owner gets the reason from the gate.
        let gathered = gather(batch, room, &mut self.gathered);
        let count = self.gathered.len();
        if count > 0 {
            end.outgoing.write(&mut self.gathered);
        }
        io.end_send(match gathered {
            Err(fault @ AccessError::Fault(_)) if count == 0 => Err(fault.error("sending")),
            _ => Ok(count),
        });
    }

    fn poll_receive(&mut self, io: &mut Submissions) {
        let Some(end) = &self.end else { return };
        let (size_max, waker) = (io.sizes.receive, io.waker.clone());
        let mut stage = None;
        let read = match io.armed_direct() {
            Some(direct) => {
                let (payload, offset) = (&mut direct.payload, direct.offset);
                let size_max = size_max.min(direct.len as usize);
                read(end, &waker, size_max, |bytes, done| {
                    payload.copy_in(offset + done, bytes)?;
                    Ok(bytes.len())
                })
            }
            None => read(end, &waker, size_max.min(STAGE_SIZE), |bytes, _| {
                let stage = stage.get_or_insert_with(Stage::take);
                let room = stage.spare();
                let count = bytes.len().min(room.len());
                room[..count].copy_from_slice(&bytes[..count]);
                stage.fill(count);
                Ok(count)
            }),
        };
        match read {
            PipeRead::Empty => {}
            PipeRead::Bytes(len) => io.end_receive(len, stage),
            PipeRead::End => io.end_stream(),
            PipeRead::Refused => io.end_cancelled(),
            PipeRead::Fault(fault) => io.fail_receive(fault.error("receiving")),
            PipeRead::Reset => {
                io.fail_receive(Error::new(ErrorKind::ConnectionReset, "by its other end"))
            }
        }
    }

    fn poll_watch(&mut self, io: &mut Submissions) {
        let gone = (self.end.as_ref()).and_then(|end| end.incoming.poll_gone(&io.waker));
        if let Some(error) = gone {
            io.end_watch(error);
        }
    }

    fn arm(&mut self, io: &mut Submissions) {
        // The pipe is not read within this call: the next poll reads it, or registers.
        io.notify();
    }

    fn abort(&mut self) {
        if let Some(end) = self.end.take() {
            end.reset();
        }
    }

    fn finish(&mut self, _io: &mut Submissions) {
        if let Some(end) = &self.end {
            end.outgoing.finish();
        }
    }

    fn unread_bytes(&self) -> usize {
        self.end.as_ref().map_or(0, PipeEnd::unread_bytes)
    }

    fn stats(&self) -> Option<LinkStats> {
        None
    }

    /// Nothing can be lost between the ends of a pipe.
    fn set_keep_alive(&mut self, _config: KeepAliveConfig) -> bool {
        self.end.as_ref().is_none_or(PipeEnd::is_kept_alive)
    }

    /// No effect: there is no network between the ends of a pipe.
    fn set_traffic(&mut self, _mark: TrafficMark) -> Result<()> {
        Ok(())
    }

    fn take_raw(&mut self, _io: &Submissions) -> Option<RawLink> {
        self.end.take().map(RawLink::Loopback)
    }
}
