//! Opening a side as its subject asks, and meeting the other.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use tokio_fabric::{
    Completion, CompletionQueue, Domain, Endpoint, Event, EventQueue, Fabric, Hints,
    PassiveEndpoint,
};

use super::super::{ANY_PORT, say};
use crate::job::Job;
use crate::subject;

/// Completions taken from a queue at once.
pub const BATCH_MAX: usize = 256;

/// A domain, and the queue of its endpoints.
#[derive(Debug)]
pub struct DomainSetup {
    pub fabric: Fabric,
    pub domain: Domain,
    pub queue: CompletionQueue,
    /// Operations per context of an endpoint.
    operations: usize,
}

impl DomainSetup {
    /// `operations` for each of the connections, in each direction.
    pub fn open(how: subject::Fabric, job: &Job, operations: usize) -> Result<DomainSetup> {
        let (fabric, domain) = DomainSetup::open_domain(how, 1)?;
        DomainSetup::within(&fabric, &domain, job, operations)
    }

    pub fn open_domain(how: subject::Fabric, drivers: usize) -> Result<(Fabric, Domain)> {
        let fabric = Fabric::open(Hints::new().backend(how.backend))?;
        let domain = fabric
            .domain()
            .driver(how.driver)
            .busy_poll(how.busy_poll)
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
        // Room for both directions, and some for what nobody posts.
        let places = (operations * job.connections * 2 + 64).max(1024);
        Ok(DomainSetup {
            fabric: fabric.clone(),
            domain: domain.clone(),
            queue: domain.completion_queue().size(places).open()?,
            operations,
        })
    }

    pub fn endpoint(&self) -> Result<Endpoint> {
        let endpoint = self.domain.endpoint().completion_queue(&self.queue);
        let endpoint = endpoint
            .transmit_size(self.operations)
            .receive_size(self.operations);
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
pub struct Door {
    listener: PassiveEndpoint,
    events: EventQueue,
}

impl Door {
    /// Tells its port.
    pub fn open(side: &DomainSetup) -> Result<Door> {
        let door = Door::quietly(side)?;
        say("PORT", door.address().port());
        Ok(door)
    }

    /// The same, told to nobody.
    pub fn quietly(side: &DomainSetup) -> Result<Door> {
        let events = side.fabric.event_queue().open()?;
        let listener = side.fabric.passive_endpoint(&events).listen_at(ANY_PORT)?;
        Ok(Door { listener, events })
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
