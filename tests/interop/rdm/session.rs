//! Our end of a connectionless scenario, and the C program at the other.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use futures::FutureExt;
use tokio_fabric::testing::{Net, Peer};
use tokio_fabric::{
    RdmEndpoint,
    av::FabricAddr,
    op::{Op, Received},
};

use crate::bytes::assert_bytes;
use crate::harness::{Availability, PATIENCE, Process, compile};
use crate::proxy::{Capture, Proxy};

/// How long a C program is waited for that may have a word to say about our failure.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The C program of the connectionless scenarios, compiled at the first call.
pub fn rdm_peer() -> Availability<&'static Path> {
    static PROGRAM: OnceLock<Result<std::path::PathBuf, String>> = OnceLock::new();
    let compiled = PROGRAM.get_or_init(|| {
        let source = "tests/interop/rdm_peer.c";
        compile(source, "interop-rdm-peer", &[])
    });
    match compiled {
        Ok(program) => Availability::Present(program),
        Err(reason) => Availability::Missing(reason.clone()),
    }
}

/// Who sends first, and so makes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Initiator,
    Target,
}

/// Starts the C program to play against the endpoint at `us`.
pub fn start_c(program: &Path, scenario: &str, ours: Role, us: SocketAddr) -> Process {
    start_c_at(program, scenario, ours, us, None)
}

/// The same, at a port of our choice.
pub fn start_c_at(
    program: &Path,
    scenario: &str,
    ours: Role,
    us: SocketAddr,
    port: Option<u16>,
) -> Process {
    let role = match ours {
        Role::Initiator => "target",
        Role::Target => "initiator",
    };
    let name = format!("rdm_peer {scenario} {role} {us}");
    let mut arguments = vec![scenario.to_owned(), role.to_owned()];
    arguments.extend([us.ip().to_string(), us.port().to_string()]);
    arguments.extend(port.map(|port| port.to_string()));
    Process::start_to_talk(name, program, arguments)
}

/// Where the C program listens, once it does.
pub async fn port_of(c: &mut Process) -> SocketAddr {
    let line = c.line("PORT ", PATIENCE).await;
    let port: u16 = line["PORT ".len()..].parse().expect("it prints its port");
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// One end of a scenario: an endpoint and the one peer it talks to.
#[derive(Clone, Debug)]
pub struct Session {
    pub peer: Peer,
    pub endpoint: RdmEndpoint,
    /// The C program.
    pub c: FabricAddr,
    pub role: Role,
}

impl Session {
    pub fn is_initiator(&self) -> bool {
        self.role == Role::Initiator
    }

    /// Posts a receive of `len` bytes of 0xEE.
    pub fn receive(&self, len: usize) -> Op<Vec<u8>, Received> {
        self.endpoint.recv(vec![0xEE; len]).post().unwrap()
    }

    pub fn post_hello(&self) -> Option<Op<Vec<u8>, Received>> {
        (!self.is_initiator()).then(|| self.receive(5))
    }

    /// The initiator's first message makes the connection.
    pub async fn hello(&self, receive: Option<Op<Vec<u8>, Received>>) {
        match receive {
            None => {
                self.endpoint.send("hello", self.c).await.unwrap();
            }
            Some(receive) => self.message("hello", receive, b"hello", None).await,
        }
    }

    pub fn post_done(&self) -> Op<Vec<u8>, Received> {
        self.receive(4)
    }

    pub async fn say_done(&self) {
        let done = self.endpoint.send("done", self.c).delivery_complete();
        done.await.unwrap();
    }

    /// The initiator says done first, the target once it has checked everything.
    pub async fn farewell(&self, done: Op<Vec<u8>, Received>) {
        if self.is_initiator() {
            self.say_done().await;
        }
        self.message("done", done, b"done", None).await;
        if !self.is_initiator() {
            self.say_done().await;
        }
    }

    /// Awaits a message; checks its length, its bytes, the rest of the buffer, its CQ data, and who
    /// sent it.
    pub async fn message(
        &self,
        what: &str,
        receive: Op<Vec<u8>, Received>,
        message: &[u8],
        data: Option<u64>,
    ) {
        self.tagged(what, receive, message, None, data).await;
    }

    pub async fn tagged(
        &self,
        what: &str,
        receive: Op<Vec<u8>, Received>,
        message: &[u8],
        tag: Option<u64>,
        data: Option<u64>,
    ) {
        let (received, buffer) = receive.await.unwrap();
        let facts = (received.len, received.data, received.tag);
        assert_eq!(facts, (message.len(), data, tag), "{what}");
        assert_eq!(received.source, Some(self.c), "{what}: its source");
        assert_bytes(what, &buffer[..received.len], message);
        let rest = vec![0xEE; buffer.len() - received.len];
        assert_bytes(what, &buffer[received.len..], &rest);
    }
}

/// Plays a scenario in this role.
pub async fn play(net: Net, scenario: &str, role: Role, script: impl AsyncFn(&Session)) {
    play_with(net, scenario, role, false, script).await;
}

/// The same through a proxy that keeps every byte, if `watched`.
pub async fn play_with(
    net: Net,
    scenario: &str,
    role: Role,
    watched: bool,
    script: impl AsyncFn(&Session),
) -> Vec<Capture> {
    let Some(program) = rdm_peer().or_left_out(scenario) else {
        return Vec::new();
    };
    let peer = net.peer().unwrap();
    let endpoint = peer.rdm_endpoint().unwrap();
    let mut us = endpoint.local_addr();
    let mut proxy = None;
    if watched && role == Role::Target {
        us = proxy.insert(Proxy::to(us).await).address();
    }
    let mut c = start_c(program, scenario, role, us);
    let mut they = port_of(&mut c).await;
    if watched && role == Role::Initiator {
        they = proxy.insert(Proxy::to(they).await).address();
    }
    let session = Session {
        c: endpoint.insert(they).unwrap(),
        peer,
        endpoint,
        role,
    };
    let script = tokio::time::timeout(PATIENCE, script(&session));
    match std::panic::AssertUnwindSafe(script).catch_unwind().await {
        Ok(Ok(())) => c.finished(PATIENCE).await.assert_ok(),
        Ok(Err(_)) => panic!("our end hangs\n{}", c.finished(Duration::ZERO).await),
        Err(panic) => {
            eprintln!("{}", c.finished(LAST_WORDS).await);
            std::panic::resume_unwind(panic);
        }
    }
    proxy.map_or(Vec::new(), |proxy| proxy.captures())
}
