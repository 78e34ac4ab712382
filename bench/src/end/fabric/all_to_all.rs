//! Messages of each of the client's connectionless endpoints to each of the server's, everything
//! through one completion queue and one task per side. Each message and answer begins with the
//! number of its pair.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_fabric::{Completion, RdmEndpoint, av::FabricAddr};

use super::super::connection_stats::StatsBaseline;
use super::super::{payload, say, server_of};
use super::connect::DomainSetup;
use crate::job::{ANSWER_SIZE, EndConfig, Job};
use crate::subject::Fabric;

/// One side's endpoints, and where the other's are.
#[derive(Debug)]
struct Party {
    side: DomainSetup,
    endpoints: Vec<RdmEndpoint>,
    others: Vec<FabricAddr>,
}

impl Party {
    /// Each endpoint with receives of so many bytes, so many for each of the others.
    fn open(how: Fabric, job: &Job, receives: usize, size: usize) -> Result<Party> {
        let n = job.connections;
        let operations = job.window.max(job.answers()) * n;
        let side = DomainSetup::open(how, job, operations)?;
        let vector = side.domain.address_vector().open()?;
        let mut endpoints = Vec::new();
        for at in 0..n {
            let endpoint = side.domain.rdm_endpoint().address_vector(&vector);
            let endpoint = endpoint
                .completion_queue(&side.queue)
                .listen_at(job.any_port());
            let endpoint = endpoint.transmit_size(operations).receive_size(operations);
            let endpoint = endpoint.open()?;
            for _ in 0..receives * n {
                endpoint.recv(vec![0; size]).queue(at).try_post()?;
            }
            endpoints.push(endpoint);
        }
        Ok(Party {
            side,
            endpoints,
            others: Vec::new(),
        })
    }

    /// Exchanges the ports of the endpoints with the other side.
    async fn meet(&mut self, mut stream: TcpStream) -> Result<()> {
        for endpoint in &self.endpoints {
            stream.write_u16(endpoint.local_addr().port()).await?;
        }
        for _ in 0..self.endpoints.len() {
            let address = SocketAddr::new(stream.peer_addr()?.ip(), stream.read_u16().await?);
            // All endpoints have the same vector.
            self.others.push(self.endpoints[0].insert(address)?);
        }
        Ok(())
    }

    /// Posts the receive of a completion again; returns its pair.
    fn taken(&self, mut completion: Completion) -> Result<usize> {
        completion.result.clone().map_err(|failed| failed.error)?;
        let buffer = completion
            .take_buffer()
            .and_then(|buffer| buffer.into_vec().ok());
        let buffer = buffer.context("a completion without its buffer")?;
        let pair = buffer.first_chunk().context("a message of few bytes")?;
        let pair = u32::from_le_bytes(*pair) as usize;
        let endpoint = &self.endpoints[completion.context.0 as usize];
        endpoint.recv(buffer).queue(completion.context).try_post()?;
        Ok(pair)
    }

    fn send(&self, from: usize, to: usize, message: &mut [u8], pair: usize) -> Result<()> {
        message[..size_of::<u32>()].copy_from_slice(&(pair as u32).to_le_bytes());
        Ok(self.endpoints[from].inject(message, self.others[to])?)
    }
}

pub async fn serve(how: Fabric, config: EndConfig) -> Result<()> {
    let (job, n) = (&config.job, config.job.connections);
    let mut party = Party::open(how, job, job.window, job.size)?;
    let listener = TcpListener::bind(job.any_port()).await?;
    say("PORT", listener.local_addr()?.port());
    party.meet(listener.accept().await?.0).await?;
    let mut unanswered = vec![0; n * n];
    let mut completions = Vec::new();
    loop {
        party.side.completions(&mut completions).await?;
        for completion in completions.drain(..) {
            let pair = party.taken(completion)?;
            let unanswered = unanswered.get_mut(pair).context("no such pair")?;
            *unanswered += 1;
            if *unanswered == job.batch() {
                *unanswered = 0;
                party.send(pair % n, pair / n, &mut [0; ANSWER_SIZE], pair)?;
            }
        }
    }
}

pub async fn call(how: Fabric, config: EndConfig) -> Result<()> {
    let (job, n) = (&config.job, config.job.connections);
    let mut party = Party::open(how, job, job.answers(), ANSWER_SIZE)?;
    party
        .meet(TcpStream::connect(server_of(&config)).await?)
        .await?;
    let mut message = payload(job.size);
    for pair in 0..n * n {
        for _ in 0..job.window {
            party.send(pair / n, pair % n, &mut message, pair)?;
        }
    }
    let mut crowd = StatsBaseline::now(&config)?.begin(&config);
    let mut completions = Vec::new();
    loop {
        party.side.completions(&mut completions).await?;
        for completion in completions.drain(..) {
            let pair = party.taken(completion)?;
            for _ in 0..job.batch() {
                party.send(pair / n, pair % n, &mut message, pair)?;
            }
            if crowd.answered(pair, 1) {
                return Ok(());
            }
        }
    }
}
