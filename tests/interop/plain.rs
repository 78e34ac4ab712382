//! libfabric's protocol as a C peer knows it, to hold captured bytes against. Shares no code with
//! the library, and knows nothing of its extension but where the offer stands.

use std::ops::Range;

/// Words of a control frame that only this library reads: seg_no, conn_id, msg_id.
const IGNORED: Range<usize> = 4..24;
/// The one of them that may say something.
const CONN_ID: Range<usize> = 8..16;

const MESSAGE: u8 = 0;
const TAGGED: u8 = 1;
const READ: u8 = 2;
const ANSWER: u8 = 3;
const WRITE: u8 = 4;
const ACK: u8 = 2;

const CQ_DATA: u16 = 1;
const ACK_WANTED: u16 = 4;
const COMMIT: u16 = 8;

/// Whose bytes they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    /// libfabric's, which leaves some fields unset.
    C,
    /// Ours: every field is as it has to be.
    Ours,
}

/// Which endpoints the stream is of.
#[allow(dead_code, reason = "not every test target has both")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoints {
    Connected,
    /// They have tagged messages, and their own private data.
    Connectionless,
}

/// What was found in a stream that keeps to the protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamContents {
    /// The control frame's word for capabilities.
    pub conn_id: [u8; 8],
    /// The control frame's private data.
    pub private: Vec<u8>,
    /// Data frames by operation.
    pub frames: [usize; 5],
}

impl StreamContents {
    /// All data frames.
    pub fn frame_count(&self) -> usize {
        self.frames.iter().sum()
    }
}

/// Reads a whole stream: one control frame, then data frames, and not a byte that is neither.
pub fn read(stream: &[u8], endpoints: Endpoints, author: Author) -> Result<StreamContents, String> {
    let (control, rest) = stream
        .split_at_checked(32)
        .ok_or_else(|| format!("{} bytes are no control frame", stream.len()))?;
    let wrong = |what: &str| Err(format!("{what} in the control frame {control:?}"));
    let is_reject = control[1] == 6;
    if control[0] != 3 || ![0, 1, 6].contains(&control[1]) {
        return wrong("version or type");
    }
    let unused = |at: &usize| author == Author::C || !CONN_ID.contains(at);
    if IGNORED.filter(unused).any(|at| control[at] != 0) {
        return wrong("an ignored word that is not zero");
    }
    if control[24..] != u64::to_ne_bytes(u64::from(!is_reject)) {
        return wrong("the probe");
    }
    let data_len = usize::from(u16::from_be_bytes([control[2], control[3]]));
    if data_len > 256 {
        return wrong("private data's length");
    }
    let (private, mut rest) = rest
        .split_at_checked(data_len)
        .ok_or("private data is cut off")?;
    let mut found = StreamContents {
        conn_id: control[CONN_ID].try_into().expect("eight bytes"),
        private: private.to_vec(),
        ..StreamContents::default()
    };
    if is_reject && !rest.is_empty() {
        return Err("bytes behind a rejection".into());
    }
    while !rest.is_empty() {
        let op = frame(&mut rest, endpoints, author, found.frame_count())?;
        found.frames[usize::from(op)] += 1;
    }
    Ok(found)
}

/// Takes one data frame off the stream. Gives its operation.
fn frame(
    rest: &mut &[u8],
    endpoints: Endpoints,
    author: Author,
    number: usize,
) -> Result<u8, String> {
    let base = rest
        .get(..16)
        .ok_or_else(|| format!("{} bytes behind frame {number}", rest.len()))?;
    let wrong = |what: &str| Err(format!("{what} in frame {number}: {base:?}"));
    let (op, op_data, count) = (base[1], base[4], usize::from(base[5]));
    let flags = u16::from_ne_bytes([base[2], base[3]]);
    if base[0] != 3 {
        return wrong("another version");
    }
    let is_known = match op {
        MESSAGE | READ | ANSWER | WRITE => true,
        TAGGED => endpoints == Endpoints::Connectionless,
        _ => false,
    };
    if !is_known {
        return wrong("an operation that these endpoints do not have");
    }
    if flags & !(CQ_DATA | ACK_WANTED | COMMIT) != 0 {
        return wrong("unknown flags");
    }
    let is_ack = op == MESSAGE && op_data == ACK;
    if op_data != 0 && !is_ack {
        return wrong("op_data");
    }
    let segments = match op {
        READ | WRITE => count,
        _ => 0,
    };
    if matches!(op, READ | WRITE) && !(1..=4).contains(&count) {
        return wrong("the count of segments");
    }
    // C leaves the counter unset, and copies flags and count of a request into its answer.
    if author == Author::Ours && (usize::from(base[7]) != number % 256 || count != segments) {
        return wrong("the frame's number or count");
    }
    let has_data = flags & CQ_DATA != 0 && op != ANSWER;
    let words = usize::from(has_data) + usize::from(op == TAGGED);
    let header_len = 16 + 8 * words + 24 * segments;
    if usize::from(base[6]) != header_len {
        return wrong("hdr_size");
    }
    let frame_len = u64::from_ne_bytes(base[8..].try_into().expect("eight bytes"));
    let frame_len = usize::try_from(frame_len).map_err(|error| error.to_string())?;
    let payload_len = frame_len.checked_sub(header_len);
    if payload_len.is_none() || (is_ack || op == READ) && payload_len != Some(0) {
        return wrong("size");
    }
    *rest = rest
        .get(frame_len..)
        .ok_or_else(|| format!("frame {number} is cut off: {base:?}"))?;
    Ok(op)
}
