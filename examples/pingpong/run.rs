//! The test itself: round trips of messages, one size after another.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Result, bail};
use tokio_fabric::op::{Op, Received};
use tracing::debug;

use super::Options;
use super::link::Link;
use super::side_channel::SideChannel;
use super::table::Table;

/// The last message of each side. Every receive must have room for it, whatever the tested size.
const FIN: &[u8] = b"fin\0";
/// Bytes for which every receive has room.
const RECEIVE_MIN: usize = 64;
/// The characters that checked messages repeat.
const ALPHABET: &[u8; 62] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
/// Each checked message begins this many characters after the start of the previous one.
const ALPHABET_STEP: usize = 7;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Role {
    Client,
    Server,
}

/// One run between two ends. One receive is always posted ahead, so that no message waits for a
/// receive.
#[derive(Debug)]
pub struct Test {
    link: Link,
    sizes: Vec<usize>,
    role: Role,
    iterations: u32,
    receive: Op<Vec<u8>, Received>,
    sent: Checker,
    received: Checker,
}

impl Test {
    /// Posts the first receive; no connection is needed yet.
    pub fn new(link: Link, role: Role, options: &Options) -> Result<Self> {
        let sizes = options.sizes(&link);
        let largest = sizes.iter().copied().max().unwrap_or_default();
        let receive = link.receive(vec![0; largest.max(RECEIVE_MIN)])?;
        Ok(Test {
            link,
            sizes,
            role,
            iterations: options.iterations.get(),
            receive,
            sent: Checker::new(options.check),
            received: Checker::new(options.check),
        })
    }

    /// Sets the address that the other end has sent.
    pub fn meet(&mut self, other: SocketAddr) -> Result<()> {
        self.link.meet(other)
    }

    /// Runs all sizes, prints the table, and exchanges the last messages.
    pub async fn run(mut self, mut side: SideChannel) -> Result<()> {
        let mut table = Table::default();
        for size in std::mem::take(&mut self.sizes) {
            debug!(size, "next size");
            side.sync(self.role == Role::Client).await?;
            let begin = Instant::now();
            let received = self.round_trips(size).await?;
            let elapsed = begin.elapsed();
            let acknowledged = match self.role {
                Role::Client => {
                    side.send_count(received).await?;
                    received
                }
                Role::Server => side.learn_count().await?,
            };
            table.print(size, self.iterations.into(), acknowledged, elapsed)?;
        }
        self.finish().await
    }

    /// Returns the number of messages received.
    async fn round_trips(&mut self, size: usize) -> Result<u64> {
        let mut message = vec![0; size];
        for _ in 0..self.iterations {
            if self.role == Role::Server {
                self.receive(size).await?;
            }
            self.sent.fill(&mut message);
            message = self.link.send(message).await?;
            if self.role == Role::Client {
                self.receive(size).await?;
            }
        }
        Ok(self.iterations.into())
    }

    /// Takes the next message, and posts the receive for the following one.
    async fn receive(&mut self, size: usize) -> Result<()> {
        let (received, buffer) = (&mut self.receive).await?;
        if received.len != size {
            bail!(
                "a message of {} bytes came, one of {size} was due",
                received.len
            );
        }
        self.received.check(&buffer[..size])?;
        self.receive = self.link.receive(buffer)?;
        Ok(())
    }

    /// Both sides send `fin`, over a connection until it has arrived, so that closing loses no
    /// data.
    async fn finish(self) -> Result<()> {
        debug!("say fin");
        let said = self.link.send_last(FIN);
        let heard = async { Ok(self.receive.await?) };
        let (_, (received, buffer)) = tokio::try_join!(said, heard)?;
        if buffer[..received.len] != *FIN {
            bail!(
                "a message of {} bytes came instead of the end",
                received.len
            );
        }
        self.link.shutdown().await?;
        debug!("closed");
        Ok(())
    }
}

/// Fills messages with the pattern that the other side expects, and checks it: `-c`.
#[derive(Debug)]
struct Checker {
    on: bool,
    message: usize,
}

impl Checker {
    fn new(on: bool) -> Self {
        Checker { on, message: 0 }
    }

    /// Returns the characters of the next message, which repeats them over its whole length.
    fn next(&mut self) -> [u8; ALPHABET.len()] {
        let start = self.message % ALPHABET.len() * ALPHABET_STEP % ALPHABET.len();
        self.message += 1;
        let mut characters = *ALPHABET;
        characters.rotate_left(start);
        characters
    }

    fn fill(&mut self, message: &mut [u8]) {
        if self.on {
            let due = self.next();
            message
                .chunks_mut(due.len())
                .for_each(|part| part.copy_from_slice(&due[..part.len()]));
        }
    }

    fn check(&mut self, message: &[u8]) -> Result<()> {
        if self.on {
            let due = self.next();
            let is_wrong = |part: &[u8]| *part != due[..part.len()];
            if let Some(at) = message.chunks(due.len()).position(is_wrong) {
                let (number, len, at) = (self.message, message.len(), at * due.len());
                bail!("message {number} of {len} bytes is corrupt, at byte {at} or soon after");
            }
        }
        Ok(())
    }
}
