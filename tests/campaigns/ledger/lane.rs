//! A lane: one connection after the other between two sides, until enough operations were posted.

use tokio::sync::watch;
use tokio_fabric::testing::{Net, connect_endpoints};

use super::book::Touched;
use super::side::{Habits, LedgerEndpoint};

/// How far a side has come with the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Running,
    /// All it sent has arrived.
    Flushed,
    /// It has taken all that arrived.
    Drained,
    /// The connection is lost.
    Lost,
}

/// What a campaign adds up to.
#[derive(Debug, Default)]
pub struct Totals {
    pub posted: usize,
    pub compared: usize,
    pub connections: usize,
    pub lost: usize,
    pub leaked: usize,
    pub touched: Touched,
}

impl Totals {
    pub fn add(&mut self, other: Totals) {
        self.posted += other.posted;
        self.compared += other.compared;
        self.connections += other.connections;
        self.lost += other.lost;
        self.leaked += other.leaked;
        for (what, count) in other.touched {
            *self.touched.entry(what).or_default() += count;
        }
    }

    pub fn take(&mut self, side: &LedgerEndpoint) {
        self.posted += side.posted();
        self.compared += side.book.compared;
        self.leaked += side.book.leaked_receives;
        for (what, count) in &side.book.touched {
            *self.touched.entry(*what).or_default() += count;
        }
    }
}

/// Runs a lane: so many operations, over as many connections as it takes.
pub async fn run(net: Net, lane: u64, seed: u64, operations: usize, habits: Habits) -> Totals {
    let mut totals = Totals::default();
    let peers = [net.peer().expect("a domain"), net.peer().expect("a domain")];
    for epoch in 0.. {
        let left = operations.saturating_sub(totals.posted);
        if left == 0 {
            break;
        }
        let number = |side: u64| (lane << 48) | (epoch << 28) | (side << 27);
        let mut a = LedgerEndpoint::open(&peers[0], number(0), seed, habits).expect("an endpoint");
        let mut b = LedgerEndpoint::open(&peers[1], number(1), seed, habits).expect("an endpoint");
        totals.connections += 1;
        if connect_endpoints(&a.endpoint, &b.endpoint, &peers[1].fabric)
            .await
            .is_err()
        {
            totals.lost += 1; // Cut before it was one.
            continue;
        }
        a.meet(b.region.remote(), Some(b.region.clone()));
        b.meet(a.region.remote(), Some(a.region.clone()));
        let quota = left.min(3000).div_ceil(2);
        let (stage_a, seen_by_b) = watch::channel(Stage::Running);
        let (stage_b, seen_by_a) = watch::channel(Stage::Running);
        let (whole_a, whole_b) = tokio::join!(
            live(&mut a, quota, stage_a, seen_by_a),
            live(&mut b, quota, stage_b, seen_by_b)
        );
        let whole = whole_a && whole_b;
        totals.lost += usize::from(!whole);
        tokio::join!(end(&mut a), end(&mut b));
        a.book.compare(&b.book, whole);
        b.book.compare(&a.book, whole);
        totals.take(&a);
        totals.take(&b);
    }
    totals
}

/// One side from the first operation to the last. True if nothing may be missing.
async fn live(
    side: &mut LedgerEndpoint,
    quota: usize,
    stage: watch::Sender<Stage>,
    mut other: watch::Receiver<Stage>,
) -> bool {
    let stood = side.run(quota).await && flush(side).await;
    stage.send_replace(if stood { Stage::Flushed } else { Stage::Lost });
    let stood = stood && reach(side, &mut other, Stage::Flushed).await;
    if stood {
        side.stop_receiving().await;
    } else {
        // Some receive is always there to report the end.
        while side.keep_receiving() {
            side.progress(true).await;
        }
    }
    let stood = stood && side.endpoint.is_connected();
    stage.send_replace(if stood { Stage::Drained } else { Stage::Lost });
    stood && reach(side, &mut other, Stage::Drained).await
}

/// Waits until all that this side has sent is in the peer's memory.
async fn flush(side: &mut LedgerEndpoint) -> bool {
    while side.transmits_left() > 0 {
        side.keep_receiving();
        side.progress(true).await;
    }
    // Frames stay in order, so that this one's ack covers whatever went before.
    let id = side.post_last();
    while side.transmits_left() > 0 {
        side.keep_receiving();
        side.progress(true).await;
    }
    id.is_some_and(|id| side.is_done(id))
}

/// Goes on until the other side has come so far. False if the connection was lost.
async fn reach(
    side: &mut LedgerEndpoint,
    other: &mut watch::Receiver<Stage>,
    stage: Stage,
) -> bool {
    loop {
        let there = *other.borrow_and_update();
        if there == Stage::Lost {
            return false;
        }
        if there >= stage {
            return true;
        }
        if stage == Stage::Flushed && !side.keep_receiving() {
            return false;
        }
        tokio::select! {
            () = side.progress(true) => {}
            changed = other.changed() => {
                if changed.is_err() && *other.borrow() < stage {
                    return false;
                }
            }
        }
    }
}

/// Ends the connection in order, if it still stands, and balances the account.
async fn end(side: &mut LedgerEndpoint) {
    side.endpoint.shutdown().await.expect("an end");
    side.close_account().await;
    side.check_events();
}
