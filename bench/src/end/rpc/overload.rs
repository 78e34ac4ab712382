//! A server that takes a bounded number of calls, each of which waits for a while, and a client
//! that first keeps it just full, which is its capacity, and then offers a share or a multiple of
//! that, whatever becomes of the calls.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;
use tokio::task::JoinSet;
use tokio_fabric_rpc::{Code, Cx, Server, service};

use super::super::{say, server_of};
use super::TIME_MAX_NS;
use crate::job::EndConfig;

/// Time that a handler takes, as one does that waits for a disk or another service.
const SERVICE_TIME: Duration = Duration::from_millis(4);

#[service]
trait Slow {
    async fn work(&self, cx: &Cx) -> tokio_fabric_rpc::Result<()>;
}

#[derive(Debug)]
struct Sleeper;

impl Slow for Sleeper {
    async fn work(&self, _: &Cx) -> tokio_fabric_rpc::Result<()> {
        tokio::time::sleep(SERVICE_TIME).await;
        Ok(())
    }
}

pub async fn serve(config: EndConfig) -> Result<()> {
    let server = Server::new().calls_max(config.job.window);
    let server = server.add(SlowServer::new(Sleeper));
    let listening = server.bind(config.job.any_port()).await?;
    say("PORT", listening.local_addr().port());
    std::future::pending().await
}

/// How the calls of a phase ended.
#[derive(Debug)]
struct Ends {
    accepted: Histogram<u64>,
    refused: Histogram<u64>,
}

impl Ends {
    fn new() -> Result<Arc<Mutex<Ends>>> {
        let times = || Histogram::<u64>::new_with_bounds(1, TIME_MAX_NS, 3);
        Ok(Arc::new(Mutex::new(Ends {
            accepted: times()?,
            refused: times()?,
        })))
    }
}

async fn call_once(client: &SlowClient, ends: &Mutex<Ends>) -> Result<()> {
    let since = Instant::now();
    let ended = client.work().await;
    let time = u64::try_from(since.elapsed().as_nanos())?;
    let mut ends = ends.lock().expect("no caller panics");
    match ended {
        Ok(()) => ends.accepted.saturating_record(time),
        Err(status) if status.code() == Code::Overloaded => ends.refused.saturating_record(time),
        Err(status) => return Err(status.into()),
    }
    Ok(())
}

pub async fn call(config: EndConfig) -> Result<()> {
    let client = SlowClient::connect(server_of(&config)).await?;
    let job = &config.job;
    keep_full(&client, job.window, job.warm, &Ends::new()?).await?;
    let full = Ends::new()?;
    let begin = Instant::now();
    keep_full(&client, job.window, job.run, &full).await?;
    let (capacity, full_p99) = {
        let full = full.lock().expect("no caller panics");
        let rate = full.accepted.len() as f64 / begin.elapsed().as_secs_f64();
        (rate, full.accepted.value_at_quantile(0.99))
    };
    let ends = Ends::new()?;
    let begin = Instant::now();
    let offered = offer(&client, capacity * job.load as f64 / 100.0, job.run, &ends).await?;
    let elapsed = begin.elapsed().as_secs_f64();
    let ends = ends.lock().expect("no caller panics");
    say("capacity", capacity);
    say("full_p99_ns", full_p99);
    say("offered", offered as f64 / job.run.as_secs_f64());
    say("goodput", ends.accepted.len() as f64 / elapsed);
    say("accepted_p99_ns", ends.accepted.value_at_quantile(0.99));
    say("refused", ends.refused.len());
    if !ends.refused.is_empty() {
        say("refused_p99_ns", ends.refused.value_at_quantile(0.99));
    }
    Ok(())
}

/// As many callers as the server takes, each of which calls again when it has its answer.
async fn keep_full(
    client: &SlowClient,
    callers: usize,
    time: Duration,
    ends: &Arc<Mutex<Ends>>,
) -> Result<()> {
    let begin = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let (client, ends) = (client.clone(), Arc::clone(ends));
        tasks.spawn(async move {
            while begin.elapsed() < time {
                call_once(&client, &ends).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

/// Makes calls at this rate, each in a task of its own. Gives how many, when all have ended. It
/// looks all the time for one that has become due: the runtime's timers would make those of a
/// millisecond together, between which places of the server stay empty.
async fn offer(
    client: &SlowClient,
    rate: f64,
    time: Duration,
    ends: &Arc<Mutex<Ends>>,
) -> Result<u64> {
    let (begin, mut made) = (Instant::now(), 0);
    let mut tasks = JoinSet::new();
    while begin.elapsed() < time {
        let due = (begin.elapsed().as_secs_f64() * rate) as u64;
        for _ in made..due {
            let (client, ends) = (client.clone(), Arc::clone(ends));
            tasks.spawn(async move { call_once(&client, &ends).await });
        }
        made = due.max(made);
        tokio::task::yield_now().await;
        while let Some(ended) = tasks.try_join_next() {
            ended??;
        }
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(made)
}
