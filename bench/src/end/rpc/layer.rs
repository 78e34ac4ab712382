//! The layer on this library, tokio-fabric-rpc: its own service macro, ids, deadlines and windows;
//! the bulk is written to memory that each call lends.

use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use serde_bytes::ByteArray;
use tokio_fabric::domain::DomainBuilder;
use tokio_fabric::{Fabric, Hints};
use tokio_fabric_rpc::{Channel, Cx, Lend, Push, Server, service};

use super::super::fabric::connect::take_opened;
use super::super::secure;
use super::super::{local_path, payload, say, server_of};
use super::{Caller, SMALL, cancel, check, drain, message, mixed, overload, stamp};
use crate::job::{EndConfig, Role, Work};
use crate::subject::{self, ALWAYS};

#[service]
trait Echo {
    /// The request.
    async fn echo(
        &self,
        cx: &Cx,
        request: ByteArray<SMALL>,
    ) -> tokio_fabric_rpc::Result<ByteArray<SMALL>>;
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
    async fn echo(
        &self,
        _: &Cx,
        request: ByteArray<SMALL>,
    ) -> tokio_fabric_rpc::Result<ByteArray<SMALL>> {
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
pub async fn run(role: Role, config: EndConfig, how: subject::Layer) -> Result<()> {
    match (config.job.work, role) {
        (Work::RpcCancel, Role::Server) => cancel::serve(config).await,
        (Work::RpcCancel, Role::Client) => cancel::call(config).await,
        (Work::RpcOverload, Role::Server) => overload::serve(config).await,
        (Work::RpcOverload, Role::Client) => overload::call(config).await,
        (Work::RpcDrain, Role::Server) => drain::serve(config).await,
        (Work::RpcDrain, Role::Client) => drain::call(config).await,
        (_, Role::Server) => serve(config, how).await,
        (_, Role::Client) => call(config, how).await,
    }
}

fn set_up(domain: DomainBuilder, how: subject::Layer) -> DomainBuilder {
    let busy_poll = match how {
        subject::Layer::Spin => ALWAYS,
        _ => Duration::ZERO,
    };
    let path = local_path(how == subject::Layer::Local);
    domain.busy_poll(busy_poll).local_path(path)
}

/// What it runs on, unless it opens that itself.
fn fabric(how: subject::Layer) -> Result<Option<Fabric>> {
    let hints = match how {
        subject::Layer::Secure => Hints::new().tls(secure::config()?),
        _ => return Ok(None),
    };
    Ok(Some(Fabric::open(hints)?))
}

async fn serve(config: EndConfig, how: subject::Layer) -> Result<()> {
    let service = EchoService {
        bulk: payload(config.job.bulk).into(),
    };
    let server = Server::new().add(EchoServer::new(service));
    let server = server.domain(move |domain| set_up(domain, how));
    let server = match (fabric(how)?, take_opened()) {
        (Some(fabric), _) => server.fabric(&fabric),
        (None, Some((fabric, domain))) => server.fabric(&fabric).in_domain(&domain),
        (None, None) => server,
    };
    let listening = server.bind(config.job.any_port()).await?;
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
        if self.bulk.is_empty() {
            let mut request = ByteArray::new([0; SMALL]);
            stamp(&mut *request, number);
            let answer = self.client.echo(request).await?;
            return check(&*answer, number);
        }
        let request = message(number, self.size);
        let bulk = Lend::write(std::mem::take(&mut self.bulk));
        let answer;
        (answer, self.bulk) = self.client.fetch(request, bulk).await?;
        check(&answer, number)
    }
}

async fn call(config: EndConfig, how: subject::Layer) -> Result<()> {
    let builder = Channel::builder().domain(move |domain| set_up(domain, how));
    let builder = match (fabric(how)?, take_opened()) {
        (Some(fabric), _) => builder.fabric(&fabric),
        (None, Some((fabric, domain))) => builder.fabric(&fabric).in_domain(&domain),
        (None, None) => builder,
    };
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
