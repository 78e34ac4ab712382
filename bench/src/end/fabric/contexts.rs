//! Messages of each context of some scalable endpoints in this process to each context of all of
//! them, itself too, with a task and a queue for each context. Each message and answer begins with
//! the number of its pair.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use tokio::task::JoinSet;
use tokio_fabric::rdm::ScalableEndpoint;
use tokio_fabric::{AddressVector, Completion, RdmEndpoint, av::FabricAddr};

use super::super::pairs::Tally;
use super::super::payload;
use super::connect::DomainSetup;
use crate::job::{ANSWER_SIZE, Job};
use crate::subject::Fabric;

/// Of the number of a pair: the message is an answer.
const ANSWER: u32 = 1 << 31;

/// One context, and all there are, by their numbers.
struct Context {
    number: usize,
    side: DomainSetup,
    endpoint: RdmEndpoint,
    all: Vec<FabricAddr>,
    job: Job,
}

/// So many endpoints as the job has connections, each with so many contexts and as many drivers,
/// until it is enough.
pub async fn all_to_all(how: Fabric, job: Job, contexts: usize, tally: Arc<Tally>) -> Result<()> {
    let count = job.connections * contexts;
    let mut opened = Vec::new();
    for _ in 0..job.connections {
        opened.push(open(how, &job, contexts, count)?);
    }
    let addresses: Vec<_> = opened.iter().map(|it| it.0.local_addr()).collect();
    let mut running = JoinSet::new();
    for (endpoint, vector, sides) in opened {
        let mut all = Vec::new();
        for &address in &addresses {
            let peer = endpoint.contexts()[0].insert(address)?;
            for index in 0..contexts {
                all.push(vector.rx_addr(peer, index)?);
            }
        }
        for (endpoint, side) in endpoint.contexts().iter().zip(sides) {
            let context = Context {
                number: running.len(),
                side,
                endpoint: endpoint.clone(),
                all: all.clone(),
                job: job.clone(),
            };
            running.spawn(context.run(Arc::clone(&tally)));
        }
    }
    // The others end with the first.
    running.join_next().await.context("no context")??
}

/// An endpoint among so many contexts, and the queues of its own.
fn open(
    how: Fabric,
    job: &Job,
    contexts: usize,
    count: usize,
) -> Result<(ScalableEndpoint, AddressVector, Vec<DomainSetup>)> {
    let (fabric, domain) = DomainSetup::open_rdm_domain(how, contexts)?;
    // Of messages and answers, to and from each.
    let operations = 2 * (job.window + job.answers()) * count;
    let open_side = |_| DomainSetup::within(&fabric, &domain, job, operations);
    let sides: Vec<_> = (0..contexts).map(open_side).collect::<Result<_>>()?;
    let queues: Vec<_> = sides.iter().map(|side| side.queue.clone()).collect();
    let vector = domain.address_vector().rx_ctx_bits(2).open()?;
    let builder = domain.scalable_endpoint().contexts(contexts);
    let builder = builder.address_vector(&vector).listen_at(job.any_port());
    let builder = builder.each(move |index, context| {
        let context = context.completion_queue(&queues[index]);
        context
            .transmit_size(operations.min(4096))
            .receive_size(operations)
    });
    let endpoint = builder.open()?;
    for context in endpoint.contexts() {
        for _ in 0..(job.window + job.answers()) * count {
            context
                .recv(vec![0; job.size.max(ANSWER_SIZE)])
                .queue(0_usize)
                .try_post()?;
        }
    }
    Ok((endpoint, vector, sides))
}

impl Context {
    async fn run(self, tally: Arc<Tally>) -> Result<()> {
        let (count, batch) = (self.all.len(), self.job.batch());
        let mut message = payload(self.job.size);
        for to in 0..count {
            self.send_batch(to, self.job.window, &mut message)?;
        }
        let mut unanswered = vec![0; count];
        let mut completions = Vec::new();
        loop {
            self.side.completions(&mut completions).await?;
            for completion in completions.drain(..) {
                let word = self.taken(completion)?;
                let pair = (word & !ANSWER) as usize;
                if word & ANSWER != 0 {
                    self.send_batch(pair % count, batch, &mut message)?;
                    if tally.add(batch as u64) {
                        return Ok(());
                    }
                    continue;
                }
                let from = pair / count;
                let unanswered = unanswered.get_mut(from).context("no such pair")?;
                *unanswered += 1;
                if *unanswered == batch {
                    *unanswered = 0;
                    let mut answer = [0; ANSWER_SIZE];
                    self.send(from, word | ANSWER, &mut answer)?;
                }
            }
        }
    }

    fn send_batch(&self, to: usize, messages: usize, message: &mut [u8]) -> Result<()> {
        let pair = self.number * self.all.len() + to;
        (0..messages).try_for_each(|_| self.send(to, pair as u32, message))
    }

    fn send(&self, to: usize, word: u32, message: &mut [u8]) -> Result<()> {
        message[..size_of::<u32>()].copy_from_slice(&word.to_le_bytes());
        Ok(self.endpoint.inject(message, self.all[to])?)
    }

    /// Posts the receive of a completion again; returns the word of its message.
    fn taken(&self, mut completion: Completion) -> Result<u32> {
        completion.result.clone().map_err(|failed| failed.error)?;
        let buffer = completion.take_buffer();
        let buffer = buffer.and_then(|buffer| buffer.into_vec().ok());
        let buffer = buffer.context("a completion without its buffer")?;
        let word = *buffer.first_chunk().context("a message of few bytes")?;
        let receive = self.endpoint.recv(buffer).queue(completion.context);
        receive.try_post()?;
        Ok(u32::from_le_bytes(word))
    }
}
