//! Messages one way over one or many connections, everything through one completion queue and one
//! task per side.

use anyhow::{Context, Result};
use tokio_fabric::limits::INJECT_SIZE_MAX;
use tokio_fabric::{Completion, Endpoint, OperationKind};

use super::super::meter::Meter;
use super::connect::{Door, Side};
use crate::job::{ANSWER_SIZE, Job, Told};
use crate::subject::Fabric;

/// One connection of the server.
#[derive(Debug)]
struct Served {
    endpoint: Endpoint,
    /// Messages that no answer has answered yet.
    unanswered: usize,
}

pub async fn serve(how: Fabric, told: Told) -> Result<()> {
    let job = &told.job;
    let side = Side::open(how, &told, job.window.max(job.answers()))?;
    let door = Door::open(&side)?;
    let mut served = Vec::new();
    for at in 0..job.connections {
        let post = |endpoint: &Endpoint| post_receives(endpoint, at, job.window, job.size);
        let endpoint = door.accept(&side, [], post).await?;
        served.push(Served {
            endpoint,
            unanswered: 0,
        });
    }
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
struct Sender {
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

pub async fn call(how: Fabric, told: Told) -> Result<()> {
    let job = &told.job;
    let side = Side::open(how, &told, job.window.max(job.answers()))?;
    let mut senders = Vec::new();
    for at in 0..job.connections {
        let post = |endpoint: &Endpoint| post_receives(endpoint, at, job.answers(), ANSWER_SIZE);
        let (endpoint, _) = side.connect(&told, post).await?;
        let count = if job.size <= INJECT_SIZE_MAX {
            0
        } else {
            job.window
        };
        let buffers = vec![vec![0; job.size]; count];
        senders.push(Sender {
            endpoint,
            credits: job.window,
            buffers,
        });
    }
    let message = vec![0; job.size];
    for (at, sender) in senders.iter_mut().enumerate() {
        sender.send(at, job, &message)?;
    }
    let mut meter = Meter::new(&told);
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
                if meter.add(job.batch() as u64) {
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
