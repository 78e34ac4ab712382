//! A peer that stops in the middle of the payload of a write, by hand, and goes on when its region
//! is gone.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio_fabric::RemoteRegion;

use crate::arena::{Refusal, Refused, Round, Target, begun, over};
use crate::raw::{Raw, request};

const WRITE: u8 = 4;
/// So much of the payload comes in time: what is left is received straight into the region.
const IN_TIME: usize = 20 << 10;

pub struct Stalled {
    address: SocketAddr,
    refusal: Refusal,
    stream: Option<TcpStream>,
}

impl Stalled {
    pub fn new(address: SocketAddr, refusal: Refusal) -> Stalled {
        Stalled {
            address,
            refusal,
            stream: None,
        }
    }

    pub async fn work(
        mut self,
        mut rounds: watch::Receiver<Round>,
        stalls: mpsc::UnboundedSender<usize>,
        refusals: mpsc::UnboundedSender<Refused>,
    ) {
        let mut next = 0;
        loop {
            let mut stream = match self.stream.take() {
                Some(stream) => stream,
                None => self.connect().await,
            };
            let Some(Target { round, remote }) = begun(&mut rounds, next).await else {
                return;
            };
            let frame = write(remote);
            stream.write_all(&frame[..IN_TIME]).await.expect("room");
            if stalls.send(round).is_err() || !over(&mut rounds, round).await {
                return;
            }
            next = round + 1;
            self.go_on(stream, &frame[IN_TIME..]).await;
            if refusals.send(Refused { round, done: 0 }).is_err() {
                return;
            }
        }
    }

    async fn connect(&self) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.expect("a listener");
        stream.write_all(&request(b"")).await.expect("a request");
        let mut response = [0; 32];
        stream.read_exact(&mut response).await.expect("a response");
        assert_eq!(response[1], 1, "accepted");
        stream
    }

    /// Sends the rest, and sees what the refusal does.
    async fn go_on(&mut self, mut stream: TcpStream, rest: &[u8]) {
        match self.refusal {
            Refusal::Closes => {
                // It may be closed already.
                let _ = stream.write_all(rest).await;
                let answer = stream.read(&mut [0; 1]).await;
                assert!(!matches!(answer, Ok(1..)), "an answer");
            }
        }
    }
}

/// A write of the whole region.
fn write(remote: RemoteRegion) -> Vec<u8> {
    let RemoteRegion { addr, len, key, .. } = remote;
    let mut frame = Raw::rma(WRITE, &[(addr, len, key)]);
    frame.payload = vec![7; len as usize];
    frame.bytes()
}
