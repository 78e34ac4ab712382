//! Calls that are balanced over a set of servers that changes: one of three dies in the middle, a
//! fourth joins, and one drains. None of the calls fails.
//!
//! Each server sheds what comes beyond the calls that it handles at a time. The client asks the one
//! of two that has less to do, and makes again what has not started, or may be made twice.

use std::time::Duration;

use futures::channel::mpsc;
use tokio_fabric_rpc::{
    Balance, BoxError, Channel, Cx, Listening, Result, Server, Status, retry, service,
};
use tower::ServiceBuilder;
use tower::discover::Change;

#[service]
trait Squares {
    #[rpc(idempotent)]
    async fn square(&self, cx: &Cx, number: u64) -> Result<u64>;
}

struct Squarer;

impl Squares for Squarer {
    async fn square(&self, _: &Cx, number: u64) -> Result<u64> {
        tokio::time::sleep(Duration::from_millis(2)).await;
        Ok(number * number)
    }
}

/// What a run has come to.
#[derive(Debug)]
pub struct Summary {
    pub calls: u64,
    pub failed: u64,
    /// Calls that each server has started.
    pub started: Vec<u64>,
}

const CALLERS: u64 = 12;
const CALLS_OF_EACH: u64 = 150;
/// Calls after which the next thing happens.
const SOME: u64 = 20;

async fn serve() -> Result<Listening> {
    let layers = ServiceBuilder::new().load_shed().concurrency_limit(8);
    let server = Server::new().add(SquaresServer::new(Squarer)).layer(layers);
    server.bind("127.0.0.1:0").await
}

async fn until_started(server: &Listening, calls: u64) {
    while server.stats().started < calls {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

pub async fn run() -> std::result::Result<Summary, BoxError> {
    // What finds the servers sends the changes of their set: here, this function itself.
    let (changes, discovered) = mpsc::unbounded::<Result<_, Status>>();
    let mut servers = Vec::new();
    for name in ["one", "two", "three"] {
        let server = serve().await?;
        let member = Channel::builder().connect_lazy(server.local_addr())?;
        changes.unbounded_send(Ok(Change::Insert(name, member)))?;
        servers.push(server);
    }
    let service = ServiceBuilder::new()
        .retry(retry::NotStarted::new())
        .service(Balance::new(discovered).slow_start(Duration::from_millis(200)));
    // The channel describes calls; they are made over the one that the balancer picks.
    let describes = Channel::builder().connect_lazy(servers[0].local_addr())?;
    let client = SquaresClient::over(describes).layered(service);

    let callers = (0..CALLERS).map(|caller| {
        let client = client.clone();
        tokio::spawn(async move {
            let mut failed = 0;
            for number in caller * CALLS_OF_EACH..(caller + 1) * CALLS_OF_EACH {
                match client.square(number).await {
                    Ok(square) => assert_eq!(square, number * number),
                    Err(error) => {
                        eprintln!("{number}: {error}");
                        failed += 1;
                    }
                }
            }
            failed
        })
    });
    let callers: Vec<_> = callers.collect();

    // One is killed while it has work: what runs there is lost, and made again elsewhere.
    until_started(&servers[1], SOME).await;
    let mut started = vec![servers[1].stats().started];
    drop(servers.remove(1));
    changes.unbounded_send(Ok(Change::Remove("two")))?;

    // Another one joins. Its share grows slowly: its caches may be empty.
    let server = serve().await?;
    let member = Channel::builder().connect_lazy(server.local_addr())?;
    changes.unbounded_send(Ok(Change::Insert("four", member)))?;
    until_started(&server, SOME).await;
    servers.push(server);

    // One drains: its calls end there, and it gets no new ones.
    let drains = servers.remove(0);
    let seen = drains.stats().started;
    drains.drain(Duration::from_secs(10)).await;
    started.push(seen);

    let mut failed = 0;
    for caller in callers {
        failed += caller.await?;
    }
    started.extend(servers.iter().map(|it| it.stats().started));
    Ok(Summary {
        calls: CALLERS * CALLS_OF_EACH,
        failed,
        started,
    })
}

#[tokio::main]
async fn main() -> std::result::Result<(), BoxError> {
    let summary = run().await?;
    println!("{summary:#?}");
    Ok(())
}
