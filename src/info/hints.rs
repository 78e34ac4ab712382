//! The requirements of a program on the objects that it opens.

use std::net::SocketAddr;

use super::attr::AuthKey;
use super::caps::{Caps, CompOrder, Mode, MrMode, MsgOrder, OpFlags};
use super::kinds::{
    AddressFormat, ApiVersion, AvType, ContextCount, EndpointType, Progress, Protocol,
    ResourceManagement, Threading, TrafficClass,
};
use super::weak_domain::WeakDomain;
use crate::path::LocalPath;
#[cfg(feature = "tls")]
use crate::tls::TlsConfig;

/// Makes a struct and one setter per field from one list, so that every setter has a field, and
/// every field a setter.
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
    /// Hints without any requirement: everything that is offered matches.
    #[doc(alias = "fi_allocinfo")]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether shared memory may be used: as the hint says; without the hint, it may be
    /// used unless the capabilities request communication with other hosts but not with this one.
    pub(crate) fn chosen_local_path(&self) -> LocalPath {
        let asked = self.caps.unwrap_or_default() | self.domain.caps.unwrap_or_default();
        let is_remote_only = asked.contains(Caps::REMOTE_COMM) && !asked.contains(Caps::LOCAL_COMM);
        self.local_path.unwrap_or(match is_remote_only {
            true => LocalPath::Off,
            false => LocalPath::Auto,
        })
    }
}

