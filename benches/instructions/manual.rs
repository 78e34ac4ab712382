//! Half round trips between two domains that are driven by hand, in one task: all that both ends do
//! outside of the kernel, the runtime's part included.

use std::future::IntoFuture;
use std::net::Ipv4Addr;

use futures::future::join;
use tokio::runtime::{Builder, Runtime};
use tokio_fabric::{
    Driver, Endpoint, Error, Event, Fabric, Hints, LocalPath,
    error::Phase,
    op::{Op, Received},
};

const LEN: usize = 64;
/// Messages that are sent before one is awaited.
pub const OUTSTANDING: usize = 50;

/// How an end waits for its message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// For operations of domains that drive themselves.
    AwaitsDrivers,
    Awaits,
    AsksForTurns,
}

impl Waiting {
    fn driver(self) -> Driver {
        match self {
            Waiting::AwaitsDrivers => Driver::Task,
            Waiting::Awaits | Waiting::AsksForTurns => Driver::Manual,
        }
    }
}

/// Not through shared memory, as between hosts.
pub fn over_tcp() -> Hints {
    Hints::new().local_path(LocalPath::Off)
}

/// TLS with one certificate, which both ends have.
#[cfg(feature = "tls")]
pub fn secured() -> Hints {
    use std::sync::Arc;

    use rustls::pki_types::PrivatePkcs8KeyDer;
    use rustls::{ClientConfig, RootCertStore, ServerConfig};

    let key = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a key");
    let certificate = key.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(key.signing_key.serialize_der());
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).expect("a certificate");
    let client = ClientConfig::builder().with_root_certificates(roots);
    let server = ServerConfig::builder().with_no_client_auth();
    let server = server.with_single_cert(vec![certificate], key.into());
    let tls = tokio_fabric::tls::TlsConfig::new()
        .client(Arc::new(client.with_no_client_auth()))
        .server(Arc::new(server.expect("a server")));
    Hints::new().tls(tls)
}

/// One end: its endpoint, and the receive that is always posted.
struct End {
    endpoint: Endpoint,
    receive: Op<Vec<u8>, Received>,
}

impl End {
    fn new(endpoint: Endpoint) -> Result<End, Error> {
        let receive = endpoint.recv(vec![0; LEN]).post()?;
        Ok(End { endpoint, receive })
    }

    fn has_message(&self) -> bool {
        self.receive.phase() == Phase::Ended
    }

    fn send(&self) -> Result<(), Error> {
        self.endpoint.inject(&[7; LEN])
    }

    async fn receive(&mut self) -> Result<(), Error> {
        let (_, buffer) = (&mut self.receive).await?;
        self.receive = self.endpoint.recv(buffer).post()?;
        Ok(())
    }

    /// Sends a message and waits for one, so many times; the other end begins by waiting.
    async fn play(&mut self, times: u64, begins: bool) -> Result<(), Error> {
        for at in 0..times {
            if begins || at > 0 {
                self.send()?;
            }
            self.receive().await?;
        }
        if !begins {
            self.send()?;
        }
        Ok(())
    }
}

/// Two connected ends of a fabric with these hints, each with a receive.
async fn pair(hints: Hints, driver: Driver) -> Result<[End; 2], Error> {
    let [x, y] = connected(hints, driver).await?;
    Ok([End::new(x)?, End::new(y)?])
}

/// Two connected endpoints of a fabric with these hints.
async fn connected(hints: Hints, driver: Driver) -> Result<[Endpoint; 2], Error> {
    let fabric = Fabric::open(hints.backend("epoll"))?;
    let open = || fabric.domain().driver(driver).open();
    let (a, b) = (open()?, open()?);
    let events = fabric.event_queue().open()?;
    let listening = fabric.passive_endpoint(&events);
    let listening = listening.listen_at((Ipv4Addr::LOCALHOST, 0).into())?;
    let (x, y) = (a.endpoint().open()?, b.endpoint().open()?);
    let accept = async {
        loop {
            if let Some(Event::ConnRequest(request)) = events.next().await {
                return y.accept(request).await;
            }
        }
    };
    let connect = x.connect(listening.local_addr()).into_future();
    let (connected, accepted) = join(connect, accept).await;
    connected.and(accepted)?;
    Ok([x, y])
}

/// Has `counted` count so many half round trips, of ends of a fabric with these hints.
pub fn half_round_trips(times: u64, waiting: Waiting, hints: Hints, counted: fn(&mut dyn FnMut())) {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let play = match waiting {
        Waiting::Awaits | Waiting::AwaitsDrivers => awaited,
        Waiting::AsksForTurns => turned,
    };
    let ends = runtime
        .block_on(pair(hints, waiting.driver()))
        .expect("two ends");
    let mut ends = Some(awaited(&runtime, ends, 10));
    counted(&mut || {
        ends = ends.take().map(|ends| play(&runtime, ends, times));
    });
}

/// Has `counted` count so many messages, sent `OUTSTANDING` at a time and awaited, and taken by a
/// stream.
pub fn messages(times: u64, counted: fn(&mut dyn FnMut())) {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let [a, b] = runtime
        .block_on(connected(over_tcp(), Driver::Manual))
        .expect("two ends");
    let mut stream = b.messages(LEN, OUTSTANDING);
    let mut buffers = vec![vec![7; LEN]; OUTSTANDING];
    let mut sends = Vec::new();
    let mut send = |times: u64| {
        for _ in 0..times / OUTSTANDING as u64 {
            let sending = async {
                for buffer in buffers.drain(..) {
                    sends.push(a.send(buffer).post().expect("it is connected"));
                }
                for send in sends.drain(..) {
                    buffers.push(send.await.expect("it has been sent").1);
                }
            };
            let receiving = async {
                for _ in 0..OUTSTANDING {
                    let message = stream.next().await.expect("it is connected");
                    assert_eq!(message.expect("it fits").len(), LEN);
                }
            };
            runtime.block_on(join(sending, receiving));
        }
    };
    send(2 * OUTSTANDING as u64);
    counted(&mut || send(times));
}

/// A task for each end.
fn awaited(runtime: &Runtime, [mut a, mut b]: [End; 2], times: u64) -> [End; 2] {
    runtime.block_on(async {
        let other = tokio::spawn(async move {
            b.play(times / 2, false).await.expect("an answer");
            b
        });
        a.play(times / 2, true).await.expect("a message");
        [a, other.await.expect("the other end")]
    })
}

/// No task waits: each end asks for turns until its message is there.
fn turned(runtime: &Runtime, mut ends: [End; 2], times: u64) -> [End; 2] {
    runtime.block_on(async {
        for _ in 0..times {
            let [from, to] = &mut ends;
            from.send().expect("there is room");
            while !to.has_message() {
                to.endpoint.domain().progress();
            }
            to.receive().await.expect("a message");
            ends.swap(0, 1);
        }
    });
    ends
}
