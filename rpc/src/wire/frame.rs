//! Frames: a header of 16 bytes, then the parts that depend on the kind.

use smallvec::SmallVec;
use tokio_fabric::{Access, RemoteRegion};

use super::{Credit, FrameBuf, Item, Metadata, TraceContext, Window};
use crate::limits::{BODY_MAX, FRAME_MAX, HEADER_LEN, LENT_LEN, LENT_MAX, TRACE_LEN};
use crate::status::Status;

/// Regions of memory that a call lends, as the caller described them.
pub type LentRegions = SmallVec<[RemoteRegion; 1]>;

const REQUEST: u8 = 1;
const RESPONSE: u8 = 2;
const CANCEL: u8 = 3;
pub(super) const ITEM: u8 = 4;
pub(super) const CREDIT: u8 = 5;
pub(super) const WINDOW: u8 = 6;
const GOAWAY: u8 = 7;
pub(super) const TAKEN: u8 = 8;

/// The flags of a header. Flags that a kind does not use must be 0.
#[derive(Clone, Copy, Debug)]
pub struct Flags;

impl Flags {
    /// A request has a trace context.
    pub const TRACE: u8 = 1;
    /// Position of the number of lent pieces in the flags of a request, which has three bits.
    pub const LENT_SHIFT: u8 = 1;
    /// The three bits of the number of lent pieces.
    const LENT_BITS: u8 = 0b1110;
    /// A request's body must be read from the client's memory.
    pub const REQUEST_BY_REFERENCE: u8 = 1 << 4;
    /// Items from the client follow a request.
    pub const SENDS: u8 = 1 << 5;
    /// The client takes items before the response.
    pub const RECEIVES: u8 = 1 << 6;
    /// A response to a call that no handler has seen.
    pub const NOT_STARTED: u8 = 1;
    /// A response's body must be read from the server's memory.
    pub const RESPONSE_BY_REFERENCE: u8 = 1 << 1;
    /// An ITEM without an item: the client's stream has ended.
    pub const LAST: u8 = 1;
    /// An ITEM without an item: the server's stream has begun.
    pub const BEGUN: u8 = 1 << 1;
}

/// The id of a call on its connection: a slot, and a count of the slot's uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CallId {
    /// Less than the number of calls that may be open.
    pub slot: u16,
    /// One more than the generation of the slot's last call.
    pub generation: u16,
}

impl CallId {
    pub(super) fn from_number(number: u32) -> CallId {
        CallId {
            slot: number as u16,
            generation: (number >> 16) as u16,
        }
    }

    pub(super) fn number(self) -> u32 {
        u32::from(self.slot) | u32::from(self.generation) << 16
    }
}

/// A peer's input that violates the protocol: its connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation(pub &'static str);

/// A frame that was checked.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A call.
    Request(Request<'a>),
    /// The end of a call.
    Response(Response<'a>),
    /// The caller no longer wants the call.
    Cancel(CallId),
    /// An item of a call's stream.
    Item(CallId, Item<'a>),
    /// More credit for a call's stream.
    Credit(CallId, Credit),
    /// The window that a client has from now on.
    Window(Window),
    /// The server takes no new calls.
    Goaway,
    /// The body of a response has been read.
    Taken(CallId),
}

/// The streams of a call, in addition to its request and its response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streams {
    /// The client sends items.
    pub sends: bool,
    /// The client receives items.
    pub receives: bool,
}

/// A request as it arrived.
#[derive(Debug, PartialEq, Eq)]
pub struct Request<'a> {
    pub call: CallId,
    pub method: u32,
    /// The time that the call has left, in microseconds; 0: no limit.
    pub budget_us: u32,
    /// The trace that the call belongs to.
    pub trace: Option<TraceContext>,
    /// Metadata, checked.
    pub metadata: &'a [u8],
    /// Pieces of lent memory, each for reading or for writing.
    pub lent: LentRegions,
    pub streams: Streams,
    /// The arguments; empty if they are by reference.
    pub body: &'a [u8],
    /// The region from which the arguments must be read.
    pub by_reference: Option<RemoteRegion>,
}

/// A response as it arrived.
#[derive(Debug, PartialEq, Eq)]
pub struct Response<'a> {
    pub call: CallId,
    /// 0, the number of a status, or [`TYPED_ERROR`](super::TYPED_ERROR).
    pub code: u32,
    /// No handler has seen the call.
    pub not_started: bool,
    /// How long the server had the call, in microseconds.
    pub served_us: u32,
    /// The result, or the error; empty if it is by reference.
    pub body: &'a [u8],
    /// The region from which the body must be read.
    pub by_reference: Option<RemoteRegion>,
}

