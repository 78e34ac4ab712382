//! Mixed work of some peers, with faults that change: messages of both kinds of endpoints, remote
//! memory, registrations that fault pages in, insertions of addresses, time limits, datagrams.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_fabric::testing::{FaultPlan, Net, Peer, connect};
use tokio_fabric::{
    Access, Error, Event, EventQueue, Fabric, Hints, RdmEndpoint, domain::DomainBind, info::MrMode,
};

use super::trace::{Recorder, Trace};

const RDM_PEERS: u16 = 3;

fn address(number: u16) -> SocketAddr {
    ([127, 0, 0, 1], 7100 + number).into()
}

/// SplitMix64.
struct Choice(u64);

impl Choice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }
}

fn kind<T>(result: Result<T, impl Into<Error>>) -> String {
    match result {
        Ok(_) => "ok".to_owned(),
        Err(error) => {
            let error: Error = error.into();
            format!("{:?}", error.kind())
        }
    }
}

fn peer(net: &Net) -> Peer {
    let fabric = net
        .fabric_with(Hints::new().domain(|domain| domain.required_mr_mode(MrMode::ALLOCATED)))
        .unwrap();
    peer_of(fabric)
}

fn peer_of(fabric: Fabric) -> Peer {
    let events = fabric.event_queue().open().unwrap();
    let domain = fabric.domain().open().unwrap();
    domain.bind(&events, DomainBind::REG_MR).unwrap();
    Peer {
        fabric,
        domain,
        events,
    }
}

fn plan(seed: u64) -> FaultPlan {
    let mut choice = Choice(seed ^ 0xFA);
    let mut plan = FaultPlan::seeded(seed);
    if choice.below(2) == 0 {
        plan = plan.short_io(0.3);
    }
    if choice.below(2) == 0 {
        let most = Duration::from_micros(1 + choice.below(5_000));
        plan = plan.delay(Duration::ZERO..=most);
    }
    if choice.below(3) == 0 {
        plan = plan.cut_after_bytes(200..=20_000);
    }
    plan.lose(0.1).duplicate(0.1).reorder(0.1)
}

async fn events(name: String, queue: EventQueue, trace: Recorder) {
    while let Some(event) = queue.next().await {
        let what = match event {
            Event::Connected { .. } => "connected".to_owned(),
            Event::Shutdown { error, .. } => format!("shut down {:?}", error.map(|it| it.kind())),
            // The key is drawn from the seed too.
            Event::MrComplete { region, .. } => format!("registered {:x}", region.key()),
            Event::AvComplete { count, .. } => format!("inserted {count}"),
            Event::Error(error) => format!("failed {:?}", error.error.kind()),
            other => format!("{other:?}"),
        };
        trace.note(format_args!("{name} event {what}"));
    }
}

/// Sends to the other connectionless endpoints, some of which come up late.
async fn rdm(number: u16, net: Net, seed: u64, trace: Recorder) {
    let mut choice = Choice(seed ^ u64::from(number) << 32);
    sleep(Duration::from_millis(choice.below(300))).await;
    let node = net.node(number.to_string());
    let hints = Hints::new().domain(|domain| domain.required_mr_mode(MrMode::ALLOCATED));
    let fabric = node.fabric_with(hints);
    let Ok(fabric) = fabric else {
        return trace.note(format_args!("rdm {number} is down"));
    };
    let peer = peer_of(fabric);
    let queue = peer.events.clone();
    let tracing = tokio::spawn(events(format!("rdm {number}"), queue, trace.clone()));
    let endpoint = peer.domain.rdm_endpoint().listen_at(node.addr(7100));
    let endpoint = endpoint
        .connect_deadline(Duration::from_secs(2))
        .open()
        .unwrap();
    let mut work = JoinSet::new();
    for _ in 0..4 {
        let (endpoint, trace) = (endpoint.clone(), trace.clone());
        let patience = Duration::from_millis(200 + choice.below(2_000));
        work.spawn(async move {
            let received = endpoint.recv(vec![0; 4096]).timeout(patience).await;
            let what = match &received {
                Ok((received, _)) => format!("{} of {:?}", received.len, received.source_addr),
                Err(_) => kind(received),
            };
            trace.note(format_args!("rdm {number} receives {what}"));
        });
    }
    for _ in 0..4 {
        let other = (number + 1 + choice.below(u64::from(RDM_PEERS) - 1) as u16) % RDM_PEERS;
        let to = endpoint
            .insert(net.node(other.to_string()).addr(7100))
            .unwrap();
        let len = choice.below(4096) as usize;
        let patience = Duration::from_millis(500 + choice.below(2_000));
        work.spawn(send(
            endpoint.clone(),
            number,
            to,
            len,
            patience,
            trace.clone(),
        ));
        sleep(Duration::from_millis(choice.below(20))).await;
    }
    while work.join_next().await.is_some() {}
    drop(tracing);
}

async fn send(
    endpoint: RdmEndpoint,
    number: u16,
    to: tokio_fabric::av::FabricAddr,
    len: usize,
    patience: Duration,
    trace: Recorder,
) {
    let sent = endpoint.send(vec![1; len], to).timeout(patience).await;
    trace.note(format_args!("rdm {number} sends {len}: {}", kind(sent)));
}

