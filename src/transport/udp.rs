//! Datagrams in, datagrams out; nothing here knows what is in them.
//!
//! A [`DatagramSocket`] moves what it can within each call and keeps nothing: memory is borrowed
//! for the length of a call, so whoever owns an operation may take it back at any other moment.
//! That is all a datagram needs, since none ever moves in parts.
//!
//! # The waker
//!
//! A socket has one waker, given when it is opened. After a [`send`](DatagramSocket::send) that
//! left datagrams unsent, or a [`receive`](DatagramSocket::receive) that said "no more", the waker
//! is woken when the same call may get further. Spurious wakes happen, lost ones do not. The waker
//! may be woken from within any call on this socket, or on another one of an in-process network.

use std::net::{IpAddr, SocketAddr};

use crate::buf::{Payload, Stage};
use crate::error::{Error, ErrorKind, Result};

/// Datagrams that one call moves at most; what a turn of a busy socket needs.
pub(crate) const DATAGRAMS_PER_CALL: usize = 32;

/// A datagram to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Departing<'a> {
    pub(crate) to: SocketAddr,
    pub(crate) payload: &'a Payload,
}

/// Where a datagram may land.
#[derive(Debug)]
pub(crate) enum Place {
    /// In its destination. Writable, and of an operation of this process, whose regions are
    /// entered as long as it has not ended.
    Direct(Payload),
    /// In a staging buffer, which has room for any datagram.
    Stage(Stage),
}

/// What has come to the place of the same number.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) from: SocketAddr,
    /// Bytes of the datagram; a place that is smaller has the first of them.
    pub(crate) len: usize,
}

/// What a receive found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum More {
    /// There may be more: ask again.
    Maybe,
    /// Nothing more now; the waker is registered.
    No,
    /// A datagram was lost: memory of the place after the last that was filled cannot be written.
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
    /// Others may bind the same address: each of them gets the multicast datagrams.
    pub(crate) shared: bool,
    /// Bytes that the system shall keep for this socket, each way; `None` leaves it to the system.
    pub(crate) buffer_bytes: Option<usize>,
}

/// A socket for datagrams. Driven by `&mut` under its endpoint's lock, from any thread.
pub(crate) trait DatagramSocket: Send {
    fn local_addr(&self) -> SocketAddr;

    /// Sends in order, and adds to `ended` how each datagram that has left, or cannot leave, ended.
    /// An error concerns that datagram only. When fewer have ended than are given there was no
    /// room.
    fn send(&mut self, datagrams: &[Departing<'_>], ended: &mut Vec<Result<()>>);

    /// Fills the first of these places, as many as there are datagrams for, and adds to `arrived`
    /// what came.
    fn receive(&mut self, places: &mut [Place], arrived: &mut Vec<Arrived>) -> More;

    /// Begins to hear a group, on one interface; datagrams to groups leave by that interface from
    /// now on.
    fn join(&mut self, membership: Membership) -> Result<()>;

    /// Datagrams to groups leave by this interface from now on.
    fn send_by(&mut self, membership: Membership) -> Result<()>;

    /// Ends what [`join`](DatagramSocket::join) began.
    fn leave(&mut self, membership: Membership) -> Result<()>;

    /// Datagrams that came and were dropped before anyone here could take them.
    fn dropped(&self) -> u64;

    /// The caller spins: the next receive tries, whether or not the reactor has told of anything.
    fn look(&mut self) {}
}

/// The error of a datagram that is longer than what can be sent at all.
pub(crate) fn too_long(len: usize, max: usize) -> Error {
    Error::new(
        ErrorKind::TooLarge,
        format!("{len} bytes, a datagram here takes at most {max}"),
    )
}
