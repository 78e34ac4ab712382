//! Our end of a scenario: opening, connecting, the farewell, what events may and may not come.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::sync::mpsc::UnboundedReceiver;
use tokio_fabric::testing::{Net, Peer};
use tokio_fabric::{
    Backend, CompletionQueue, Endpoint, Event, EventQueue, Hints, PassiveEndpoint, RemoteRegion,
    ep::SharedReceiveContext,
    eq::ConnRequest,
    op::{Op, Received},
};

pub use crate::bytes::{assert_bytes, pattern};

/// Bytes of a descriptor: address, length, key.
pub const DESCRIPTOR_LEN: usize = 24;

/// How this end meets the other.
#[derive(Debug)]
enum ConnectionRole {
    Listen {
        requests: EventQueue,
        listener: PassiveEndpoint,
    },
    /// At a listener that others meet at, too.
    Share {
        requests: UnboundedReceiver<ConnRequest>,
    },
    Connect {
        to: SocketAddr,
    },
}

/// One end of a scenario: at most one connection at a time.
#[derive(Debug)]
pub struct Session {
    pub peer: Peer,
    way: ConnectionRole,
    /// The transmit queue of every endpoint: for operations posted with `.queue(..)`.
    pub completions: CompletionQueue,
    /// Whose receives take the messages of every endpoint; `None`: its own.
    receives: Option<SharedReceiveContext>,
    request: Option<ConnRequest>,
    endpoint: Option<Endpoint>,
}

impl Session {
    pub fn listen() -> Session {
        let peer = Net::on(Backend::Epoll).peer().unwrap();
        let requests = peer.fabric.event_queue().open().unwrap();
        let any = (Ipv4Addr::LOCALHOST, 0).into();
        let listener = peer
            .fabric
            .passive_endpoint(&requests)
            .listen_at(any)
            .unwrap();
        Session::new(peer, ConnectionRole::Listen { requests, listener })
    }

    pub fn connect(to: SocketAddr) -> Session {
        Session::new(
            Net::on(Backend::Epoll).peer().unwrap(),
            ConnectionRole::Connect { to },
        )
    }

    /// The listener's end for the peers that come by `requests`.
    pub fn share(peer: Peer, requests: UnboundedReceiver<ConnRequest>) -> Session {
        Session::new(peer, ConnectionRole::Share { requests })
    }

    fn new(peer: Peer, way: ConnectionRole) -> Session {
        let completions = peer.domain.completion_queue().open().unwrap();
        Session {
            peer,
            way,
            completions,
            receives: None,
            request: None,
            endpoint: None,
        }
    }

    /// Opens the domain of its endpoints anew, with these hints.
    pub fn reopen(&mut self, hints: Hints) {
        let fabric = Net::on(Backend::Epoll).fabric_with(hints).unwrap();
        self.peer = Peer::of(fabric).unwrap();
        self.completions = self.peer.domain.completion_queue().open().unwrap();
    }

    /// Opens the receive context that all endpoints share from here on.
    pub fn share_receives(&mut self) -> SharedReceiveContext {
        let context = self.peer.domain.receive_context().open().unwrap();
        self.receives.insert(context).clone()
    }

