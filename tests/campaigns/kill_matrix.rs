//! The death of a peer, at every step of the protocol: a real process, killed or stopped, that
//! dials or is dialed, on each backend with sockets. `docs/reliability.md` has the table that this
//! prints.

pub mod cell;
pub mod death;
pub mod greeting;
pub mod ledger;
mod libfabric;
#[cfg(feature = "tls")]
mod over_tls;
mod sharing;
mod sockets;
mod step;
mod table;
mod victim;

use std::sync::Mutex;
use std::time::Duration;

use cell::{Cell, Outcome, play};
use death::{Death, Protocol, backends, each, is_deep, play_all};
use step::{Step, Victim};
use tokio_fabric::Backend;

/// The tests here measure times, and so do not run at the same time.
static ALONE: Mutex<()> = Mutex::new(());

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
    cells.retain(|cell| cell.step.is_of(cell.protocol) && cell.step.is_of_role(cell.victim));
    cells
}

/// Plays the chosen cells, prints the outcomes, and demands that everything has ended in time.
fn campaign(death: Death, protocols: &[Protocol], chosen: fn(&Cell) -> bool) -> Vec<Outcome> {
    let _alone = ALONE.lock();
    let at_once = match (death, is_deep()) {
        (Death::Killed, true) => 1,
        (Death::Killed, false) => 6,
        (Death::Stopped, true) => 12,
        (Death::Stopped, false) => 20,
    };
    let mut cells = cells(death, protocols, death.times());
    cells.retain(chosen);
    // Cells with stopped peers mostly wait. Those that wait longest go first.
    cells.sort_by_key(|cell| !cell.is_found());
    let outcomes = play_all(cells, at_once, play);
    let table = table::markdown(&outcomes, &backends(), protocols);
    println!("{table}\n{} deaths", outcomes.len());
    for outcome in &outcomes {
        assert_eq!(outcome.missing, 0, "{outcome:?}: operations without an end");
        assert!(death.is_in_time(outcome.time), "{outcome:?}");
    }
    outcomes
}

/// "At each protocol step x both roles x both socket backends": `kill -9` of the peer
/// ends every operation once, with a typed error, then the connection, with one event.
#[test]
fn a_killed_peer_ends_everything_at_every_step() {
    let outcomes = campaign(Death::Killed, &Protocol::ALL, |_| true);
    // Without the half-open connections, whose end is seen in the kernel's table only.
    let posted = outcomes.iter().filter(|outcome| outcome.posted > 0);
    let mut times: Vec<Duration> = posted.filter_map(|outcome| outcome.time).collect();
    let (count, p99) = (times.len(), table::quantile(&mut times, 990));
    println!(
        "{count} deaths with something to end: p99 {p99:?}, max {:?}",
        times[count - 1]
    );
}

/// Ruling 13: "Peers that use this library are probed": a stopped peer is found at every step at
/// which we read from it, by its silence or by the handshake's deadline. A stopped (SIGSTOP) C peer
/// looks like a slow one: nothing happens to it.
#[test]
fn a_stopped_peer_is_found_if_it_could_have_answered() {
    campaign(Death::Stopped, &Protocol::ALL, |_| true);
}

/// docs/extension.md, section 9: "each side proves its key before either reveals anything". A peer
/// that has a key dies while the keys are proven, or later.
#[test]
fn a_peer_with_a_key_that_dies_ends_everything() {
    for death in Death::ALL {
        campaign(death, &[Protocol::Keyed], |_| true);
    }
}

/// A send that waits for room when the peer ends its stream, and reads no more, is taken back, also
/// if the kernel was just about to try it again.
#[test]
fn a_stuck_send_ends_when_the_peer_has_closed() {
    let _alone = ALONE.lock();
    let mut cells = cells(Death::Stopped, &Protocol::ALL, 4);
    cells.retain(|cell| cell.step == Step::ItsClose && cell.backend == Backend::IoUring);
    for outcome in play_all(cells, 4, play) {
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
