//! Frames: a header of 16 bytes, and what follows it.

use smallvec::SmallVec;
use tokio_fabric::{Access, RemoteRegion};

use super::Metadata;
use crate::cx::TraceContext;
use crate::limits::{FRAME_MAX, HEADER_LEN, LENT_LEN, LENT_MAX, TRACE_LEN};
use crate::status::Status;

/// A frame that is built: small ones, which the library copies as it sends, need no allocation.
pub type FrameBuf = SmallVec<[u8; tokio_fabric::limits::INJECT_SIZE_MAX]>;

/// The memory that a call lends, as the caller named it.
pub type LentRegions = SmallVec<[RemoteRegion; 1]>;

const REQUEST: u8 = 1;
const RESPONSE: u8 = 2;
const CANCEL: u8 = 3;
const GOAWAY: u8 = 7;

/// The flags of a header; those that a kind does not have must be 0.
#[derive(Clone, Copy, Debug)]
pub struct Flags;

impl Flags {
    /// A request has a trace context.
    pub const TRACE: u8 = 1;
    /// The pieces of lent memory of a request, in three bits from this on.
    pub const LENT_SHIFT: u8 = 1;
    /// A response: no handler has seen the call.
    pub const NOT_STARTED: u8 = 1;
}

/// What a call is named by on its connection: a slot, and how often that was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId {
    /// Below the number of calls that may be open.
    pub slot: u16,
    /// One more than that of the slot's last call.
    pub generation: u16,
}

impl CallId {
    fn from_number(number: u32) -> CallId {
        CallId {
            slot: number as u16,
            generation: (number >> 16) as u16,
        }
    }

    fn number(self) -> u32 {
        u32::from(self.slot) | u32::from(self.generation) << 16
    }
}

/// What a peer must not send: its connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation(pub &'static str);

/// A frame that was checked.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A call.
    Request(Request<'a>),
    /// Its end.
    Response(Response<'a>),
    /// The caller wants the end sooner.
    Cancel(CallId),
    /// No new calls.
    Goaway,
}

/// A call as it came.
#[derive(Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Its name.
    pub call: CallId,
    /// What is called.
    pub method: u32,
    /// What is left of its time, in microseconds; 0: no end.
    pub budget_us: u32,
    /// Of which trace it is.
    pub trace: Option<TraceContext>,
    /// Metadata, well formed.
    pub metadata: &'a [u8],
    /// Lent memory, each to be read or to be written.
    pub lent: LentRegions,
    /// The arguments.
    pub body: &'a [u8],
}

/// The end of a call as it came.
#[derive(Debug, PartialEq, Eq)]
pub struct Response<'a> {
    /// Its name.
    pub call: CallId,
    /// 0, the number of a status, or [`TYPED_ERROR`](super::TYPED_ERROR).
    pub code: u32,
    /// No handler has seen the call.
    pub not_started: bool,
    /// How long the server had it, in microseconds.
    pub served_us: u32,
    /// The result, or the error.
    pub body: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Checks a frame in full.
    ///
    /// # Errors
    /// A [`Violation`], in words for the log.
    pub fn decode(bytes: &'a [u8]) -> Result<Frame<'a>, Violation> {
        if bytes.len() > FRAME_MAX {
            return Err(Violation("a frame that is too long"));
        }
        let Some((head, rest)) = bytes.split_first_chunk::<HEADER_LEN>() else {
            return Err(Violation("a frame without a header"));
        };
        let [kind, flags, meta_low, meta_high, ..] = *head;
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let meta_len = u16::from_le_bytes([meta_low, meta_high]);
        let call = CallId::from_number(word(4));
        let expect = |holds: bool, what| if holds { Ok(()) } else { Err(Violation(what)) };
        if kind != REQUEST {
            expect(meta_len == 0, "metadata where there is none")?;
        }
        match kind {
            REQUEST => decode_request(flags, meta_len.into(), call, [word(8), word(12)], rest),
            RESPONSE => {
                expect(
                    flags & !Flags::NOT_STARTED == 0,
                    "unknown flags of a response",
                )?;
                let not_started = flags & Flags::NOT_STARTED != 0;
                let code = word(8);
                expect(code != 0 || !not_started, "a result of a call not started")?;
                Ok(Frame::Response(Response {
                    call,
                    code,
                    not_started,
                    served_us: word(12),
                    body: rest,
                }))
            }
            CANCEL => {
                let is_bare = flags == 0 && word(8) == 0 && word(12) == 0 && rest.is_empty();
                expect(is_bare, "a cancellation with more than a call")?;
                Ok(Frame::Cancel(call))
            }
            GOAWAY => {
                let is_bare = flags == 0 && head[4..].iter().all(|it| *it == 0);
                expect(
                    is_bare && rest.is_empty(),
                    "a farewell with more than itself",
                )?;
                Ok(Frame::Goaway)
            }
            _ => Err(Violation("a frame of an unknown kind")),
        }
    }
}

