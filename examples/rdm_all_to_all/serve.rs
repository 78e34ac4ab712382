//! Serves a program's statistics to clients that connect to a Unix socket or a port of this
//! machine. Each line from a client is answered by one line of JSON. `cargo run --example top` is
//! such a client.

use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};

/// Where statistics are served or read.
#[derive(Clone, Debug)]
pub enum StatsAddress {
    /// A port of this machine; other machines cannot connect.
    Port(SocketAddr),
    Path(PathBuf),
}

impl FromStr for StatsAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<StatsAddress, String> {
        match text.parse::<SocketAddr>() {
            Ok(address) if address.ip().is_loopback() => Ok(StatsAddress::Port(address)),
            Ok(address) => Err(format!("{address}: only an address of 127.0.0.0/8, or ::1")),
            Err(_) => Ok(StatsAddress::Path(text.into())),
        }
    }
}

/// Serves snapshots as long as the program runs. Creates a path anew, and removes it when the
/// returned value is dropped.
pub async fn serve(
    place: StatsAddress,
    snapshot: impl Fn() -> Value + Clone + Send + Sync + 'static,
) -> Result<Served> {
    match &place {
        StatsAddress::Port(address) => {
            let listener = TcpListener::bind(address).await;
            let listener = listener.with_context(|| format!("cannot serve at {address}"))?;
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(answer(stream, snapshot.clone()));
                }
            });
        }
        StatsAddress::Path(path) => {
            // Removes a socket that a killed program has left behind, but never a file.
            if path
                .symlink_metadata()
                .is_ok_and(|it| it.file_type().is_socket())
            {
                let _ = std::fs::remove_file(path);
            }
            let listener = UnixListener::bind(path);
            let listener =
                listener.with_context(|| format!("cannot serve at {}", path.display()))?;
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(answer(stream, snapshot.clone()));
                }
            });
        }
    }
    Ok(Served(place))
}

async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, snapshot: impl Fn() -> Value) {
    let mut bytes = [0; 64];
    while let Ok(len @ 1..) = stream.read(&mut bytes).await {
        for _ in bytes[..len].iter().filter(|byte| **byte == b'\n') {
            let text = format!("{}\n", snapshot());
            if stream.write_all(text.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}

/// Removes the path when it is dropped.
pub struct Served(StatsAddress);

impl Drop for Served {
    fn drop(&mut self) {
        if let StatsAddress::Path(path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}