    /// The endpoint of the present connection.
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint.clone().expect("begin comes first")
    }

    pub fn is_listener(&self) -> bool {
        !matches!(self.way, ConnectionRole::Connect { .. })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        match &self.way {
            ConnectionRole::Listen { listener, .. } => listener.local_addr(),
            _ => panic!("only a listener has an address"),
        }
    }

    /// Where a connector connects to.
    pub fn address_of_peer(&self) -> SocketAddr {
        match &self.way {
            ConnectionRole::Connect { to } => *to,
            _ => panic!("a listener does not connect"),
        }
    }

    /// Takes the next connection request; checks what came with it.
    pub async fn request(&mut self, data: &[u8]) -> ConnRequest {
        let request = match &mut self.way {
            ConnectionRole::Listen { requests, .. } => match requests.next().await {
                Some(Event::ConnRequest(request)) => request,
                other => panic!("{other:?} instead of a request"),
            },
            ConnectionRole::Share { requests } => {
                requests.recv().await.expect("the listener is there")
            }
            ConnectionRole::Connect { .. } => panic!("only listeners are asked"),
        };
        assert_bytes("request data", request.data(), data);
        request
    }

    /// First half of a connection: an endpoint to post receives on. A listener has its request
    /// then, a connector has sent nothing yet.
    pub async fn begin_with(&mut self, request: &[u8]) -> Endpoint {
        if self.is_listener() {
            self.request = Some(self.request(request).await);
        }
        let queue = &self.completions;
        let builder = self.peer.domain.endpoint().transmit_queue(queue);
        let builder = match &self.receives {
            Some(context) => builder.receive_context(context),
            None => builder,
        };
        let endpoint = builder.open().unwrap();
        self.endpoint = Some(endpoint.clone());
        endpoint
    }

    pub async fn begin(&mut self) -> Endpoint {
        self.begin_with(b"").await
    }

    /// Second half: sends or checks request and reply data, whichever end this is.
    pub async fn complete_with(&mut self, request: &[u8], reply: &[u8]) {
        let endpoint = self.endpoint();
        let due = match (&self.way, self.request.take()) {
            (ConnectionRole::Connect { to }, _) => {
                let answer = endpoint.connect(*to).data(request).await.unwrap();
                assert_bytes("reply data", &answer, reply);
                reply
            }
            (_, asked) => {
                endpoint
                    .accept(asked.expect("begin took it"))
                    .data(reply)
                    .await
                    .unwrap();
                b""
            }
        };
        match self.peer.events.next().await {
            Some(Event::Connected {
                endpoint: id, data, ..
            }) => {
                assert_eq!(id, endpoint.id());
                assert_bytes("data of the Connected event", &data, due);
            }
            other => panic!("{other:?} instead of Connected"),
        }
    }

    pub async fn complete(&mut self) {
        self.complete_with(b"", b"").await;
    }

    /// The connection ends: one Shutdown, of this endpoint, and nothing else.
    pub async fn shutdown_seen(&mut self) {
        let endpoint = self.endpoint.take().expect("begin comes first");
        match self.peer.events.next().await {
            Some(Event::Shutdown { endpoint: id, .. }) => assert_eq!(id, endpoint.id()),
            other => panic!("{other:?} instead of Shutdown"),
        }
        assert!(!endpoint.is_connected());
        assert!(
            self.peer.events.is_empty(),
            "{:?} after Shutdown",
            self.peer.events.try_next()
        );
    }

    /// The closing side has nothing left to receive; the other has received all it was sent.
    pub async fn close(&mut self, closer: bool) {
        if closer {
            self.endpoint().shutdown().await.unwrap();
        }
        self.shutdown_seen().await;
    }

    /// The initiator's whole farewell.
    pub async fn initiator_farewell(&mut self, done: Op<Vec<u8>, Received>) {
        self.send_done().await;
        await_done(done).await;
        self.close(true).await;
    }

    /// The target's, after [`await_done`] and its checks.
    pub async fn target_farewell(&mut self) {
        self.send_done().await;
        self.close(false).await;
    }

    pub async fn send_done(&mut self) {
        let (sent, _) = self.endpoint().send("done").await.unwrap();
        assert_eq!(sent, 4);
    }
}

/// Posts a receive of `len` bytes of 0xEE.
#[track_caller]
pub fn post_receive(endpoint: &Endpoint, len: usize) -> Op<Vec<u8>, Received> {
    endpoint.recv(vec![0xEE; len]).post().unwrap()
}

/// Posts the receive for the word "done".
#[track_caller]
pub fn post_done(endpoint: &Endpoint) -> Op<Vec<u8>, Received> {
    post_receive(endpoint, 4)
}

pub async fn await_done(done: Op<Vec<u8>, Received>) {
    await_message("done", done, b"done", None).await;
}

/// Awaits a message; checks its length, its bytes, the rest of the buffer, and its CQ data.
pub async fn await_message(
    what: &str,
    receive: Op<Vec<u8>, Received>,
    message: &[u8],
    data: Option<u64>,
) {
    let (received, buffer) = receive.await.unwrap();
    assert_eq!(
        (received.len, received.data),
        (message.len(), data),
        "{what}"
    );
    assert_bytes(what, &buffer[..received.len], message);
    assert_bytes(
        what,
        &buffer[received.len..],
        &vec![0xEE; buffer.len() - received.len],
    );
}

/// What a target says of its region.
pub fn encode_descriptor(region: RemoteRegion) -> Vec<u8> {
    [region.addr, region.len, region.key]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect()
}

pub async fn await_descriptor(receive: Op<Vec<u8>, Received>, len: u64) -> RemoteRegion {
    let (received, bytes) = receive.await.unwrap();
    assert_eq!(received.len, DESCRIPTOR_LEN);
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!(word(8), len, "the region's length");
    RemoteRegion::new(word(0), len, word(16))
}
