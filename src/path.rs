//! Which way the bytes of a connection go, and why not another.

use std::fmt;

use crate::error::Error;

/// Whether connections to peers on the same host may go through shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LocalPath {
    /// Once a connection has carried some traffic, if both ends allow it and are processes of one
    /// user, in one network namespace of one host. If anything is lacking, the connection stays on
    /// TCP. The default.
    #[default]
    Auto,
    /// Never: all bytes go through TCP.
    Off,
}

/// Which way the bytes of a connection go: [`Endpoint::path`](crate::Endpoint::path).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Path {
    /// Through shared memory, both ways. The TCP connection below is still open, and reports when
    /// the peer is gone.
    Local,
    /// Through TCP, or whatever else the backend is made of.
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

/// Why a connection does not go through shared memory.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum NotLocal {
    /// There is no connection.
    NotConnected,
    /// This side does not allow it ([`LocalPath::Off`]).
    Off,
    /// The backend has no such way: it is `loopback`, or the connection is secure.
    Backend,
    /// The peer does not offer it: it is not of this library, or does not allow it.
    NotOffered,
    /// The peer is on another host.
    OtherHost,
    /// It has not carried enough traffic yet, or both sides are about to change.
    NotYet,
    /// As many connections of the domain as may have shared memory have it
    /// ([`limits::LOCAL_CONNECTIONS_MAX`](crate::limits::LOCAL_CONNECTIONS_MAX)).
    Limit,
    /// The two did not come to share memory: the peer is of another user or in another network
    /// namespace, or memory or descriptors are lacking.
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
