//! What a program asks for.

use std::net::SocketAddr;

use super::attr::AuthKey;
use super::caps::{Caps, CompOrder, Mode, MrMode, MsgOrder, OpFlags};
use super::kinds::{
    AddressFormat, ApiVersion, AvType, ContextCount, EndpointType, Progress, Protocol,
    ResourceManagement, Threading, TrafficClass,
};
use super::weak_domain::WeakDomain;
#[cfg(feature = "tls")]
use crate::tls::TlsConfig;

/// Makes a struct and one setter per field from one list, so that no attribute can be hinted
/// without being stored, or stored without being hinted.
macro_rules! hints {
    (
        $(#[$struct_doc:meta])*
        $name:ident
        values { $( $(#[$value_doc:meta])* $value:ident: $type:ty, )* }
        texts { $( $(#[$text_doc:meta])* $text:ident, )* }
        switches { $( $(#[$switch_doc:meta])* $switch:ident, )* }
        groups { $( $(#[$group_doc:meta])* $group:ident: $group_type:ident, )* }
    ) => {
        $(#[$struct_doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[must_use = "hints do nothing until something is opened with them"]
        pub struct $name {
            $( $(#[$value_doc])* pub(crate) $value: Option<$type>, )*
            $( pub(crate) $text: Option<String>, )*
            $( pub(crate) $switch: bool, )*
            $( pub(crate) $group: $group_type, )*
        }

        impl $name {
            $( $(#[$value_doc])* pub fn $value(mut self, $value: $type) -> Self {
                self.$value = Some($value);
                self
            } )*

            $( $(#[$text_doc])* pub fn $text(mut self, $text: impl Into<String>) -> Self {
                self.$text = Some($text.into());
                self
            } )*

            $( $(#[$switch_doc])* pub fn $switch(mut self) -> Self {
                self.$switch = true;
                self
            } )*

            $( $(#[$group_doc])* pub fn $group(
                mut self,
                set: impl FnOnce($group_type) -> $group_type,
            ) -> Self {
                self.$group = set(self.$group);
                self
            } )*
        }
    };
}

impl Hints {
    /// Asks for nothing; everything that is offered fits.
    pub fn new() -> Self {
        Self::default()
    }
}

hints! {
    #[doc(alias("fi_getinfo", "fi_allocinfo"))]
    /// What a program wants of a fabric, a domain and an endpoint (the `hints`, `node`, `service`
    /// and `flags` of `fi_getinfo(3)`).
    ///
    /// Each hint is a demand: what cannot meet it is left out of the answer. A hint that is not
    /// given, is 0, empty or `Unspec` is a wildcard. The one exception is [`mode`](Self::mode):
    /// modes not given are modes the program does not support. Limits ask for *at least* that much;
    /// sizes and counts of objects for that much.
    ///
    /// Most programs name an [`endpoint`](Self::endpoint), sometimes [`caps`](Self::caps) and a
    /// [`backend`](Self::backend). The attributes of single objects are in groups, as in
    /// [`Info`](super::Info).
    ///
    /// ```
    /// use tokio_fabric::{Caps, EndpointType, Hints};
    ///
    /// let hints = Hints::new()
    ///     .endpoint(EndpointType::Msg)
    ///     .caps(Caps::MSG | Caps::RMA)
    ///     .tx(|tx| tx.size(1024));
    /// # let _ = hints;
    /// ```
    Hints
    values {
        /// The kind of endpoint. Offered: [`EndpointType::Msg`], [`EndpointType::Rdm`], and
        /// [`EndpointType::Dgram`]: provider `udp`, [`Protocol::UDP`] and [`Caps::MULTICAST`] mean
        /// that too. Hints that name none get the reliable ones that fit, connected ones first.
        endpoint: EndpointType,
        /// Capabilities. Primary ones without a direction mean all directions. Endpoints do what
        /// they were opened for and nothing else; without this hint, all that there is.
        caps: Caps,
        /// Modes the program can live with. None is ever imposed.
        mode: Mode,
        /// The form of addresses, and with it the family.
        address_format: AddressFormat,
        /// The local address (`src_addr`). Port 0 leaves the port to the system; a wildcard
        /// address (`0.0.0.0`) stays one. Ignored after [`node_is_source`](Self::node_is_source).
        source: SocketAddr,
        /// The peer's address (`dest_addr`). Ignored when a node or service names the peer.
        dest: SocketAddr,
        /// Secures every connection by TLS 1.3: a peer without it is refused, and so is one that
        /// is not who the configuration says it must be. Not a hint of libfabric's. Without the
        /// hint there is no TLS. Datagrams have none, so kinds of endpoints for them do not fit.
        #[cfg(feature = "tls")]
        tls: TlsConfig,
    }
    texts {
        /// The peer: an address in numbers, a name, or text such as
        /// `fi_sockaddr://10.0.0.1:7471`, which excludes [`service`](Self::service). Only
        /// addresses in numbers fill [`Info::dest`](super::Info::dest) here; names are looked up
        /// when something is opened.
        node,
        /// The peer's port, in numbers or by name. Without a [`node`](Self::node) it is a port of
        /// this machine's loopback address.
        service,
        /// The name of a [`Backend`](crate::Backend): `epoll` (the default), `io-uring` or
        /// `loopback`.
        backend,
        /// The provider: `tcp`, or a list such as `tcp,udp`, or, with `^` in front, a list of
        /// those to leave out (as the variable `FI_PROVIDER`).
        provider,
        /// The network interface to use (as the variable `FI_TCP_IFACE`).
        interface,
    }
    switches {
        /// Node and service name the local side (`FI_SOURCE`), as listeners want. At least one of
        /// them must be given.
        node_is_source,
        /// The node is an address in numbers (`FI_NUMERICHOST`): a name is an error and is not
        /// looked up.
        numeric_host,
    }
    groups {
        /// The fabric's attributes.
        fabric: FabricHints,
        /// The domain's attributes.
        domain: DomainHints,
        /// The endpoint's attributes.
        endpoint_attr: EndpointHints,
        /// The attributes of the transmit side.
        tx: TxHints,
        /// The attributes of the receive side.
        rx: RxHints,
    }
}

hints! {
    /// Hints about the fabric (`struct fi_fabric_attr` of `fi_fabric(3)`).
    FabricHints
    values {
        /// The interface version the program was written for. Default 1.17.
        api_version: ApiVersion,
        /// The version of the provider, at least.
        provider_version: ApiVersion,
    }
    texts {
        /// The fabric: a subnet, written as in [`FabricAttr::name`](super::FabricAttr::name).
        name,
    }
    switches {}
    groups {}
}

hints! {
    /// Hints about the domain (`struct fi_domain_attr` of `fi_domain(3)`).
    DomainHints
    values {
        /// Only what can be had in this domain, which is open, as it was opened: with no other hint
        /// of this group. What belongs to other domains is left out of the answer.
        domain: WeakDomain,
        /// The program's promise about threads. Default and strongest: [`Threading::Safe`].
        threading: Threading,
        /// What makes control operations progress. Offered: [`Progress::Auto`],
        /// [`Progress::Manual`] and [`Progress::ControlUnified`]. One driver makes all progress:
        /// if either of the two attributes is asked to be automatic, both are.
        control_progress: Progress,
        /// What makes data transfers progress. Offered: [`Progress::Auto`] and
        /// [`Progress::Manual`].
        data_progress: Progress,
        /// Protection against overruns. On in any case.
        resource_mgmt: ResourceManagement,
        /// The kind of address vector; connected endpoints use none.
        av_type: AvType,
        /// Registration modes the program *can cope with*. The library needs none of them and
        /// clears them in the answer; `BASIC` alone is a request and stays (`fi_mr(3)`). `BASIC`
        /// stands alone or with `LOCAL`, `SCALABLE` alone: anything else is an error.
        mr_mode: MrMode,
        /// Registration modes the program *wants to be held to*, for instance because peers expect
        /// virtual addresses. They stay in [`DomainAttr::mr_mode`](super::DomainAttr::mr_mode).
        /// Offered: all but `COLLECTIVE`. Not a hint of
        /// libfabric's, where only a provider can require a mode.
        required_mr_mode: MrMode,
        /// Bytes of a region's key; at most 8, or 32 with [`MrMode::RAW`] in
        /// [`required_mr_mode`](Self::required_mr_mode).
        mr_key_size: usize,
        /// Bytes of remote CQ data; at most 8.
        cq_data_size: usize,
        /// Completion queues of a domain: so many can be open, and one more is refused. Default,
        /// and most: 1,048,576.
        cq_cnt: usize,
        /// Endpoints of a domain, likewise. Default, and most: 1,048,576.
        ep_cnt: usize,
        /// Transmit contexts of a domain, likewise: each endpoint that can transmit has one, a
        /// scalable one more.
        tx_ctx_cnt: usize,
        /// Receive contexts of a domain, likewise: each endpoint that peers can reach has one, a
        /// scalable one more.
        rx_ctx_cnt: usize,
        /// Transmit contexts that an endpoint may have: the limit is what is asked for, at most 64
        /// of a connectionless endpoint and 1 of any other.
        max_ep_tx_ctx: usize,
        /// Receive contexts that an endpoint may have, likewise.
        max_ep_rx_ctx: usize,
        /// Endpoints that may share a transmit context; not offered.
        max_ep_stx_ctx: usize,
        /// Endpoints that may share a receive context: of connected ones all.
        max_ep_srx_ctx: usize,
        /// Counters of a domain, likewise. Default, and most: 6,291,456.
        cntr_cnt: usize,
        /// Pieces of memory per region; at most 16.
        mr_iov_limit: usize,
        /// Capabilities of the domain: local and remote communication, user identifiers of
        /// addresses, and [`Caps::DIRECTED_RECV`] of connectionless endpoints, which limits regions
        /// to one authorization key of several.
        caps: Caps,
        /// Modes of the domain the program can live with.
        mode: Mode,
        /// The domain's authorization key. Ignored before version 1.5, and without bytes.
        /// [`AuthKey::of_address_vector`] (`FI_AV_AUTH_KEY`) is offered for connectionless
        /// endpoints: each peer then has a key of its own.
        auth_key: AuthKey,
        /// Bytes of data with an error event; at most 256.
        max_err_data: usize,
        /// Memory regions of a domain, likewise; tables are made for them when it is opened.
        /// Default, and most: 16,777,216.
        mr_cnt: usize,
        /// The class of traffic of the domain's endpoints. Default: [`TrafficClass::BestEffort`].
        traffic_class: TrafficClass,
        /// Authorization keys of a connectionless endpoint; at most 64.
        max_ep_auth_key: usize,
    }
    texts {
        /// The domain: the name of a network interface.
        name,
    }
    switches {}
    groups {}
}

hints! {
    /// Hints about the endpoint (`struct fi_ep_attr` of `fi_endpoint(3)`).
    EndpointHints
    values {
        /// The protocol. Offered: [`Protocol::SOCK_TCP`] connected, [`Protocol::XNET`] reliable and
        /// connectionless, [`Protocol::UDP`] for datagrams.
        protocol: Protocol,
        /// The protocol's version, at least. Offered: 0 connected, 1 connectionless.
        protocol_version: u32,
        /// Bytes of the largest transfer.
        max_msg_size: u64,
        /// Bytes of header room in front of message buffers; none is needed nor offered.
        msg_prefix_size: usize,
        /// Bytes up to which reads after writes are ordered.
        max_order_raw_size: u64,
        /// Bytes up to which writes after reads are ordered; not offered.
        max_order_war_size: u64,
        /// Bytes up to which writes after writes are ordered.
        max_order_waw_size: u64,
        /// Fields of a tag, however they are cut; not offered without tagged messages.
        mem_tag_format: u64,
        /// Transmit contexts of the endpoint. Offered: one of its own, and of a connectionless
        /// endpoint, if it is scalable, as many as the domain's `max_ep_tx_ctx`. A context is one
        /// of either side: of both there are the larger number that is asked for.
        tx_ctx_cnt: ContextCount,
        /// Receive contexts of the endpoint, likewise; of a connected one also a shared one.
        rx_ctx_cnt: ContextCount,
        /// The authorization key of endpoints, instead of the domain's. Ignored likewise.
        auth_key: AuthKey,
    }
    texts {
    }
    switches {}
    groups {}
}

hints! {
    /// Hints about the transmit side (`struct fi_tx_attr` of `fi_endpoint(3)`).
    TxHints
    values {
        /// Capabilities of the transmit side; a subset of [`Hints::caps`].
        caps: Caps,
        /// Modes of the transmit side the program can live with.
        mode: Mode,
        /// What transmit operations do when their call says nothing: a completion level
        /// (`COMMIT_COMPLETE` with [`Caps::RMA_PMEM`]), `COMPLETION` on queues that are bound
        /// selectively, `MULTICAST` of datagrams.
        op_flags: OpFlags,
        /// Order of transmit operations.
        msg_order: MsgOrder,
        /// Order of transmit completions. None is offered: operations are reported as they end.
        comp_order: CompOrder,
        /// Bytes of an injected transfer; at most 128.
        inject_size: usize,
        /// Transmit operations in flight; default 256, at most 4096.
        size: usize,
        /// Local buffers per transmit operation; at most 4.
        iov_limit: usize,
        /// Remote segments per operation; at most 4.
        rma_iov_limit: usize,
        /// The endpoint's class of traffic. Default: the domain's.
        traffic_class: TrafficClass,
    }
    texts {
    }
    switches {}
    groups {}
}

hints! {
    /// Hints about the receive side (`struct fi_rx_attr` of `fi_endpoint(3)`).
    RxHints
    values {
        /// Capabilities of the receive side; a subset of [`Hints::caps`].
        caps: Caps,
        /// Modes of the receive side the program can live with.
        mode: Mode,
        /// The same of receives: `COMPLETION`, and `MULTI_RECV` of connectionless endpoints, which
        /// makes untagged receives that report to a queue buffers for several messages.
        op_flags: OpFlags,
        /// Order in which received operations are processed.
        msg_order: MsgOrder,
        /// Order of receive completions. Offered: [`CompOrder::STRICT`].
        comp_order: CompOrder,
        /// Bytes of messages kept while no receive is posted; default 1 MiB. Beyond it the peer
        /// waits.
        total_buffered_recv: usize,
        /// Posted receives; default 256, at most 65536.
        size: usize,
        /// Buffers per receive; at most 4.
        iov_limit: usize,
    }
    texts {
    }
    switches {}
    groups {}
}
