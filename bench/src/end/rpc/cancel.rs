//! Calls that are dropped while their handlers run: how long the drop takes, behind which no peer
//! reaches what was lent, and when the handler is dropped. Both ends read one clock.

use std::collections::HashMap;
use std::future::{IntoFuture, poll_fn};
use std::sync::Mutex;
use std::task::Poll;
use std::time::Instant;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use tokio::sync::Notify;
use tokio_fabric_rpc::{Cx, Lend, Pull, Server, service};

use super::super::{say, server_of};
use super::TIME_MAX_NS;
use crate::job::EndConfig;
use crate::sys;

#[service]
trait Drops {
    /// Waits without end.
    async fn wait(&self, cx: &Cx, id: u64, lent: Pull) -> tokio_fabric_rpc::Result<()>;
    async fn ping(&self, cx: &Cx) -> tokio_fabric_rpc::Result<()>;
    /// When the handler of that call was dropped, in nanoseconds of the system's clock.
    async fn dropped_at(&self, cx: &Cx, id: u64) -> tokio_fabric_rpc::Result<u64>;
}

#[derive(Debug, Default)]
struct Handlers {
    dropped: Mutex<HashMap<u64, u64>>,
    change: Notify,
}

struct Handler<'a>(&'a Handlers, u64);

impl Drop for Handler<'_> {
    fn drop(&mut self) {
        let now = sys::monotonic_ns();
        let mut dropped = self.0.dropped.lock().expect("no thread panics");
        dropped.insert(self.1, now);
        self.0.change.notify_waiters();
    }
}

impl Drops for Handlers {
    async fn wait(&self, _: &Cx, id: u64, _: Pull) -> tokio_fabric_rpc::Result<()> {
        let _handler = Handler(self, id);
        std::future::pending().await
    }

    async fn ping(&self, _: &Cx) -> tokio_fabric_rpc::Result<()> {
        Ok(())
    }

    async fn dropped_at(&self, _: &Cx, id: u64) -> tokio_fabric_rpc::Result<u64> {
        loop {
            let changed = self.change.notified();
            if let Some(at) = self.dropped.lock().expect("no thread panics").remove(&id) {
                return Ok(at);
            }
            changed.await;
        }
    }
}

pub async fn serve(config: EndConfig) -> Result<()> {
    let server = Server::new().add(DropsServer::new(Handlers::default()));
    let listening = server.bind(config.job.any_port()).await?;
    say("PORT", listening.local_addr().port());
    std::future::pending().await
}

pub async fn call(config: EndConfig) -> Result<()> {
    let client = DropsClient::connect(server_of(&config)).await?;
    let times = || Histogram::<u64>::new_with_bounds(1, TIME_MAX_NS, 3);
    let (mut trips, mut drops, mut handlers) = (times()?, times()?, times()?);
    let begin = Instant::now();
    let end = config.job.warm + config.job.run;
    for id in 0.. {
        let is_measured = begin.elapsed() >= config.job.warm;
        let lent = Lend::read(vec![0; config.job.size]);
        let mut call = Box::pin(client.wait(id, lent).into_future());
        let polled = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
        anyhow::ensure!(polled.is_pending(), "a call has ended that waits");
        let since = Instant::now();
        // Behind the call: its handler runs when this is answered.
        client.ping().await?;
        let trip = since.elapsed();
        let since = sys::monotonic_ns();
        drop(call);
        let dropped = sys::monotonic_ns();
        let at = client.dropped_at(id).await?;
        if is_measured {
            trips.saturating_record(u64::try_from(trip.as_nanos())?);
            drops.saturating_record((dropped - since).max(1));
            handlers.saturating_record(at.saturating_sub(since).max(1));
        }
        if begin.elapsed() >= end && !handlers.is_empty() {
            break;
        }
    }
    let open = client.channel().open_calls();
    anyhow::ensure!(open == 0, "{open} slots are held");
    for (name, times) in [("trip", &trips), ("drop", &drops), ("handler", &handlers)] {
        say(&format!("{name}_p50_ns"), times.value_at_quantile(0.5));
        say(&format!("{name}_p99_ns"), times.value_at_quantile(0.99));
    }
    let count = i64::try_from(handlers.len()).context("so many")?;
    say("count", count);
    Ok(())
}
