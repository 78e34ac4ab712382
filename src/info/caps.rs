//! Bit sets with libfabric's values: capabilities, modes, orders and operation flags.

use bitflags::bitflags;

bitflags! {
    /// The capabilities of an endpoint or a domain (CAPABILITIES of `fi_getinfo(3)`).
    ///
    /// [`Caps::PRIMARY`] capabilities are enabled only if the hints request them; hints without any
    /// request all that are offered. [`Caps::MODIFIERS`] limit primary capabilities to some
    /// directions; without a modifier, all directions are enabled. [`Caps::SECONDARY`] capabilities
    /// may be enabled without being requested.
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
        /// Reading and writing a peer's memory (`fi_rma(3)`).
        const RMA = 1 << 2;
        /// Messages that receives select by tag (`fi_tagged(3)`). Connectionless endpoints only.
        const TAGGED = 1 << 3;
        /// Atomic operations on a peer's memory (`fi_atomic(3)`).
        const ATOMIC = 1 << 4;
        /// Datagrams to multicast groups. Requires [`MSG`](Self::MSG); datagram endpoints only.
        #[doc(alias = "FI_MULTICAST")]
        const MULTICAST = 1 << 5;
        /// Operations among a group of peers (`fi_collective(3)`). Not offered.
        const COLLECTIVE = 1 << 6;
        /// Modifier: initiating reads of a peer's memory (RMA and ATOMIC).
        const READ = 1 << 8;
        /// Modifier: initiating writes to a peer's memory (RMA and ATOMIC).
        const WRITE = 1 << 9;
        /// Modifier: receiving messages (MSG and TAGGED).
        const RECV = 1 << 10;
        /// Modifier: sending messages (MSG and TAGGED).
        const SEND = 1 << 11;
        /// Modifier: being the target of peers' reads (RMA and ATOMIC).
        const REMOTE_READ = 1 << 12;
        /// Modifier: being the target of peers' writes (RMA and ATOMIC).
        const REMOTE_WRITE = 1 << 13;
        /// Posted buffers that receive several messages each. Connectionless endpoints only.
        #[doc(alias = "FI_MULTI_RECV")]
        const MULTI_RECV = 1 << 16;
        /// Operations that start when a condition is met (`fi_trigger(3)`). Not offered.
        const TRIGGER = 1 << 20;
        /// Operations that start only after all earlier ones to the same peer have completed.
        const FENCE = 1 << 21;
        /// Entries of an address vector can have identifiers that the application chooses
        /// (`FI_AV_USER_ID` of `fi_av(3)`).
        const AV_USER_ID = 1 << 41;
        /// Transfers that a device starts; requires [`TRIGGER`](Self::TRIGGER). Not offered.
        const XPU = 1 << 44;
        /// Buffers and regions in device memory.
        #[doc(alias = "FI_HMEM")]
        const HMEM = 1 << 47;
        /// Messages whose length the receiver does not know
        /// ([`Endpoint::recv_any`](crate::Endpoint::recv_any)).
        const VARIABLE_MSG = 1 << 48;
        /// RMA to persistent memory, with completions that report that the data is persistent.
        /// Requires [`RMA`](Self::RMA).
        const RMA_PMEM = 1 << 49;
        /// Reporting the address of an unknown sender as an error. Requires
        /// [`SOURCE`](Self::SOURCE). Not offered: [`SOURCE`](Self::SOURCE) always reports the
        /// sender's address.
        const SOURCE_ERR = 1 << 50;
        /// Communication with endpoints on the same machine.
        #[doc(alias = "FI_LOCAL_COMM")]
        const LOCAL_COMM = 1 << 51;
        /// Communication with endpoints on other machines.
        #[doc(alias = "FI_REMOTE_COMM")]
        const REMOTE_COMM = 1 << 52;
        /// Address vectors that several processes share. A capability of domains.
        const SHARED_AV = 1 << 53;
        /// Counters bound to a region count peers' accesses to it. They are enabled only if
        /// requested, as they cost a lookup per access.
        const RMA_EVENT = 1 << 56;
        /// Completions of receives contain the sender's address. Not for connected endpoints.
        #[doc(alias = "FI_SOURCE")]
        const SOURCE = 1 << 57;
        /// Addressing a specific context of a peer's scalable endpoint
        /// ([`AddressVector::rx_addr`](crate::AddressVector::rx_addr)). Connectionless endpoints
        /// only.
        #[doc(alias = "FI_NAMED_RX_CTX")]
        const NAMED_RX_CTX = 1 << 58;
        /// Receives that match only the messages of a given sender. Not for connected endpoints.
        #[doc(alias = "FI_DIRECTED_RECV")]
        const DIRECTED_RECV = 1 << 59;
    }
}

