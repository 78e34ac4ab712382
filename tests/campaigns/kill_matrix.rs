//! The death of a peer, at every step of the protocol: a real process, killed or stopped, that
//! dials or is dialed, on each backend with sockets. `docs/reliability.md` has the table that this
//! prints.

pub mod cell;
pub mod death;
pub mod ledger;
mod libfabric;
#[cfg(feature = "tls")]
mod over_tls;
mod sockets;
mod step;
mod table;
mod victim;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use cell::{Cell, Outcome, play};
use death::{Death, Protocol};
use step::{Step, Victim};
use tokio_fabric::Backend;

/// After `kill -9` everything has ended by then, however busy the machine is.
const KILLED_LIMIT: Duration = Duration::from_secs(5);

/// After `SIGSTOP` everything has ended by then, if our side is to find it: no deadline is longer.
const STOPPED_LIMIT: Duration = Duration::from_secs(15);

/// The tests here measure times, and so do not run at the same time.
static ALONE: Mutex<()> = Mutex::new(());

fn is_deep() -> bool {
    std::env::var("TOKIO_FABRIC_DEEP").is_ok_and(|deep| deep != "0")
}

/// The backends that have sockets.
fn backends() -> Vec<Backend> {
    let mut backends = crate::common::backends();
    backends.retain(|backend| *backend != Backend::Loopback);
    backends
}

/// Each step, role and backend, `times` times, with victims that speak these protocols.
/// `TOKIO_FABRIC_STEP=name` chooses one step.
fn cells(death: Death, protocols: &[Protocol], times: usize) -> Vec<Cell> {
    let only = std::env::var("TOKIO_FABRIC_STEP");
    let only = only.ok().map(|name| Step::named(&name));
    let mut cells = Vec::new();
    for _ in 0..times {
        for step in Step::ALL {
            if only.is_some_and(|only| only != step) {
                continue;
            }
            for &protocol in protocols {
                for victim in Victim::ALL {
                    cells.extend(backends().into_iter().map(|backend| Cell {
                        step,
                        victim,
                        protocol,
                        backend,
                        death,
                    }));
                }
            }
        }
    }
    cells.retain(|cell| cell.step.is_of(cell.protocol));
    cells
}

/// Does the same with all, `at_once` at a time, and keeps their order.
fn each<T: Send, R: Send>(all: Vec<T>, at_once: usize, act: impl Fn(T) -> R + Sync) -> Vec<R> {
    let count = all.len();
    let (all, done) = (
        Mutex::new(all.into_iter().enumerate()),
        Mutex::new(BTreeMap::new()),
    );
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let next = all.lock().unwrap().next();
                    let Some((number, one)) = next else { return };
                    let result = act(one);
                    done.lock().unwrap().insert(number, result);
                }
            });
        }
    });
    let done = done.into_inner().unwrap();
    assert_eq!(done.len(), count);
    done.into_values().collect()
}

/// Plays the cells, each on a runtime of its own.
fn play_all(cells: Vec<Cell>, at_once: usize) -> Vec<Outcome> {
    each(cells, at_once, |cell| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let limited = tokio::time::timeout(death::PATIENCE * 3, play(cell));
            limited.await.unwrap_or_else(|_| panic!("{cell:?} hangs"))
        })
    })
}

/// Prints the outcomes, and demands that everything has ended in time.
fn assert_all(outcomes: &[Outcome], protocols: &[Protocol], is_in_time: fn(&Outcome) -> bool) {
    println!("{}", table::markdown(outcomes, &backends(), protocols));
    for outcome in outcomes {
        assert_eq!(outcome.missing, 0, "{outcome:?}: operations without an end");
        assert!(is_in_time(outcome), "{outcome:?}");
    }
}

fn is_killed_in_time(outcome: &Outcome) -> bool {
    outcome.time.is_some_and(|time| time < KILLED_LIMIT)
}

fn is_found_in_time(outcome: &Outcome) -> bool {
    outcome.time.is_none_or(|time| time < STOPPED_LIMIT)
}

/// "At each protocol step x both roles x both socket backends": `kill -9` of the peer
/// ends every operation once, with a typed error, then the connection, with one event.
#[test]
fn a_killed_peer_ends_everything_at_every_step() {
    let _alone = ALONE.lock();
    let (times, at_once) = if is_deep() { (25, 1) } else { (1, 6) };
    let outcomes = play_all(cells(Death::Killed, &Protocol::ALL, times), at_once);
    // Without the half-open connections, whose end is seen in the kernel's table only.
    let posted = outcomes.iter().filter(|outcome| outcome.posted > 0);
    let mut times: Vec<Duration> = posted.filter_map(|outcome| outcome.time).collect();
    let (count, p99) = (times.len(), table::quantile(&mut times, 990));
    println!(
        "{count} deaths with something to end: p99 {p99:?}, max {:?}",
        times[count - 1]
    );
    assert_all(&outcomes, &Protocol::ALL, is_killed_in_time);
}

/// Ruling 13: "Peers that use this library are probed": a stopped peer is found at every step at
/// which we read from it, by its silence or by the handshake's deadline. A stopped (SIGSTOP) C peer
/// looks like a slow one: nothing happens to it.
#[test]
fn a_stopped_peer_is_found_if_it_could_have_answered() {
    let _alone = ALONE.lock();
    let (times, at_once) = if is_deep() { (5, 12) } else { (1, 20) };
    let mut cells = cells(Death::Stopped, &Protocol::ALL, times);
    // Most of it is waiting: those that wait longest go first.
    cells.sort_by_key(|cell| !cell.is_found());
    let outcomes = play_all(cells, at_once);
    assert_all(&outcomes, &Protocol::ALL, is_found_in_time);
}

/// A send that waits for room when the peer ends its stream, and reads no more, is taken back, also
/// if the kernel was just about to try it again.
#[test]
fn a_stuck_send_ends_when_the_peer_has_closed() {
    let _alone = ALONE.lock();
    let mut cells = cells(Death::Stopped, &Protocol::ALL, 4);
    cells.retain(|cell| cell.step == Step::ItsClose && cell.backend == Backend::IoUring);
    for outcome in play_all(cells, 4) {
        assert_eq!(outcome.missing, 0, "{outcome:?}: operations without an end");
    }
}

/// The same deaths with libfabric's C as the survivor, for comparison; half a minute is "never".
#[test]
#[ignore = "takes minutes, and says nothing of this library"]
fn libfabric_as_the_survivor() {
    let options = ["-Wno-unused-function"];
    let program = crate::harness::compile(
        "tests/campaigns/kill_matrix/survivor.c",
        "survivor",
        &options,
    );
    let program = program.expect("libfabric is installed");
    let all = libfabric::steps().flat_map(|step| Victim::ALL.map(|victim| (step, victim)));
    let rows = each(all.collect(), 6, |(step, victim)| {
        let [killed, stopped] = [Death::Killed, Death::Stopped]
            .map(|death| libfabric::play(&program, step, victim, death));
        (step, victim, killed, stopped)
    });
    println!("{}", libfabric::markdown(&rows));
}

/// The other process.
#[test]
#[ignore = "the other process of another test"]
fn the_victim() {
    victim::run();
}
