//! The death of a peer, at every step of the protocol: a real process, killed or stopped, that
//! dials or is dialed, on each backend with sockets. `docs/reliability.md` has the table that this
//! prints.

#[path = "kill_matrix/cell.rs"]
mod cell;
#[path = "common/child.rs"]
mod child;
mod common;
#[path = "kill_matrix/ledger.rs"]
mod ledger;
#[allow(dead_code, reason = "the victim uses the bytes, not the connections")]
#[path = "hostile/raw.rs"]
mod raw;
#[path = "kill_matrix/sockets.rs"]
mod sockets;
#[path = "kill_matrix/step.rs"]
mod step;
#[path = "kill_matrix/table.rs"]
mod table;
#[path = "kill_matrix/victim.rs"]
mod victim;

use std::sync::Mutex;
use std::time::Duration;

use cell::{Cell, Death, Outcome, play};
use step::{Protocol, Step, Victim};
use tokio_fabric::Backend;

/// After `kill -9` everything has ended by then, however busy the machine is.
const KILLED_LIMIT: Duration = Duration::from_secs(5);

fn is_deep() -> bool {
    std::env::var("TOKIO_FABRIC_DEEP").is_ok_and(|deep| deep != "0")
}

/// The backends that have sockets.
fn backends() -> Vec<Backend> {
    let mut backends = common::backends();
    backends.retain(|backend| *backend != Backend::Loopback);
    backends
}

/// Each step, role and backend, `times` times. `TOKIO_FABRIC_STEP=name` chooses one step.
fn cells(times: usize) -> Vec<Cell> {
    let only = std::env::var("TOKIO_FABRIC_STEP");
    let only = only.ok().map(|name| Step::named(&name));
    let mut cells = Vec::new();
    for _ in 0..times {
        for step in Step::ALL {
            if only.is_some_and(|only| only != step) {
                continue;
            }
            for protocol in Protocol::ALL {
                for victim in Victim::ALL {
                    cells.extend(backends().into_iter().map(|backend| Cell {
                        step,
                        victim,
                        protocol,
                        backend,
                    }));
                }
            }
        }
    }
    cells.retain(|cell| cell.step.is_of(cell.protocol));
    cells
}

/// Plays the cells, each on a thread and runtime of its own, `at_once` at a time.
fn play_all(cells: Vec<Cell>, death: Death, at_once: usize) -> Vec<Outcome> {
    let (cells, outcomes) = (Mutex::new(cells.into_iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let Some(cell) = cells.lock().unwrap().next() else {
                        return;
                    };
                    let runtime = tokio::runtime::Builder::new_current_thread()
                        .enable_all()
                        .build()
                        .unwrap();
                    let played = runtime.block_on(async {
                        let limited = tokio::time::timeout(cell::PATIENCE * 3, play(cell, death));
                        limited.await.unwrap_or_else(|_| panic!("{cell:?} hangs"))
                    });
                    outcomes.lock().unwrap().push(played);
                }
            });
        }
    });
    outcomes.into_inner().unwrap()
}

/// "At each protocol step x both roles x both socket backends": `kill -9` of the peer
/// ends every operation once, with a typed error, then the connection, with one event.
#[test]
fn a_killed_peer_ends_everything_at_every_step() {
    let (times, at_once) = if is_deep() { (50, 1) } else { (1, 6) };
    let outcomes = play_all(cells(times), Death::Killed, at_once);
    println!("{}", table::markdown(&outcomes, &backends()));
    let mut times: Vec<Duration> = outcomes.iter().filter_map(|outcome| outcome.time).collect();
    let (p99, max) = (
        table::quantile(&mut times, 990),
        table::quantile(&mut times, 1000),
    );
    println!("{} deaths: p99 {p99:?}, max {max:?}", outcomes.len());
    for outcome in &outcomes {
        assert_eq!(outcome.missing, 0, "{outcome:?}: operations without an end");
        let in_time = outcome.time.is_some_and(|time| time < KILLED_LIMIT);
        assert!(in_time, "{outcome:?}");
    }
}

/// The other process.
#[test]
#[ignore = "the other process of another test"]
fn the_victim() {
    victim::run();
}
