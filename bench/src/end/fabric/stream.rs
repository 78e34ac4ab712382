//! Messages one way over one or many connections, one task per side. Messages of one connection are
//! taken as a stream; of many, everything goes through one completion queue.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::task::JoinSet;
use tokio_fabric::limits::INJECT_SIZE_MAX;
use tokio_fabric::{Completion, Endpoint, error::OperationKind};

use super::super::connection_stats::StatsBaseline;
use super::super::pairs::Tally;
use super::super::{payload, server_of};
use super::connect::{Acceptor, DomainSetup};
use crate::job::{ANSWER_SIZE, EndConfig, Job};
use crate::subject::Fabric;

/// One connection of the server.
#[derive(Debug)]
pub struct Served {
    endpoint: Endpoint,
    /// Messages that no answer has answered yet.
    unanswered: usize,
}

pub async fn serve(how: Fabric, config: EndConfig) -> Result<()> {
    let side = open(how, &config.job)?;
    let acceptor = Acceptor::open(&side)?;
    receive(&side, &acceptor, &config.job).await
}

/// Takes and answers what comes: of one connection as a stream of messages, of many through one
/// completion queue.
async fn receive(side: &DomainSetup, acceptor: &Acceptor, job: &Job) -> Result<()> {
    if job.connections > 1 {
        let served = accept(side, acceptor, job).await?;
        return answer(side, served, job).await;
    }
    let endpoint = acceptor.accept(side, [], |_| Ok(())).await?;
    let mut messages = endpoint.messages(job.size, job.window);
    let mut unanswered = 0;
    while let Some(message) = messages.next().await {
        drop(message?);
        unanswered += 1;
        if unanswered == job.batch() {
            unanswered = 0;
            endpoint.inject(&[0; ANSWER_SIZE])?;
        }
    }
    Ok(())
}

pub fn open(how: Fabric, job: &Job) -> Result<DomainSetup> {
    DomainSetup::open(how, job, job.window.max(job.answers()))
}

/// Accepts all connections.
pub async fn accept(side: &DomainSetup, acceptor: &Acceptor, job: &Job) -> Result<Vec<Served>> {
    let mut served = Vec::new();
    for at in 0..job.connections {
        let post = |endpoint: &Endpoint| post_receives(endpoint, at, job.window, job.size);
        let endpoint = acceptor.accept(side, [], post).await?;
        served.push(Served {
            endpoint,
            unanswered: 0,
        });
    }
    Ok(served)
}

/// Answers what comes, until the process is killed.
pub async fn answer(side: &DomainSetup, mut served: Vec<Served>, job: &Job) -> Result<()> {
    let mut completions = Vec::new();
    loop {
        side.completions(&mut completions).await?;
        for completion in completions.drain(..) {
            let (at, buffer) = taken(completion)?;
            let Served {
                endpoint,
                unanswered,
            } = &mut served[at];
            endpoint.recv(buffer).queue(at).try_post()?;
            *unanswered += 1;
            if *unanswered == job.batch() {
                *unanswered = 0;
                endpoint.inject(&[0; ANSWER_SIZE])?;
            }
        }
    }
}

/// One connection of the client.
#[derive(Debug)]
pub struct Sender {
    endpoint: Endpoint,
    /// Messages that may be sent.
    credits: usize,
    /// Buffers that no send has.
    buffers: Vec<Vec<u8>>,
}

impl Sender {
    /// Sends what the window allows.
    fn send(&mut self, at: usize, job: &Job, message: &[u8]) -> Result<()> {
        if job.size <= INJECT_SIZE_MAX {
            for _ in 0..self.credits {
                self.endpoint.inject(message)?;
            }
            self.credits = 0;
            return Ok(());
        }
        while self.credits > 0
            && let Some(buffer) = self.buffers.pop()
        {
            self.credits -= 1;
            self.endpoint.send(buffer).queue(at).try_post()?;
        }
        Ok(())
    }
}

pub async fn call(how: Fabric, config: EndConfig) -> Result<()> {
    let job = &config.job;
    let side = open(how, job)?;
    let before = StatsBaseline::now(&config)?;
    let mut senders = connect(&side, server_of(&config), job).await?;
    begin(&mut senders, job)?;
    let mut crowd = before.begin(&config);
    send(&side, senders, job, |at| crowd.answered(at, 1)).await
}

