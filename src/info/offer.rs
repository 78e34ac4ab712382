//! The offer of each kind of endpoint, attribute by attribute, with the values of libfabric's
//! providers unless ours have to differ. A new kind is one more row of [`OFFERS`].

use super::Interface;
use super::caps::{Caps, CompOrder, MsgOrder, OpFlags};
use super::kinds::{EndpointType, Protocol};
use crate::limits;

/// The attributes that endpoints of one kind offer.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) endpoint_type: EndpointType,
    /// Name of the C provider with this protocol.
    pub(super) provider: &'static str,
    pub(super) protocol: Protocol,
    pub(super) protocol_version: u32,
    /// All capabilities. A result has the requested ones.
    pub(super) caps: Caps,
    /// Capabilities that are enabled whether or not they are requested.
    pub(super) caps_always: Caps,
    /// The order that is always kept, and (in the next field) the order that is also kept on
    /// request.
    pub(super) msg_order: MsgOrder,
    pub(super) msg_order_on_demand: MsgOrder,
    /// The order of transmit completions.
    pub(super) tx_comp_order: CompOrder,
    /// Largest transfer, in bytes.
    pub(super) max_msg_size: u64,
    /// A message is one packet: the interface limits its size, and that of an injected message.
    pub(super) is_packet: bool,
    /// Largest transfer, in bytes, for which reads after writes, and writes after writes, are
    /// ordered.
    pub(super) max_order_size: u64,
    /// The bits of a tag, in the form of `mem_tag_format`; 0 without tags.
    pub(super) mem_tag_format: u64,
    /// Default flags that operations can have. Flags that need a capability are offered with it
    /// only.
    pub(super) tx_op_flags: OpFlags,
    pub(super) rx_op_flags: OpFlags,
    pub(super) inject_size: usize,
    pub(super) rma_iov_limit: usize,
    /// Bytes of remote CQ data.
    pub(super) cq_data_size: usize,
}

impl Offer {
    /// Returns the offer on this interface, if it depends on the interface.
    pub(super) fn on(&self, interface: &Interface) -> Option<Offer> {
        let max = interface.datagram_max();
        self.is_packet.then_some(Offer {
            max_msg_size: max as u64,
            inject_size: max,
            ..*self
        })
    }
}

/// All kinds, in the order in which they are offered if the hints name none.
pub(super) const OFFERS: &[Offer] = &[MSG, RDM, DGRAM];

/// Capabilities of a domain that are always enabled.
pub(super) const DOMAIN_CAPS: Caps = Caps::LOCAL_COMM.union(Caps::REMOTE_COMM);

const MSG: Offer = Offer {
    endpoint_type: EndpointType::Msg,
    provider: "tcp",
    protocol: Protocol::SOCK_TCP,
    protocol_version: 0,
    caps: Caps::MSG
        .union(Caps::RMA)
        .union(Caps::ATOMIC)
        .union(Caps::MODIFIERS)
        .union(Caps::RMA_EVENT)
        .union(Caps::RMA_PMEM)
        .union(Caps::FENCE)
        .union(Caps::VARIABLE_MSG)
        .union(Caps::HMEM)
        .union(DOMAIN_CAPS),
    caps_always: DOMAIN_CAPS,
    msg_order: STREAM_ORDER,
    msg_order_on_demand: BEHIND_SENDS,
    // Empty: a read is reported when its data has arrived, a later send when it has been sent.
    tx_comp_order: CompOrder::empty(),
    max_msg_size: u64::MAX,
    is_packet: false,
    max_order_size: u64::MAX,
    mem_tag_format: 0,
    tx_op_flags: OpFlags::INJECT_COMPLETE
        .union(OpFlags::TRANSMIT_COMPLETE)
        .union(OpFlags::DELIVERY_COMPLETE)
        .union(OpFlags::COMMIT_COMPLETE)
        .union(OpFlags::COMPLETION),
    rx_op_flags: OpFlags::COMPLETION,
    inject_size: limits::INJECT_SIZE_MAX,
    rma_iov_limit: limits::RMA_IOV_LIMIT,
    cq_data_size: CQ_DATA_SIZE,
};

/// Bytes of CQ data, as in the protocol of libfabric's `tcp`.
const CQ_DATA_SIZE: usize = 8;

/// Bare UDP payloads (`fi_udp(7)`): nothing is ordered or acknowledged, and there is no room for
/// data in addition to a message.
const DGRAM: Offer = Offer {
    endpoint_type: EndpointType::Dgram,
    provider: "udp",
    protocol: Protocol::UDP,
    protocol_version: 0,
    caps: Caps::MSG
        .union(Caps::MULTICAST)
        .union(Caps::MESSAGE_DIRECTIONS)
        .union(Caps::SOURCE)
        .union(Caps::DIRECTED_RECV)
        .union(Caps::HMEM)
        .union(DOMAIN_CAPS),
    caps_always: DOMAIN_CAPS.union(Caps::SOURCE),
    msg_order: MsgOrder::empty(),
    msg_order_on_demand: MsgOrder::empty(),
    tx_comp_order: CompOrder::STRICT,
    max_msg_size: 0,
    is_packet: true,
    max_order_size: 0,
    mem_tag_format: 0,
    tx_op_flags: OpFlags::INJECT_COMPLETE
        .union(OpFlags::TRANSMIT_COMPLETE)
        .union(OpFlags::MULTICAST)
        .union(OpFlags::COMPLETION),
    rx_op_flags: OpFlags::COMPLETION,
    inject_size: 0,
    rma_iov_limit: 0,
    cq_data_size: 0,
};

/// Connectionless endpoints, over connections like those of `MSG`, one per peer.
const RDM: Offer = Offer {
    endpoint_type: EndpointType::Rdm,
    protocol: Protocol::XNET,
    protocol_version: 1,
    caps: MSG
        .caps
        .union(Caps::TAGGED)
        .union(Caps::DIRECTED_RECV)
        .union(Caps::NAMED_RX_CTX)
        .union(Caps::MULTI_RECV)
        .union(Caps::SOURCE)
        .union(Caps::AV_USER_ID),
    mem_tag_format: TAG_GENERIC,
    rx_op_flags: OpFlags::COMPLETION.union(OpFlags::MULTI_RECV),
    ..MSG
};

/// 64 fields of one bit: the highest bit of each field differs from the one before
/// (`FI_TAG_GENERIC`).
const TAG_GENERIC: u64 = 0xaaaa_aaaa_aaaa_aaaa;

/// One TCP stream per peer keeps everything in order except operations after a read: the data of a
/// read is fetched when its response is sent, and later frames may have been processed by then.
/// Atomic operations are processed one after the other, including their results.
const STREAM_ORDER: MsgOrder = MsgOrder::RAR
    .union(MsgOrder::RAW)
    .union(MsgOrder::WAW)
    .union(MsgOrder::SAW)
    .union(MsgOrder::SAS)
    .union(MsgOrder::RMA_RAR)
    .union(MsgOrder::RMA_RAW)
    .union(MsgOrder::RMA_WAW)
    .union(MsgOrder::ATOMIC_RAR)
    .union(MsgOrder::ATOMIC_RAW)
    .union(MsgOrder::ATOMIC_WAR)
    .union(MsgOrder::ATOMIC_WAW);

/// With this order RMA waits behind a message for which the peer has no room.
const BEHIND_SENDS: MsgOrder = MsgOrder::RAS.union(MsgOrder::WAS);
