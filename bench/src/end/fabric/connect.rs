//! Opening a side as its subject asks, and meeting the other.

use std::cell::Cell;
use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use tokio_fabric::{
    Completion, CompletionQueue, Domain, Endpoint, EndpointType, Event, EventQueue, Fabric, Hints,
    PassiveEndpoint, ep::SharedReceiveContext, local,
};

use super::super::{local_path, say, secure};
use crate::job::Job;
use crate::subject;

/// Completions taken from a queue at once.
pub const BATCH_MAX: usize = 256;

/// Buffers for several messages that endpoints share.
const SHARED_BUFFERS: usize = 2;
pub const SHARED_BUFFER_SIZE: usize = 256 << 10;

/// Posts a buffer for several messages of all endpoints that share the context.
pub fn post_shared(context: &SharedReceiveContext, buffer: Vec<u8>) -> Result<()> {
    context.multi_recv(buffer).queue(0_usize).try_post()?;
    Ok(())
}

thread_local! {
    /// The domain whose driver runs on this thread, until the end takes it.
    static OF_THIS_THREAD: Cell<Option<(Fabric, Domain)>> = const { Cell::new(None) };
}

/// The domain whose driver runs on this thread, for the one that asks first.
pub fn take_opened() -> Option<(Fabric, Domain)> {
    OF_THIS_THREAD.take()
}

/// Runs an end on this thread, beside the driver of its domain.
pub fn on_own_thread(
    how: subject::Fabric,
    end: impl Future<Output = Result<()>> + 'static,
) -> Result<()> {
    let (fabric, domain) = DomainSetup::open_domain(how, 1)?;
    OF_THIS_THREAD.set(Some((fabric, domain.clone())));
    local::block_on(&domain, async { local::spawn(end).await? })?
}

/// A domain, and the queue of its endpoints.
#[derive(Debug)]
pub struct DomainSetup {
    pub fabric: Fabric,
    pub domain: Domain,
    pub queue: CompletionQueue,
    /// Whose receives take the messages of all endpoints; `None`: each has its own.
    pub receives: Option<SharedReceiveContext>,
    /// Operations per context of an endpoint.
    operations: usize,
    /// Where a listener of it listens.
    listens_at: SocketAddr,
}

impl DomainSetup {
    /// `operations` for each of the connections, in each direction.
    pub fn open(how: subject::Fabric, job: &Job, operations: usize) -> Result<DomainSetup> {
        let (fabric, domain) = DomainSetup::open_domain(how, 1)?;
        DomainSetup::within(&fabric, &domain, job, operations)
    }

    /// The same with receives that all endpoints share: buffers that take messages of up to `size`
    /// bytes.
    pub fn open_sharing(
        how: subject::Fabric,
        job: &Job,
        operations: usize,
        size: usize,
    ) -> Result<DomainSetup> {
        let mut side = DomainSetup::open(how, job, operations)?;
        let context = side.domain.receive_context();
        let context = context.receive_queue(&side.queue).min_multi_recv(size);
        let context = context.open()?;
        for _ in 0..SHARED_BUFFERS {
            post_shared(&context, vec![0; SHARED_BUFFER_SIZE])?;
        }
        side.receives = Some(context);
        Ok(side)
    }

    pub fn open_domain(how: subject::Fabric, drivers: usize) -> Result<(Fabric, Domain)> {
        DomainSetup::open_domain_by(Hints::new(), how, drivers)
    }

    /// A domain whose Info is of connectionless endpoints, which alone have contexts.
    pub fn open_rdm_domain(how: subject::Fabric, drivers: usize) -> Result<(Fabric, Domain)> {
        let hints = Hints::new().endpoint(EndpointType::Rdm);
        DomainSetup::open_domain_by(hints, how, drivers)
    }

