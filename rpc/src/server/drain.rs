//! Closes a server gracefully, with a deadline.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::{Instant, timeout, timeout_at};

use super::Listening;
use super::connection::ServerConnection;
use crate::caught::log;
use crate::cx::CancelReason;
use crate::limits::{DRAIN_GRACE, DRAIN_LINGER};

/// See [`Listening::drain`].
pub(super) async fn drain(listening: Listening, deadline: Duration) {
    let Listening {
        shared,
        hub,
        listener,
    } = listening;
    // `None`: a clock cannot represent the deadline.
    let deadline = Instant::now().checked_add(deadline);
    // From now on connection requests are rejected with the status `Draining`.
    shared.is_draining.store(true, Ordering::SeqCst);
    drop(listener);
    let connections = hub.connections();
    connections.iter().for_each(|it| it.drain());
    let running = || {
        let open: usize = connections.iter().map(|it| it.running()).sum();
        open + shared.running()
    };
    let idle = async {
        while running() > 0 {
            shared.idle.notified().await;
        }
    };
    let is_late = match deadline {
        Some(deadline) => timeout_at(deadline, idle).await.is_err(),
        None => {
            idle.await;
            false
        }
    };
    if is_late {
        let left = running();
        log(|| tracing::info!(left, "the drain's time is over: calls are cancelled"));
        shared.is_cut.store(true, Ordering::SeqCst);
        connections
            .iter()
            .for_each(|it| it.cancel_all(CancelReason::Drain));
        let answered = async {
            while running() > 0 {
                shared.idle.notified().await;
            }
        };
        // A handler that does not await, or that continues to its end, cannot be stopped.
        let _ = timeout(DRAIN_GRACE, answered).await;
    }
    // A client without calls closes its connection when it reads the GOAWAY.
    let linger = Instant::now() + DRAIN_LINGER;
    let linger = deadline.map_or(linger, |it| it.min(linger));
    let _ = timeout_at(linger, join_all(connections.iter().map(|it| it.ended()))).await;
    // The library closes connections that do not answer, within seconds.
    let _ = timeout(DRAIN_LINGER, join_all(connections.iter().map(close))).await;
    drop(hub);
}

fn close(connection: &Arc<ServerConnection>) -> impl Future<Output = ()> {
    let endpoint = connection.endpoint.clone();
    async move {
        // The result only says that the connection has ended.
        let _ = endpoint.shutdown().await;
    }
}
