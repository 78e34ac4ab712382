//! The end of the runtime in which a domain was opened, under each thing that can be awaited: what
//! is awaited on another runtime, before or after that end, ends too. With a driver that is a
//! thread the domain goes on, and what ends there is not asked here.

use std::any::Any;
use std::future::IntoFuture;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::time::Duration;

use futures::future::join;
use tokio::runtime::{Builder, Runtime};
use tokio_fabric::testing::{Net, Peer, connect, connect_endpoints};
use tokio_fabric::{
    Backend, Driver, Endpoint, EndpointType, Hints, RemoteRegion, buf::SharedBuffer,
    domain::DomainBind,
};

use crate::common::backends;
use crate::common::peers::{any, listener, peer_with, request};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn runtime() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    let builder = builder.worker_threads(1).enable_all();
    builder.build().expect("a runtime")
}

type Waits = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A side whose runtime ends, and one whose runtime goes on.
struct Scene {
    net: Net,
    here: Peer,
    there: Peer,
    /// What is to be open until the end.
    kept: Vec<Box<dyn Any + Send>>,
}

impl Scene {
    async fn connected(&mut self) -> Endpoint {
        let (x, y) = connect(&self.here, &self.there).await.unwrap();
        self.kept.push(Box::new(y));
        x
    }

    fn keep(&mut self, kept: impl Any + Send) {
        self.kept.push(Box::new(kept));
    }

    /// An address that answers nothing.
    fn silent(&mut self) -> SocketAddr {
        let listener = TcpListener::bind(any()).unwrap();
        let address = listener.local_addr().unwrap();
        self.keep(listener);
        address
    }

    /// A peer whose registrations are done beside.
    fn registering(&self) -> Peer {
        peer_with(&self.net, Hints::new(), DomainBind::REG_MR)
    }
}

/// The future of one case. Its output does not matter: that it has one does.
fn waits<F>(future: F) -> Waits
where
    F: IntoFuture<IntoFuture: Send + 'static>,
{
    let future = future.into_future();
    Box::pin(async move { drop(future.await) })
}

/// What is awaited of connections.
async fn of_connections(scene: &mut Scene, case: &str) -> Option<Waits> {
    let read = RemoteRegion::new(0, 8, 1);
    Some(match case {
        "receive" => waits(scene.connected().await.recv(vec![0; 8])),
        "acknowledged send" => {
            let send = scene.connected().await.send("acknowledged");
            waits(send.delivery_complete())
        }
        "read" => waits(scene.connected().await.read(vec![0; 8], read)),
        "shutdown" => {
            let x = scene.connected().await;
            scene.keep(x.recv(vec![0; 8]).post().unwrap());
            waits(async move { x.shutdown().await })
        }
        "messages" => {
            let x = scene.connected().await;
            let mut messages = x.messages(100, 4);
            waits(async move { while messages.next().await.is_some_and(|it| it.is_ok()) {} })
        }
        "connect" => {
            let silent = scene.silent();
            let connecting = scene.here.domain.endpoint().open().unwrap();
            waits(connecting.connect(silent))
        }
        "accept" | "reject" => {
            let (listening, requests) = listener(&scene.here);
            let y = scene.there.domain.endpoint().open().unwrap();
            let connecting = y.connect(listening.local_addr()).into_future();
            scene.keep((listening, tokio::spawn(connecting)));
            let request = request(&requests).await;
            match case {
                "accept" => waits(request.accept(&scene.here.domain)),
                _ => waits(async move { request.reject().send() }),
            }
        }
        "events" => {
            let x = scene.connected().await;
            while scene.here.events.try_next().is_some() {}
            scene.keep(x);
            let events = scene.here.events.clone();
            waits(async move { events.next().await })
        }
        "completions" | "count" => {
            let queue = scene.here.domain.completion_queue().open().unwrap();
            let counter = scene.here.domain.counter().unwrap();
            let builder = scene.here.domain.endpoint().completion_queue(&queue);
            let x = builder.receive_counter(&counter).open().unwrap();
            let y = scene.there.domain.endpoint().open().unwrap();
            let fabric = scene.there.fabric.clone();
            connect_endpoints(&x, &y, &fabric).await.unwrap();
            x.recv(vec![0; 8]).queue(1).await.unwrap();
            scene.keep((x, y));
            match case {
                "count" => waits(counter.wait_for(1).errors_seen(0)),
                _ => waits(async move { queue.next().await }),
            }
        }
        "shared receive" | "shared receive alone" => {
            let context = scene.here.domain.receive_context().open().unwrap();
            if case == "shared receive" {
                let x = scene.here.domain.endpoint().receive_context(&context);
                let x = x.open().unwrap();
                let y = scene.there.domain.endpoint().open().unwrap();
                let fabric = scene.there.fabric.clone();
                connect_endpoints(&x, &y, &fabric).await.unwrap();
                scene.keep((x, y));
            }
            waits(context.recv(vec![0; 8]))
        }
        _ => return None,
    })
}

