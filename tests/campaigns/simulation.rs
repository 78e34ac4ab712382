//! Networks that a seed repeats: the same seed gives the same run, to the nanosecond of virtual
//! time.
//!
//! `TOKIO_FABRIC_SEED=n` replays one seed of the campaigns. `TOKIO_FABRIC_DEEP=1` makes them
//! longer; use it with `--release`.

mod mixed;
mod nodes;
mod raft;
mod trace;

use std::collections::HashSet;
use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_fabric::ErrorKind;
use tokio_fabric::ep::Liveness;
use tokio_fabric::testing::{FaultPlan, Net, connect_endpoints};

/// A run in a runtime whose time is paused.
fn paused<T>(run: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(run)
}

/// The one seed that is to be replayed.
fn asked_for() -> Option<u64> {
    let text = std::env::var("TOKIO_FABRIC_SEED").ok()?;
    Some(text.parse().expect("TOKIO_FABRIC_SEED is a number"))
}

/// Runs a test with so many seeds, or so many in the deep campaign, on two threads.
fn each_seed<T: Send>(few: u64, many: u64, test: impl Fn(u64) -> T + Sync) -> Vec<T> {
    if let Some(seed) = asked_for() {
        return vec![test(seed)];
    }
    let count = match std::env::var("TOKIO_FABRIC_DEEP") {
        Ok(deep) if deep != "0" => many,
        _ => few,
    };
    let half = |from: u64| (from..count).step_by(2).map(&test).collect::<Vec<T>>();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| half(1));
        let mut all = half(0);
        all.extend(other.join().expect("no seed fails"));
        all
    })
}

/// A message to a peer that comes up later: the time it took, pauses between attempts included.
async fn after_restart(net: Net) -> Duration {
    let at = ([127, 0, 0, 1], 7100).into();
    let a = net.peer().unwrap().rdm_endpoint().unwrap();
    let to_b = a.insert(at).unwrap();
    let start = Instant::now();
    let send = tokio::spawn(async move { a.send("hello", to_b).await.map(drop) });
    sleep(Duration::from_millis(1000)).await;
    let b = net.peer().unwrap();
    let b = b.domain.rdm_endpoint().listen_at(at).open().unwrap();
    b.recv(vec![0; 8]).await.unwrap();
    let took = start.elapsed();
    send.await.unwrap().unwrap();
    took
}

/// `testing::Net`: "All that is random in it [...] is drawn from the seed": the pauses between
/// attempts to reach a peer too.
#[test]
fn pauses_between_attempts_follow_the_seed() {
    let plan = || FaultPlan::seeded(7);
    let times: Vec<_> = (0..6)
        .map(|_| paused(after_restart(Net::loopback().faults(plan()))))
        .collect();
    assert!(times.windows(2).all(|t| t[0] == t[1]), "{times:?}");
    let other: Vec<_> = (0..6)
        .map(|seed| paused(after_restart(Net::new(seed))))
        .collect();
    assert!(other.windows(2).any(|t| t[0] != t[1]), "{other:?}");
}

/// A receive from a peer that is cut off: the time in which that counts as dead. It is the end of
/// the connection, as an error of a later post says too.
async fn silence(net: Net) -> Duration {
    let (a, b) = (net.node("a").peer().unwrap(), net.node("b").peer().unwrap());
    let quick = Liveness::default().idle_interval(Duration::from_secs(1));
    let ends = a.domain.endpoint().liveness(quick).open().unwrap();
    let other = b.domain.endpoint().liveness(quick).open().unwrap();
    connect_endpoints(&ends, &other, &b.fabric).await.unwrap();
    net.partition("a", "b");
    let start = Instant::now();
    let silent = ends.recv(vec![0; 8]).await.unwrap_err();
    let took = start.elapsed();
    let posted = ends.recv(vec![0; 8]).await.unwrap_err();
    for error in [silent.error(), posted.error()] {
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.is_connection_lost(), "{error}");
    }
    took
}

/// `testing::Net`: "the same seed gives the same run": what else the process has opened does not
/// move the time at which an idle peer is asked whether it lives.
#[test]
fn the_time_in_which_silence_is_noticed_follows_the_seed() {
    let times: Vec<_> = (0..6).map(|_| paused(silence(Net::new(7)))).collect();
    assert!(times.windows(2).all(|t| t[0] == t[1]), "{times:?}");
    let other: Vec<_> = (0..6).map(|seed| paused(silence(Net::new(seed)))).collect();
    assert!(other.windows(2).any(|t| t[0] != t[1]), "{other:?}");
}

/// `testing::Net`: "the same seed gives the same run": every completion, event and result of mixed
/// work with faults comes at the same virtual time, in the same order, twice.
#[test]
fn the_same_seed_gives_the_same_trace() {
    let hashes = each_seed(100, 100_000, |seed| {
        let run = || paused(mixed::run(seed));
        let (first, second) = (run(), run());
        assert!(
            first.hash == second.hash,
            "TOKIO_FABRIC_SEED={seed}: {}",
            first.difference(&second)
        );
        assert!(first.lines.len() > 20, "seed {seed}: {:?}", first.lines);
        if asked_for().is_some() {
            println!("{}", first.lines.join("\n"));
        }
        first.hash
    });
    let different: HashSet<u64> = hashes.iter().copied().collect();
    assert!(different.len() * 10 > hashes.len() * 9, "seeds differ");
}

/// The example of `testing`: three nodes keep one log, whatever happens to them. At most one leader
/// a term, what is committed is never lost, and when all is well they go on; and a seed repeats it.
#[test]
fn three_nodes_agree_as_raft_does() {
    let results = each_seed(40, 20_000, |seed| {
        println!("TOKIO_FABRIC_SEED={seed}");
        raft::simulate(seed)
    });
    assert_eq!(raft::simulate(0), raft::simulate(0));
    let (entries, leaders) = results.iter().fold((0, 0), |sum, (entries, leaders)| {
        (sum.0 + entries, sum.1 + leaders)
    });
    println!(
        "{entries} entries, {leaders} leaders, {} seeds",
        results.len()
    );
    assert!(entries > 20 * results.len(), "they work");
    assert!(
        leaders > 2 * results.len() || results.len() < 10,
        "leaders change"
    );
}
