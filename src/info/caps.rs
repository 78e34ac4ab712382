//! Sets of bits, each with libfabric's values: capabilities, modes, orders, operation flags.

use bitflags::bitflags;

bitflags! {
    /// What an endpoint or a domain can do (CAPABILITIES of `fi_getinfo(3)`).
    ///
    /// [`Caps::PRIMARY`] capabilities are enabled only when asked for. [`Caps::MODIFIERS`] limit
    /// them to some directions; with none given, all directions are meant. [`Caps::SECONDARY`]
    /// ones may be reported without being asked for.
///
/// ```
/// use tokio_fabric::{Caps, Fabric, Hints};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// // An endpoint that only sends and receives: its peers cannot ask for more.
/// let fabric = Fabric::open(Hints::new().caps(Caps::MSG))?;
/// let info = fabric.domain().open()?.info().clone();
/// assert!(info.caps.contains(Caps::MSG) && !info.caps.contains(Caps::RMA));
/// # Ok(()) }
/// ```
    #[doc(alias = "fi_info")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Caps: u64 {
        /// Messages (`fi_msg(3)`).
        const MSG = 1 << 1;
        /// Reads and writes of a peer's memory (`fi_rma(3)`).
        const RMA = 1 << 2;
        /// Messages matched by a tag (`fi_tagged(3)`).
        const TAGGED = 1 << 3;
        /// Atomic operations on a peer's memory (`fi_atomic(3)`).
        const ATOMIC = 1 << 4;
        /// Messages to many peers at once; goes with [`MSG`](Self::MSG).
        #[doc(alias = "FI_MULTICAST")]
        const MULTICAST = 1 << 5;
        /// Operations among a group of peers (`fi_collective(3)`).
        const COLLECTIVE = 1 << 6;
        /// Starting reads of a peer's memory; limits RMA and ATOMIC.
        const READ = 1 << 8;
        /// Starting writes to a peer's memory; limits RMA and ATOMIC.
        const WRITE = 1 << 9;
        /// Receiving messages; limits MSG and TAGGED.
        const RECV = 1 << 10;
        /// Sending messages; limits MSG and TAGGED.
        const SEND = 1 << 11;
        /// Being read by peers; limits RMA and ATOMIC.
        const REMOTE_READ = 1 << 12;
        /// Being written by peers; limits RMA and ATOMIC.
        const REMOTE_WRITE = 1 << 13;
        /// One posted buffer that takes several messages.
        #[doc(alias = "FI_MULTI_RECV")]
        const MULTI_RECV = 1 << 16;
        /// Operations started by a condition (`fi_trigger(3)`).
        const TRIGGER = 1 << 20;
        /// Operations that wait for all earlier ones to the same peer.
        const FENCE = 1 << 21;
        /// Identifiers of the application's own for address vector entries.
        const AV_USER_ID = 1 << 41;
        /// Transfers started by a device; goes with [`TRIGGER`](Self::TRIGGER).
        const XPU = 1 << 44;
        /// Transfers from and to device memory.
        #[doc(alias = "FI_HMEM")]
        const HMEM = 1 << 47;
        /// Messages whose length the receiver does not know
        /// ([`Endpoint::recv_any`](crate::Endpoint::recv_any)).
        const VARIABLE_MSG = 1 << 48;
        /// Transfers from and to persistent memory; goes with [`RMA`](Self::RMA).
        const RMA_PMEM = 1 << 49;
        /// Raw source address of unknown senders; goes with [`SOURCE`](Self::SOURCE).
        const SOURCE_ERR = 1 << 50;
        /// Communication with endpoints on the same machine.
        #[doc(alias = "FI_LOCAL_COMM")]
        const LOCAL_COMM = 1 << 51;
        /// Communication with endpoints on other machines.
        #[doc(alias = "FI_REMOTE_COMM")]
        const REMOTE_COMM = 1 << 52;
        /// Address vectors shared by several processes.
        const SHARED_AV = 1 << 53;
        /// Completion events at the target of RMA.
        const RMA_EVENT = 1 << 56;
        /// The sender's address with each completion; connectionless endpoints only.
        #[doc(alias = "FI_SOURCE")]
        const SOURCE = 1 << 57;
        /// Naming a context of the peer
        /// ([`AddressVector::rx_addr`](crate::AddressVector::rx_addr)); connectionless endpoints
        /// only.
        #[doc(alias = "FI_NAMED_RX_CTX")]
        const NAMED_RX_CTX = 1 << 58;
        /// Receives that match by the sender's address.
        #[doc(alias = "FI_DIRECTED_RECV")]
        const DIRECTED_RECV = 1 << 59;
    }
}

