//! "A rolling restart of three servers behind names that change address under load: no failed
//! call", over sockets.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::time::sleep;
use tokio_fabric_rpc::{Balance, Channel, LayeredPath, Lend, Listening, Resolve, Server, retry};
use tower::ServiceBuilder;
use tower::retry::Retry;

use super::work::{Deed, Ledger, WorkClient, WorkServer, Worker};

const NAMES: [&str; 3] = ["work-0", "work-1", "work-2"];
const CALLERS: u64 = 16;
const LENT: usize = 100_000;
/// A drain's deadline.
const DEADLINE: Duration = Duration::from_secs(5);
/// Time between two restarts, and time for which a name leads nowhere.
const PAUSE: Duration = Duration::from_millis(150);
const AWAY: Duration = Duration::from_millis(50);

/// The addresses of the names at present.
#[derive(Clone, Default)]
struct Table(Arc<Mutex<BTreeMap<String, SocketAddr>>>);

impl Table {
    fn set(&self, name: &str, address: SocketAddr) {
        self.0.lock().unwrap().insert(name.to_owned(), address);
    }
}

impl Resolve for Table {
    async fn resolve(&self, name: &str) -> io::Result<Vec<SocketAddr>> {
        Ok(self
            .0
            .lock()
            .unwrap()
            .get(name)
            .copied()
            .into_iter()
            .collect())
    }
}

async fn listen(ledger: &Arc<Ledger>) -> Listening {
    let server = Server::new().add(WorkServer::new(Worker(Arc::clone(ledger))));
    server.bind("127.0.0.1:0").await.unwrap()
}

type Client = WorkClient<LayeredPath<Retry<retry::NotStarted, Balance>>>;

/// Makes calls, a quarter of which lend memory, until it is to stop; returns how long each took.
async fn call(client: Client, caller: u64, stop: Arc<AtomicBool>) -> Vec<Duration> {
    let (mut times, lent) = (Vec::new(), Bytes::from(vec![1; LENT]));
    for turn in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let (begin, id) = (Instant::now(), caller + turn * CALLERS);
        if turn % 4 == 3 {
            let put = client.put(id, Lend::read(lent.clone())).await;
            put.expect("no call fails");
        } else {
            client.give(id, 64).await.expect("no call fails");
        }
        times.push(begin.elapsed());
    }
    times
}

#[test]
fn a_rolling_restart_behind_names_that_move_fails_no_call() {
    let rounds = super::count("TOKIO_FABRIC_MOVES", 2, 100);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(restart(rounds));
}

async fn restart(rounds: u64) {
    let (ledger, table) = (Arc::new(Ledger::default()), Table::default());
    let (mut servers, mut channels) = (BTreeMap::new(), Vec::new());
    for name in NAMES {
        let server = listen(&ledger).await;
        table.set(name, server.local_addr());
        servers.insert(name, server);
        let builder = Channel::builder().resolver(table.clone());
        channels.push(builder.connect_lazy(name).unwrap());
    }
    let service = ServiceBuilder::new()
        .retry(retry::NotStarted::new())
        .service(Balance::over(channels.iter().cloned()));
    let client: Client = WorkClient::over(channels[0].clone()).layered(service);
    let stop = Arc::new(AtomicBool::new(false));
    let callers = (0..CALLERS).map(|it| tokio::spawn(call(client.clone(), it, Arc::clone(&stop))));
    let callers: Vec<_> = callers.collect();
    for _ in 0..rounds {
        for name in NAMES {
            sleep(PAUSE).await;
            let last = servers.remove(name).unwrap();
            last.drain(DEADLINE).await;
            sleep(AWAY).await;
            let next = listen(&ledger).await;
            table.set(name, next.local_addr());
            servers.insert(name, next);
        }
    }
    sleep(PAUSE).await;
    stop.store(true, Ordering::Relaxed);
    let mut times = Vec::new();
    for caller in callers {
        times.extend(caller.await.expect("no call fails"));
    }
    times.sort();
    // Each call ran once, and all servers had some at the end.
    let calls = times.len() as u64;
    let ran = (ledger.total(Deed::Started), ledger.total(Deed::Ended));
    assert_eq!((ran, ledger.open()), ((calls, calls), 0));
    for channel in &channels {
        let connections = channel.stats().connections;
        assert_eq!(connections, rounds + 1, "to each of the addresses");
    }
    let share = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!(
        "{} restarts: {calls} calls, none failed; p50 {:?}, p99 {:?}, p99.9 {:?}, max {:?}",
        3 * rounds,
        share(0.5),
        share(0.99),
        share(0.999),
        share(1.0)
    );
}
