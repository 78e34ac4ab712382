//! The layer on this library, tokio-fabric-rpc: its own service macro, ids, deadlines and windows;
//! the bulk is written to memory that each call lends.

use anyhow::Result;
use bytes::Bytes;
use tokio_fabric_rpc::{Cx, Lend, Push, Server, service};

use super::super::{ANY_PORT, say, server_of};
use super::{Caller, check, message};
use crate::job::EndConfig;

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

pub async fn serve(config: EndConfig) -> Result<()> {
    let service = EchoService {
        bulk: vec![0; config.job.bulk].into(),
    };
    let server = Server::new().add(EchoServer::new(service));
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

pub async fn call(config: EndConfig) -> Result<()> {
    let client = EchoClient::connect(server_of(&config)).await?;
    let caller = |_| Layer {
        client: client.clone(),
        size: config.job.size,
        bulk: vec![0; config.job.bulk],
    };
    super::drive(&config, (0..config.job.window).map(caller).collect()).await
}
