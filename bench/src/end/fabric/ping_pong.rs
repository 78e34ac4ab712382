//! One message there and the same back, awaited, with a receive posted ahead.

use anyhow::Result;
use tokio_fabric::limits::INJECT_SIZE_MAX;
use tokio_fabric::{
    Endpoint,
    error::Phase,
    op::{Op, Received},
};

use super::super::pings::Pings;
use super::super::{payload, server_of};
use super::connect::{Acceptor, DomainSetup};
use crate::job::EndConfig;
use crate::subject::Fabric;

pub const OPERATIONS: usize = 4;

/// The receive that is always posted, and the message.
#[derive(Debug)]
pub struct Player {
    endpoint: Endpoint,
    receive: Op<Vec<u8>, Received>,
    message: Vec<u8>,
    /// The domain's turns are asked for until the message is there.
    asks_for_turns: bool,
}

impl Player {
    pub fn new(endpoint: Endpoint, size: usize) -> Result<Player> {
        let receive = endpoint.recv(vec![0; size]).post()?;
        Ok(Player {
            endpoint,
            receive,
            message: payload(size),
            asks_for_turns: false,
        })
    }

    fn driven_as(self, how: Fabric) -> Player {
        Player {
            asks_for_turns: how.asks_for_turns,
            ..self
        }
    }

    pub async fn send(&mut self) -> Result<()> {
        // What may be injected is, as in libfabric's programs.
        if self.message.len() <= INJECT_SIZE_MAX {
            return Ok(self.endpoint.inject(&self.message)?);
        }
        let message = std::mem::take(&mut self.message);
        (_, self.message) = self.endpoint.send(message).await?;
        Ok(())
    }

    pub async fn receive(&mut self) -> Result<()> {
        if self.asks_for_turns {
            let domain = self.endpoint.domain();
            while self.receive.phase() != Phase::Ended {
                domain.progress();
            }
        }
        let (_, buffer) = (&mut self.receive).await?;
        self.receive = self.endpoint.recv(buffer).post()?;
        Ok(())
    }

    /// Sends back what comes, until the connection ends.
    pub async fn serve(&mut self) -> Result<()> {
        loop {
            self.receive().await?;
            self.send().await?;
        }
    }
}

pub async fn serve(how: Fabric, config: EndConfig) -> Result<()> {
    let side = DomainSetup::open(how, &config.job, OPERATIONS)?;
    let endpoint = Acceptor::open(&side)?.accept(&side, [], |_| Ok(())).await?;
    let player = Player::new(endpoint, config.job.size)?;
    player.driven_as(how).serve().await
}

pub async fn call(how: Fabric, config: EndConfig) -> Result<()> {
    let side = DomainSetup::open(how, &config.job, OPERATIONS)?;
    let (endpoint, _) = side.connect(server_of(&config), |_| Ok(())).await?;
    let mut player = Player::new(endpoint, config.job.size)?.driven_as(how);
    let mut pings = Pings::new(&config)?;
    loop {
        player.send().await?;
        player.receive().await?;
        if pings.add() {
            return Ok(());
        }
    }
}
