//! Connectionless endpoints with several contexts behind one address (`fi_scalable_ep`,
//! `fi_tx_context`, `fi_rx_context`, `fi_scalable_ep_bind`; `fi_endpoint(3)`).

use std::net::SocketAddr;
use std::sync::Arc;

use futures::future;

use super::opening::open_contexts;
use super::{RdmEndpoint, RdmEndpointBuilder};
use crate::av::AddressVector;
use crate::domain::Domain;
use crate::error::{Error, ErrorKind, Result};
use crate::info::{ContextCount, EndpointType};

/// A function that binds the context of this index of a scalable endpoint.
type BindContext = Box<dyn FnMut(usize, RdmEndpointBuilder) -> RdmEndpointBuilder + Send>;

/// An endpoint with several contexts behind one address (`fi_scalable_ep`).
///
/// Peers know it by this address, and its contexts are distributed among the drivers of the domain
/// ([`progress_shards`](crate::domain::DomainBuilder::progress_shards)). Several processors can
/// thus serve one address, and threads that post to different contexts never wait for each other.
///
/// A context combines a transmit and a receive context (`fi_tx_context`, `fi_rx_context`), and is
/// used like any [`RdmEndpoint`]: it has its own operations, receives, unexpected messages, queues,
/// counters and peers. An operation posted to a [`FabricAddr`](crate::av::FabricAddr) goes to the
/// peer's context 0, or to the one that [`AddressVector::rx_addr`] names; an endpoint that is not
/// scalable is its own context 0. Messages are ordered between two contexts, and not between
/// different ones. The source of a message is the context that sent it, so that it can be answered.
/// Other calls that name a peer (a directed receive, [`RdmEndpoint::cancel_all`],
/// [`RdmEndpoint::disconnect`]) also refer to this one context. libfabric differs in this point:
/// its messages come from the endpoint as a whole.
///
/// Each pair of communicating contexts has a connection of its own: `n` contexts that each send to
/// one context of a peer use `n` connections. Peers without contexts, such as C programs, can be
/// reached from context 0 only; operations of other contexts fail with
/// [`Incompatible`](ErrorKind::Incompatible). An operation to a context that the peer does not have
/// or has closed fails with [`AddressNotAvailable`](ErrorKind::AddressNotAvailable).
///
/// Clones are handles to the same endpoint. It is closed when the last handle of the endpoint and
/// its contexts is dropped. A context that is [shut down](RdmEndpoint::shutdown), or whose last
/// handle is dropped after the endpoint's, is closed without the others.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::info::EndpointType;
/// use tokio_fabric::{Fabric, Hints};
///
/// let hints = Hints::new().endpoint(EndpointType::Rdm).node("127.0.0.1");
/// let domain = Fabric::open(hints)?.domain().progress_shards(2).open()?;
/// let server = domain.scalable_endpoint().contexts(2).open()?;
///
/// let vector = domain.address_vector().rx_ctx_bits(1).open()?;
/// let client = domain.rdm_endpoint().address_vector(&vector).open()?;
/// let peer = client.insert(server.local_addr())?;
/// let second = vector.rx_addr(peer, 1)?;
/// client.send("to the second", second).await?;
///
/// let context = &server.contexts()[1];
/// assert_eq!(context.recv(vec![0; 13]).await?.1, b"to the second");
/// # Ok(()) }
/// ```
#[doc(alias(
    "fi_scalable_ep",
    "fi_scalable_ep_bind",
    "fi_tx_context",
    "fi_rx_context"
))]
#[derive(Clone)]
pub struct ScalableEndpoint {
    contexts: Arc<[RdmEndpoint]>,
}

impl ScalableEndpoint {
    /// Its contexts, by index (`fi_tx_context`, `fi_rx_context`). A clone of one is a handle that
    /// keeps it open.
    pub fn contexts(&self) -> &[RdmEndpoint] {
        &self.contexts
    }

    /// The address at which all of its contexts listen, with the port that was chosen
    /// (`fi_getname`): peers insert it into their address vectors, once.
    pub fn local_addr(&self) -> SocketAddr {
        self.first().local_addr()
    }

    /// The domain it was opened in.
    pub fn domain(&self) -> &Domain {
        self.first().domain()
    }

    /// The address vector it is bound to (`fi_scalable_ep_bind`).
    pub fn address_vector(&self) -> &AddressVector {
        self.first().address_vector()
    }

    /// Closes all contexts gracefully and at the same time, each as described at
    /// [`RdmEndpoint::shutdown`]; nothing listens at the address any longer.
    ///
    /// # Errors
    /// As for [`RdmEndpoint::shutdown`].
    ///
    /// # Cancel safety
    /// Once the future has been polled, the endpoint closes even if the future is dropped.
    pub async fn shutdown(&self) -> Result<()> {
        future::try_join_all(self.contexts.iter().map(RdmEndpoint::shutdown)).await?;
        Ok(())
    }

    fn first(&self) -> &RdmEndpoint {
        &self.contexts[0]
    }
}

debug_fields!(ScalableEndpoint, self =>
    local_addr: self.local_addr(), contexts: self.contexts.len()
);

/// Opens a [`ScalableEndpoint`]. You get one from [`Domain::scalable_endpoint`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{EndpointType, Fabric, Hints};
///
/// let hints = Hints::new().endpoint(EndpointType::Rdm).node("127.0.0.1");
/// let domain = Fabric::open(hints)?.domain().progress_shards(2).open()?;
/// let endpoint = domain.scalable_endpoint().contexts(4).open()?;
/// assert_eq!(endpoint.contexts().len(), 4); // Two for each driver.
/// # Ok(()) }
/// ```
#[must_use = "a builder opens nothing until `open`"]
pub struct ScalableEndpointBuilder {
    domain: Domain,
    contexts: usize,
    vector: Option<AddressVector>,
    listen_at: Option<SocketAddr>,
    bind: BindContext,
}

