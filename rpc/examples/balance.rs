//! Calls that are balanced over three servers, one of which dies in the middle: none of them fails.
//!
//! Each server sheds what comes beyond the calls that it handles at a time. The client asks the one
//! of two that has less to do, and makes again what has not started, or may be made twice.

use std::time::Duration;

use tokio_fabric_rpc::{BoxError, Call, Channel, Cx, Listening, Result, Server, retry, service};
use tower::ServiceBuilder;
use tower::balance::p2c::Balance;
use tower::buffer::Buffer;
use tower::discover::ServiceList;

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
    /// Calls that a layer has shed.
    pub shed: u64,
}

const CALLERS: u64 = 12;
const CALLS_OF_EACH: u64 = 100;

async fn serve() -> Result<Listening> {
    let layers = ServiceBuilder::new().load_shed().concurrency_limit(8);
    let server = Server::new().add(SquaresServer::new(Squarer)).layer(layers);
    server.bind("127.0.0.1:0").await
}

pub async fn run() -> std::result::Result<Summary, BoxError> {
    let (mut servers, mut channels) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let server = serve().await?;
        channels.push(Channel::connect(server.local_addr()).await?);
        servers.push(server);
    }
    let services: Vec<_> = channels.iter().map(Channel::service).collect();
    let balance = Balance::new(ServiceList::new::<Call<u64>>(services));
    let service = ServiceBuilder::new()
        .retry(retry::NotStarted::new())
        .service(Buffer::new(balance, 64));
    // The first channel describes calls; they are made over the one that the balancer chooses.
    let client = SquaresClient::over(channels[0].clone()).layered(service);

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
    while servers[1].stats().started < 50 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut started: Vec<u64> = servers.iter().map(|it| it.stats().started).collect();
    drop(servers.remove(1));

    let mut failed = 0;
    for caller in callers {
        failed += caller.await?;
    }
    for (at, server) in [0, 2].into_iter().zip(&servers) {
        started[at] = server.stats().started;
    }
    let shed = channels.iter().map(|it| it.stats().not_started).sum();
    Ok(Summary {
        calls: CALLERS * CALLS_OF_EACH,
        failed,
        started,
        shed,
    })
}

#[tokio::main]
async fn main() -> std::result::Result<(), BoxError> {
    let summary = run().await?;
    println!("{summary:#?}");
    Ok(())
}