/// Two connected endpoints: messages, remote memory, a registration.
async fn msg(net: Net, seed: u64, trace: Recorder) {
    let mut choice = Choice(seed ^ 0xABC);
    let (a, b) = (peer(&net), peer(&net));
    for (name, peer) in [("a", &a), ("b", &b)] {
        tokio::spawn(events(name.to_owned(), peer.events.clone(), trace.clone()));
    }
    let connected = tokio::time::timeout(Duration::from_secs(5), connect(&a, &b)).await;
    let (x, y) = match connected {
        Ok(Ok(pair)) => pair,
        Ok(Err(error)) => return trace.note(format_args!("msg not connected: {:?}", error.kind())),
        Err(_) => return trace.note("msg not connected in time"),
    };
    let len = 1 + choice.below(100_000) as usize;
    let region = b.domain.register(vec![0_u8; len]);
    let region = region.access(Access::REMOTE_WRITE | Access::REMOTE_READ);
    let region = region.context(5u64).await.unwrap();
    trace.note(format_args!("b has {:x}", region.key()));
    let patience = Duration::from_secs(1);
    let written = x.write(vec![7; len / 2], region.remote()).timeout(patience);
    let read = x.read(vec![0; len], region.remote()).timeout(patience);
    let received = y.recv(vec![0; 50_000]).timeout(patience);
    let sent = x.send(vec![3; 1 + len / 3]).timeout(patience);
    let note = |what: &str, result: String| trace.note(format_args!("msg {what} {result}"));
    futures::join!(
        async { note("write", kind(written.await)) },
        async { note("read", kind(read.await)) },
        async { note("receive", kind(received.await)) },
        async { note("send", kind(sent.await)) },
    );
    drop((x, y));
    sleep(Duration::from_millis(10)).await;
}

/// Datagrams, some of which are lost.
async fn datagrams(net: Net, seed: u64, trace: Recorder) {
    let mut choice = Choice(seed ^ 0xD6);
    let hints = Hints::new().endpoint(tokio_fabric::EndpointType::Dgram);
    let domain = net.fabric_with(hints).unwrap().domain().open().unwrap();
    let vector = domain.address_vector().open().unwrap();
    let open = |at: u16| {
        let builder = domain.dgram_endpoint().address_vector(&vector);
        builder.bind(address(at)).open().unwrap()
    };
    let (a, b) = (open(10), open(11));
    let to = vector.insert(b.local_addr()).now().unwrap();
    let receiving = {
        let trace = trace.clone();
        tokio::spawn(async move {
            let limit = Duration::from_millis(200);
            while let Ok((received, _)) = b.recv(vec![0; 64]).timeout(limit).await {
                trace.note(format_args!("datagram of {}", received.len));
            }
        })
    };
    for len in 1..10 {
        let sent = a.send(vec![0; len], to).await;
        trace.note(format_args!("datagram sent: {}", kind(sent)));
        sleep(Duration::from_micros(choice.below(3000))).await;
    }
    receiving.await.unwrap();
}

/// Addresses that are looked up by the vector's workers.
async fn addresses(net: Net, trace: Recorder) {
    let peer = peer(&net);
    let vector = peer.domain.address_vector().open().unwrap();
    for number in 0..3 {
        let inserted = vector
            .insert_service("127.0.0.1", (7000 + number).to_string().as_str())
            .await;
        trace.note(format_args!("inserted {}", kind(inserted)));
    }
}

/// What happens to the nodes of the connectionless endpoints, and between them.
async fn nemesis(net: Net, seed: u64, trace: Recorder) {
    let mut choice = Choice(seed ^ 0xDEAD);
    for number in 0..RDM_PEERS {
        net.node(number.to_string());
    }
    for _ in 0..4 {
        sleep(Duration::from_millis(choice.below(400))).await;
        let one = choice.below(u64::from(RDM_PEERS));
        let other = (one + 1) % u64::from(RDM_PEERS);
        let (one, other) = (one.to_string(), other.to_string());
        let time = Duration::from_millis(choice.below(1_000));
        let what = choice.below(5);
        trace.note(format_args!("to {one} and {other}: {what} for {time:?}"));
        match what {
            0 => net.partition(&one, &other),
            1 => net.partition_one_way(&one, &other),
            2 => net.hang(&one),
            3 => net.crash(&one),
            _ => drop(
                net.link(&one, &other)
                    .latency(time / 50)
                    .bandwidth(1_000_000),
            ),
        }
        sleep(time).await;
        net.heal_all();
        net.resume(&one);
    }
}

pub async fn run(seed: u64) -> Trace {
    let trace = Recorder::new();
    let net = Net::new(seed).faults(plan(seed));
    let mut work = JoinSet::new();
    for number in 0..RDM_PEERS {
        work.spawn(rdm(number, net.clone(), seed, trace.clone()));
    }
    work.spawn(msg(net.clone(), seed, trace.clone()));
    work.spawn(datagrams(net.clone(), seed, trace.clone()));
    work.spawn(nemesis(net.clone(), seed, trace.clone()));
    work.spawn(addresses(net.clone(), trace.clone()));
    sleep(Duration::from_millis(400)).await;
    net.set_faults(plan(seed ^ 1));
    while let Some(done) = work.join_next().await {
        done.unwrap();
    }
    trace.note("the end");
    trace.finish()
}
