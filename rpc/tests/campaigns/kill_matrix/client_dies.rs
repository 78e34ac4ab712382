//! The client dies, and its server is left with the handlers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_fabric_rpc::Server;

use super::super::child::{self, PeerProcess};
use super::super::work::{Deed, Ledger, WorkClient, WorkServer, Worker};
use super::calls::{self, CALLS, Calls};
use super::step::{Role, Step};
use super::{ORDER, Outcome, PATIENCE, VICTIM};

/// The number of a call behind the others, whose answer says that they have come.
const BEHIND: u64 = 1 << 40;

/// The process that dies: it makes the step's calls, says so, and goes on with them.
pub async fn victim(step: Step, server: SocketAddr) {
    let client = WorkClient::connect(server).await.unwrap();
    let mut calls = Calls::new();
    if step == Step::Cancelling {
        let tasks: Vec<_> = (0..CALLS)
            .map(|id| calls::wait(&mut calls, &client, id))
            .collect();
        calls::pass_time(1).await;
        client.give(BEHIND, 1).await.unwrap();
        tasks.iter().step_by(2).for_each(|task| task.abort());
        calls::pass_time(1).await;
    } else {
        calls::begin(&mut calls, &client, step);
        // Each task has been polled once: the requests have gone out.
        calls::pass_time(1).await;
    }
    if step == Step::Answered {
        while calls.join_next().await.is_some() {}
    }
    child::say("R");
    while calls.join_next().await.is_some() {}
    std::future::pending().await
}

pub async fn play(step: Step, chance: u64) -> Outcome {
    let ledger = Arc::new(Ledger::default());
    let server = Server::new().window(step.window());
    let server = server.add(WorkServer::new(Worker(Arc::clone(&ledger))));
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let order = format!("client {step:?} {}", server.local_addr());
    let mut process = PeerProcess::spawn(VICTIM, &[(ORDER, order)]);
    assert_eq!(process.line().await, "R");
    let drains = step == Step::Draining;
    match step {
        Step::Queued | Step::Pulling | Step::Pushing => ledger.wait_for(Deed::Started, 1).await,
        Step::Streaming => ledger.wait_for(Deed::Started, CALLS).await,
        Step::Running | Step::Draining => ledger.wait_for(Deed::Started, CALLS).await,
        Step::Answering | Step::Fetching => ledger.wait_for(Deed::Ended, 2 * CALLS).await,
        Step::Sent | Step::Answered | Step::Cancelling => {}
    }
    if step.is_moving() {
        calls::pass_time(chance * 3 % 200).await;
    }
    let quiet = async {
        if drains {
            // It has the client's calls to wait for, and then it has not.
            let draining = tokio::spawn(server.drain(PATIENCE));
            calls::pass_time(10).await;
            child::signal(process.id(), libc::SIGKILL);
            let death = Instant::now();
            draining.await.unwrap();
            return (death, 0);
        }
        child::signal(process.id(), libc::SIGKILL);
        let death = Instant::now();
        loop {
            let stats = server.stats();
            if stats.running == 0 && stats.connections == 0 {
                return (death, stats.violations);
            }
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
    };
    let (death, violations) = quiet.await;
    let time = death.elapsed();
    process.kill();
    assert_eq!(
        violations, 0,
        "{step:?}: a death is no breach of the protocol"
    );
    assert_eq!(ledger.open(), 0, "{step:?}: handlers are left");
    let [started, ended, dropped] = Deed::ALL.map(|deed| ledger.total(deed));
    let more_than_once = |id| Deed::ALL.iter().any(|deed| ledger.times(*deed, id) > 1);
    assert!(
        !(0..started).any(more_than_once),
        "{step:?}: a handler ran or ended twice"
    );
    match step {
        Step::Queued => assert_eq!((started, dropped), (1, 1), "{step:?}"),
        Step::Running | Step::Draining => assert_eq!((started, dropped), (CALLS, CALLS)),
        Step::Cancelling => assert_eq!((started, ended, dropped), (CALLS + 1, 1, CALLS)),
        Step::Answered => assert_eq!((started, ended), (CALLS, CALLS)),
        Step::Sent => assert!(started <= CALLS && ended == 0),
        Step::Pulling | Step::Pushing => assert!(started <= CALLS),
        Step::Streaming => assert_eq!((started, dropped), (CALLS, CALLS), "{step:?}"),
        Step::Answering | Step::Fetching => {}
    }
    Outcome {
        step,
        victim: Role::Client,
        well: ended as usize,
        not_started: 0,
        maybe_ran: dropped as usize,
        time,
    }
}
