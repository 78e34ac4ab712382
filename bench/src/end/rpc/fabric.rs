//! This library: a message there and a message back, and the bulk by an RMA write before it.

use anyhow::{Context, Result};
use tokio_fabric::limits::INJECT_SIZE_MAX;
use tokio_fabric::{Access, Endpoint, RemoteRegion, cq::CompletionFlags};

use super::super::fabric::connect::{Acceptor, DomainSetup, SHARED_BUFFER_SIZE, post_shared};
use super::super::{payload, server_of};
use super::{Caller, check, message};
use crate::job::{EndConfig, Job};
use crate::subject;

/// Bytes of a request: its number, and where the bulk shall go.
fn request_size(job: &Job) -> usize {
    job.size.max(size_of::<u64>() + RemoteRegion::ENCODED_LEN)
}

pub async fn serve(how: subject::Fabric, config: EndConfig) -> Result<()> {
    let job = &config.job;
    let size = request_size(job);
    let side = match how.shares_receives {
        true => DomainSetup::open_sharing(how, job, 2 * job.window, size)?,
        false => DomainSetup::open(how, job, 2 * job.window)?,
    };
    let acceptor = Acceptor::open(&side)?;
    let post = |endpoint: &Endpoint| {
        let receives = match side.receives {
            Some(_) => 0,
            None => job.window,
        };
        for _ in 0..receives {
            endpoint.recv(vec![0; size]).queue(0_usize).try_post()?;
        }
        Ok(())
    };
    let source = side.domain.register(payload(job.bulk.max(1))).await?;
    let endpoint = acceptor.accept(&side, [], post).await?;
    let mut completions = Vec::new();
    loop {
        side.completions(&mut completions).await?;
        for mut completion in completions.drain(..) {
            completion.result.clone().map_err(|failed| failed.error)?;
            let buffer = completion.take_buffer();
            if let Some(context) = &side.receives
                && completion.flags == CompletionFlags::MULTI_RECV
            {
                // Whole, once all of its messages are dropped.
                let whole = buffer.and_then(|it| it.into_vec().ok());
                post_shared(
                    context,
                    whole.unwrap_or_else(|| vec![0; SHARED_BUFFER_SIZE]),
                )?;
                continue;
            }
            let Some(request) = buffer else {
                continue; // The end of a write.
            };
            if job.bulk > 0 {
                let bulk = RemoteRegion::from_bytes(
                    &request[size_of::<u64>()..][..RemoteRegion::ENCODED_LEN],
                )?;
                let source = source.slice(0..job.bulk)?;
                endpoint.write(source, bulk).queue(0_usize).try_post()?;
            }
            // Behind the write, on the same connection: a client that has read it has the bulk.
            endpoint.inject(&request[..job.size.min(INJECT_SIZE_MAX)])?;
            if side.receives.is_none() {
                let request = request
                    .into_vec()
                    .ok()
                    .context("a buffer of another kind")?;
                endpoint.recv(request).queue(0_usize).try_post()?;
            }
        }
    }
}

#[derive(Debug)]
struct Fabric {
    endpoint: Endpoint,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Caller for Fabric {
    async fn call(&mut self, number: u64) -> Result<()> {
        let answer = std::mem::take(&mut self.answer);
        // Answers come in the order of the calls, and receives take them in theirs.
        let answer = self.endpoint.recv(answer).post()?;
        super::stamp(&mut self.request, number);
        self.endpoint.inject(&self.request)?;
        (_, self.answer) = answer.await?;
        check(&self.answer, number)
    }
}

pub async fn call(how: subject::Fabric, config: EndConfig) -> Result<()> {
    let job = &config.job;
    let side = DomainSetup::open(how, job, 2 * job.window)?;
    let (endpoint, _) = side.connect(server_of(&config), |_| Ok(())).await?;
    let receive_buffers = vec![0; (job.bulk * job.window).max(1)];
    let access = Access::REMOTE_WRITE;
    let receive_buffers = side.domain.register(receive_buffers).access(access).await?;
    let mut callers = Vec::new();
    for at in 0..job.window {
        let mut request = message(0, request_size(job));
        let begin = (at * job.bulk) as u64;
        let bulk = receive_buffers
            .remote()
            .slice(begin..begin + job.bulk as u64)?;
        request[size_of::<u64>()..][..RemoteRegion::ENCODED_LEN].copy_from_slice(&bulk.to_bytes());
        callers.push(Fabric {
            endpoint: endpoint.clone(),
            request,
            answer: vec![0; job.size],
        });
    }
    super::drive(&config, callers).await
}
