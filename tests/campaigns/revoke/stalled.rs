//! A peer that stops in the middle of the payload of a write, by hand, and goes on when its region
//! is gone.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio_fabric::RemoteRegion;

use super::arena::{RefusalEffect, Refused, Round, Target, begun, over};
use crate::common::raw::{Raw, request};

const WRITE: u8 = 4;
const ACK_WANTED: u16 = 4;
const HELLO: u8 = 0x80;
const REFUSED: u8 = 0x86;
/// Why.
const REVOKED: u8 = 4;
/// So much of the payload comes in time: what is left is received straight into the region.
const IN_TIME: usize = 2 << 10;

pub struct Stalled {
    address: SocketAddr,
    manner: RefusalEffect,
    stream: Option<TcpStream>,
}

impl Stalled {
    pub fn new(address: SocketAddr, manner: RefusalEffect) -> Stalled {
        Stalled {
            address,
            manner,
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
        // Nothing of it waits for an acknowledgement of the system's.
        stream.set_nodelay(true).expect("an option");
        let mut asking = request(b"");
        if self.manner != RefusalEffect::Plain {
            // Version 1 of the extension, with refusals and nothing else.
            asking[8..16].copy_from_slice(b"tofa\x01\0\0\x01");
        }
        stream.write_all(&asking).await.expect("a request");
        let mut response = [0; 32];
        stream.read_exact(&mut response).await.expect("a response");
        assert_eq!(response[1], 1, "accepted");
        if self.manner != RefusalEffect::Plain {
            let mut hello = Raw::new(HELLO);
            // An incarnation, and a million refusals that it lives with.
            let values = [&[0, 1, 0, 8][..], &[9; 8], &[0, 3, 0, 4, 0, 16, 0, 0]];
            hello.payload = values.concat();
            stream.write_all(&hello.bytes()).await.expect("room");
            assert_eq!(frame(&mut stream).await[1], HELLO);
        }
        stream
    }

    /// Sends the rest, and sees what the refusal does.
    async fn go_on(&mut self, mut stream: TcpStream, rest: &[u8]) {
        if self.manner == RefusalEffect::Plain {
            // It may be closed already.
            let _ = stream.write_all(rest).await;
            let answer = stream.read(&mut [0; 1]).await;
            assert!(!matches!(answer, Ok(1..)), "an answer");
            return;
        }
        stream.write_all(rest).await.expect("the connection lives");
        let answer = frame(&mut stream).await;
        assert_eq!((answer[1], answer[4]), (REFUSED, REVOKED));
        // To end it is the initiator's part.
        self.stream = (self.manner == RefusalEffect::Continue).then_some(stream);
    }
}

/// The next frame's base header; the rest is skipped.
async fn frame(stream: &mut TcpStream) -> [u8; 16] {
    let mut base = [0; 16];
    stream.read_exact(&mut base).await.expect("a frame");
    let len = u64::from_ne_bytes(base[8..].try_into().expect("eight bytes"));
    let mut rest = vec![0; len as usize - 16];
    stream.read_exact(&mut rest).await.expect("the rest of it");
    base
}

/// A write of the whole region.
fn write(remote: RemoteRegion) -> Vec<u8> {
    let RemoteRegion { addr, len, key, .. } = remote;
    let mut frame = Raw::rma(WRITE, &[(addr, len, key)]);
    frame.payload = vec![7; len as usize];
    // Where refusals can be reported, each write wants its answer.
    frame.flags = ACK_WANTED;
    frame.bytes()
}
