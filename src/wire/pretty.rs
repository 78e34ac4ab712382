//! Formats a frame as one line, for traces. No line shows a key or private data.

use std::fmt;

use super::cm::{ControlFrame, ControlKind};
use super::frame::FrameHeader;
use super::header::Op;
use super::segments::RemoteSegment;

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Op::Msg => "message",
            Op::Ack => "ack",
            Op::Tagged => "tagged",
            Op::ReadRequest => "read-request",
            Op::ReadResponse => "read-response",
            Op::Write => "write",
            Op::TaggedRts => "tagged-announcement",
            Op::Cts => "clear-to-send",
            Op::Data => "rendezvous-data",
            Op::Hello => "hello",
            Op::Proof => "proof",
            Op::Ping => "ping",
            Op::Pong => "pong",
            Op::Credit => "credit",
            Op::Stalled => "stalled",
            Op::Refused => "refused",
            Op::ReadData => "read-data",
            Op::ReadEnd => "read-end",
            Op::Close => "close",
            Op::Acks => "acks",
            Op::Rts => "announcement",
            Op::Withdraw => "withdrawal",
            Op::Withdrawn => "withdrawn",
            Op::Atomic => "atomic",
            Op::FetchAtomic => "fetch-atomic",
            Op::CompareAtomic => "compare-atomic",
        })
    }
}

impl fmt::Display for RemoteSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}+{}", self.addr, self.len)
    }
}

impl fmt::Display for FrameHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.op())?;
        match self {
            FrameHeader::Message { len, .. }
            | FrameHeader::Tagged { len, .. }
            | FrameHeader::ReadResponse { len }
            | FrameHeader::Hello { len }
            | FrameHeader::ReadData { len } => write!(f, " {len} B")?,
            FrameHeader::Rts { index, len, .. } | FrameHeader::Data { index, len, .. } => {
                write!(f, " #{index} {len} B")?;
            }
            FrameHeader::Cts { index }
            | FrameHeader::Withdraw { index }
            | FrameHeader::Withdrawn { index } => write!(f, " #{index}")?,
            FrameHeader::Credit { posted } => write!(f, " for {posted} receives")?,
            FrameHeader::Acks { count } => write!(f, " of {count} frames")?,
            FrameHeader::Stalled { sent } => write!(f, " after {sent} messages")?,
            FrameHeader::Refused { reason }
            | FrameHeader::ReadEnd {
                refused: Some(reason),
            } => write!(f, ", {reason}")?,
            FrameHeader::Ack
            | FrameHeader::Close { .. }
            | FrameHeader::Ping { .. }
            | FrameHeader::Pong { .. }
            | FrameHeader::ReadEnd { refused: None } => {}
            FrameHeader::ReadRequest { segments }
            | FrameHeader::Write { segments, .. }
            | FrameHeader::Atomic { segments, .. } => {
                write!(f, " {} B at", segments.total())?;
                for segment in segments.as_slice() {
                    write!(f, " {segment}")?;
                }
            }
        }
        if let Some(tag) = self.tag() {
            write!(f, ", tag {tag:#x}")?;
        }
        if let Some(data) = self.data() {
            write!(f, ", cq data {data:#x}")?;
        }
        if let FrameHeader::Write { commit: true, .. } = self {
            f.write_str(", commit")?;
        }
        if self.wants_ack() {
            f.write_str(", ack wanted")?;
        }
        Ok(())
    }
}

impl fmt::Display for ControlKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ControlKind::Request => "connect request",
            ControlKind::Response => "connect response",
            ControlKind::Reject => "connect reject",
        })
    }
}

impl fmt::Display for ControlFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} B of data", self.kind(), self.data().len())
    }
}