/// What is awaited of a domain, its regions and its address vectors.
async fn of_domains(scene: &mut Scene, case: &str) -> Option<Waits> {
    let region = scene.here.domain.register(vec![0u8; 100]).await.unwrap();
    Some(match case {
        "closed" => {
            let x = scene.connected().await;
            let domain = scene.here.domain.clone();
            let other = scene.net.peer().unwrap();
            drop((region, std::mem::replace(&mut scene.here, other)));
            waits(async move {
                drop(x);
                domain.closed().await;
            })
        }
        "close" => {
            let x = scene.connected().await;
            let domain = scene.here.domain.clone();
            waits(async move {
                drop((x, region));
                domain.close().await
            })
        }
        "deregistration" => waits(async move { region.deregister().await.map(drop) }),
        "exclusion" => waits(async move { region.quiesce().await.map(drop) }),
        "revocation" => waits(async move { region.revoke().await }),
        "registration" => waits(scene.here.domain.register(vec![0u8; 1 << 20])),
        "registration beside" => waits(scene.registering().domain.register(vec![0u8; 1 << 24])),
        "registration's event" => {
            let peer = scene.registering();
            waits(async move {
                let submitted = peer.domain.register(vec![0u8; 1 << 24]).submit(5);
                if submitted.is_ok() {
                    peer.events.next().await;
                }
            })
        }
        "cached registration" => {
            let cache = scene.here.domain.cache().open().unwrap();
            let buffer = SharedBuffer::new(vec![0u8; 1 << 20]);
            waits(async move { cache.register(&buffer, ..).await.map(drop) })
        }
        "insertion" | "insertion of a service" | "insertion's event" => {
            let vector = scene.here.domain.address_vector().open().unwrap();
            match case {
                "insertion" => waits(vector.insert(scene.silent())),
                "insertion of a service" => waits(vector.insert_service("localhost", "80")),
                _ => {
                    let events = scene.here.fabric.event_queue().open().unwrap();
                    vector.bind(&events).unwrap();
                    waits(async move {
                        let submitted = vector.insert_service("localhost", "80").submit(3);
                        if submitted.is_ok() {
                            events.next().await;
                        }
                    })
                }
            }
        }
        _ => return None,
    })
}

/// What is awaited of connectionless endpoints.
async fn of_connectionless(scene: &mut Scene, case: &str) -> Option<Waits> {
    let x = scene.here.rdm_endpoint().unwrap();
    let silent = scene.silent();
    let nobody = x.insert(silent).unwrap();
    Some(match case {
        "send to a peer" | "shutdown of peers" => {
            let y = scene.there.rdm_endpoint().unwrap();
            let to = x.insert(y.local_addr()).unwrap();
            scene.keep(y);
            if case == "send to a peer" {
                return Some(waits(x.send(vec![0; 8], to).delivery_complete()));
            }
            x.send(vec![0; 8], to).await.unwrap();
            waits(async move { x.shutdown().await })
        }
        "send to none" => waits(x.send(vec![0; 8], nobody)),
        "receive of any" => waits(x.recv(vec![0; 8])),
        "receive of one" => waits(x.recv_tagged(vec![0; 8], 1).from(nobody)),
        "changes of peers" => {
            let mut peers = x.peers();
            scene.keep(x);
            waits(async move { while peers.next().await.is_some() {} })
        }
        "messages of peers" => {
            let mut messages = x.messages(100, 4);
            scene.keep(x);
            waits(async move { while messages.next().await.is_some_and(|it| it.is_ok()) {} })
        }
        "look-up" => waits(async move { x.resolve("localhost:80").await }),
        "scalable shutdown" => {
            let scalable = scene.here.domain.scalable_endpoint();
            let scalable = scalable.listen_at(any()).open().unwrap();
            waits(async move { scalable.shutdown().await })
        }
        _ => return None,
    })
}

/// What is awaited of datagram endpoints.
async fn of_datagrams(scene: &mut Scene, case: &str) -> Option<Waits> {
    let hints = Hints::new().endpoint(EndpointType::Dgram);
    let peer = peer_with(&scene.net, hints, DomainBind::empty());
    let vector = peer.domain.address_vector().open().unwrap();
    let builder = peer.domain.dgram_endpoint().address_vector(&vector);
    let x = builder.bind(any()).open().unwrap();
    let itself = vector.insert(x.local_addr()).now().unwrap();
    scene.keep(peer);
    Some(match case {
        "datagram" => waits(x.recv(vec![0; 8])),
        "datagram's send" => waits(async move {
            for _ in 0..3 {
                let _ = x.send(vec![0; 8], itself).await;
            }
        }),
        "datagrams' shutdown" => {
            scene.keep(x.recv(vec![0; 8]).post().unwrap());
            waits(async move { x.shutdown().await })
        }
        _ => return None,
    })
}

