//! The private data with which connectionless endpoints connect: eight bytes of libfabric's, and
//! behind them, between endpoints of this library, what is offered beyond the protocol
//! (`docs/extension.md`, section 1).
//!
//! ```text
//!   0         1          2             4                   8                12           14
//!   +---------+----------+-------------+-------------------+-----------------+------------+--------
//!   | version | features | port (big)  | incarnation (big) | 't' 'o' 'f' 'a' | n (big)    | n bytes
//!   +---------+----------+-------------+-------------------+-----------------+------------+--------
//! ```

use super::extension::Offer;

/// What the private data of a request or a response says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerData {
    /// Byte 0: in a request the highest version of its sender; in a response bit 7 says that the
    /// version was understood.
    pub(crate) version: u8,
    pub(crate) features: u8,
    /// The requester's listening port.
    pub(crate) port: u16,
    /// Its sender's, that libfabric takes its process identifier for.
    pub(crate) incarnation: u32,
    /// What is offered, or agreed on, beyond the protocol; `None` of a C peer.
    pub(crate) offer: Option<Offer>,
}