fn decode_request(
    flags: u8,
    meta_len: usize,
    call: CallId,
    [method, budget_us]: [u32; 2],
    rest: &[u8],
) -> Result<Frame<'_>, Violation> {
    let cut_off = Violation("a request that is cut off");
    let has_trace = flags & Flags::TRACE != 0;
    let lent_count = usize::from(flags >> Flags::LENT_SHIFT);
    if lent_count > LENT_MAX {
        return Err(Violation(
            "unknown flags of a request, or too much lent memory",
        ));
    }
    let (trace, rest) = match has_trace {
        false => (None, rest),
        true => {
            let (trace, rest) = rest.split_first_chunk::<TRACE_LEN>().ok_or(cut_off)?;
            (Some(TraceContext::from_bytes(trace)), rest)
        }
    };
    let (metadata, rest) = rest.split_at_checked(meta_len).ok_or(cut_off)?;
    Metadata::check(metadata)?;
    let (named, body) = rest
        .split_at_checked(lent_count * LENT_LEN)
        .ok_or(cut_off)?;
    let mut lent = LentRegions::new();
    for bytes in named.chunks_exact(LENT_LEN) {
        let region = RemoteRegion::from_bytes(bytes).map_err(|_| cut_off)?;
        if ![Access::REMOTE_READ, Access::REMOTE_WRITE].contains(&region.access) {
            return Err(Violation(
                "lent memory is either to be read or to be written",
            ));
        }
        lent.push(region);
    }
    Ok(Frame::Request(Request {
        call,
        method,
        budget_us,
        trace,
        metadata,
        lent,
        body,
    }))
}

/// A frame of nothing but a header to be written; the body is pushed behind it.
pub fn empty_frame() -> FrameBuf {
    FrameBuf::from_slice(&[0; HEADER_LEN])
}

/// Puts what goes before a request's body between header and body.
pub fn insert_prefix(
    frame: &mut FrameBuf,
    trace: Option<&TraceContext>,
    metadata: &Metadata,
    lent: &[RemoteRegion],
) {
    debug_assert!(lent.len() <= LENT_MAX);
    let mut prefix: SmallVec<[u8; 128]> = SmallVec::new();
    if let Some(trace) = trace {
        prefix.extend_from_slice(&trace.to_bytes());
    }
    prefix.extend_from_slice(metadata.encoded());
    for region in lent {
        prefix.extend_from_slice(&region.to_bytes());
    }
    frame[1] = u8::from(trace.is_some()) | (lent.len() as u8) << Flags::LENT_SHIFT;
    // A metadata's length is bounded as entries are added.
    frame[2..4].copy_from_slice(&(metadata.encoded().len() as u16).to_le_bytes());
    frame.insert_from_slice(HEADER_LEN, &prefix);
}

/// What a header says of a call.
#[derive(Clone, Copy, Debug)]
pub struct FrameHead {
    /// The call.
    pub call: CallId,
    /// The method of a request, the code of a response.
    pub method_or_code: u32,
    /// The budget of a request, the time at the server of a response, in microseconds.
    pub time_us: u32,
}

fn write_head(frame: &mut FrameBuf, kind: u8, head: FrameHead) {
    frame[0] = kind;
    frame[4..8].copy_from_slice(&head.call.number().to_le_bytes());
    frame[8..12].copy_from_slice(&head.method_or_code.to_le_bytes());
    frame[12..16].copy_from_slice(&head.time_us.to_le_bytes());
}

/// Makes it a request; what [`insert_prefix`] wrote stays.
pub fn write_request_head(frame: &mut FrameBuf, head: FrameHead) {
    write_head(frame, REQUEST, head);
}

/// Makes it a response.
pub fn write_response_head(frame: &mut FrameBuf, head: FrameHead, not_started: bool) {
    write_head(frame, RESPONSE, head);
    frame[1] = if not_started { Flags::NOT_STARTED } else { 0 };
}

/// The body of a response that is this status.
pub fn encode_status(status: &Status) -> FrameBuf {
    let mut frame = empty_frame();
    status.encode(|piece| frame.extend_from_slice(piece));
    frame
}

/// CANCEL.
pub fn encode_cancel(call: CallId) -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    bytes[0] = CANCEL;
    bytes[4..8].copy_from_slice(&call.number().to_le_bytes());
    bytes
}

/// GOAWAY.
pub fn encode_goaway() -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    bytes[0] = GOAWAY;
    bytes
}

/// The number of a method on the wire: FNV-1a of 32 bits over `Service/method#version`.
pub const fn method_id(name: &str) -> u32 {
    let bytes = name.as_bytes();
    let mut hash = 0x811c_9dc5_u32;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    hash
}
