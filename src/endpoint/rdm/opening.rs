//! Opens the contexts that a builder has bound: the one context of an endpoint, or those of a
//! scalable endpoint.

use std::net::SocketAddr;
use std::sync::Arc;

use super::ports::Ports;
use super::{Inner, RdmEndpoint};
use crate::domain::Domain;
use crate::endpoint::SharedReceiveContext;
use crate::endpoint::common::Common;
use crate::endpoint::sources::SourceNames;
use crate::error::{Error, ErrorKind, OperationKind, Result};
use crate::id::AuthKeyAddr;
use crate::info::AddressFormat;
use crate::limits::{HALF_OPEN_MAX_DEFAULT, HANDSHAKE_TIMEOUT_DEFAULT};
use crate::progress::{Engine, ListenConfig, Rdm, RdmConfig, ReceiveContext};

/// A context that is bound and does not listen yet.
pub(super) struct PreparedContext {
    pub(super) config: RdmConfig,
    pub(super) rest: ContextParts,
}

/// The part of a context that the progress engine does not have.
pub(super) struct ContextParts {
    pub(super) receives: Arc<ReceiveContext>,
    pub(super) shared: Option<SharedReceiveContext>,
    pub(super) names: Arc<SourceNames>,
    pub(super) free_min: usize,
    pub(super) key_names: Box<[AuthKeyAddr]>,
    pub(super) common: Common,
}

/// Opens the contexts of one endpoint, each with its engine, at this address or the domain's.
pub(super) fn open_contexts(
    domain: &Domain,
    listen_at: Option<SocketAddr>,
    engines: impl IntoIterator<Item = Arc<Engine>>,
    contexts: Vec<PreparedContext>,
) -> Result<Vec<RdmEndpoint>> {
    let address = listen_at.unwrap_or_else(|| domain.info().listen_address());
    // `[::]` is all addresses, those of IPv4 among them.
    let is_ipv6_only = address.is_ipv6() && !address.ip().is_unspecified();
    if domain.info().address_format == AddressFormat::SockaddrIn && is_ipv6_only {
        // The endpoint would listen, but its vector could contain no peer that it can reach.
        let message = format!(
            "listen_at: {address} is an IPv6 address, and the domain's are IPv4: open the fabric \
             with Hints::address_format(AddressFormat::SockaddrIn6)"
        );
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    let listener = domain.listener_transport()?;
    let listen = ListenConfig {
        transport: listener.transport,
        address,
        half_open_max: HALF_OPEN_MAX_DEFAULT,
        handshake_timeout: HANDSHAKE_TIMEOUT_DEFAULT,
    };
    let parts = contexts.into_iter().map(|it| (it.config, it.rest));
    let (configs, rests): (Vec<_>, Vec<_>) = parts.unzip();
    let contexts = engines.into_iter().zip(configs).collect();
    let opened = Rdm::open_contexts(listen, listener.executor, contexts)
        .map_err(|error| error.with_operation(OperationKind::Listen))?;
    let opened = opened.into_iter().zip(rests);
    Ok(opened.map(|(rdm, rest)| endpoint_of(rdm, rest)).collect())
}

fn endpoint_of(rdm: Arc<Rdm>, rest: ContextParts) -> RdmEndpoint {
    let inner = Inner {
        rdm,
        receives: rest.receives,
        shared: rest.shared,
        ports: Ports::new(rest.names.vector.rx_ctx_bits()),
        names: rest.names,
        free_min: rest.free_min,
        key_names: rest.key_names,
        common: rest.common,
    };
    RdmEndpoint {
        inner: Arc::new(inner),
    }
}