const OF_CONNECTIONS: [&str; 13] = [
    "receive",
    "acknowledged send",
    "read",
    "shutdown",
    "messages",
    "connect",
    "accept",
    "reject",
    "events",
    "completions",
    "count",
    "shared receive",
    "shared receive alone",
];
const OF_DOMAINS: [&str; 12] = [
    "closed",
    "close",
    "deregistration",
    "exclusion",
    "revocation",
    "registration",
    "registration beside",
    "registration's event",
    "cached registration",
    "insertion",
    "insertion of a service",
    "insertion's event",
];
const OF_CONNECTIONLESS: [&str; 9] = [
    "send to a peer",
    "shutdown of peers",
    "send to none",
    "receive of any",
    "receive of one",
    "changes of peers",
    "messages of peers",
    "look-up",
    "scalable shutdown",
];
const OF_DATAGRAMS: [&str; 3] = ["datagram", "datagram's send", "datagrams' shutdown"];

/// One case: is awaited from before the end on (`across`), or after it.
fn ends(cases: &'static [&'static str], backend: Backend, driver: Driver) {
    let (of_there, elsewhere) = (runtime(), runtime());
    let net = Net::on(backend);
    let there = of_there.block_on(async { net.peer().unwrap() });
    let net = net.driver(driver);
    for (case, across) in cases.iter().flat_map(|case| [(case, false), (case, true)]) {
        let ending = runtime();
        let net = net.clone();
        let (waiting, kept) = ending.block_on(async {
            let mut scene = Scene {
                here: net.peer().unwrap(),
                there: there.clone(),
                net,
                kept: Vec::new(),
            };
            let waits = match cases[0] {
                "receive" => of_connections(&mut scene, case).await,
                "closed" => of_domains(&mut scene, case).await,
                "send to a peer" => of_connectionless(&mut scene, case).await,
                _ => of_datagrams(&mut scene, case).await,
            };
            (waits.expect("a case"), scene)
        });
        let (sender, begun) = std::sync::mpsc::channel();
        let polled = async move {
            let mut waiting = waiting;
            let first = futures::poll!(&mut waiting);
            let _ = sender.send(());
            if first.is_pending() {
                waiting.await;
            }
        };
        let mut ending = Some(ending);
        if !across {
            drop(ending.take());
        }
        let waits = elsewhere.spawn(polled);
        begun.recv_timeout(PATIENCE).expect("it is polled");
        drop(ending);
        let ended = elsewhere.block_on(async { tokio::time::timeout(PATIENCE, waits).await });
        let place = format!("{case}, {backend}, {driver:?}, across: {across}");
        ended
            .unwrap_or_else(|_| panic!("hangs: {place}"))
            .expect(&place);
        drop(kept);
    }
}

fn every_cell(cases: &'static [&'static str]) {
    std::thread::scope(|scope| {
        for backend in backends() {
            for driver in [Driver::Task, Driver::Manual] {
                scope.spawn(move || ends(cases, backend, driver));
            }
        }
    });
}

/// `Driver::Task`: "when the runtime shuts down, the domain's operations fail", and
/// `Driver::Manual`: "When a runtime shuts down in which a domain was opened, the domain's operations
/// fail".
#[test]
fn what_is_awaited_of_connections_ends_with_their_runtime() {
    every_cell(&OF_CONNECTIONS);
}

#[test]
fn what_is_awaited_of_domains_ends_with_their_runtime() {
    every_cell(&OF_DOMAINS);
}

#[test]
fn what_is_awaited_of_connectionless_endpoints_ends_with_their_runtime() {
    every_cell(&OF_CONNECTIONLESS);
}

#[test]
fn what_is_awaited_of_datagram_endpoints_ends_with_their_runtime() {
    every_cell(&OF_DATAGRAMS);
}

/// Tokio answers who polls a timer of a runtime that has ended by a panic, which the process's hook
/// prints: with manual progress, tasks of other runtimes do not run into it.
#[test]
fn the_end_of_a_runtime_is_no_panic_for_who_drives_by_hand() {
    let output = crate::common::alone::alone("runtime_ends::ends_under_who_drives");
    assert!(!output.contains("panicked"), "{output}");
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn ends_under_who_drives() {
    let elsewhere = Builder::new_multi_thread().enable_all().build().unwrap();
    for _ in 0..50 {
        let ending = runtime();
        let net = Net::on(Backend::Loopback).driver(Driver::Manual);
        let (a, b) = ending.block_on(async { net.pair().await.unwrap() });
        let echoes = elsewhere.spawn(async move {
            while b.recv(vec![0; 8]).await.is_ok() && b.inject(b"echo").is_ok() {}
        });
        let (sender, rounds) = std::sync::mpsc::channel();
        let asks = elsewhere.spawn(async move {
            while a.inject(b"ask").is_ok() && a.recv(vec![0; 8]).await.is_ok() {
                let _ = sender.send(());
            }
        });
        rounds.iter().take(10).for_each(drop);
        drop(ending);
        let both = async { tokio::time::timeout(PATIENCE, join(echoes, asks)).await };
        let (echoes, asks) = elsewhere.block_on(both).expect("they end");
        echoes.and(asks).unwrap();
    }
}
