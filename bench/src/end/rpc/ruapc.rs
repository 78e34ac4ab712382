//! ruapc over TCP: its own service macro, messages in MessagePack, the bulk within the answer.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use ruapc::{Client, Context, Endpoint, Router, Server, SocketPoolConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::super::{say, server_of};
use super::{Caller, bulk_of, check, message};
use crate::job::{EndConfig, Job};

/// Bytes, encoded as such and not number by number.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Message(#[schemars(with = "Vec<u8>")] ByteBuf);

#[ruapc::service]
trait EchoService {
    async fn echo(&self, cx: &Context, request: &Message) -> ruapc::Result<Message>;
}

#[derive(Debug)]
struct Echo {
    job: Job,
}

impl EchoService for Echo {
    async fn echo(&self, _: &Context, request: &Message) -> ruapc::Result<Message> {
        let mut answer = request.0.clone();
        let len = answer.len();
        answer.resize(len + bulk_of(&self.job, len), 0);
        Ok(Message(answer))
    }
}

pub async fn serve(config: EndConfig) -> Result<()> {
    let mut router = Router::default();
    let echo = Echo {
        job: config.job.clone(),
    };
    EchoService::ruapc_export(Arc::new(echo), &mut router);
    let server = Server::create(router, &SocketPoolConfig::default()).map_err(error)?;
    let address = server.listen(config.job.any_port()).await.map_err(error)?;
    say("PORT", address.port());
    std::future::pending().await
}

/// Its errors are not the standard library's.
fn error(error: ruapc::Error) -> anyhow::Error {
    anyhow!("{error:?}")
}

struct Ruapc {
    cx: Context,
    size: usize,
}

impl Caller for Ruapc {
    async fn call(&mut self, number: u64) -> Result<()> {
        let request = Message(ByteBuf::from(message(number, self.size)));
        let answer = Client::default().echo(&self.cx, &request).await;
        check(&answer.map_err(error)?.0, number)
    }
}

pub async fn call(config: EndConfig) -> Result<()> {
    let cx = Context::create(&SocketPoolConfig::default()).map_err(error)?;
    let server = Endpoint::tcp([server_of(&config)]).map_err(error)?;
    let cx = cx.with_endpoint(server);
    let caller = |_, size| Ruapc {
        cx: cx.clone(),
        size,
    };
    super::call(&config, caller).await
}
