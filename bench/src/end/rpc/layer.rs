//! The layer on this library, tokio-fabric-rpc: its own service macro, ids, deadlines and windows;
//! the bulk is written to memory that each call lends.

use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use tokio_fabric_rpc::{Channel, Cx, Lend, Push, Server, service};

use super::super::{ANY_PORT, say, server_of};
use super::{Caller, cancel, check, drain, message, mixed, overload};
use crate::job::{EndConfig, Role, Work};
use crate::subject::ALWAYS;

#[service]
trait Echo {
    /// The request.
    async fn echo(&self, cx: &Cx, request: Bytes) -> tokio_fabric_rpc::Result<Bytes>;
    /// The same, behind the bulk.
    async fn fetch(
        &self,
        cx: &Cx,
        request: Vec<u8>,
        bulk: Push,
    ) -> tokio_fabric_rpc::Result<Vec<u8>>;
}

#[derive(Debug)]
struct EchoService {
    bulk: Bytes,
}

impl Echo for EchoService {
    async fn echo(&self, _: &Cx, request: Bytes) -> tokio_fabric_rpc::Result<Bytes> {
        Ok(request)
    }

    async fn fetch(
        &self,
        _: &Cx,
        request: Vec<u8>,
        bulk: Push,
    ) -> tokio_fabric_rpc::Result<Vec<u8>> {
        bulk.write(self.bulk.clone()).await?;
        Ok(request)
    }
}

/// Plays an end of the job's work.
pub async fn run(role: Role, config: EndConfig, spin: bool) -> Result<()> {
    match (config.job.work, role) {
        (Work::RpcCancel, Role::Server) => cancel::serve().await,
        (Work::RpcCancel, Role::Client) => cancel::call(config).await,
        (Work::RpcOverload, Role::Server) => overload::serve(config).await,
        (Work::RpcOverload, Role::Client) => overload::call(config).await,
        (Work::RpcDrain, Role::Server) => drain::serve().await,
        (Work::RpcDrain, Role::Client) => drain::call(config).await,
        (_, Role::Server) => serve(config, spin).await,
        (_, Role::Client) => call(config, spin).await,
    }
}

fn busy_poll(spin: bool) -> Duration {
    if spin { ALWAYS } else { Duration::ZERO }
}

async fn serve(config: EndConfig, spin: bool) -> Result<()> {
    let service = EchoService {
        bulk: vec![0; config.job.bulk].into(),
    };
    let server = Server::new().add(EchoServer::new(service));
    let server = server.domain(move |domain| domain.busy_poll(busy_poll(spin)));
    let listening = server.bind(ANY_PORT).await?;
    say("PORT", listening.local_addr().port());
    std::future::pending().await
}

#[derive(Debug)]
struct Layer {
    client: EchoClient,
    size: usize,
    bulk: Vec<u8>,
}

impl Caller for Layer {
    async fn call(&mut self, number: u64) -> Result<()> {
        let request = message(number, self.size);
        if self.bulk.is_empty() {
            let answer = self.client.echo(request.into()).await?;
            return check(&answer, number);
        }
        let bulk = Lend::write(std::mem::take(&mut self.bulk));
        let answer;
        (answer, self.bulk) = self.client.fetch(request, bulk).await?;
        check(&answer, number)
    }
}

async fn call(config: EndConfig, spin: bool) -> Result<()> {
    let builder = Channel::builder().domain(move |domain| domain.busy_poll(busy_poll(spin)));
    let client = EchoClient::over(builder.connect(server_of(&config)).await?);
    let job = &config.job;
    let caller = |bulk| Layer {
        client: client.clone(),
        size: job.size,
        bulk: vec![0; bulk],
    };
    if job.work == Work::RpcMixed {
        // One call, whose memory the server writes in chunks.
        return mixed::drive(&config, caller(0), vec![caller(job.bulk)], job.bulk).await;
    }
    super::drive(&config, (0..job.window).map(|_| caller(job.bulk)).collect()).await
}
