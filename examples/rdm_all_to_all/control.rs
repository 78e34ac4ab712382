//! Control messages, which the endpoints exchange in addition to the traffic: tagged messages, in
//! JSON.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use tokio_fabric::RemoteRegion;

/// The tag of control messages. Its highest bit is never set in tags of data, which are numbers.
pub const CONTROL: u64 = 1 << 63;

/// The bits of a tag that a receive of data ignores: all except the `CONTROL` bit.
pub const NUMBER: u64 = CONTROL - 1;

/// The longest control message that is received, in bytes.
pub const LEN_MAX: usize = 128 << 10;

#[derive(Debug, Serialize, Deserialize)]
pub enum Control {
    /// All members that the sender knows, including itself.
    Members(Vec<Announced>),
    /// The sender has sent this peer `sent` messages; all have arrived, and no more will come.
    Last { incarnation: u64, sent: u64 },
}

/// How a member is announced to others.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Announced {
    /// Where it listens.
    pub address: SocketAddr,
    /// The time of its start: a member that returns at the same address has a later incarnation.
    pub incarnation: u64,
    /// The memory that it lets others read, as `RemoteRegion::to_bytes` has it.
    pub region: [u8; 32],
}

impl Announced {
    /// The memory to be read.
    pub fn region(&self) -> RemoteRegion {
        // An invalid region names no memory, so reading it is refused.
        RemoteRegion::from_bytes(&self.region).unwrap_or(RemoteRegion::new(0, 0, 0))
    }
}

impl Control {
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain values")
    }

    /// Returns `None` if the bytes are not a control message.
    pub fn from_bytes(bytes: &[u8]) -> Option<Control> {
        serde_json::from_slice(bytes).ok()
    }
}
