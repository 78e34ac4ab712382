//! What each kind of endpoint offers, attribute by attribute, with the values of libfabric's
//! providers wherever ours need not differ. A new kind is one more row of [`OFFERS`].

use super::caps::{Caps, MsgOrder, OpFlags};
use super::kinds::{EndpointType, Protocol};
use crate::limits;

/// What endpoints of one kind offer.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) endpoint_type: EndpointType,
    pub(super) protocol: Protocol,
    pub(super) protocol_version: u32,
    /// All there is; an answer has what was asked for of it.
    pub(super) caps: Caps,
    /// Order kept in any case, and more of it that is kept when it is asked for.
    pub(super) msg_order: MsgOrder,
    pub(super) msg_order_on_demand: MsgOrder,
    /// Bytes of one transfer.
    pub(super) max_msg_size: u64,
    /// Bytes up to which reads after writes, and writes after writes, are ordered.
    pub(super) max_order_size: u64,
    /// The bits of a tag, in the form of `mem_tag_format`; 0 without tags.
    pub(super) mem_tag_format: u64,
    /// Default flags that operations may be given.
    pub(super) tx_op_flags: OpFlags,
    pub(super) rx_op_flags: OpFlags,
    pub(super) inject_size: usize,
}

/// Every kind, in the order in which they are offered to whoever names none.
pub(super) const OFFERS: &[Offer] = &[MSG];

/// What a domain can do; enabled in any case.
pub(super) const DOMAIN_CAPS: Caps = Caps::LOCAL_COMM.union(Caps::REMOTE_COMM);

const MSG: Offer = Offer {
    endpoint_type: EndpointType::Msg,
    protocol: Protocol::SOCK_TCP,
    protocol_version: 0,
    caps: Caps::MSG
        .union(Caps::RMA)
        .union(Caps::MODIFIERS)
        .union(Caps::RMA_EVENT)
        .union(Caps::RMA_PMEM)
        .union(DOMAIN_CAPS),
    msg_order: STREAM_ORDER,
    msg_order_on_demand: BEHIND_SENDS,
    max_msg_size: u64::MAX,
    max_order_size: u64::MAX,
    mem_tag_format: 0,
    tx_op_flags: OpFlags::INJECT
        .union(OpFlags::INJECT_COMPLETE)
        .union(OpFlags::TRANSMIT_COMPLETE)
        .union(OpFlags::DELIVERY_COMPLETE)
        .union(OpFlags::COMPLETION),
    rx_op_flags: OpFlags::COMPLETION,
    inject_size: limits::INJECT_SIZE_MAX,
};

/// One TCP stream per peer keeps everything in order but what follows a read: the data of a read is
/// fetched when its answer is sent, and later frames may have been processed by then.
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
    .union(MsgOrder::ATOMIC_WAW);

/// RMA then waits with a message for which the peer has no room.
const BEHIND_SENDS: MsgOrder = MsgOrder::RAS.union(MsgOrder::WAS);
