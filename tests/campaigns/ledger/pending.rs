//! Operations whose end is awaited, of all types, in one list.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use tokio_fabric::{
    ErrorKind,
    error::Phase,
    mr::RegionSlice,
    op::{Op, OperationId, QueuedOp, Received},
};

/// A posted operation that reports to its future, or the acceptance of one that reports to a queue.
pub enum Pending {
    /// A send or a write.
    Out(Op<Vec<Bytes>>),
    Receive(Op<Vec<BytesMut>, Received>),
    Read(Op<Vec<BytesMut>>),
    ReadSlice(Op<Vec<RegionSlice>>),
    OutAccepted(QueuedOp<Vec<Bytes>>),
    InAccepted(QueuedOp<Vec<BytesMut>>),
}

/// What a ready [`Pending`] gives.
pub enum PendingOutcome {
    Out(Result<usize, ErrorKind>),
    Receive(Result<usize, ErrorKind>, Option<u64>, Vec<u8>),
    Read(Result<Vec<u8>, ErrorKind>),
    /// The queue has the operation now, or never will.
    Accepted(Result<(), ErrorKind>),
}

pub fn joined<B: AsRef<[u8]>>(buffers: &[B]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for buffer in buffers {
        bytes.extend_from_slice(buffer.as_ref());
    }
    bytes
}

impl Pending {
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<PendingOutcome> {
        match self {
            Pending::Out(op) => Pin::new(op).poll(cx).map(|result| {
                PendingOutcome::Out(result.map(|(len, _)| len).map_err(|failed| failed.kind()))
            }),
            Pending::Receive(op) => Pin::new(op).poll(cx).map(|result| match result {
                Ok((got, buffers)) => {
                    let mut bytes = joined(&buffers);
                    bytes.truncate(got.len);
                    PendingOutcome::Receive(Ok(got.len), got.data, bytes)
                }
                Err(failed) => {
                    let (error, buffers) = failed.into_parts();
                    // A message that was too long has filled all of them.
                    PendingOutcome::Receive(
                        Err(error.kind()),
                        None,
                        joined(&buffers.unwrap_or_default()),
                    )
                }
            }),
            Pending::Read(op) => Pin::new(op).poll(cx).map(|result| {
                PendingOutcome::Read(
                    result
                        .map(|(_, buffers)| joined(&buffers))
                        .map_err(|failed| failed.kind()),
                )
            }),
            Pending::ReadSlice(op) => Pin::new(op).poll(cx).map(|result| {
                let bytes = |slice: &RegionSlice| slice.to_vec().expect("an open region");
                PendingOutcome::Read(match result {
                    Ok((_, slices)) => Ok(joined(&slices.iter().map(bytes).collect::<Vec<_>>())),
                    Err(failed) => Err(failed.kind()),
                })
            }),
            Pending::OutAccepted(op) => Pin::new(op).poll(cx).map(|result| {
                PendingOutcome::Accepted(result.map(drop).map_err(|failed| failed.kind()))
            }),
            Pending::InAccepted(op) => Pin::new(op).poll(cx).map(|result| {
                PendingOutcome::Accepted(result.map(drop).map_err(|failed| failed.kind()))
            }),
        }
    }

    /// How far the operation has come.
    pub fn phase(&self) -> Phase {
        let accepted = |accepted| {
            if accepted {
                Phase::Queued
            } else {
                Phase::Waiting
            }
        };
        match self {
            Pending::Out(op) => op.phase(),
            Pending::Receive(op) => op.phase(),
            Pending::Read(op) => op.phase(),
            Pending::ReadSlice(op) => op.phase(),
            Pending::OutAccepted(op) => accepted(op.is_accepted()),
            Pending::InAccepted(op) => accepted(op.is_accepted()),
        }
    }

    pub fn is_queued(&self) -> bool {
        matches!(self, Pending::OutAccepted(_) | Pending::InAccepted(_))
    }

    pub fn is_receive(&self) -> bool {
        matches!(self, Pending::Receive(_))
    }

    pub fn id(&self) -> OperationId {
        match self {
            Pending::Out(op) => op.id(),
            Pending::Receive(op) => op.id(),
            Pending::Read(op) => op.id(),
            Pending::ReadSlice(op) => op.id(),
            Pending::OutAccepted(op) => op.id(),
            Pending::InAccepted(op) => op.id(),
        }
    }
}
