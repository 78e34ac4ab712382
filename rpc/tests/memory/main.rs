//! What calls and connections ask of the allocator. Client and server have a thread each, whose
//! allocations are counted apart; in a program of its own, since it has its own allocator.

#[allow(dead_code, reason = "what other programs need of it")]
#[path = "../../../tests/accounting/counting.rs"]
mod counting;

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;

use counting::{Counting, of_thread};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_fabric::{Access, Driver, Fabric, Hints, RemoteRegion};
use tokio_fabric_rpc::limits::{CHUNK, CHUNKS_PER_CONNECTION, CHUNKS_PER_SERVER, OWN_CHUNK};
use tokio_fabric_rpc::{Cx, Pull, Result, Server, service};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Callers at a time.
const CALLERS: u64 = 64;
/// Calls of each: their messages fill the buffers that they come in several times.
const CALLS: u64 = 400;
/// Allocations per call: of what is needed once in a while.
const PER_CALL_MAX: f64 = 0.1;
/// What a client says at first: version 1, and what it takes.
const HELLO: [u8; 48] = *b"TFRP\x01\x01\0\0\x00\x01\0\0\0\0\x01\0\0\0\x40\0\0\0\0\0\
    \0\0\0\0\0\x01\0\0\0\0\0\x01\0\0\0\0postcard";
/// Channels that do nothing.
const IDLE: usize = 128;

#[service]
trait Sums {
    async fn add(&self, cx: &Cx, one: u64, other: u64) -> Result<u64>;
    /// Allocations of the server's thread, the large ones, and the bytes that it has in use.
    async fn allocated(&self, cx: &Cx) -> Result<(u64, u64, i64)>;
    /// Reads what it is lent.
    #[rpc(signature = "")]
    async fn read(&self, cx: &Cx, data: Pull) -> Result<u64>;
}

struct Adder;

impl Sums for Adder {
    async fn add(&self, _: &Cx, one: u64, other: u64) -> Result<u64> {
        Ok(one + other)
    }

    async fn allocated(&self, _: &Cx) -> Result<(u64, u64, i64)> {
        let all = of_thread();
        Ok((all.allocations, all.large, all.in_use))
    }