impl Caps {
    /// Capabilities that must be asked for.
    pub const PRIMARY: Caps = Caps::MSG
        .union(Caps::RMA)
        .union(Caps::TAGGED)
        .union(Caps::ATOMIC)
        .union(Caps::MULTICAST)
        .union(Caps::NAMED_RX_CTX)
        .union(Caps::DIRECTED_RECV)
        .union(Caps::VARIABLE_MSG)
        .union(Caps::HMEM)
        .union(Caps::COLLECTIVE)
        .union(Caps::XPU)
        .union(Caps::AV_USER_ID);

    /// Directions, which limit primary capabilities.
    pub const MODIFIERS: Caps = Caps::MESSAGE_DIRECTIONS.union(Caps::RMA_DIRECTIONS);

    /// Capabilities that may be reported without being asked for.
    pub const SECONDARY: Caps = Caps::MULTI_RECV
        .union(Caps::SOURCE)
        .union(Caps::RMA_EVENT)
        .union(Caps::SHARED_AV)
        .union(Caps::TRIGGER)
        .union(Caps::FENCE)
        .union(Caps::LOCAL_COMM)
        .union(Caps::REMOTE_COMM)
        .union(Caps::SOURCE_ERR)
        .union(Caps::RMA_PMEM);

    /// Those that may stand in a transmit context's attributes (`fi_endpoint(3)`).
    pub const TRANSMIT: Caps = Caps::MSG
        .union(Caps::RMA)
        .union(Caps::TAGGED)
        .union(Caps::ATOMIC)
        .union(Caps::READ)
        .union(Caps::WRITE)
        .union(Caps::SEND)
        .union(Caps::HMEM)
        .union(Caps::TRIGGER)
        .union(Caps::FENCE)
        .union(Caps::MULTICAST)
        .union(Caps::RMA_PMEM)
        .union(Caps::NAMED_RX_CTX)
        .union(Caps::COLLECTIVE)
        .union(Caps::XPU);

    /// Those that may stand in a receive context's attributes (`fi_endpoint(3)`).
    pub const RECEIVE: Caps = Caps::MSG
        .union(Caps::RMA)
        .union(Caps::TAGGED)
        .union(Caps::ATOMIC)
        .union(Caps::REMOTE_READ)
        .union(Caps::REMOTE_WRITE)
        .union(Caps::RECV)
        .union(Caps::HMEM)
        .union(Caps::TRIGGER)
        .union(Caps::RMA_PMEM)
        .union(Caps::DIRECTED_RECV)
        .union(Caps::VARIABLE_MSG)
        .union(Caps::MULTI_RECV)
        .union(Caps::SOURCE)
        .union(Caps::RMA_EVENT)
        .union(Caps::SOURCE_ERR)
        .union(Caps::COLLECTIVE)
        .union(Caps::XPU);

    pub(super) const MESSAGE_DIRECTIONS: Caps = Caps::SEND.union(Caps::RECV);
    pub(super) const RMA_TARGET: Caps = Caps::REMOTE_READ.union(Caps::REMOTE_WRITE);
    pub(super) const RMA_DIRECTIONS: Caps = Caps::READ.union(Caps::WRITE).union(Caps::RMA_TARGET);
}

