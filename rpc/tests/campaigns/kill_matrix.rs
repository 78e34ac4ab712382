//! `kill -9` of either side at every step of a call. Every call of the surviving side ends once,
//! and what its error says of the handler is held against what the handlers have done: each writes
//! to its process's standard output that it has started before it does anything, and the pipe
//! outlives the process.

mod calls;
mod client_dies;
mod server_dies;
mod step;
mod table;

use std::time::Duration;

use step::{Role, Step};

/// Whatever a machine under load needs; a call that has no end by then has none.
const PATIENCE: Duration = Duration::from_secs(20);
/// All has ended so soon after the death, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(5);
/// The variable with the order of the process that dies.
const ORDER: &str = "TOKIO_FABRIC_RPC_VICTIM";
/// The test that is that process.
const VICTIM: &str = "kill_matrix::the_victim";

/// One death, and what came of it.
#[derive(Debug)]
pub struct Outcome {
    step: Step,
    victim: Role,
    /// Calls of the survivor that have ended well, or without having started, or otherwise; at a
    /// server: handlers that ended, none, and handlers that were dropped.
    well: usize,
    not_started: usize,
    maybe_ran: usize,
    /// From the death to the last end.
    time: Duration,
}

fn play(step: Step, victim: Role, chance: u64) -> Outcome {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    runtime.block_on(async {
        let death = async {
            match victim {
                Role::Server => server_dies::play(step, chance).await,
                Role::Client => client_dies::play(step, chance).await,
            }
        };
        let played = tokio::time::timeout(PATIENCE * 3, death).await;
        played.unwrap_or_else(|_| panic!("{step:?}, {victim:?}: something has no end"))
    })
}

#[test]
fn every_call_ends_once_and_says_truly_how_far_it_was() {
    let deaths = super::count("TOKIO_FABRIC_DEATHS", 110, 5000);
    let cells: Vec<(Step, Role)> = Step::ALL
        .into_iter()
        .flat_map(|step| Role::ALL.map(|victim| (step, victim)))
        .collect();
    // Alone, when times are to mean something.
    let at_once = if super::is_deep() { 1 } else { 4 };
    let next = std::sync::atomic::AtomicU64::new(0);
    let outcomes = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if number >= deaths.next_multiple_of(cells.len() as u64) {
                        return;
                    }
                    let (step, victim) = cells[number as usize % cells.len()];
                    let outcome = play(step, victim, number / cells.len() as u64);
                    outcomes.lock().unwrap().push(outcome);
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().unwrap();
    println!("{}", table::markdown(&outcomes));
    if let Some(path) = std::env::var_os("TOKIO_FABRIC_CHART") {
        std::fs::write(path, table::picture(&outcomes)).unwrap();
    }
    for outcome in &outcomes {
        assert!(outcome.time < LIMIT, "{outcome:?}");
    }
}

/// The other process.
#[test]
#[ignore = "the other process of another test"]
fn the_victim() {
    let Ok(order) = std::env::var(ORDER) else {
        return; // This process is no victim.
    };
    super::child::end_with_the_parent();
    let [side, step, address] = *order.split(' ').collect::<Vec<_>>() else {
        panic!("{order:?} is no order");
    };
    let step = Step::named(step);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    match side {
        "server" => runtime.block_on(server_dies::victim(step)),
        _ => runtime.block_on(client_dies::victim(step, address.parse().unwrap())),
    }
}