    async fn read(&self, _: &Cx, data: Pull) -> Result<u64> {
        let (mut chunks, mut len) = (data.chunks(), 0);
        while let Some(chunk) = chunks.next().await? {
            len += chunk.len() as u64;
        }
        Ok(len)
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Runs this against a server in a thread of its own.
fn with_server<F: Future<Output = ()>>(run: impl FnOnce(SocketAddr) -> F) {
    let (address, addresses) = mpsc::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let server = thread::spawn(move || {
        runtime().block_on(async {
            let server = Server::new().add(SumsServer::new(Adder));
            let listening = server.bind("127.0.0.1:0").await.unwrap();
            address.send(listening.local_addr()).unwrap();
            // The other side drops it.
            let _ = stopped.await;
        });
    });
    runtime().block_on(run(addresses.recv().unwrap()));
    drop(stop);
    server.join().unwrap();
}

async fn call_all(client: &SumsClient) {
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let client = client.clone();
        callers.spawn(async move {
            for call in 0..CALLS {
                assert_eq!(client.add(caller, call).await.unwrap(), caller + call);
            }
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended.unwrap();
    }
}

/// Makes `count` calls of the run; allocations per call at the client, and at the server.
async fn measure(client: &SumsClient, count: u64, run: impl Future<Output = ()>) -> (f64, f64) {
    let (server, own) = (client.allocated().await.unwrap(), of_thread());
    run.await;
    let (server_after, own_after) = (client.allocated().await.unwrap(), of_thread());
    // The buffers that messages come in are used again.
    assert_eq!(own_after.large, own.large, "at the client");
    assert_eq!(server_after.1, server.1, "at the server");
    let per_call = |before: u64, after: u64| (after - before) as f64 / count as f64;
    let at_client = per_call(own.allocations, own_after.allocations);
    let at_server = per_call(server.0, server_after.0);
    println!("allocations per call: {at_client:.3} at its client, {at_server:.3} at its server");
    (at_client, at_server)
}

/// Calls whose handlers are done at their first poll, and whose arguments and results need no
/// memory.
#[test]
fn a_call_allocates_nothing_at_either_side() {
    with_server(async |address| {
        let client = SumsClient::connect(address).await.unwrap();
        // What is made once.
        call_all(&client).await;
        let count = CALLERS * CALLS;
        let (at_client, at_server) = measure(&client, count, call_all(&client)).await;
        assert!(at_client < PER_CALL_MAX, "{at_client} at the client");
        assert!(at_server < PER_CALL_MAX, "{at_server} at the server");
    });
}

/// The same of calls one after the other.
#[test]
fn a_single_call_allocates_nothing_at_either_side() {
    with_server(async |address| {
        let client = SumsClient::connect(address).await.unwrap();
        let calls = async || {
            for call in 0..CALLS {
                assert_eq!(client.add(1, call).await.unwrap(), call + 1);
            }
        };
        calls().await;
        let (at_client, at_server) = measure(&client, CALLS, calls()).await;
        assert!(at_client < PER_CALL_MAX, "{at_client} at the client");
        assert!(at_server < PER_CALL_MAX, "{at_server} at the server");
    });
}

/// A connection that has made no call so far. A channel has the domain, the queue and the buffers
/// of its connections besides.
#[test]
fn an_idle_connection_takes_little_of_the_heap() {
    with_server(async |address| {
        let first = SumsClient::connect(address).await.unwrap();
        let (server, own) = (first.allocated().await.unwrap().2, of_thread().in_use);
        let mut idle = Vec::with_capacity(IDLE);
        for _ in 0..IDLE {
            idle.push(SumsClient::connect(address).await.unwrap());
        }
        let (server_after, own_after) = (first.allocated().await.unwrap().2, of_thread().in_use);
        let each = |before: i64, after: i64| (after - before) / IDLE as i64;
        let (at_server, at_client) = (each(server, server_after), each(own, own_after));
        println!("a connection: {at_server} bytes at its server; a channel: {at_client}");
        assert!(at_server < 5 << 10, "{at_server} bytes at the server");
    });
}

/// A request that lends memory, in its bytes, with a budget of a millisecond.
fn lends(slot: u16, method: &str) -> Vec<u8> {
    let fnv = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let method = method.bytes().fold(0x811c_9dc5_u32, fnv);
    let region = RemoteRegion {
        access: Access::REMOTE_READ,
        ..RemoteRegion::new(0, 1 << 30, 0x1234_5678)
    };
    let mut frame = vec![1, 1 << 1, 0, 0];
    frame.extend(u32::from(slot).to_le_bytes());
    frame.extend(method.to_le_bytes());
    frame.extend(1000_u32.to_le_bytes());
    frame.extend(region.to_bytes());
    frame
}

/// The calls end in a millisecond, and what their handlers were reading stays with the library: the
/// clients are not driven, and never answer.
#[test]
fn clients_that_answer_no_transfer_take_their_share_of_memory_and_no_more() {
    /// Calls of each, which take all chunks of its connection.
    const CALLS: u16 = CHUNKS_PER_CONNECTION as u16 / 2;
    const CLIENTS: usize = 40;
    with_server(async |address| {
        let client = SumsClient::connect(address).await.unwrap();
        let before = client.allocated().await.unwrap().2;
        let fabric = Fabric::open(Hints::new()).unwrap();
        let mut silent = Vec::new();
        for _ in 0..CLIENTS {
            let domain = fabric.domain().driver(Driver::Manual).open().unwrap();
            let endpoint = domain.endpoint().open().unwrap();
            endpoint.connect(address).data(HELLO).await.unwrap();
            for call in 0..CALLS {
                endpoint.inject(&lends(call, "Sums/read")).unwrap();
            }
            domain.progress();
            silent.push((domain, endpoint));
            // The calls are over.
            let started = async || client.channel().check().await.unwrap().stats;
            let most = silent.len() as u64 * u64::from(CALLS);
            while started().await.started < most || started().await.running > 1 {
                tokio::task::yield_now().await;
            }
        }
        let taken = (client.allocated().await.unwrap().2 - before) as usize;
        // The shared chunks, and a small one for each of the others.
        let most = CHUNKS_PER_SERVER * CHUNK + CLIENTS * usize::from(CALLS) * OWN_CHUNK;
        println!("{taken} bytes, at most {most}");
        assert!(taken < most + (4 << 20), "{taken} bytes");
    });
}
