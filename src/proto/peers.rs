//! The peers of one connectionless endpoint.

/// The socket address of a peer, within one receive context; never reused for another address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SourceId(pub(crate) u64);

/// One connection of a receive context; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ConnectionId(pub(crate) u64);
