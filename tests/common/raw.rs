//! The wire by hand: a peer that shares no code with the library and keeps no rule.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What the server's requests are recognised as hostile by.
pub const EVIL: &[u8] = b"evil";
/// Closing a hostile connection may take so long on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection request with private data.
pub fn request(data: &[u8]) -> Vec<u8> {
    control(3, 0, data.len() as u16, 1_u64.to_ne_bytes(), data)
}

/// A control frame, right or wrong.
pub fn control(version: u8, kind: u8, len: u16, probe: [u8; 8], data: &[u8]) -> Vec<u8> {
    let mut frame = vec![version, kind];
    frame.extend(len.to_be_bytes());
    frame.extend([0; 20]);
    frame.extend(probe);
    frame.extend(data);
    frame
}

/// A data header, right or wrong, and the words and bytes behind it.
#[derive(Clone, Debug)]
pub struct Raw {
    pub op: u8,
    pub op_data: u8,
    pub flags: u16,
    pub count: u8,
    /// `None`: as long as it is.
    pub header_len: Option<u8>,
    /// `None`: as long as it is.
    pub frame_len: Option<u64>,
    pub words: Vec<u64>,
    pub payload: Vec<u8>,
}

impl Raw {
    pub fn new(op: u8) -> Raw {
        Raw {
            op,
            op_data: 0,
            flags: 0,
            count: 0,
            header_len: None,
            frame_len: None,
            words: Vec::new(),
            payload: Vec::new(),
        }
    }

    /// A read request or a write of these `(address, length, key)`.
    pub fn rma(op: u8, segments: &[(u64, u64, u64)]) -> Raw {
        let mut frame = Raw::new(op);
        frame.count = segments.len() as u8;
        frame.words = segments
            .iter()
            .flat_map(|&(addr, len, key)| [addr, len, key])
            .collect();
        frame
    }

    pub fn bytes(&self) -> Vec<u8> {
        let header_len = 16 + 8 * self.words.len();
        let frame_len = self
            .frame_len
            .unwrap_or((header_len + self.payload.len()) as u64);
        let mut bytes = vec![3, self.op];
        bytes.extend(self.flags.to_ne_bytes());
        bytes.extend([
            self.op_data,
            self.count,
            self.header_len.unwrap_or(header_len as u8),
            0,
        ]);
        bytes.extend(frame_len.to_ne_bytes());
        bytes.extend(self.words.iter().flat_map(|word| word.to_ne_bytes()));
        bytes.extend(&self.payload);
        bytes
    }
}

/// Connects and says nothing.
pub async fn open(to: SocketAddr) -> TcpStream {
    TcpStream::connect(to)
        .await
        .expect("the listener takes connections")
}

/// Connects, shakes hands as one should, and is accepted.
pub async fn accepted(to: SocketAddr) -> TcpStream {
    let mut stream = open(to).await;
    stream.write_all(&request(EVIL)).await.expect("a request");
    let mut response = [0; 32];
    let read = tokio::time::timeout(PATIENCE, stream.read_exact(&mut response)).await;
    read.expect("no answer").expect("a response");
    assert_eq!(response[..2], [3, 1], "accepted");
    stream
}

/// Waits until the other side has closed the connection, in order or by a reset.
pub async fn closed(mut stream: TcpStream, what: &str) {
    let mut bytes = vec![0; 64 << 10];
    let drained = async { while !matches!(stream.read(&mut bytes).await, Ok(0) | Err(_)) {} };
    let closed = tokio::time::timeout(PATIENCE, drained).await;
    assert!(closed.is_ok(), "{what}: the connection was not closed");
}

/// Writes until the other side takes no more for a while, or `most` bytes are written. Gives the
/// count.
pub async fn flood(stream: &mut TcpStream, bytes: &[u8], most: usize) -> usize {
    let pause = Duration::from_millis(700);
    let mut written = 0;
    while written < most {
        match tokio::time::timeout(pause, stream.write(&bytes[written % bytes.len()..])).await {
            Ok(Ok(n)) => written += n,
            Ok(Err(_)) | Err(_) => break,
        }
    }
    written
}
