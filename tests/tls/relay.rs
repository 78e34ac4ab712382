//! A stranger between two peers, who sees and changes what is on the wire.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// Types of records (RFC 8446, section 5.1).
pub const CHANGE_CIPHER_SPEC: u8 = 20;
pub const HANDSHAKE: u8 = 22;
pub const APPLICATION_DATA: u8 = 23;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    ToListener,
    FromListener,
}

/// What is passed on in place of a record; `None`: both streams end here, in order.
pub type Change = dyn FnMut(Direction, Vec<u8>) -> Option<Vec<u8>> + Send;

/// The records that have come, each with its head.
pub type Capture = Vec<(Direction, Vec<u8>)>;

/// Relays one connection, record by record.
pub struct Relay {
    pub address: SocketAddr,
    seen: Arc<Mutex<Capture>>,
}

impl Relay {
    /// To this listener, with nothing changed.
    pub async fn to(listener: SocketAddr) -> Relay {
        Relay::changing(listener, |_, record| Some(record)).await
    }

    pub async fn changing(
        to: SocketAddr,
        change: impl FnMut(Direction, Vec<u8>) -> Option<Vec<u8>> + Send + 'static,
    ) -> Relay {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let seen = Arc::default();
        let shared = Arc::clone(&seen);
        tokio::spawn(async move {
            let change: Arc<Mutex<Change>> = Arc::new(Mutex::new(change));
            let near = socket.accept().await.unwrap().0.into_split();
            let far = TcpStream::connect(to).await.unwrap().into_split();
            let one = pass(Direction::ToListener, near.0, far.1, &change, &shared);
            let other = pass(Direction::FromListener, far.0, near.1, &change, &shared);
            // The end of the first is the end of both.
            tokio::select! {
                () = one => {}
                () = other => {}
            }
        });
        Relay { address, seen }
    }

    /// What has passed until now.
    pub fn seen(&self) -> Capture {
        self.seen.lock().unwrap().clone()
    }
}

/// Ends when both streams are to end.
async fn pass(
    direction: Direction,
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    change: &Mutex<Change>,
    seen: &Mutex<Capture>,
) {
    loop {
        let mut record = vec![0; 5];
        if from.read_exact(&mut record).await.is_err() {
            let _ = to.shutdown().await;
            return std::future::pending().await;
        }
        let len = usize::from(u16::from_be_bytes([record[3], record[4]]));
        record.resize(5 + len, 0);
        if from.read_exact(&mut record[5..]).await.is_err() {
            return;
        }
        seen.lock().unwrap().push((direction, record.clone()));
        let Some(changed) = (change.lock().unwrap())(direction, record) else {
            return;
        };
        if to.write_all(&changed).await.is_err() {
            return;
        }
    }
}