impl Domain {
    /// Starts building a connectionless endpoint of this domain with several contexts
    /// (`fi_scalable_ep`).
    #[doc(alias = "fi_scalable_ep")]
    pub fn scalable_endpoint(&self) -> ScalableEndpointBuilder {
        let offered = &self.info().endpoint;
        let count = |context: ContextCount| match context {
            ContextCount::Own(count) => count,
            ContextCount::Shared => 1,
        };
        ScalableEndpointBuilder {
            domain: self.clone(),
            contexts: count(offered.tx_ctx_cnt).max(count(offered.rx_ctx_cnt)),
            vector: None,
            listen_at: None,
            bind: Box::new(|_, context| context),
        }
    }
}

impl ScalableEndpointBuilder {
    /// The number of contexts, at least 1 and at most `max_ep_tx_ctx` and `max_ep_rx_ctx` of the
    /// domain, which are 64 unless the hints ask for fewer. Default: the larger of the Info's
    /// `tx_ctx_cnt` and `rx_ctx_cnt`. If there are more contexts than
    /// [drivers](crate::domain::DomainBuilder::progress_shards), some share a driver.
    pub fn contexts(mut self, count: usize) -> Self {
        self.contexts = count;
        self
    }

    /// The address vector that contains the peers of all contexts (`fi_scalable_ep_bind`). Default:
    /// a vector of its own, which cannot name contexts of peers.
    pub fn address_vector(mut self, vector: &AddressVector) -> Self {
        self.vector = Some(vector.clone());
        self
    }

    /// The address at which all contexts listen, as for [`RdmEndpointBuilder::listen_at`].
    pub fn listen_at(mut self, address: SocketAddr) -> Self {
        self.listen_at = Some(address);
        self
    }

    /// Binds each context to queues and counters of its own, and sets its attributes. The function
    /// is called with the index of each context, from 0, when the endpoint is opened. Default:
    /// nothing is bound or set.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
    /// # use tokio_fabric::{Fabric, Hints};
    /// # let hints = Hints::new().endpoint(tokio_fabric::info::EndpointType::Rdm);
    /// # let domain = Fabric::open(hints.node("127.0.0.1"))?.domain().open()?;
    /// let queues = [domain.completion_queue().open()?, domain.completion_queue().open()?];
    /// let bound = queues.clone();
    /// let endpoint = domain
    ///     .scalable_endpoint()
    ///     .contexts(2)
    ///     .each(move |index, context| context.completion_queue(&bound[index]))
    ///     .open()?;
    /// # assert!(endpoint.contexts()[1].receive_queue().capacity() > 0);
    /// # Ok(()) }
    /// ```
    pub fn each(
        mut self,
        bind: impl FnMut(usize, RdmEndpointBuilder) -> RdmEndpointBuilder + Send + 'static,
    ) -> Self {
        self.bind = Box::new(bind);
        self
    }

    /// Opens the endpoint, all of whose contexts listen from now on.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for zero contexts, and for a context that is bound to an
    /// address, an address vector or a receive context, or that does not offer the extension, which
    /// names contexts; [`ErrorKind::LimitReached`] for more contexts than the domain's Info
    /// allows; otherwise as for [`RdmEndpointBuilder::open`]. If one context cannot be opened,
    /// none is.
    pub fn open(mut self) -> Result<ScalableEndpoint> {
        self.check_count()?;
        let domain = self.domain;
        let vector = match self.vector {
            Some(vector) => vector,
            None => domain.internal_vector()?,
        };
        let mut prepared = Vec::new();
        for index in 0..self.contexts {
            let mut context = (self.bind)(index, domain.rdm_endpoint());
            check_context(&context, self.contexts)?;
            context.vector = Some(vector.clone());
            context.binding.is_additional_context = index > 0;
            prepared.push(context.prepare()?);
        }
        let engines = domain.engines_for_contexts(self.contexts);
        let contexts = open_contexts(&domain, self.listen_at, engines, prepared)?;
        Ok(ScalableEndpoint {
            contexts: contexts.into(),
        })
    }

    fn check_count(&self) -> Result<()> {
        let attr = &self.domain.info().domain;
        let caps = self.domain.info().caps_of(EndpointType::Rdm);
        if self.contexts == 0 {
            let what = "contexts is 0, an endpoint has one at least";
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        for (is_used, name, max) in [
            (caps.transmits(), "max_ep_tx_ctx", attr.max_ep_tx_ctx),
            (caps.receives(), "max_ep_rx_ctx", attr.max_ep_rx_ctx),
        ] {
            if is_used && self.contexts > max {
                let what = format!(
                    "{} contexts; {name} of the domain is {max} (Hints::domain)",
                    self.contexts
                );
                return Err(Error::new(ErrorKind::LimitReached, what));
            }
        }
        Ok(())
    }
}

debug_fields!(ScalableEndpointBuilder, self =>
    contexts: self.contexts, listen_at: self.listen_at
);

/// Refuses settings that belong to the scalable endpoint, for one of `count` contexts.
fn check_context(context: &RdmEndpointBuilder, count: usize) -> Result<()> {
    let what = if context.vector.is_some() {
        "address_vector: it is the scalable endpoint's (fi_scalable_ep_bind)"
    } else if context.listen_at.is_some() {
        "listen_at: all contexts listen where the scalable endpoint does"
    } else if context.shared.is_some() {
        "receive_context: a context of a scalable endpoint has receives of its own"
    } else if count > 1 && !context.binding.extension.offered {
        "extension: contexts are named by it, so all of them offer it"
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::InvalidArgument, what))
}