    fn open_domain_by(
        hints: Hints,
        how: subject::Fabric,
        drivers: usize,
    ) -> Result<(Fabric, Domain)> {
        if let Some(opened) = take_opened() {
            return Ok(opened);
        }
        let hints = match how.is_secure {
            true => hints.tls(secure::config()?),
            false => hints,
        };
        let fabric = Fabric::open(hints.backend(how.backend))?;
        let domain = fabric
            .domain()
            .driver(how.driver)
            .busy_poll(how.busy_poll)
            .local_path(local_path(how.is_local))
            .progress_shards(drivers)
            .open()?;
        Ok((fabric, domain))
    }

    /// As [`DomainSetup::open`], in a domain that may have others.
    pub fn within(
        fabric: &Fabric,
        domain: &Domain,
        job: &Job,
        operations: usize,
    ) -> Result<DomainSetup> {
        // Room for both directions, and for completions without a post.
        let places = (operations * job.connections * 2 + 64).max(1024);
        Ok(DomainSetup {
            fabric: fabric.clone(),
            domain: domain.clone(),
            queue: domain.completion_queue().size(places).open()?,
            receives: None,
            operations,
            listens_at: job.any_port(),
        })
    }

    pub fn endpoint(&self) -> Result<Endpoint> {
        let endpoint = self.domain.endpoint().completion_queue(&self.queue);
        // Twice as many: the answer to a message can arrive before the driver has seen that the
        // message was written, and until then it occupies its place.
        let endpoint = endpoint
            .transmit_size(self.operations * 2)
            .receive_size(self.operations);
        let endpoint = match &self.receives {
            Some(context) => endpoint.receive_context(context),
            None => endpoint,
        };
        Ok(endpoint.open()?)
    }

    /// An endpoint that is connected to the server, and what that has sent along; `prepare` posts
    /// its receives before.
    pub async fn connect(
        &self,
        server: SocketAddr,
        prepare: impl FnOnce(&Endpoint) -> Result<()>,
    ) -> Result<(Endpoint, Bytes)> {
        let endpoint = self.endpoint()?;
        prepare(&endpoint)?;
        let data = endpoint.connect(server).await?;
        Ok((endpoint, data))
    }

    /// Completions: those that are there, or the next one.
    pub async fn completions(&self, into: &mut Vec<Completion>) -> Result<()> {
        if self.queue.read_batch(into, BATCH_MAX) == 0 {
            into.push(self.queue.next().await.context("the queue is closed")?);
            self.queue.read_batch(into, BATCH_MAX - 1);
        }
        Ok(())
    }
}

/// A listener.
#[derive(Debug)]
pub struct Acceptor {
    listener: PassiveEndpoint,
    events: EventQueue,
}

impl Acceptor {
    /// Listens, and reports the port to the parent.
    pub fn open(side: &DomainSetup) -> Result<Acceptor> {
        let acceptor = Acceptor::open_unannounced(side)?;
        say("PORT", acceptor.address().port());
        Ok(acceptor)
    }

    /// Listens without a report.
    pub fn open_unannounced(side: &DomainSetup) -> Result<Acceptor> {
        let events = side.fabric.event_queue().open()?;
        let listener = side
            .fabric
            .passive_endpoint(&events)
            .listen_at(side.listens_at)?;
        Ok(Acceptor { listener, events })
    }

    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// The next client, with this sent along; `prepare` posts the endpoint's receives before.
    pub async fn accept(
        &self,
        side: &DomainSetup,
        data: impl AsRef<[u8]>,
        prepare: impl FnOnce(&Endpoint) -> Result<()>,
    ) -> Result<Endpoint> {
        loop {
            match self
                .events
                .next()
                .await
                .context("the event queue is closed")?
            {
                Event::ConnRequest(request) => {
                    let endpoint = side.endpoint()?;
                    prepare(&endpoint)?;
                    endpoint.accept(request).data(data).await?;
                    return Ok(endpoint);
                }
                Event::Error(error) => bail!("listening: {}", error.error),
                _ => {}
            }
        }
    }
}