/// Both ends in tasks of this runtime, until it is enough.
pub async fn pair(how: Fabric, job: Job, tally: Arc<Tally>) -> Result<()> {
    between(open(how, &job)?, open(how, &job)?, job, tally).await
}

/// As many pairs as there are to be tasks, each with its share of the connections; all of an end
/// are in one domain with so many drivers.
pub async fn pairs_of_domains(
    how: Fabric,
    mut job: Job,
    drivers: usize,
    tasks: usize,
    tally: Arc<Tally>,
) -> Result<()> {
    job.connections /= tasks;
    let operations = job.window.max(job.answers());
    let domain = || DomainSetup::open_domain(how, drivers);
    let ((here, this), (there, that)) = (domain()?, domain()?);
    let mut pairs = JoinSet::new();
    for _ in 0..tasks {
        let here = DomainSetup::within(&here, &this, &job, operations)?;
        let there = DomainSetup::within(&there, &that, &job, operations)?;
        pairs.spawn(between(here, there, job.clone(), Arc::clone(&tally)));
    }
    while let Some(ended) = pairs.join_next().await {
        ended??;
    }
    Ok(())
}

async fn between(here: DomainSetup, there: DomainSetup, job: Job, tally: Arc<Tally>) -> Result<()> {
    let acceptor = Acceptor::open_unannounced(&there)?;
    let address = acceptor.address();
    let answering = job.clone();
    tokio::spawn(async move { receive(&there, &acceptor, &answering).await });
    let mut senders = connect(&here, address, &job).await?;
    begin(&mut senders, &job)?;
    let batch = job.batch() as u64;
    send(&here, senders, &job, |_| tally.add(batch)).await
}

pub async fn connect(side: &DomainSetup, server: SocketAddr, job: &Job) -> Result<Vec<Sender>> {
    let mut senders = Vec::new();
    for at in 0..job.connections {
        let post = |endpoint: &Endpoint| post_receives(endpoint, at, job.answers(), ANSWER_SIZE);
        let (endpoint, _) = side.connect(server, post).await?;
        let count = if job.size <= INJECT_SIZE_MAX {
            0
        } else {
            job.window
        };
        let buffers = vec![payload(job.size); count];
        senders.push(Sender {
            endpoint,
            credits: job.window,
            buffers,
        });
    }
    Ok(senders)
}

/// Sends what all windows allow.
pub fn begin(senders: &mut [Sender], job: &Job) -> Result<()> {
    let message = payload(job.size);
    let mut all = senders.iter_mut().enumerate();
    all.try_for_each(|(at, sender)| sender.send(at, job, &message))
}

/// Takes answers and sends what they allow, until it `is_enough` of a connection's.
pub async fn send(
    side: &DomainSetup,
    mut senders: Vec<Sender>,
    job: &Job,
    mut is_enough: impl FnMut(usize) -> bool,
) -> Result<()> {
    let message = payload(job.size);
    let mut completions = Vec::new();
    loop {
        side.completions(&mut completions).await?;
        for completion in completions.drain(..) {
            let is_answer = completion.operation == OperationKind::Receive;
            let (at, buffer) = taken(completion)?;
            let sender = &mut senders[at];
            if is_answer {
                sender.endpoint.recv(buffer).queue(at).try_post()?;
                sender.credits += job.batch();
                if is_enough(at) {
                    return Ok(());
                }
            } else {
                sender.buffers.push(buffer);
            }
            sender.send(at, job, &message)?;
        }
    }
}

fn post_receives(endpoint: &Endpoint, at: usize, count: usize, size: usize) -> Result<()> {
    for _ in 0..count {
        endpoint.recv(vec![0; size]).queue(at).try_post()?;
    }
    Ok(())
}

/// The connection of a completion, and the buffer it gives back.
fn taken(mut completion: Completion) -> Result<(usize, Vec<u8>)> {
    completion.result.clone().map_err(|failed| failed.error)?;
    let buffer = completion
        .take_buffer()
        .and_then(|buffer| buffer.into_vec().ok());
    let buffer = buffer.context("a completion without its buffer")?;
    Ok((completion.context.0 as usize, buffer))
}
