//! Moves datagrams, without knowing their contents.
//!
//! A [`DatagramSocket`] moves what it can within each call and keeps nothing: memory is borrowed
//! for one call, so the owner of an operation may take its memory back at any other time. Datagrams
//! need no submissions, since they never move in parts.
//!
//! # The waker
//!
//! A socket has one waker, given when it is opened. After a [`send`](DatagramSocket::send) that
//! left datagrams unsent, or a [`receive`](DatagramSocket::receive) that drained the socket, the
//! waker is woken when the same call may make progress. Spurious wakes happen, lost ones do not.
//! The waker may be woken from within any call on this socket, or on another socket of the same
//! in-process network.

use std::net::{IpAddr, SocketAddr};

use super::TrafficMark;
use crate::buf::{Payload, Stage};
use crate::error::{Error, ErrorKind, Result};

/// A datagram to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutgoingDatagram<'a> {
    pub(crate) to: SocketAddr,
    pub(crate) payload: &'a Payload,
}

/// The memory that receives one datagram.
#[derive(Debug)]
pub(crate) enum RecvBuffer {
    /// The memory of an operation of this process. It is writable, and its regions are entered
    /// until the operation has ended.
    Direct(Payload),
    /// A staging buffer, with room for any datagram.
    Stage(Stage),
}

/// A received datagram. Its index is that of its buffer.
#[derive(Debug)]
pub(crate) struct ReceivedDatagram {
    pub(crate) from: SocketAddr,
    /// Length of the datagram in bytes; a smaller buffer holds only its first bytes.
    pub(crate) len: usize,
}

/// The state in which a receive left the socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecvStatus {
    /// There may be more: call again.
    MayHaveMore,
    /// No datagram is left now; the waker is registered.
    Drained,
    /// A datagram was lost: the buffer after the last filled one cannot be written.
    Fault,
}

/// A multicast group and an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Membership {
    pub(crate) group: IpAddr,
    /// The interface: for IPv4 one of its addresses, for IPv6 its number. `None`: the routes
    /// decide.
    pub(crate) interface: Option<IpAddr>,
    pub(crate) scope_id: u32,
}

/// Options with which a socket is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DatagramOptions {
    /// The local address; port 0 lets the system choose.
    pub(crate) bind: SocketAddr,
    /// True if other sockets may bind the same address; each gets all multicast datagrams.
    pub(crate) shared: bool,
    /// Buffer size in bytes that the system should reserve for this socket, each way; `None` leaves
    /// it to the system.
    pub(crate) buffer_bytes: Option<usize>,
    /// Mark of all datagrams that the socket sends; `None`: the system's default, best effort.
    pub(crate) traffic: Option<TrafficMark>,
}

/// A socket for datagrams. Used by `&mut` under its endpoint's lock, from any thread.
pub(crate) trait DatagramSocket: Send {
    fn local_addr(&self) -> SocketAddr;

    /// Sends in order, and adds to `ended` the result of each datagram that was sent or cannot be
    /// sent. An error concerns one datagram only. If fewer results than datagrams are added, the
    /// socket had no room for the rest.
    fn send(&mut self, datagrams: &[OutgoingDatagram<'_>], ended: &mut Vec<Result<()>>);

    /// Receives one datagram into each of these buffers, in order, and adds each to `arrived`.
    fn receive(
        &mut self,
        buffers: &mut [RecvBuffer],
        arrived: &mut Vec<ReceivedDatagram>,
    ) -> RecvStatus;

    /// Joins a multicast group on one interface; datagrams to groups leave by that interface from
    /// now on.
    fn join_group(&mut self, membership: Membership) -> Result<()>;

    /// Makes datagrams to groups leave by this interface from now on.
    fn set_multicast_interface(&mut self, membership: Membership) -> Result<()>;

    /// Reverts [`join_group`](DatagramSocket::join_group).
    fn leave_group(&mut self, membership: Membership) -> Result<()>;

    /// Returns how many datagrams were dropped for lack of room before a receive could take them.
    fn dropped(&self) -> u64;

    /// Makes the next receive skip the reactor; for a driver that spins.
    fn assume_readable(&mut self) {}
}

/// Makes the error of a datagram that is too long to be sent at all.
pub(crate) fn too_long(len: usize, max: usize) -> Error {
    Error::new(
        ErrorKind::TooLarge,
        format!("{len} bytes, a datagram here takes at most {max}"),
    )
}