bitflags! {
    /// Duties an application accepts in exchange for speed (MODE of `fi_getinfo(3)`). As a hint:
    /// those it can live with. In an answer: those it must live with, of which this library has
    /// none.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Mode: u64 {
        /// Received data may stay in the library's buffers.
        const BUFFERED_RECV = 1 << 51;
        /// Each operation brings twice the scratch space of [`CONTEXT`](Self::CONTEXT).
        const CONTEXT2 = 1 << 52;
        /// Queues are shared only among endpoints of the same capabilities.
        const RESTRICTED_COMP = 1 << 53;
        /// Completions need not name the kind of operation.
        const NOTIFY_FLAGS_ONLY = 1 << 54;
        /// Local buffers are registered; older form of [`MrMode::LOCAL`].
        const LOCAL_MR = 1 << 55;
        /// CQ data consumes a receive buffer.
        const RX_CQ_DATA = 1 << 56;
        /// Vectors stay untouched until their operation ends.
        const ASYNC_IOV = 1 << 57;
        /// Room for a protocol header in front of every message buffer.
        const MSG_PREFIX = 1 << 58;
        /// Each operation brings scratch space of the library's.
        const CONTEXT = 1 << 59;
    }
}

bitflags! {
    /// How memory is registered (`mr_mode` of `fi_domain(3)`, explained in `fi_mr(3)`).
    ///
    /// Empty means *scalable* from interface version 1.5 on: peers address a region by offset from
    /// 0, the application may choose keys, local buffers need no registration. In version 1.4 and
    /// before, empty means "either [`BASIC`](Self::BASIC) or [`SCALABLE`](Self::SCALABLE)".
    #[doc(alias = "FI_MR_UNSPEC")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct MrMode: u32 {
        /// Old name of `VIRT_ADDR | ALLOCATED | PROV_KEY`. Stands alone or with `LOCAL`.
        #[doc(alias = "FI_MR_BASIC")]
        const BASIC = 1 << 0;
        /// Old name of the empty set. Stands alone.
        #[doc(alias = "FI_MR_SCALABLE")]
        const SCALABLE = 1 << 1;
        /// Local buffers of every operation must be registered. Over TCP that is a rule to be kept
        /// and nothing else: no pages are pinned for it.
        #[doc(alias("FI_MR_LOCAL", "FI_LOCAL_MR"))]
        const LOCAL = 1 << 2;
        /// Keys larger than 64 bits, or with set-up at the peer.
        #[doc(alias = "FI_MR_RAW")]
        const RAW = 1 << 3;
        /// Peers address a region by its virtual address.
        #[doc(alias = "FI_MR_VIRT_ADDR")]
        const VIRT_ADDR = 1 << 4;
        /// Registered memory is backed by pages when it is registered.
        #[doc(alias = "FI_MR_ALLOCATED")]
        const ALLOCATED = 1 << 5;
        /// Keys are chosen by the library.
        #[doc(alias = "FI_MR_PROV_KEY")]
        const PROV_KEY = 1 << 6;
        /// The application reports when pages behind a region have changed.
        #[doc(alias = "FI_MR_MMU_NOTIFY")]
        const MMU_NOTIFY = 1 << 7;
        /// Regions with counters are bound and enabled before use.
        #[doc(alias = "FI_MR_RMA_EVENT")]
        const RMA_EVENT = 1 << 8;
        /// Regions belong to endpoints and not to domains.
        #[doc(alias = "FI_MR_ENDPOINT")]
        const ENDPOINT = 1 << 9;
        /// Device memory is registered before use.
        #[doc(alias = "FI_MR_HMEM")]
        const HMEM = 1 << 10;
        /// Buffers of collective operations are registered for them. The library has no such
        /// operations, so this may be said and cannot be required.
        const COLLECTIVE = 1 << 11;
    }
}

impl MrMode {
    /// No wish (`FI_MR_UNSPEC`); the same value as the empty set.
    pub const UNSPEC: MrMode = MrMode::empty();

