//! A TCP proxy that keeps every byte that passes, in both directions.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// What passed on one connection.
#[derive(Clone, Debug, Default)]
pub struct Capture {
    /// What the side that dialed has sent.
    pub dialer: Vec<u8>,
    /// What the side that listens has sent.
    pub listener: Vec<u8>,
}

type Bytes = Arc<Mutex<Vec<u8>>>;

/// Listens, and passes each connection on to one address.
pub struct Proxy {
    address: SocketAddr,
    captured: Arc<Mutex<Vec<(Bytes, Bytes)>>>,
    tasks: JoinSet<()>,
}

impl Proxy {
    pub async fn to(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut proxy = Proxy {
            address: listener.local_addr().unwrap(),
            captured: Arc::default(),
            tasks: JoinSet::new(),
        };
        let captured = Arc::clone(&proxy.captured);
        proxy.tasks.spawn(async move {
            let mut passing = JoinSet::new();
            loop {
                let (dialer, _) = listener.accept().await.unwrap();
                let listener = TcpStream::connect(target).await.unwrap();
                let kept = (Bytes::default(), Bytes::default());
                captured.lock().unwrap().push(kept.clone());
                for stream in [&dialer, &listener] {
                    stream.set_nodelay(true).unwrap();
                }
                let (from_dialer, to_dialer) = dialer.into_split();
                let (from_listener, to_listener) = listener.into_split();
                passing.spawn(pass(from_dialer, to_listener, kept.0));
                passing.spawn(pass(from_listener, to_dialer, kept.1));
            }
        });
        proxy
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What has passed so far, in the order of the connections.
    pub fn captures(&self) -> Vec<Capture> {
        let captured = self.captured.lock().unwrap();
        let bytes = |kept: &Bytes| kept.lock().unwrap().clone();
        captured
            .iter()
            .map(|(dialer, listener)| Capture {
                dialer: bytes(dialer),
                listener: bytes(listener),
            })
            .collect()
    }
}

/// Passes bytes on until their end, which is passed on too.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, kept: Bytes) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut buffer).await {
        kept.lock().unwrap().extend(&buffer[..len]);
        if to.write_all(&buffer[..len]).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}
