//! The path of a connection's bytes, and the reason if it is not shared memory.

use std::fmt;

use crate::error::Error;

/// The choice whether connections to peers on the same host may go through shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LocalPath {
    /// A connection uses shared memory once it has carried some traffic, if both ends allow it and
    /// are processes of one user, in one network namespace of one host. Otherwise the connection
    /// stays on TCP. The default.
    #[default]
    Auto,
    /// Never: all bytes go through TCP.
    Off,
}

/// The path of a connection's bytes: [`Endpoint::path`](crate::Endpoint::path).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Path {
    /// Through shared memory, both ways. The TCP connection is still open, and reports when the
    /// peer is gone.
    Local,
    /// Through TCP, or through the pipes of the `loopback` backend.
    Network(NotLocal),
}

impl Path {
    /// Returns true for [`Path::Local`].
    pub fn is_local(&self) -> bool {
        matches!(self, Path::Local)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Local => f.write_str("local"),
            Path::Network(why) => write!(f, "network ({why})"),
        }
    }
}

/// The reason why a connection does not go through shared memory.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum NotLocal {
    /// There is no connection.
    NotConnected,
    /// This side does not allow shared memory ([`LocalPath::Off`]).
    Off,
    /// Not possible here: the backend is `loopback`, or the connection is secure.
    Backend,
    /// The peer does not offer shared memory: it does not allow it, or does not use this library.
    NotOffered,
    /// The peer is on another host.
    OtherHost,
    /// The connection has not carried enough traffic yet, or is about to change to shared memory.
    NotYet,
    /// The domain's connections through shared memory have reached their limit
    /// ([`limits::LOCAL_CONNECTIONS_MAX`](crate::limits::LOCAL_CONNECTIONS_MAX)).
    Limit,
    /// Setting up shared memory failed: the peer belongs to another user or another network
    /// namespace, or the system has no memory or descriptors left.
    Failed(Error),
}

impl fmt::Display for NotLocal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotLocal::NotConnected => "not connected",
            NotLocal::Off => "shared memory is off",
            NotLocal::Backend => "the backend has no shared memory",
            NotLocal::NotOffered => "the peer offers no shared memory",
            NotLocal::OtherHost => "the peer is on another host",
            NotLocal::NotYet => "little traffic so far",
            NotLocal::Limit => "the domain's limit on shared memory is reached",
            NotLocal::Failed(error) => return write!(f, "{error}"),
        })
    }
}
