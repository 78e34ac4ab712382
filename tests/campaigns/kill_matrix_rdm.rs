//! The death of a connectionless endpoint's peer, at every step: a real process, killed or stopped,
//! that dials or is dialled, on each backend with sockets. `docs/reliability.md` has the table that
//! this prints.

mod cell;
mod keys;
#[cfg(feature = "tls")]
mod over_tls;
mod step;
mod victim;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;

use cell::{Cell, Outcome};
use step::{Step, Victim};

use crate::kill_matrix::death::{Death, Protocol, backends, is_deep, play_all};

/// Cells that are played at the same time.
const AT_ONCE: usize = 6;

/// The tests here measure times, and so do not run at the same time.
static ALONE: Mutex<()> = Mutex::new(());

/// Each cell of these protocols, several times in a long run. `TOKIO_FABRIC_STEP=name` chooses one
/// step.
fn cells(death: Death, protocols: &[Protocol]) -> Vec<Cell> {
    let only = std::env::var("TOKIO_FABRIC_STEP").ok();
    let backends = backends();
    let mut cells = Vec::new();
    for step in Step::ALL {
        for victim in Victim::ALL.into_iter().filter(|it| step.is_of(*it)) {
            for protocol in protocols.iter().filter(|it| plays(step, **it)) {
                cells.extend(backends.iter().map(|backend| Cell {
                    step,
                    victim,
                    protocol: *protocol,
                    backend: *backend,
                    death,
                }));
            }
        }
    }
    cells.retain(|cell| {
        only.as_ref()
            .is_none_or(|only| format!("{:?}", cell.step) == *only)
    });
    cells.repeat(death.times())
}

/// Whether there is something at this step that the protocol makes different. With a key, each step
/// until it is proven; behind that some of all kinds, and all of them in the long run.
fn plays(step: Step, protocol: Protocol) -> bool {
    let behind_the_proof = [
        Step::BeforeAck,
        Step::HalfWrite,
        Step::WriteUnread,
        Step::HalfMessage,
        Step::HalfData,
    ];
    match protocol {
        Protocol::Secure => !step.is_of_proof(),
        _ if step.is_of_tls() => false,
        Protocol::Plain | Protocol::Extended => !step.is_of_proof(),
        _ if step.is_of(Victim::Both) => false,
        _ => step.is_of_proof() || is_deep() || behind_the_proof.contains(&step),
    }
}

/// As Markdown: a row for each step and role; milliseconds, the longest of each cell.
fn markdown(outcomes: &[Outcome]) -> String {
    type Row<'a> = BTreeMap<(String, Protocol), Vec<&'a Outcome>>;
    let mut rows: BTreeMap<(Step, Victim), Row<'_>> = BTreeMap::new();
    for outcome in outcomes {
        let cell = outcome.cell;
        let row = rows.entry((cell.step, cell.victim)).or_default();
        let name = (cell.backend.to_string(), cell.protocol);
        row.entry(name).or_default().push(outcome);
    }
    let mut table = String::new();
    for ((step, victim), cells) in rows {
        let posted = cells.values().flatten().map(|outcome| outcome.posted).max();
        let _ = write!(
            table,
            "| {} | {victim:?} | {} |",
            step.about(),
            posted.unwrap_or(0)
        );
        for outcomes in cells.values() {
            let _ = match outcomes.iter().filter_map(|outcome| outcome.time).max() {
                Some(time) => write!(table, " {:.1} |", time.as_secs_f64() * 1000.0),
                None => write!(table, " - |"),
            };
        }
        let missing: usize = cells
            .values()
            .flatten()
            .map(|outcome| outcome.missing)
            .sum();
        let _ = writeln!(table, " {missing} |");
    }
    table
}

/// Plays the chosen cells, prints the outcomes, and demands that everything has ended in time.
fn campaign(death: Death, protocols: &[Protocol], chosen: fn(&Cell) -> bool) {
    let _alone = ALONE.lock();
    let mut cells = cells(death, protocols);
    cells.retain(chosen);
    let outcomes = play_all(cells, AT_ONCE, cell::play);
    println!("{}\n{} deaths", markdown(&outcomes), outcomes.len());
    for outcome in outcomes {
        assert_eq!(outcome.missing, 0, "{outcome:?}: operations without an end");
        assert!(death.is_in_time(outcome.time), "{outcome:?}");
    }
}

/// fi_endpoint(3), connectionless endpoints: `kill -9` of the peer ends every operation bound to it
/// once, with a typed error, at each step; a receive that is not is left alone.
#[test]
fn a_killed_peer_ends_everything_at_every_step() {
    campaign(Death::Killed, &Protocol::ALL, |_| true);
}

/// Ruling 13: "Peers that use this library are probed": a stopped peer is found, by its silence or
/// by the deadline for reaching it. A stopped (SIGSTOP) C peer looks like a slow one: nothing
/// happens to it.
#[test]
fn a_stopped_peer_is_found_if_it_could_have_answered() {
    campaign(Death::Stopped, &Protocol::ALL, |_| true);
}

/// fi_av(3), FI_AV_AUTH_KEY: the same where each peer has a key of its own, from the challenge to
/// the middle of what goes over the connection. A peer of another key notices nothing.
#[test]
fn a_peer_with_a_key_of_its_own_that_dies_ends_what_is_its_own() {
    for death in Death::ALL {
        campaign(death, &[Protocol::Keyed], |_| true);
    }
}

/// The other process.
#[test]
#[ignore = "the other process of another test"]
fn the_victim() {
    victim::run();
}
