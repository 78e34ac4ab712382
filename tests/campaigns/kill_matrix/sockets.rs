//! Our end of a connection, as the kernel reports it: what waits in it, and whether we hold it.

use std::net::SocketAddr;
use std::time::Duration;

/// States of `/proc/net/tcp` in which a connection has an owner: established, and closed by the
/// peer alone.
const HELD: [u8; 2] = [0x01, 0x08];

/// What `/proc/net/tcp` says of one end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Socket {
    pub state: u8,
    /// Bytes that the peer has not acknowledged.
    pub to_send: u64,
    /// Bytes that have not been read here.
    pub unread: u64,
}

impl Socket {
    /// The end of a connection of this machine's IPv4 that has these ports. Without a port of its
    /// own, the one that has the peer's and an owner.
    pub fn find(local: Option<SocketAddr>, peer: SocketAddr) -> Option<Socket> {
        let table = std::fs::read_to_string("/proc/net/tcp").expect("the kernel's table");
        table.lines().skip(1).find_map(|line| {
            // Number, local address:port, remote address:port, state, tx_queue:rx_queue; in hex.
            let columns: Vec<&str> = line.split_whitespace().take(5).collect();
            let [_, here, there, state, queues] = columns[..] else {
                return None;
            };
            let here = port(here)?;
            if local.is_some_and(|local| local.port() != here) || port(there)? != peer.port() {
                return None;
            }
            let (to_send, unread) = queues.split_once(':')?;
            let state = u8::from_str_radix(state, 16).ok()?;
            if local.is_none() && !HELD.contains(&state) {
                return None;
            }
            Some(Socket {
                state,
                to_send: u64::from_str_radix(to_send, 16).ok()?,
                unread: u64::from_str_radix(unread, 16).ok()?,
            })
        })
    }

    /// Whether a process holds it open.
    pub fn is_held(local: SocketAddr, peer: SocketAddr) -> bool {
        Socket::find(Some(local), peer).is_some_and(|socket| HELD.contains(&socket.state))
    }
}

fn port(address: &str) -> Option<u16> {
    u16::from_str_radix(address.rsplit_once(':')?.1, 16).ok()
}

/// Waits for a condition that only the kernel knows, by polling. `false`: it is not met in time.
pub async fn comes(limit: Duration, mut met: impl FnMut() -> bool) -> bool {
    let looking = async {
        while !met() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(limit, looking).await.is_ok()
}
