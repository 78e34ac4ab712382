//! A peer's reads and writes of our regions, and the answers to our reads.

use crate::buf::Payload;
use crate::error::{Error, ErrorKind, Phase, Refusal};
use crate::mr::{Access, AccessRequest, Tag};
use crate::proto::Host;
use crate::proto::conn::refusal::AwaitedRead;
use crate::proto::conn::rx::{Landing, Rx, Target};
use crate::proto::conn::{Connection, violation};
use crate::wire::{FrameHeader, RemoteSegment, Segments};

impl<T> Connection<T> {
    /// A peer writes into our regions.
    pub(super) fn begin_write(
        &mut self,
        data: Option<u64>,
        ack: bool,
        commit: bool,
        segments: Segments,
        host: &mut impl Host<T>,
    ) -> Result<(), Error> {
        let answered = ack || commit;
        if self.has_refusals() && !answered {
            return Err(violation("a write that wants no answer"));
        }
        let len = segments.total();
        match resolve_all(&segments, Access::REMOTE_WRITE, commit, host) {
            Ok(_) if data.is_some() && !host.reserve_unasked() => {
                let header = FrameHeader::Write {
                    data,
                    ack,
                    commit,
                    segments,
                };
                self.rx.go(Rx::AwaitRoom { header });
            }
            Ok(memory) => {
                self.rx.go(Rx::Payload(Landing {
                    target: Target::Region { data, commit },
                    payload: Some(memory),
                    capacity: len,
                    len,
                    done: 0,
                    // Of a commit it says more than that the bytes are here, later.
                    ack: answered && !commit,
                }));
            }
            Err(reason) if self.has_refusals() => self.refuse_write(reason, len),
            Err(reason) => return Err(denied(reason)),
        }
        Ok(())
    }

    /// A peer reads of our regions.
    pub(super) fn begin_read(
        &mut self,
        segments: &Segments,
        host: &mut impl Host<T>,
    ) -> Result<(), Error> {
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

    /// The answer to our oldest read comes in one frame, as of a peer without refusals.
    pub(super) fn begin_read_response(&mut self, len: u64) -> Result<(), Error> {
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
        self.rx.go(Rx::Payload(Landing {
            target: Target::Read { op },
            capacity: if payload.is_some() { len } else { 0 },
            payload: Some(payload.unwrap_or_else(Payload::empty)),
            len,
            done: 0,
            ack: false,
        }));
        Ok(())
    }
}

/// The memory that the segments of a peer's access mean, in order.
pub(in crate::proto::conn) fn resolve_all<T>(
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
        memory.push_region(host.resolve(&AccessRequest {
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
pub(super) fn taken_away(reason: Refusal) -> Error {
    let what = format!("while the peer wrote to it, {reason}");
    Error::new(kind_of(reason), what)
}

fn kind_of(reason: Refusal) -> ErrorKind {
    match reason {
        Refusal::Fault => ErrorKind::BadAddress,
        _ => ErrorKind::AccessDenied,
    }
}
