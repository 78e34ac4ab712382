//! The kinds of operations that a [`Posting`](super::Posting) describes, as types. A kind
//! determines which calls the posting has and what its future returns. All traits are sealed.

use super::Received;
use super::op::OpOutput;

mod sealed {
    pub trait Sealed {}
}

/// The kind of operation that a [`Posting`](crate::op::Posting) describes.
pub trait PostingKind: sealed::Sealed {}

/// An operation that can be awaited.
pub trait AwaitedKind: PostingKind {
    /// The value that its future returns with the buffers.
    type Output: OpOutput;
}

/// An operation that can be fenced (`FI_FENCE`).
pub trait FencedKind: AwaitedKind {}

/// An operation that can be sent together with the next ones (`FI_MORE`).
pub trait GatheredKind: AwaitedKind {}

/// An operation that carries remote CQ data, and whose completion level can be chosen.
pub trait DataKind: AwaitedKind {}

/// A receive that can be restricted to one peer (`FI_DIRECTED_RECV`).
pub trait DirectedKind: PostingKind {}

/// A receive that can be restricted to the peers of one authorization key.
pub trait KeyedKind: DirectedKind {}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $(=> $output:ty)?, [$($has:ident)*];)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $kind {}

        impl sealed::Sealed for $kind {}
        impl PostingKind for $kind {}
        $(impl AwaitedKind for $kind { type Output = $output; })?
        $(impl $has for $kind {})*
    )*};
}

kinds! {
    /// See [`SendMessage`](crate::op::SendMessage).
    SendKind => usize, [FencedKind GatheredKind DataKind];
    /// See [`RmaWrite`](crate::op::RmaWrite).
    WriteKind => usize, [FencedKind GatheredKind DataKind];
    /// See [`RmaRead`](crate::op::RmaRead).
    ReadKind => usize, [FencedKind];
    /// See [`Atomic`](crate::op::Atomic).
    AtomicKind => usize, [FencedKind GatheredKind];
    /// See [`SendDatagram`](crate::op::SendDatagram).
    DatagramKind => usize, [GatheredKind];
    /// See [`Recv`](crate::op::Recv).
    RecvKind => Received, [];
    /// See [`RecvFrom`](crate::op::RecvFrom).
    RecvFromKind => Received, [DirectedKind KeyedKind];
    /// See [`RecvTagged`](crate::op::RecvTagged).
    RecvTaggedKind => Received, [DirectedKind KeyedKind];
    /// See [`RecvClaimed`](crate::op::RecvClaimed).
    RecvClaimedKind => Received, [];
    /// See [`RecvDatagram`](crate::op::RecvDatagram).
    RecvDatagramKind => Received, [DirectedKind];
    /// See [`MultiRecv`](crate::op::MultiRecv).
    MultiRecvKind, [DirectedKind KeyedKind];
}