impl<'a> Frame<'a> {
    /// Checks a frame in full.
    ///
    /// # Errors
    /// A [`Violation`], with a text for the log.
    // Inlined, so that a request is built in place.
    #[inline(always)]
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
                let known = Flags::NOT_STARTED | Flags::RESPONSE_BY_REFERENCE;
                expect(flags & !known == 0, "unknown flags of a response")?;
                let not_started = flags & Flags::NOT_STARTED != 0;
                let code = word(8);
                expect(code != 0 || !not_started, "a result of a call not started")?;
                let (by_reference, body) = match flags & Flags::RESPONSE_BY_REFERENCE {
                    0 => (None, rest),
                    _ => (Some(decode_reference(rest)?), &[][..]),
                };
                Ok(Frame::Response(Response {
                    call,
                    code,
                    not_started,
                    served_us: word(12),
                    body,
                    by_reference,
                }))
            }
            CANCEL | TAKEN => {
                let is_bare = flags == 0 && word(8) == 0 && word(12) == 0 && rest.is_empty();
                expect(is_bare, "a frame with more than a call")?;
                Ok(match kind {
                    CANCEL => Frame::Cancel(call),
                    _ => Frame::Taken(call),
                })
            }
            ITEM => {
                expect(word(8) == 0 && word(12) == 0, "numbers of an item")?;
                Ok(Frame::Item(call, Item::decode(flags, rest)?))
            }
            CREDIT => {
                expect(flags == 0 && rest.is_empty(), "a credit with more")?;
                let credit = Credit {
                    items: word(8),
                    bytes: word(12),
                };
                Ok(Frame::Credit(call, credit))
            }
            WINDOW => {
                let is_bare = flags == 0 && word(4) == 0 && rest.is_empty();
                expect(is_bare, "a window with more")?;
                let (calls, bytes) = (word(8), word(12));
                Ok(Frame::Window(Window { calls, bytes }))
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

#[inline(always)]
fn decode_request(
    flags: u8,
    meta_len: usize,
    call: CallId,
    [method, budget_us]: [u32; 2],
    rest: &[u8],
) -> Result<Frame<'_>, Violation> {
    let cut_off = Violation("a request that is cut off");
    let has_trace = flags & Flags::TRACE != 0;
    let lent_count = usize::from((flags & Flags::LENT_BITS) >> Flags::LENT_SHIFT);
    if lent_count > LENT_MAX || flags & 0x80 != 0 {
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
    let (by_reference, body) = match flags & Flags::REQUEST_BY_REFERENCE {
        0 => (None, body),
        _ => (Some(decode_reference(body)?), &[][..]),
    };
    Ok(Frame::Request(Request {
        call,
        method,
        budget_us,
        trace,
        metadata,
        lent,
        streams: Streams {
            sends: flags & Flags::SENDS != 0,
            receives: flags & Flags::RECEIVES != 0,
        },
        body,
        by_reference,
    }))
}

/// Decodes the region of a body. The receiver will allocate its length.
fn decode_reference(bytes: &[u8]) -> Result<RemoteRegion, Violation> {
    let wrong = Violation("a body by reference is one region to be read");
    if bytes.len() != LENT_LEN {
        return Err(wrong);
    }
    let region = RemoteRegion::from_bytes(bytes).map_err(|_| wrong)?;
    if region.access != Access::REMOTE_READ {
        return Err(wrong);
    }
    if region.len > BODY_MAX as u64 {
        return Err(Violation("a body by reference that is too large"));
    }
    Ok(region)
}

/// Creates a frame with an empty header, to which the body is appended.
pub fn empty_frame() -> FrameBuf {
    FrameBuf::from_slice(&[0; HEADER_LEN])
}

/// Creates a frame with an empty header and this body.
#[inline]
pub fn frame_of(body: &[u8]) -> FrameBuf {
    let mut frame = FrameBuf::with_capacity(HEADER_LEN + body.len());
    frame.extend_from_slice(&[0; HEADER_LEN]);
    frame.extend_from_slice(body);
    frame
}

/// Creates a frame whose body must be read from this region.
pub fn reference_frame(region: &RemoteRegion) -> FrameBuf {
    let mut frame = empty_frame();
    let to_read = RemoteRegion {
        access: Access::REMOTE_READ,
        ..*region
    };
    frame.extend_from_slice(&to_read.to_bytes());
    frame
}

/// The parts of a request in addition to its body.
#[derive(Clone, Copy, Debug)]
pub struct Prefix<'a> {
    /// The trace that the call belongs to.
    pub trace: Option<&'a TraceContext>,
    pub metadata: &'a Metadata,
    /// The memory that the call lends.
    pub lent: &'a [RemoteRegion],
    pub streams: Streams,
    /// Whether the body was made by [`reference_frame`].
    pub is_by_reference: bool,
}

