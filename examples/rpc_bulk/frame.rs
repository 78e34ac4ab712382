//! What the two sides say to each other: one frame of fixed size for every request and every
//! answer.
//!
//! ```text
//!  0      4       5      6        8    16      24            56
//!  | RPCB | version | kind | 0, 0 | id | value | body (32)    |
//! ```
//!
//! Numbers are least significant byte first. `body` holds a `RemoteRegion` or a digest. A frame is
//! checked in full before anything in it is believed.

use std::fmt;

use tokio_fabric::{Endpoint, Error, op::Messages};

/// Bytes of a frame; below the 128 that are injected, so that posting one never waits.
pub const FRAME_LEN: usize = 56;
const MAGIC: [u8; 4] = *b"RPCB";
const VERSION: u8 = 1;
/// Receives kept posted: more than a client has calls in flight, so that frames are seldom
/// unexpected.
const RECEIVES: usize = 16;

/// What a frame asks or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Nothing to do: answer.
    Ping = 1,
    /// `body` is a region of the client's: read all of it, then answer. Regions follow each other
    /// in the order of these requests.
    Pull = 2,
    /// Answer with a region (`body`) that the client may write into.
    Offer = 3,
    /// The first `value` bytes of the offered region `body` are written. The answer gives the
    /// region back to the client.
    Landed = 4,
    /// All `value` bytes are there, their digest is `body`. The answer's `body` is the server's.
    Finish = 5,
    /// The answer to a request that was carried out.
    Done = 0x80,
    /// The answer to one that was not; `value` says why.
    Refused = 0x81,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Refusal {
    /// Not a frame of this protocol.
    BadFrame = 1,
    /// An answer where a request should be.
    NotARequest = 2,
    /// A region of no bytes, of too many, or one that was not offered.
    BadRegion = 3,
    /// More regions are under way than the server has room for.
    TooMany = 4,
    /// Finished while regions are under way.
    NotAllThere = 5,
}

impl Refusal {
    /// What the number in an answer means; `None` for one of a later version.
    pub fn from_value(value: u64) -> Option<Refusal> {
        use Refusal::{BadFrame, BadRegion, NotARequest, NotAllThere, TooMany};
        let all = [BadFrame, NotARequest, BadRegion, TooMany, NotAllThere];
        all.into_iter().find(|refusal| *refusal as u64 == value)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::BadFrame => "not a request of this protocol",
            Refusal::NotARequest => "an answer instead of a request",
            Refusal::BadRegion => "a region that cannot be used",
            Refusal::TooMany => "too many regions at once",
            Refusal::NotAllThere => "finished while regions are under way",
        })
    }
}

/// A request or an answer.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    pub kind: Kind,
    /// Chosen by the client, repeated in the answer.
    pub id: u64,
    pub value: u64,
    pub body: [u8; 32],
}

/// A message that is not a frame.
#[derive(Clone, Copy, Debug)]
pub struct BadFrame;

impl Frame {
    pub fn new(kind: Kind, id: u64) -> Frame {
        Frame {
            kind,
            id,
            value: 0,
            body: [0; 32],
        }
    }

    pub fn refused(id: u64, why: Refusal) -> Frame {
        Frame {
            value: why as u64,
            ..Frame::new(Kind::Refused, id)
        }
    }

    pub fn encode(&self) -> [u8; FRAME_LEN] {
        let mut bytes = [0; FRAME_LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = self.kind as u8;
        bytes[8..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.value.to_le_bytes());
        bytes[24..].copy_from_slice(&self.body);
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Frame, BadFrame> {
        let bytes: &[u8; FRAME_LEN] = bytes.try_into().map_err(|_| BadFrame)?;
        if bytes[..4] != MAGIC || bytes[4] != VERSION || bytes[6..8] != [0, 0] {
            return Err(BadFrame);
        }
        let kind = match bytes[5] {
            1 => Kind::Ping,
            2 => Kind::Pull,
            3 => Kind::Offer,
            4 => Kind::Landed,
            5 => Kind::Finish,
            0x80 => Kind::Done,
            0x81 => Kind::Refused,
            _ => return Err(BadFrame),
        };
        let number = |at: usize| {
            let mut raw = [0; 8];
            raw.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(raw)
        };
        let mut body = [0; 32];
        body.copy_from_slice(&bytes[24..]);
        Ok(Frame {
            kind,
            id: number(8),
            value: number(16),
            body,
        })
    }
}

/// The frames that come in at an endpoint, in order.
pub struct Inbox(Messages);

impl Inbox {
    pub fn open(endpoint: &Endpoint) -> Inbox {
        Inbox(endpoint.messages(FRAME_LEN, RECEIVES))
    }

    /// The next message; `None` when the connection has ended in order, the outer error when it was
    /// lost. May be dropped and called again: no message is lost.
    pub async fn next(&mut self) -> Option<Result<Result<Frame, BadFrame>, Error>> {
        Some(match self.0.next().await? {
            Ok(message) => Ok(Frame::decode(&message)),
            Err(error) if error.is_truncated() => Ok(Err(BadFrame)),
            Err(error) => Err(error),
        })
    }
}
