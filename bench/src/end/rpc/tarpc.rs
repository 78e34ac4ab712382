//! tarpc: its own service macro over TCP, encoded by bincode.

use anyhow::Result;
use futures::StreamExt;
use serde_bytes::{ByteArray, ByteBuf};
use tarpc::server::{BaseChannel, Channel};
use tarpc::tokio_serde::formats::Bincode;
use tarpc::{client, context, serde_transport};

use super::super::{say, server_of};
use super::{Caller, SMALL, bulk_of, check, message, stamp};
use crate::job::{EndConfig, Job};

#[tarpc::service]
trait Echo {
    /// The request.
    async fn echo(request: ByteArray<SMALL>) -> ByteArray<SMALL>;
    /// The request, and the bulk behind it.
    async fn fetch(request: ByteBuf) -> ByteBuf;
}

#[derive(Clone, Debug)]
struct Server {
    job: Job,
}

impl Echo for Server {
    async fn echo(self, _: context::Context, request: ByteArray<SMALL>) -> ByteArray<SMALL> {
        request
    }

    async fn fetch(self, _: context::Context, mut request: ByteBuf) -> ByteBuf {
        let len = request.len();
        request.resize(len + bulk_of(&self.job, len), 0);
        request
    }
}

pub async fn serve(config: EndConfig) -> Result<()> {
    let mut incoming =
        serde_transport::tcp::listen(config.job.any_port(), Bincode::default).await?;
    say("PORT", incoming.local_addr().port());
    let server = Server {
        job: config.job.clone(),
    };
    while let Some(transport) = incoming.next().await {
        let transport = transport?;
        transport.get_ref().set_nodelay(true)?;
        let channel = BaseChannel::with_defaults(transport);
        let answering = channel.execute(server.clone().serve());
        tokio::spawn(answering.for_each(|response| async {
            tokio::spawn(response);
        }));
    }
    Ok(())
}

#[derive(Debug)]
struct Tarpc {
    client: EchoClient,
    size: usize,
    has_bulk: bool,
}

impl Caller for Tarpc {
    async fn call(&mut self, number: u64) -> Result<()> {
        if !self.has_bulk {
            let mut request = ByteArray::new([0; SMALL]);
            stamp(&mut *request, number);
            let answer = self.client.echo(context::current(), request).await?;
            return check(&*answer, number);
        }
        let request = ByteBuf::from(message(number, self.size));
        let answer = self.client.fetch(context::current(), request).await?;
        check(&answer, number)
    }
}

pub async fn call(config: EndConfig) -> Result<()> {
    let transport = serde_transport::tcp::connect(server_of(&config), Bincode::default).await?;
    transport.get_ref().set_nodelay(true)?;
    let mut client_config = client::Config::default();
    client_config.max_in_flight_requests = config.job.window.max(16);
    let client = EchoClient::new(client_config, transport).spawn();
    let caller = |_, size| Tarpc {
        client: client.clone(),
        size,
        has_bulk: bulk_of(&config.job, size) > 0,
    };
    super::call(&config, caller).await
}