    /// The rules that hold, with the two old names spelled out in today's bits: `BASIC` becomes
    /// `VIRT_ADDR | ALLOCATED | PROV_KEY`, `SCALABLE` becomes nothing.
    pub fn in_force(self) -> MrMode {
        let today = self.difference(MrMode::BASIC | MrMode::SCALABLE);
        match self.contains(MrMode::BASIC) {
            true => today | MrMode::VIRT_ADDR | MrMode::ALLOCATED | MrMode::PROV_KEY,
            false => today,
        }
    }
}

bitflags! {
    /// Order kept between operations to one peer (`msg_order` of `fi_endpoint(3)`). In each name
    /// the first letter is the later operation: `RAW` is "read after write".
    #[doc(alias("FI_ORDER_SAS", "FI_ORDER_SAW", "FI_ORDER_WAW", "FI_ORDER_RAW"))]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct MsgOrder: u64 {
        /// Reads after reads.
        const RAR = 1 << 0;
        /// Reads after writes.
        const RAW = 1 << 1;
        /// Reads after sends.
        const RAS = 1 << 2;
        /// Writes after reads.
        const WAR = 1 << 3;
        /// Writes after writes.
        const WAW = 1 << 4;
        /// Writes after sends.
        const WAS = 1 << 5;
        /// Sends after reads.
        const SAR = 1 << 6;
        /// Sends after writes.
        const SAW = 1 << 7;
        /// Sends after sends.
        const SAS = 1 << 8;
        /// RMA reads after RMA reads.
        const RMA_RAR = 1 << 32;
        /// RMA reads after RMA writes.
        const RMA_RAW = 1 << 33;
        /// RMA writes after RMA reads.
        const RMA_WAR = 1 << 34;
        /// RMA writes after RMA writes.
        const RMA_WAW = 1 << 35;
        /// Atomic fetches after atomic fetches.
        const ATOMIC_RAR = 1 << 36;
        /// Atomic fetches after atomic updates.
        const ATOMIC_RAW = 1 << 37;
        /// Atomic updates after atomic fetches.
        const ATOMIC_WAR = 1 << 38;
        /// Atomic updates after atomic updates.
        const ATOMIC_WAW = 1 << 39;
    }
}

bitflags! {
    /// Order of completions (`comp_order` of `fi_endpoint(3)`, gone from libfabric 2). Empty: any.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CompOrder: u64 {
        /// As submitted (transmit), as processed (receive).
        const STRICT = 0x1ff;
        /// Received data is written to memory in order. Receive contexts only.
        const DATA = 1 << 16;
    }
}

bitflags! {
    /// What operations do when their call says nothing (Operation Flags of `fi_endpoint(3)`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct OpFlags: u64 {
        /// Destinations are multicast addresses.
        const MULTICAST = 1 << 5;
        /// Posted buffers take several messages.
        const MULTI_RECV = 1 << 16;
        /// Successful operations are reported although the queue was bound selectively.
        const COMPLETION = 1 << 24;
        /// Buffers are free again when the call returns. Not offered as a default: buffers are
        /// given by value, and calls that copy are calls of their own (`inject`).
        const INJECT = 1 << 25;
        /// Ends when the buffers may be used again.
        const INJECT_COMPLETE = 1 << 26;
        /// Ends when the operation no longer depends on this side.
        const TRANSMIT_COMPLETE = 1 << 27;
        /// Ends when the peer's endpoint has processed it.
        const DELIVERY_COMPLETE = 1 << 28;
        /// Ends when its result is persistent.
        const COMMIT_COMPLETE = 1 << 30;
    }
}

impl OpFlags {
    pub(super) const TRANSMIT: OpFlags = OpFlags::all().difference(OpFlags::MULTI_RECV);
    pub(super) const RECEIVE: OpFlags = OpFlags::MULTI_RECV.union(OpFlags::COMPLETION);
}
