//! Brings our end of a scenario and the C program together, in each of the two ways to connect.

use std::future::Future;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::path::Path;
use std::time::Duration;

use futures::FutureExt;
use tokio::runtime::{Builder, Runtime};

use crate::harness::{PATIENCE, PeerProgram, Process, libfabric};
use crate::ours::connections::going_away;
use crate::ours::session::Session;

/// How long a C program is waited for that may have a word to say about our failure.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// The variable with the task of a process that plays our end alone.
const ALONE: &str = "TOKIO_FABRIC_INTEROP_ALONE";

/// Plays the scenario with our end as its initiator: C listens, and C connects (swapped).
#[track_caller]
pub fn initiate<F>(scenario: &str, script: impl Fn(Session, bool) -> F + Sync)
where
    F: Future<Output = ()>,
{
    let Some(peer) = libfabric().or_left_out(scenario) else {
        return;
    };
    both(
        || c_listens(peer, scenario, |session| script(session, true)),
        || {
            c_connects(peer, &format!("{scenario}.swap"), |session| {
                script(session, true)
            })
        },
    );
}

/// Plays the scenario with our end as its target: C connects, and C listens (swapped).
#[track_caller]
pub fn serve<F>(scenario: &str, script: impl Fn(Session, bool) -> F + Sync)
where
    F: Future<Output = ()>,
{
    let Some(peer) = libfabric().or_left_out(scenario) else {
        return;
    };
    both(
        || c_connects(peer, scenario, |session| script(session, false)),
        || {
            c_listens(peer, &format!("{scenario}.swap"), |session| {
                script(session, false)
            })
        },
    );
}

/// Side by side: most of a run is the start of a C program.
fn both(one: impl Fn() + Sync + Send, other: impl Fn() + Sync + Send) {
    std::thread::scope(|scope| {
        scope.spawn(one);
        scope.spawn(other);
    });
}

fn c_listens<F: Future<Output = ()>>(
    peer: &PeerProgram,
    scenario: &str,
    script: impl Fn(Session) -> F,
) {
    let c = peer.listen(scenario);
    let address = c.address();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    play(&runtime, c, async || {
        script(Session::connect(address)).await
    });
}

fn c_connects<F: Future<Output = ()>>(
    peer: &PeerProgram,
    scenario: &str,
    script: impl Fn(Session) -> F,
) {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let session = runtime.block_on(async { Session::listen() });
    let c = peer.connect(scenario, session.address());
    play(&runtime, c, async || script(session).await);
}

/// Runs our script. When it fails, the C program's output is printed too.
pub fn play(runtime: &Runtime, mut c: Process, script: impl AsyncFnOnce()) {
    // A scenario whose C end must be killed says so by its first word.
    let killed = c.name().contains(" killed");
    runtime.block_on(async {
        let killing = async {
            if killed {
                c.line("GOT", PATIENCE).await;
                c.kill();
            }
        };
        let script = tokio::time::timeout(PATIENCE, async { tokio::join!(script(), killing) });
        let played = AssertUnwindSafe(script).catch_unwind().await;
        match played {
            Ok(Ok(_)) if killed => {}
            Ok(Ok(_)) => c.finished(PATIENCE).await.assert_ok(),
            Ok(Err(_)) => panic!("our end hangs\n{}", c.finished(Duration::ZERO).await),
            Err(panic) => {
                eprintln!("{}", c.finished(LAST_WORDS).await);
                resume_unwind(panic);
            }
        }
    });
}

/// Plays a scenario whose target goes away, with our end as the target in a process of its own,
/// which is this test program again; it runs [`alone`] under the name `test`. Both ways.
#[track_caller]
pub fn serve_alone(scenario: &str, test: &str) {
    let Some(peer) = libfabric().or_left_out(scenario) else {
        return;
    };
    let end = |mut ours: Process, c: Process| {
        if scenario == "killed" {
            ours.wait_for_line("GOT", PATIENCE);
            ours.kill();
        } else {
            ours.wait_for_line("OK", PATIENCE);
        }
        let outcome = c.finish(PATIENCE);
        assert!(outcome.success(), "{outcome}\n{ours}");
        outcome.assert_ok();
    };
    both(
        || {
            let mut ours = start_alone(test, &format!("{scenario} listen"));
            let line = ours.wait_for_line("ADDRESS ", PATIENCE);
            let address = line["ADDRESS ".len()..].parse().unwrap();
            end(ours, peer.connect(scenario, address));
        },
        || {
            let c = peer.listen(&format!("{scenario}.swap"));
            end(start_alone(test, &format!("{scenario} {}", c.address())), c);
        },
    );
}

fn start_alone(test: &str, what: &str) -> Process {
    let this = std::env::current_exe().unwrap();
    let this = this.to_str().expect("a path in UTF-8");
    let arguments = [
        &format!("{ALONE}={what}"),
        this,
        "--exact",
        test,
        "--ignored",
        "--nocapture",
    ];
    Process::start(
        format!("our end alone: {what}"),
        Path::new("env"),
        arguments,
    )
}

/// The process of [`serve_alone`]: goes away, or waits to be killed. Does nothing when it was not
/// started by that.
pub fn alone() {
    let Ok(what) = std::env::var(ALONE) else {
        return;
    };
    let (scenario, to) = what.split_once(' ').unwrap();
    println!(); // The test runner may have begun a line.
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let session = match to.parse::<SocketAddr>() {
            Ok(to) => Session::connect(to),
            Err(_) => Session::listen(),
        };
        if session.is_listener() {
            println!("ADDRESS {}", session.address());
        }
        // It goes with everything open.
        let _open = going_away(session).await;
        if scenario == "killed" {
            println!("GOT");
            std::future::pending::<()>().await;
        }
        println!("OK");
        std::process::exit(0);
    });
}