hints! {
    #[doc(alias = "fi_getinfo")]
    /// The requirements of a program on a fabric, a domain and an endpoint (the `hints`, `node`,
    /// `service` and `flags` of `fi_getinfo(3)`).
    ///
    /// Each hint is a requirement: results that do not meet it are left out. A hint that is not
    /// given, or is 0, empty or `Unspec`, is a wildcard. The one exception is [`mode`](Self::mode):
    /// modes that are not given are modes that the program does not support. Limits request *at
    /// least* the given value; sizes and counts of objects request the given value.
    ///
    /// Most programs give an [`endpoint`](Self::endpoint), sometimes [`caps`](Self::caps) and a
    /// [`backend`](Self::backend). The attributes of the individual objects are in groups, as in
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
        /// The type of endpoint: [`EndpointType::Msg`], [`EndpointType::Rdm`], or
        /// [`EndpointType::Dgram`], which the provider `udp`, [`Protocol::UDP`] and
        /// [`Caps::MULTICAST`] also select. Without this hint the results contain the reliable
        /// types that match, connected ones first.
        endpoint: EndpointType,
        /// Required capabilities. Endpoints have exactly the capabilities that they were opened
        /// with; without this hint, all that are available.
        caps: Caps,
        /// Modes that the program supports. The library never imposes any.
        mode: Mode,
        /// The address format, which also determines the address family.
        address_format: AddressFormat,
        /// The local address (`src_addr`). With port 0 the system chooses a port. A wildcard
        /// address (`0.0.0.0`) is kept as it is. Ignored with
        /// [`node_is_source`](Self::node_is_source).
        source: SocketAddr,
        /// The peer's address (`dest_addr`). Ignored if [`node`](Self::node) or
        /// [`service`](Self::service) name the peer.
        dest: SocketAddr,
        /// Secures every connection with TLS 1.3: a peer without TLS is refused, and so is one that
        /// does not prove the identity that the configuration requires. This hint does not exist in
        /// libfabric. Without it there is no TLS. Datagram endpoints do not support TLS and do not
        /// match.
        #[cfg(feature = "tls")]
        tls: TlsConfig,
        /// Whether connections to peers on the same host may go through shared memory. This hint
        /// does not exist in libfabric, whose providers choose by themselves. Default:
        /// [`LocalPath::Off`] if the capabilities ask for [`Caps::REMOTE_COMM`] and not for
        /// [`Caps::LOCAL_COMM`], else [`LocalPath::Auto`].
        local_path: LocalPath,
    }
    texts {
        /// The peer: a numeric address, a host name, or text such as `fi_sockaddr://10.0.0.1:7471`,
        /// which cannot be combined with [`service`](Self::service). Only numeric addresses appear
        /// in [`Info::dest`](super::Info::dest); host names are resolved when an object is opened.
        node,
        /// The peer's port, as a number or a service name. Without a [`node`](Self::node) it is a
        /// port of the loopback address.
        service,
        /// The name of a [`Backend`](crate::Backend): `epoll` (the default), `io-uring` or
        /// `loopback`.
        backend,
        /// Providers: `tcp`, a list such as `tcp,udp`, or `^` followed by a list of providers to
        /// exclude (as in the variable `FI_PROVIDER`).
        provider,
        /// The network interface to use (as the variable `FI_TCP_IFACE`).
        interface,
    }
    switches {
        /// Node and service name the local side (`FI_SOURCE`), as for listeners. At least one of
        /// them must be given.
        node_is_source,
        /// The node must be a numeric address (`FI_NUMERICHOST`): a host name is an error and is
        /// not resolved.
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
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
    /// use tokio_fabric::info::ApiVersion;
    /// use tokio_fabric::{Fabric, Hints};
    ///
    /// let hints = Hints::new().fabric(|hints| hints.api_version(ApiVersion::new(1, 4)));
    /// assert_eq!(Fabric::open(hints)?.infos()[0].fabric.api_version, ApiVersion::new(1, 4));
    /// # Ok(()) }
    /// ```
    FabricHints
    values {
        /// The interface version that the program was written for. Default: 1.17.
        api_version: ApiVersion,
        /// The oldest acceptable version of the provider, which is this crate.
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
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
    /// use tokio_fabric::{Fabric, Hints};
    ///
    /// let hints = Hints::new().domain(|hints| hints.name("lo").mr_cnt(1000));
    /// assert_eq!(Fabric::open(hints)?.infos()[0].domain.mr_cnt, 1000);
    /// # Ok(()) }
    /// ```
    DomainHints
    values {
        /// Restricts the results to this open domain, with the attributes that it was opened with.
        /// Cannot be combined with other hints of this group.
        domain: WeakDomain,
        /// The program's promise about threads. Default: [`Threading::Safe`], which promises
        /// nothing.
        threading: Threading,
        /// The mode of progress of control operations: [`Progress::Auto`] (the default),
        /// [`Progress::Manual`] or [`Progress::ControlUnified`]. One driver makes all progress, so
        /// if either of `control_progress` and `data_progress` is automatic, both are.
        control_progress: Progress,
        /// The mode of progress of data transfers: [`Progress::Auto`] (the default) or
        /// [`Progress::Manual`].
        data_progress: Progress,
        /// Protection against queue overruns. It is always enabled.
        resource_mgmt: ResourceManagement,
        /// The type of address vectors. Connected endpoints use none.
        av_type: AvType,
        /// Registration modes that the program *supports*. The library needs none of them and
        /// clears them in the result, except `BASIC` alone, which is a request and is kept
        /// (`fi_mr(3)`). `BASIC` can only be combined with `LOCAL`, and `SCALABLE` with nothing;
        /// anything else is an error.
        mr_mode: MrMode,
        /// Registration modes that the program *wants to be enforced*, for instance because peers
        /// expect virtual addresses. They are kept in
        /// [`DomainAttr::mr_mode`](super::DomainAttr::mr_mode). All modes except `COLLECTIVE` are
        /// available. This hint does not exist in libfabric, where only a provider can require a
        /// mode.
        required_mr_mode: MrMode,
        /// Bytes of a region's key: at most 8, or 32 with [`MrMode::RAW`] in
        /// [`required_mr_mode`](Self::required_mr_mode).
        mr_key_size: usize,
        /// Bytes of immediate data (remote CQ data): at most 8, and 0 for datagram endpoints.
        cq_data_size: usize,
        /// Completion queues. Like all counts but [`ep_cnt`](Self::ep_cnt), this is advice, unless
        /// the domain is opened with a [limit](crate::domain::DomainBuilder::limit). Default and
        /// maximum: 1,048,576.
        cq_cnt: usize,
        /// Endpoints that can be open at the same time. Default and maximum: 1,048,576.
        ep_cnt: usize,
        /// Transmit contexts of all endpoints together. Each endpoint that can transmit has one; a
        /// scalable endpoint has several. Default and maximum: 1,048,576.
        tx_ctx_cnt: usize,
        /// Receive contexts of all endpoints together. Each endpoint that peers can reach has one;
        /// a scalable endpoint has several. Default and maximum: 1,048,576.
        rx_ctx_cnt: usize,
        /// Transmit contexts per endpoint. Default and maximum: 64 for connectionless endpoints, 1
        /// for others.
        max_ep_tx_ctx: usize,
        /// Receive contexts per endpoint. Default and maximum: 64 for connectionless endpoints, 1
        /// for others.
        max_ep_rx_ctx: usize,
        /// Endpoints that can share a transmit context. Only 0 is offered.
        max_ep_stx_ctx: usize,
        /// Endpoints that can share a receive context: at most as many as the domain can have; for
        /// datagrams only 0.
        max_ep_srx_ctx: usize,
        /// Counters. Default and maximum: 6,291,456.
        cntr_cnt: usize,
        /// Buffers per region: at most 16.
        mr_iov_limit: usize,
        /// Required capabilities of the domain: [`Caps::LOCAL_COMM`], [`Caps::REMOTE_COMM`],
        /// [`Caps::SHARED_AV`], [`Caps::AV_USER_ID`] (identifiers that the application gives to
        /// addresses) and [`Caps::DIRECTED_RECV`], which allows regions to be limited to one of
        /// several authorization keys and is not available for connected endpoints.
        caps: Caps,
        /// Domain modes that the program supports.
        mode: Mode,
        /// The default authorization key of the domain's endpoints and regions. Ignored before
        /// interface version 1.5, and if it has no bytes. With [`AuthKey::of_address_vector`]
        /// (`FI_AV_AUTH_KEY`; connectionless endpoints only) each peer has a key of its own.
        auth_key: AuthKey,
        /// Bytes of an event's error data: at most 256.
        max_err_data: usize,
        /// Memory regions, or those bound to each endpoint with [`MrMode::ENDPOINT`]; the domain
        /// allocates a table for this many when it is opened. Default and maximum: 16,777,216.
        mr_cnt: usize,
        /// The default traffic class of the domain's endpoints. Default:
        /// [`TrafficClass::BestEffort`].
        traffic_class: TrafficClass,
        /// Authorization keys per connectionless endpoint: at most 64.
        max_ep_auth_key: usize,
    }
    texts {
        /// The name of a network interface, for example `eth0`.
        name,
    }
    switches {}
    groups {}
}

hints! {
    /// Hints about the endpoint (`struct fi_ep_attr` of `fi_endpoint(3)`).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
    /// use tokio_fabric::info::Protocol;
    /// use tokio_fabric::{EndpointType, Fabric, Hints};
    ///
    /// let hints = Hints::new().endpoint_attr(|hints| hints.protocol(Protocol::XNET));
    /// assert_eq!(Fabric::open(hints)?.infos()[0].endpoint.endpoint_type, EndpointType::Rdm);
    /// # Ok(()) }
    /// ```
    EndpointHints
    values {
        /// The protocol: [`Protocol::SOCK_TCP`] for connected endpoints, [`Protocol::XNET`] for
        /// reliable connectionless ones, [`Protocol::UDP`] for datagrams.
        protocol: Protocol,
        /// The oldest acceptable version of the protocol. Offered: 1 for reliable connectionless
        /// endpoints, 0 for others.
        protocol_version: u32,
        /// Largest transfer, in bytes.
        max_msg_size: u64,
        /// Bytes of header room in front of message buffers. Only 0 is offered.
        msg_prefix_size: usize,
        /// Largest transfer, in bytes, for which reads after writes are ordered.
        max_order_raw_size: u64,
        /// Largest transfer, in bytes, for which writes after reads are ordered. Only 0 is offered.
        max_order_war_size: u64,
        /// Largest transfer, in bytes, for which writes after writes are ordered.
        max_order_waw_size: u64,
        /// The fields of a tag; any division is supported. Only 0 is offered without tagged
        /// messages.
        mem_tag_format: u64,
        /// Transmit contexts of a scalable endpoint, at most
        /// [`max_ep_tx_ctx`](DomainHints::max_ep_tx_ctx). A context always has both directions, so
        /// the larger of the two counts applies.
        tx_ctx_cnt: ContextCount,
        /// Receive contexts of a scalable endpoint, at most
        /// [`max_ep_rx_ctx`](DomainHints::max_ep_rx_ctx); or [`ContextCount::Shared`], except for
        /// datagrams.
        rx_ctx_cnt: ContextCount,
        /// The authorization key of endpoints, instead of the domain's. Ignored in the same cases.
        auth_key: AuthKey,
    }
    texts {
    }
    switches {}
    groups {}
}

hints! {
    /// Hints about the transmit side (`struct fi_tx_attr` of `fi_endpoint(3)`).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
    /// use tokio_fabric::{Fabric, Hints};
    ///
    /// let fabric = Fabric::open(Hints::new().tx(|tx| tx.size(64).iov_limit(2)))?;
    /// assert_eq!(fabric.infos()[0].tx.size, 64);
    /// # Ok(()) }
    /// ```
    TxHints
    values {
        /// Required capabilities of the transmit context; a subset of [`Hints::caps`].
        caps: Caps,
        /// Modes of the transmit context that the program supports.
        mode: Mode,
        /// Flags of transmit operations whose call does not specify otherwise: a completion level
        /// (`COMMIT_COMPLETE` only with [`Caps::RMA_PMEM`]), `COMPLETION` for queues that are bound
        /// selectively, `MULTICAST` for datagrams.
        op_flags: OpFlags,
        /// The required order of transmit operations.
        msg_order: MsgOrder,
        /// The required order of transmit completions. Offered for datagrams:
        /// [`CompOrder::STRICT`]; for others none, as operations are reported when they complete.
        comp_order: CompOrder,
        /// Largest injected message or write, in bytes: at most 128, or one packet for datagrams.
        inject_size: usize,
        /// Transmit operations that can be outstanding. Default: 256; maximum: 4096.
        size: usize,
        /// Local buffers per transmit operation: at most 4.
        iov_limit: usize,
        /// Remote segments per operation: at most 4, or 2 with [`MrMode::RAW`].
        rma_iov_limit: usize,
        /// The traffic class of endpoints. Default: the domain's.
        traffic_class: TrafficClass,
    }
    texts {
    }
    switches {}
    groups {}
}

hints! {
    /// Hints about the receive side (`struct fi_rx_attr` of `fi_endpoint(3)`).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
    /// use tokio_fabric::{Fabric, Hints};
    ///
    /// let fabric = Fabric::open(Hints::new().rx(|rx| rx.total_buffered_recv(4 << 20)))?;
    /// assert_eq!(fabric.infos()[0].rx.total_buffered_recv, 4 << 20);
    /// # Ok(()) }
    /// ```
    RxHints
    values {
        /// Required capabilities of the receive context; a subset of [`Hints::caps`].
        caps: Caps,
        /// Modes of the receive context that the program supports.
        mode: Mode,
        /// Flags of receives whose call does not specify otherwise: `COMPLETION`, and for
        /// connectionless endpoints `MULTI_RECV`, which makes each untagged receive that reports to
        /// a queue a buffer for several messages.
        op_flags: OpFlags,
        /// The required order in which peers' operations are processed.
        msg_order: MsgOrder,
        /// The required order of receive completions. Offered: [`CompOrder::STRICT`].
        comp_order: CompOrder,
        /// Bytes of unexpected messages that are kept. Default: 1 MiB. Beyond this limit the
        /// endpoint stops reading from its peer.
        total_buffered_recv: usize,
        /// Receives that can be posted. Default: 256; maximum: 65,536.
        size: usize,
        /// Buffers per receive: at most 4.
        iov_limit: usize,
    }
    texts {
    }
    switches {}
    groups {}
}
