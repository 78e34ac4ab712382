//! A server that drains and starts anew all the time, and callers that make a call again if it has
//! not started.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::task::JoinSet;
use tokio_fabric_rpc::{Cx, Listening, Server, service};

use super::super::{say, server_of};
use crate::job::EndConfig;

/// How long a server serves before it drains, and how long that may take.
const LIFE: Duration = Duration::from_millis(40);
const DEADLINE: Duration = Duration::from_secs(5);
/// What a call takes at the server.
const SERVICE_TIME: Duration = Duration::from_millis(1);

#[service]
trait Restarted {
    async fn work(&self, cx: &Cx) -> tokio_fabric_rpc::Result<()>;
    /// Restarts so far, and nanoseconds of the longest drain.
    async fn restarts(&self, cx: &Cx) -> tokio_fabric_rpc::Result<(u64, u64)>;
}

#[derive(Clone, Debug, Default)]
struct Restarts {
    count: Arc<AtomicU64>,
    longest_ns: Arc<AtomicU64>,
}

impl Restarted for Restarts {
    async fn work(&self, _: &Cx) -> tokio_fabric_rpc::Result<()> {
        tokio::time::sleep(SERVICE_TIME).await;
        Ok(())
    }

    async fn restarts(&self, _: &Cx) -> tokio_fabric_rpc::Result<(u64, u64)> {
        let [count, longest] = [&self.count, &self.longest_ns];
        Ok((
            count.load(Ordering::Relaxed),
            longest.load(Ordering::Relaxed),
        ))
    }
}

/// At this address, as soon as it is free: a listener ends some time after its handle.
async fn listen(address: SocketAddr, restarts: &Restarts) -> Listening {
    loop {
        let server = Server::new().add(RestartedServer::new(restarts.clone()));
        if let Ok(listening) = server.bind(address).await {
            return listening;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

pub async fn serve(config: EndConfig) -> Result<()> {
    let restarts = Restarts::default();
    let mut listening = listen(config.job.any_port(), &restarts).await;
    let address = listening.local_addr();
    say("PORT", address.port());
    loop {
        tokio::time::sleep(LIFE).await;
        let begin = Instant::now();
        listening.drain(DEADLINE).await;
        let took = u64::try_from(begin.elapsed().as_nanos())?;
        restarts.longest_ns.fetch_max(took, Ordering::Relaxed);
        restarts.count.fetch_add(1, Ordering::Relaxed);
        listening = listen(address, &restarts).await;
    }
}

/// What the callers count together.
#[derive(Debug)]
struct Calls {
    done: u64,
    again: u64,
    failed: u64,
    last: Instant,
    longest: Duration,
}

pub async fn call(config: EndConfig) -> Result<()> {
    let client = RestartedClient::connect(server_of(&config)).await?;
    let begin = Instant::now();
    let calls = Arc::new(Mutex::new(Calls {
        done: 0,
        again: 0,
        failed: 0,
        last: begin,
        longest: Duration::ZERO,
    }));
    let mut tasks = JoinSet::new();
    for _ in 0..config.job.window {
        let (client, calls) = (client.clone(), Arc::clone(&calls));
        let time = config.job.run;
        tasks.spawn(async move {
            while begin.elapsed() < time {
                let ended = client.work().wait_for_ready().await;
                let mut calls = calls.lock().expect("no caller panics");
                match ended {
                    Ok(()) => {
                        calls.done += 1;
                        let now = Instant::now();
                        calls.longest = calls.longest.max(now - calls.last);
                        calls.last = now;
                    }
                    Err(status) if status.is_not_started() => calls.again += 1,
                    Err(_) => calls.failed += 1,
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended?;
    }
    let elapsed = begin.elapsed();
    let (restarts, longest_drain) = loop {
        match client.restarts().wait_for_ready().await {
            Ok(found) => break found,
            Err(status) if status.is_not_started() => {}
            Err(status) => return Err(status.into()),
        }
    };
    let calls = calls.lock().expect("no caller panics");
    say("count", calls.done);
    say("elapsed_ns", elapsed.as_nanos());
    say("again", calls.again);
    say("failed", calls.failed);
    say("restarts", restarts);
    say("longest_gap_ns", calls.longest.as_nanos());
    say("longest_drain_ns", longest_drain);
    Ok(())
}
