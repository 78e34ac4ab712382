//! Moves datagrams, without knowing what is in them.
//!
//! A [`DatagramSocket`] moves what it can within each call and keeps nothing: memory is borrowed
//! for the length of a call, so the owner of an operation may take it back at any other moment.
//! That is all a datagram needs, since none ever moves in parts.
//!
//! # The waker
//!
//! A socket has one waker, given when it is opened. After a [`send`](DatagramSocket::send) that
//! left datagrams unsent, or a [`receive`](DatagramSocket::receive) that drained the socket, the
//! waker is woken when the same call may get further. Spurious wakes happen, lost ones do not. The
//! waker may be woken from within any call on this socket, or on another one of an in-process
//! network.

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

/// The memory that one datagram is received into.
#[derive(Debug)]
pub(crate) enum RecvBuffer {
    /// Its destination. Writable, and of an operation of this process, whose regions are
    /// entered as long as it has not ended.
    Direct(Payload),
    /// A staging buffer, which has room for any datagram.
    Stage(Stage),
}

/// A datagram in the buffer of the same index.
#[derive(Debug)]
pub(crate) struct ReceivedDatagram {
    pub(crate) from: SocketAddr,
    /// Bytes of the datagram; a smaller buffer has the first of them.
    pub(crate) len: usize,
}

/// How a receive left the socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RecvStatus {
    /// There may be more: call again.
    MayHaveMore,
    /// There is no more now; the waker is registered.
    Drained,
    /// A datagram was lost: the buffer after the last that was filled cannot be written.
    Fault,
}

/// Which interface a membership is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Membership {
    pub(crate) group: IpAddr,
    /// The interface: of IPv4 by an address of it, of IPv6 by its number. `None`: as routing says.
    pub(crate) interface: Option<IpAddr>,
    pub(crate) scope_id: u32,
}

/// How a socket is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DatagramOptions {
    /// The local address; port 0 lets the system choose.
    pub(crate) bind: SocketAddr,
    /// Other sockets may bind the same address: each of them gets the multicast datagrams.
    pub(crate) shared: bool,
    /// Bytes that the system shall keep for this socket, each way; `None` leaves it to the system.
    pub(crate) buffer_bytes: Option<usize>,
    /// The mark of all that it sends; `None`: the system's, best effort.
    pub(crate) traffic: Option<TrafficMark>,
}

/// A socket for datagrams. Driven by `&mut` under its endpoint's lock, from any thread.
pub(crate) trait DatagramSocket: Send {
    fn local_addr(&self) -> SocketAddr;

    /// Sends in order, and adds to `ended` how each datagram that has left, or cannot leave, ended.
    /// An error concerns that datagram only. When fewer have ended than are given there was no
    /// room.
    fn send(&mut self, datagrams: &[OutgoingDatagram<'_>], ended: &mut Vec<Result<()>>);

    /// Receives one datagram into each of these buffers, from the first on, and adds it to
    /// `arrived`.
    fn receive(
        &mut self,
        buffers: &mut [RecvBuffer],
        arrived: &mut Vec<ReceivedDatagram>,
    ) -> RecvStatus;

    /// Joins a multicast group on one interface; datagrams to groups leave by that interface from
    /// now on.
    fn join_group(&mut self, membership: Membership) -> Result<()>;

    /// Datagrams to groups leave by this interface from now on.
    fn set_multicast_interface(&mut self, membership: Membership) -> Result<()>;

    /// Ends what [`join`](DatagramSocket::join) began.
    fn leave_group(&mut self, membership: Membership) -> Result<()>;

    /// Datagrams that were dropped for want of room before a receive could take them.
    fn dropped(&self) -> u64;

    /// The next receive does not ask the reactor; for a driver that spins.
    fn assume_readable(&mut self) {}
}

/// The error of a datagram that is longer than what can be sent at all.
pub(crate) fn too_long(len: usize, max: usize) -> Error {
    Error::new(
        ErrorKind::TooLarge,
        format!("{len} bytes, a datagram here takes at most {max}"),
    )
}
