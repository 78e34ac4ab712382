//! HELLO and rejection: the private data of a connection request and of its answer.

use crate::limits::{
    BODY_MAX, BYTES_PER_CONNECTION, CALLS_PER_CONNECTION, CALLS_PER_CONNECTION_MAX, FRAME_MAX,
    HEADER_LEN, KEY_NAME_MAX, LENT_BYTES_MAX,
};
use crate::status::Status;

const MAGIC: [u8; 4] = *b"TFRP";
const VERSION: u8 = 1;
const KIND_HELLO: u8 = 1;
const KIND_REJECT: u8 = 2;
const HELLO_LEN: usize = 48;
const REJECT_HEAD: usize = 12;
/// Largest private data that the library carries, in bytes.
const REJECT_MAX: usize = tokio_fabric::limits::CM_DATA_SIZE_MAX;

/// The name of a codec on the wire, padded with zeros. Only zeros: no codec.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodecName([u8; 8]);

impl CodecName {
    /// Creates a name of up to 8 bytes, at compile time.
    pub const fn new(name: &str) -> CodecName {
        let (name, mut bytes, mut at) = (name.as_bytes(), [0; 8], 0);
        assert!(!name.is_empty() && name.len() <= bytes.len());
        while at < name.len() {
            bytes[at] = name[at];
            at += 1;
        }
        CodecName(bytes)
    }

    /// Returns whether no codec is named.
    pub fn is_none(self) -> bool {
        self == CodecName::default()
    }
}

impl std::fmt::Display for CodecName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = String::from_utf8_lossy(&self.0);
        f.write_str(name.trim_end_matches('\0'))
    }
}

/// The limits of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Number of calls that the other side may have open.
    pub calls: u32,
    /// Largest frame, in bytes.
    pub frame_max: u32,
    /// Largest size of all requests without a response, in bytes.
    pub bytes: u64,
    /// Largest piece of lent memory, in bytes.
    pub lent_max: u64,
    /// The codec of a server's services; empty from a client.
    pub codec: CodecName,
    /// Largest body by reference, in bytes; 0: not accepted.
    pub body_max: u64,
}

impl Default for Hello {
    fn default() -> Self {
        Hello {
            calls: CALLS_PER_CONNECTION,
            frame_max: FRAME_MAX as u32,
            bytes: BYTES_PER_CONNECTION,
            lent_max: LENT_BYTES_MAX,
            codec: CodecName::default(),
            body_max: BODY_MAX as u64,
        }
    }
}

/// The reason why private data is no HELLO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloError {
    /// It belongs to another protocol.
    Stranger,
    /// It has this version of the protocol, which is not supported.
    Version(u8),
    /// Its window has no room for a call.
    NoRoom,
}

impl HelloError {
    /// Returns the text for the status; the sides are "client" and "server".
    pub fn text(self, peer: &str, own: &str) -> String {
        match self {
            HelloError::Stranger => format!("the {peer} is not a peer of tokio-fabric-rpc"),
            HelloError::Version(version) => format!(
                "the {peer} speaks version {version} of the protocol of calls, and this {own} \
                 version {VERSION}"
            ),
            HelloError::NoRoom => format!("the {peer} has a window in which no call has room"),
        }
    }
}

impl Hello {
    /// Encodes the limits as private data.
    pub fn encode(&self) -> [u8; HELLO_LEN] {
        let mut bytes = [0; HELLO_LEN];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = KIND_HELLO;
        bytes[8..12].copy_from_slice(&self.calls.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.frame_max.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.lent_max.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.body_max.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.codec.0);
        bytes
    }

    /// Like `encode`, with the name of the client's authorization key, if the key has a name.
    pub fn encode_with_key(&self, name: Option<&str>) -> Vec<u8> {
        let mut bytes = self.encode().to_vec();
        if let Some(name) = name {
            let name = &name.as_bytes()[..name.len().min(KEY_NAME_MAX)];
            bytes.push(name.len() as u8);
            bytes.extend_from_slice(name);
        }
        bytes
    }

    /// Decodes the peer's limits, as far as this side can use them. Ignores further bytes, which
    /// belong to a later version.
    ///
    /// # Errors
    /// The reason.
    pub fn decode(bytes: &[u8]) -> Result<Hello, HelloError> {
        let Some(bytes) = bytes.first_chunk::<HELLO_LEN>() else {
            return Err(HelloError::Stranger);
        };
        if bytes[0..4] != MAGIC || bytes[5] != KIND_HELLO {
            return Err(HelloError::Stranger);
        }
        if bytes[4] != VERSION {
            return Err(HelloError::Version(bytes[4]));
        }
        let hello = Hello {
            calls: number_at(bytes, 8).min(CALLS_PER_CONNECTION_MAX),
            frame_max: number_at(bytes, 12).min(FRAME_MAX as u32),
            bytes: long_at(bytes, 16),
            lent_max: long_at(bytes, 24),
            codec: CodecName(std::array::from_fn(|at| bytes[40 + at])),
            body_max: long_at(bytes, 32).min(BODY_MAX as u64),
        };
        let least = 2 * HEADER_LEN as u32;
        if hello.calls == 0 || hello.frame_max < least || hello.bytes < hello.frame_max.into() {
            return Err(HelloError::NoRoom);
        }
        Ok(hello)
    }
}

/// Returns the name of the authorization key that a client claims to have; `None` if the client
/// sends no name, or bytes that cannot be a name.
pub fn key_name(hello: &[u8]) -> Option<&str> {
    let (len, rest) = hello.get(HELLO_LEN..)?.split_first()?;
    let len = usize::from(*len).min(KEY_NAME_MAX + 1);
    let name = rest
        .get(..len)
        .filter(|it| (1..=KEY_NAME_MAX).contains(&it.len()))?;
    std::str::from_utf8(name).ok()
}

fn number_at(bytes: &[u8; HELLO_LEN], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

fn long_at(bytes: &[u8; HELLO_LEN], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

/// A server's rejection of a connection.
#[derive(Clone, Debug)]
pub struct Rejection;

impl Rejection {
    /// Encodes the rejection as private data; cuts the text to the room in it.
    pub fn encode(status: &Status) -> Vec<u8> {
        let mut bytes = vec![0; REJECT_HEAD];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = KIND_REJECT;
        bytes[8..12].copy_from_slice(&status.code().number().to_le_bytes());
        status.encode(|piece| bytes.extend_from_slice(piece));
        bytes.truncate(REJECT_MAX);
        bytes
    }

    /// Decodes the status of a server's rejection; `None` for private data of another protocol.
    pub fn decode(bytes: &[u8]) -> Option<Status> {
        let (head, status) = bytes.split_first_chunk::<REJECT_HEAD>()?;
        if head[0..4] != MAGIC || head[5] != KIND_REJECT {
            return None;
        }
        let code = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        Some(Status::decode(code, true, status))
    }
}