impl Caps {
    /// The capabilities that are enabled only if requested.
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

    /// The directions, which limit primary capabilities.
    pub const MODIFIERS: Caps = Caps::MESSAGE_DIRECTIONS.union(Caps::RMA_DIRECTIONS);

    /// The capabilities that may be enabled without being requested.
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

    /// The capabilities that a transmit context can have (`fi_endpoint(3)`, `fi_tx_attr`).
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

    /// The capabilities that a receive context can have (`fi_endpoint(3)`, `fi_rx_attr`).
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
    /// Obligations that a provider may impose on applications (MODE of `fi_getinfo(3)`).
    ///
    /// In hints they are those that the application can fulfil. This library imposes none, so in
    /// results the set is empty.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
    /// use tokio_fabric::info::Mode;
    /// use tokio_fabric::{Fabric, Hints};
    ///
    /// let fabric = Fabric::open(Hints::new().mode(Mode::CONTEXT | Mode::MSG_PREFIX))?;
    /// assert!(fabric.infos()[0].mode.is_empty());
    /// # Ok(()) }
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Mode: u64 {
        /// Received data may stay in the library's buffers until the application claims it.
        const BUFFERED_RECV = 1 << 51;
        /// Each operation provides twice the scratch space of [`CONTEXT`](Self::CONTEXT).
        const CONTEXT2 = 1 << 52;
        /// Only endpoints with the same capabilities share a queue or counter.
        const RESTRICTED_COMP = 1 << 53;
        /// Completions of peers' operations need not say which kind of operation it was.
        const NOTIFY_FLAGS_ONLY = 1 << 54;
        /// Local buffers must be registered; older form of [`MrMode::LOCAL`].
        const LOCAL_MR = 1 << 55;
        /// An operation with CQ data consumes a posted receive at the peer.
        const RX_CQ_DATA = 1 << 56;
        /// The array that describes an operation's buffers stays unmodified until the operation has
        /// completed.
        const ASYNC_IOV = 1 << 57;
        /// Message buffers begin with room for a protocol header.
        const MSG_PREFIX = 1 << 58;
        /// Each operation provides scratch space for the library.
        const CONTEXT = 1 << 59;
    }
}

bitflags! {
    /// The rules of memory registration (`mr_mode` of `fi_domain(3)`; the bits are explained in
    /// `fi_mr(3)`).
    ///
    /// From interface version 1.5 on, the empty set means *scalable*: peers address a region by
    /// offsets from 0, the application may choose keys, and local buffers need no registration. In
    /// version 1.4 and earlier, the empty set means "either [`BASIC`](Self::BASIC) or
    /// [`SCALABLE`](Self::SCALABLE)".
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
    /// use tokio_fabric::info::MrMode;
    /// use tokio_fabric::{Fabric, Hints};
    ///
    /// let hints = Hints::new().domain(|hints| hints.required_mr_mode(MrMode::VIRT_ADDR));
    /// let domain = Fabric::open(hints)?.domain().open()?;
    /// let region = domain.register(vec![0u8; 64]).await?;
    /// assert_ne!(region.remote().addr, 0); // A virtual address, not an offset.
    /// # Ok(()) }
    /// ```
    #[doc(alias = "FI_MR_UNSPEC")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct MrMode: u32 {
        /// Old name of `VIRT_ADDR | ALLOCATED | PROV_KEY`. Can only be combined with `LOCAL`.
        #[doc(alias = "FI_MR_BASIC")]
        const BASIC = 1 << 0;
        /// Old name of the empty set. Cannot be combined with other bits.
        #[doc(alias = "FI_MR_SCALABLE")]
        const SCALABLE = 1 << 1;
        /// Local buffers of every operation must be registered. Over TCP this is only a check; it
        /// pins no pages.
        #[doc(alias("FI_MR_LOCAL", "FI_LOCAL_MR"))]
        const LOCAL = 1 << 2;
        /// Keys are longer than 64 bits, and peers map them before use
        /// ([`RawKey`](crate::mr::RawKey)).
        #[doc(alias = "FI_MR_RAW")]
        const RAW = 1 << 3;
        /// Peers address a region by its virtual address.
        #[doc(alias = "FI_MR_VIRT_ADDR")]
        const VIRT_ADDR = 1 << 4;
        /// Memory must be backed by pages when it is registered.
        #[doc(alias = "FI_MR_ALLOCATED")]
        const ALLOCATED = 1 << 5;
        /// The library chooses the keys.
        #[doc(alias = "FI_MR_PROV_KEY")]
        const PROV_KEY = 1 << 6;
        /// The application reports changes of the pages of a region
        /// ([`MemoryRegion::refresh`](crate::MemoryRegion::refresh)).
        #[doc(alias = "FI_MR_MMU_NOTIFY")]
        const MMU_NOTIFY = 1 << 7;
        /// A region with a counter must be bound to it and then enabled before use.
        #[doc(alias = "FI_MR_RMA_EVENT")]
        const RMA_EVENT = 1 << 8;
        /// Regions are bound to endpoints, and accessible only through these.
        #[doc(alias = "FI_MR_ENDPOINT")]
        const ENDPOINT = 1 << 9;
        /// Device memory must be registered before use.
        #[doc(alias = "FI_MR_HMEM")]
        const HMEM = 1 << 10;
        /// Buffers of collective operations must be registered for them. There are no such
        /// operations here: the hint is accepted, but the mode cannot be required.
        const COLLECTIVE = 1 << 11;
    }
}

