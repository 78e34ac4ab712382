//! Budgets of the driver: a port that always has something to do keeps nothing else waiting.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::{ports, run};
use crate::buf::Stage;
use crate::limits::{STAGE_SIZE, STEP_BYTES, TURN_BYTES_MAX};
use crate::progress::budget::Budget;
use crate::progress::liveness::{HeartbeatTimer, NextHeartbeat, PeerLiveness};
use crate::progress::pollable::{NextTurn, Pollable, TurnResult};
use crate::testing::{Net, connect_endpoints};
use crate::transport::{
    Clock, IoSizes, KeepAliveConfig, Link, LinkStats, Outcome, RawLink, Receive, Received,
    SendBatch, Submitted, TrafficMark,
};
use crate::wire::{ByteOrder, FrameHeader};

/// Counts of what the driver has done.
#[derive(Default)]
struct Counts {
    heartbeats: AtomicU64,
    /// Number of heartbeats before the first turn, plus one; 0: there was no turn.
    before_turn: AtomicU64,
}

/// A port that only counts.
struct CountingPort(Arc<Counts>);

impl Pollable for CountingPort {
    fn turn(&self, _now: Instant, _clock: &dyn Clock, _budget: &mut Budget) -> TurnResult {
        let heartbeats = self.0.heartbeats.load(Ordering::Relaxed);
        let before = &self.0.before_turn;
        let _ = before.compare_exchange(0, heartbeats + 1, Ordering::Relaxed, Ordering::Relaxed);
        TurnResult {
            next: NextTurn::WhenWoken,
            alarm: None,
            stale_alarm: None,
            completions: 0,
        }
    }

    fn heartbeat(
        &self,
        _now: Instant,
        _timer: HeartbeatTimer,
        _peers: &mut PeerLiveness,
        _had_turn: bool,
    ) -> NextHeartbeat {
        self.0.heartbeats.fetch_add(1, Ordering::Relaxed);
        NextHeartbeat::At(None)
    }

    fn begin_close(&self) {}

    fn driver_gone(&self) {}
}

/// Thousands of connections that post a receive each at the same moment all ask for heartbeats: a
/// port that has something to do has its turn between them.
#[test]
fn registering_many_heartbeats_does_not_starve_a_ready_port() {
    const PORTS: u64 = 5000;
    run(|net: Net| async move {
        let peer = net.peer().unwrap();
        let engine = peer.domain.engine_for_endpoint();
        let counts = Arc::new(Counts::default());
        let insert = || {
            let port: Arc<dyn Pollable> = Arc::new(CountingPort(Arc::clone(&counts)));
            engine.lock_ports().insert(port)
        };
        for _ in 0..PORTS {
            engine.register_heartbeat(insert());
        }
        engine.ready.make_ready(insert());
        while counts.heartbeats.load(Ordering::Relaxed) < PORTS {
            tokio::task::yield_now().await;
        }
        let before = counts.before_turn.load(Ordering::Relaxed) - 1;
        let most = (TURN_BYTES_MAX / STEP_BYTES) as u64;
        assert!(
            before <= most,
            "{before} heartbeats before a ready port's turn"
        );
    });
}

/// A link whose peer always has bytes.
struct FloodLink {
    addr: SocketAddr,
    is_armed: bool,
    sent: Option<Box<SendBatch>>,
    received: Arc<AtomicU64>,
}

impl Link for FloodLink {
    fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    fn peer_addr(&self) -> SocketAddr {
        self.addr
    }

    fn send(&mut self, batch: Box<SendBatch>) {
        self.sent = Some(batch);
    }

    fn cancel_send(&mut self) {}

    fn receive(&mut self, _receive: Receive) {
        self.is_armed = true;
    }

    fn cancel_receive(&mut self) {
        self.is_armed = false;
    }

    fn submitted(&self) -> Submitted {
        Submitted {
            send: self.sent.is_some(),
            receive: self.is_armed,
            ..Submitted::default()
        }
    }

    fn watch(&mut self) {}

    fn poll_outcome(&mut self) -> Option<Outcome> {
        if let Some(batch) = self.sent.take() {
            let result = Ok(batch.remaining());
            return Some(Outcome::Sent { batch, result });
        }
        if !std::mem::take(&mut self.is_armed) {
            return None;
        }
        // Unsolicited answers, which every peer accepts.
        let frame = FrameHeader::Pong { token: 0 }.encode(ByteOrder::Native, 0);
        let mut stage = Stage::take();
        let whole = stage.spare().len() / frame.len() * frame.len();
        for place in stage.spare()[..whole].chunks_mut(frame.len()) {
            place.copy_from_slice(&frame);
        }
        stage.fill(whole);
        self.received.fetch_add(whole as u64, Ordering::Relaxed);
        Some(Outcome::Received(Received::Stage(stage)))
    }

    fn finish(&mut self) {}

    fn reset(&mut self) {}

    fn unread_bytes(&self) -> usize {
        0
    }

    fn stats(&self) -> Option<LinkStats> {
        None
    }

    fn set_keep_alive(&mut self, _keep_alive: KeepAliveConfig) -> bool {
        true
    }

    fn set_traffic(&mut self, _mark: TrafficMark) -> crate::error::Result<()> {
        Ok(())
    }

    fn take_raw(&mut self) -> Option<RawLink> {
        None
    }

    fn try_receive(&mut self) -> Option<Outcome> {
        None
    }

    fn set_io_sizes(&mut self, _sizes: IoSizes) {}
}

/// `TURN_BYTES_MAX`: "Bytes that a driver moves before other ready connections, other tasks of its
/// runtime and the reactor get their turn", also of a connection that never
/// runs out of them.
#[test]
fn a_peer_that_always_has_bytes_keeps_no_other_from_its_turn() {
    run(|net: Net| async move {
        let (a, b) = (net.peer().unwrap(), net.peer().unwrap());
        let open = async || {
            let near = a.domain.endpoint().open().unwrap();
            let far = b.domain.endpoint().open().unwrap();
            connect_endpoints(&near, &far, &b.fabric).await.unwrap();
            (near, far)
        };
        let (_flooded, _flooding) = open().await;
        let flooded = ports(&a).remove(0);
        let (near, far) = open().await;
        let received = Arc::new(AtomicU64::new(0));
        {
            let mut state = flooded.lock("flood");
            state.io.link = Some(Box::new(FloodLink {
                addr: state.io.peer.unwrap(),
                is_armed: state.io.submitted().receive,
                sent: None,
                received: Arc::clone(&received),
            }));
        }
        flooded.waker.wake_by_ref();
        let pings = tokio::spawn(async move {
            for _ in 0..50 {
                let ping = far.recv(vec![0; 4]).post().unwrap();
                let pong = near.recv(vec![0; 4]).post().unwrap();
                near.send("ping").await.unwrap();
                ping.await.unwrap();
                far.send("pong").await.unwrap();
                pong.await.unwrap();
            }
            (near, far)
        });
        let (mut before, mut most) = (received.load(Ordering::Relaxed), 0);
        while !pings.is_finished() {
            tokio::task::yield_now().await;
            let now = received.load(Ordering::Relaxed);
            most = most.max(now - before);
            before = now;
        }
        assert!(before > 0, "it was flooded all the time");
        let allowed = (TURN_BYTES_MAX + STAGE_SIZE) as u64;
        assert!(most <= allowed, "{most} bytes at a time");
        pings.await.unwrap();
    });
}