impl Prefix<'_> {
    /// Returns the length of the prefix in the frame, in bytes.
    pub fn len(&self) -> usize {
        let trace = if self.trace.is_some() { TRACE_LEN } else { 0 };
        trace + self.metadata.encoded().len() + self.lent.len() * LENT_LEN
    }

    /// Returns whether the frame needs neither a prefix nor flags for it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && !self.is_by_reference && self.streams == Streams::default()
    }
}

/// Inserts the prefix between the header and the body of a request, and sets the header's flags for
/// it.
pub fn insert_prefix(frame: &mut FrameBuf, of: &Prefix<'_>) {
    let Prefix {
        trace,
        metadata,
        lent,
        streams,
        is_by_reference,
    } = *of;
    debug_assert!(lent.len() <= LENT_MAX);
    let mut prefix: SmallVec<[u8; 128]> = SmallVec::new();
    if let Some(trace) = trace {
        prefix.extend_from_slice(&trace.to_bytes());
    }
    prefix.extend_from_slice(metadata.encoded());
    for region in lent {
        prefix.extend_from_slice(&region.to_bytes());
    }
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    frame[1] = flag(trace.is_some(), Flags::TRACE)
        | (lent.len() as u8) << Flags::LENT_SHIFT
        | flag(is_by_reference, Flags::REQUEST_BY_REFERENCE)
        | flag(streams.sends, Flags::SENDS)
        | flag(streams.receives, Flags::RECEIVES);
    // The length of metadata is limited when entries are added.
    frame[2..4].copy_from_slice(&(metadata.encoded().len() as u16).to_le_bytes());
    frame.insert_from_slice(HEADER_LEN, &prefix);
}

/// The fields of a header that describe a call.
#[derive(Clone, Copy, Debug)]
pub struct FrameHead {
    pub call: CallId,
    /// The method of a request, or the code of a response.
    pub method_or_code: u32,
    /// The budget of a request, or the time at the server of a response, in microseconds.
    pub time_us: u32,
}

#[inline]
fn write_head(frame: &mut [u8], kind: u8, head: FrameHead) {
    frame[0] = kind;
    frame[4..8].copy_from_slice(&head.call.number().to_le_bytes());
    frame[8..12].copy_from_slice(&head.method_or_code.to_le_bytes());
    frame[12..16].copy_from_slice(&head.time_us.to_le_bytes());
}

/// Writes the header of a request; keeps the fields that [`insert_prefix`] wrote.
#[inline]
pub fn write_request_head(frame: &mut FrameBuf, head: FrameHead) {
    write_head(frame, REQUEST, head);
}

#[inline]
pub fn response_head(head: FrameHead, not_started: bool) -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    write_head(&mut bytes, RESPONSE, head);
    bytes[1] = if not_started { Flags::NOT_STARTED } else { 0 };
    bytes
}

/// Writes the header of a response whose body [`reference_frame`] has made.
pub fn write_reference_head(frame: &mut FrameBuf, head: FrameHead) {
    write_head(frame, RESPONSE, head);
    frame[1] = Flags::RESPONSE_BY_REFERENCE;
}

/// Creates the body of a response with this status.
pub fn encode_status(status: &Status) -> FrameBuf {
    let mut frame = empty_frame();
    status.encode(|piece| frame.extend_from_slice(piece));
    frame
}

pub fn encode_cancel(call: CallId) -> [u8; HEADER_LEN] {
    bare_frame(CANCEL, call)
}

pub fn encode_taken(call: CallId) -> [u8; HEADER_LEN] {
    bare_frame(TAKEN, call)
}

pub(super) fn bare_frame(kind: u8, call: CallId) -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    bytes[0] = kind;
    bytes[4..8].copy_from_slice(&call.number().to_le_bytes());
    bytes
}

pub fn encode_goaway() -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    bytes[0] = GOAWAY;
    bytes
}

/// Returns the number of a method on the wire: FNV-1a of 32 bits over `Service/method#version`.
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