impl MrMode {
    /// No preference (`FI_MR_UNSPEC`); the same value as the empty set.
    pub const UNSPEC: MrMode = MrMode::empty();

    /// The rules in effect, with the two old names translated: `BASIC` becomes `VIRT_ADDR |
    /// ALLOCATED | PROV_KEY`, `SCALABLE` becomes the empty set.
    pub fn in_force(self) -> MrMode {
        let today = self.difference(MrMode::BASIC | MrMode::SCALABLE);
        match self.contains(MrMode::BASIC) {
            true => today | MrMode::VIRT_ADDR | MrMode::ALLOCATED | MrMode::PROV_KEY,
            false => today,
        }
    }
}

bitflags! {
    /// The order that is kept between operations to the same peer (`msg_order` of
    /// `fi_endpoint(3)`).
    ///
    /// In each name the first letter is the later operation: `RAW` is "read after write".
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
    /// use tokio_fabric::info::MsgOrder;
    /// use tokio_fabric::{Fabric, Hints};
    ///
    /// let order = MsgOrder::SAS | MsgOrder::RAW;
    /// let fabric = Fabric::open(Hints::new().tx(|tx| tx.msg_order(order)))?;
    /// assert!(fabric.infos()[0].tx.msg_order.contains(MsgOrder::SAS));
    /// # Ok(()) }
    /// ```
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
    /// The order of completions (`comp_order` of `fi_endpoint(3)`; libfabric 2 no longer has it).
    /// Empty: any order.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
    /// use tokio_fabric::info::CompOrder;
    /// use tokio_fabric::{Fabric, Hints};
    ///
    /// let fabric = Fabric::open(Hints::new().rx(|rx| rx.comp_order(CompOrder::STRICT)))?;
    /// assert!(fabric.infos()[0].rx.comp_order.contains(CompOrder::STRICT));
    /// # Ok(()) }
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CompOrder: u64 {
        /// Transmit operations complete in the order in which they were posted, receives in the
        /// order in which messages are processed.
        const STRICT = 0x1ff;
        /// Received data is written to memory in order. Receive contexts only. Not offered.
        const DATA = 1 << 16;
    }
}

bitflags! {
    /// Default flags of an endpoint's operations, for calls that do not specify otherwise
    /// (Operation Flags of `fi_endpoint(3)`).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
    /// use tokio_fabric::info::OpFlags;
    /// use tokio_fabric::{Fabric, Hints};
    ///
    /// // All sends and writes complete only when the peer has the data.
    /// let fabric = Fabric::open(Hints::new().tx(|tx| tx.op_flags(OpFlags::DELIVERY_COMPLETE)))?;
    /// assert_eq!(fabric.infos()[0].tx.op_flags, OpFlags::DELIVERY_COMPLETE);
    /// # Ok(()) }
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct OpFlags: u64 {
        /// Destinations are multicast groups. Datagram endpoints only.
        const MULTICAST = 1 << 5;
        /// Posted buffers receive several messages each.
        const MULTI_RECV = 1 << 16;
        /// Successful operations are reported even if the completion queue is bound selectively.
        const COMPLETION = 1 << 24;
        /// Buffers may be reused when the call returns. Not offered as a default: an operation owns
        /// its buffers, and the calls that copy are separate (`inject`).
        const INJECT = 1 << 25;
        /// Operations complete when their buffers may be reused.
        const INJECT_COMPLETE = 1 << 26;
        /// Operations complete when they no longer depend on this side.
        const TRANSMIT_COMPLETE = 1 << 27;
        /// Operations complete when the peer's endpoint has processed them.
        const DELIVERY_COMPLETE = 1 << 28;
        /// Operations complete when their result is persistent at the peer.
        const COMMIT_COMPLETE = 1 << 30;
    }
}

impl OpFlags {
    pub(super) const TRANSMIT: OpFlags = OpFlags::all().difference(OpFlags::MULTI_RECV);
    pub(super) const RECEIVE: OpFlags = OpFlags::MULTI_RECV.union(OpFlags::COMPLETION);
}
