//! The server dies, and its client is left with the calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_fabric_rpc::{Code, Server, Started};

use super::super::child::{self, PeerProcess};
use super::super::work::{Deed, Ledger, WorkClient, WorkServer, Worker};
use super::calls::{self, CALLS, CallEnd, Calls};
use super::step::{Role, Step};
use super::{ORDER, Outcome, VICTIM};

/// The number of a call that makes the server drain.
const DRAIN: u64 = 1 << 40;

/// The process that dies: it serves until then.
pub async fn victim(step: Step) {
    let ledger = Arc::new(Ledger::printed());
    let server = Server::new().window(step.window());
    let server = server.add(WorkServer::new(Worker(Arc::clone(&ledger))));
    let server = server.bind("127.0.0.1:0").await.unwrap();
    child::say(format_args!("P {}", server.local_addr().port()));
    while ledger.times(Deed::Ended, DRAIN) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    server.drain(Duration::from_secs(60)).await;
}

/// What the handlers have said.
#[derive(Default)]
struct Said(BTreeMap<(Deed, u64), u64>);

impl Said {
    fn add(&mut self, line: &str) {
        let (letter, id) = line.split_once(' ').expect("a letter and a number");
        let deed = Deed::of_letter(letter).expect("a deed");
        *self.0.entry((deed, id.parse().unwrap())).or_default() += 1;
    }

    fn times(&self, deed: Deed, id: u64) -> u64 {
        self.0.get(&(deed, id)).copied().unwrap_or_default()
    }

    fn total(&self, deed: Deed) -> u64 {
        let of = self.0.iter().filter(|((it, _), _)| *it == deed);
        of.map(|(_, times)| times).sum()
    }

    async fn wait_for(&mut self, process: &mut PeerProcess, deed: Deed, at_least: u64) {
        while self.total(deed) < at_least {
            let line = process.line().await;
            self.add(&line);
        }
    }
}

pub async fn play(step: Step, chance: u64) -> Outcome {
    let mut process = PeerProcess::spawn(VICTIM, &[(ORDER, format!("server {step:?} -"))]);
    let port = process.line().await;
    let port: u16 = port.strip_prefix("P ").expect("its port").parse().unwrap();
    let client = WorkClient::connect(("127.0.0.1", port)).await.unwrap();
    let (mut said, mut calls) = (Said::default(), Calls::new());
    let mut ended = come_to(step, &client, &mut process, &mut said, &mut calls).await;
    if step.is_moving() {
        calls::pass_time(chance * 3 % 200).await;
    }
    child::signal(process.id(), libc::SIGKILL);
    let death = Instant::now();
    if step == Step::Answered {
        (CALLS..2 * CALLS).for_each(|id| calls::give(&mut calls, &client, id));
    }
    while let Some(end) = calls.join_next().await {
        match end {
            Ok(end) => ended.push(end),
            Err(error) => assert!(error.is_cancelled(), "{error}"),
        }
    }
    let last = ended.iter().map(|end| end.at).max().expect("some calls");
    process.kill();
    process
        .remaining_lines()
        .await
        .iter()
        .for_each(|line| said.add(line));
    for end in &ended {
        judge(end, &said);
        end.check_buffer(step);
    }
    let outcome = Outcome {
        step,
        victim: Role::Server,
        well: ended.iter().filter(|end| end.started.is_none()).count(),
        not_started: of(&ended, Started::NotStarted),
        maybe_ran: of(&ended, Started::MaybeRan),
        time: last.saturating_duration_since(death),
    };
    check_step(&outcome, &said);
    assert_eq!(client.channel().open_calls(), 0, "{step:?}: slots are held");
    assert_eq!(
        client.channel().domain().region_count(),
        0,
        "{step:?}: regions are left"
    );
    outcome
}

fn of(ended: &[CallEnd], started: Started) -> usize {
    ended
        .iter()
        .filter(|end| end.started == Some(started))
        .count()
}

/// Begins the calls, and waits until they are so far. Gives those that have ended on the way.
async fn come_to(
    step: Step,
    client: &WorkClient,
    process: &mut PeerProcess,
    said: &mut Said,
    calls: &mut Calls,
) -> Vec<CallEnd> {
    let mut ended = Vec::new();
    match step {
        Step::Sent => {
            process.stop();
            calls::begin(calls, client, step);
            calls::pass_time(20).await;
            assert_eq!(client.channel().open_calls() as u64, CALLS);
        }
        Step::Queued => {
            calls::begin(calls, client, step);
            said.wait_for(process, Deed::Started, 1).await;
        }
        Step::Pulling | Step::Pushing => {
            calls::begin(calls, client, step);
            said.wait_for(process, Deed::Started, 1).await;
        }
        Step::Answering | Step::Fetching => {
            calls::begin(calls, client, step);
            said.wait_for(process, Deed::Ended, 2 * CALLS).await;
        }
        Step::Answered => {
            calls::begin(calls, client, step);
            while let Some(end) = calls.join_next().await {
                ended.push(end.expect("it has its result"));
            }
        }
        Step::Running | Step::Streaming | Step::Draining => {
            calls::begin(calls, client, step);
            said.wait_for(process, Deed::Started, CALLS).await;
        }
        Step::Cancelling => {
            let tasks: Vec<_> = (0..CALLS)
                .map(|id| calls::wait(calls, client, id))
                .collect();
            said.wait_for(process, Deed::Started, CALLS).await;
            tasks.iter().step_by(2).for_each(|task| task.abort());
            calls::pass_time(5).await;
        }
    }
    if step == Step::Draining {
        client.give(DRAIN, 1).await.expect("it takes calls so far");
        for id in CALLS.. {
            let Err(status) = client.give(id, 1).await else {
                continue;
            };
            assert_eq!(
                (status.code(), status.started()),
                (Code::Draining, Started::NotStarted)
            );
            break;
        }
    }
    ended
}

/// What a call says of its handler, and what the handler has said.
fn judge(end: &CallEnd, said: &Said) {
    let [started, done] = [Deed::Started, Deed::Ended].map(|deed| said.times(deed, end.id));
    assert!(started <= 1 && done <= 1, "{end:?}: its handler ran twice");
    match end.started {
        None | Some(Started::Ran) => assert_eq!((started, done), (1, 1), "{end:?}"),
        Some(Started::NotStarted) => assert_eq!(started, 0, "{end:?}: its handler ran"),
        Some(Started::MaybeRan) => {}
    }
}

/// What this step must come to.
fn check_step(outcome: &Outcome, said: &Said) {
    let all = CALLS as usize;
    let found = (outcome.well, outcome.not_started, outcome.maybe_ran);
    match outcome.step {
        Step::Queued => assert_eq!(found, (0, all - 1, 1), "{outcome:?}"),
        Step::Sent => {
            assert_eq!(found, (0, 0, all), "{outcome:?}");
            assert_eq!(
                said.total(Deed::Started),
                0,
                "a process that is stopped starts nothing"
            );
        }
        Step::Running | Step::Streaming | Step::Draining => {
            assert_eq!(found, (0, 0, all), "{outcome:?}");
        }
        Step::Cancelling => assert_eq!(found, (0, 0, all / 2), "{outcome:?}"),
        Step::Answered => assert_eq!(found.0, all, "{outcome:?}"),
        Step::Pulling | Step::Pushing | Step::Fetching | Step::Answering => {
            assert_eq!(found.0 + found.1 + found.2, all, "{outcome:?}");
        }
    }
}
