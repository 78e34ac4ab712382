//! Tokio's `TcpStream`, a task per connection, on a `current_thread` runtime; the same work over
//! any stream.

use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::bulk::{BulkCounter, bulk_job, ping_job};
use super::connection_stats::StatsBaseline;
use super::idle::{Memory, Watch};
use super::meter::Meter;
use super::pairs::Tally;
use super::pings::Pings;
use super::receive_buffers::{ReceiveBuffers, messages};
use super::{payload, say, server_of};
use crate::job::{ANSWER_SIZE, EndConfig, Job, Work};
use crate::sys;

/// A stream of bytes, sealed or not.
pub trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> ByteStream for S {}

pub async fn serve(config: EndConfig) -> Result<()> {
    let listener = TcpListener::bind(config.job.any_port()).await?;
    say("PORT", listener.local_addr()?.port());
    for number in 0_usize.. {
        let (mut stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        // The client waits for it, lest thousands of connections overrun the backlog.
        stream.write_all(&[0]).await?;
        let job = match config.job.work {
            Work::Neighbours if number == 0 => bulk_job(&config.job),
            Work::Neighbours => ping_job(&config.job),
            _ => config.job.clone(),
        };
        // A connection that ends is the end of the run.
        tokio::spawn(async move { serve_one(stream, job).await.ok() });
    }
    Ok(())
}

pub async fn serve_one(mut stream: impl ByteStream, job: Job) -> Result<()> {
    match job.work {
        Work::PingPong => {
            let mut message = payload(job.size);
            loop {
                stream.read_exact(&mut message).await?;
                stream.write_all(&message).await?;
                stream.flush().await?;
            }
        }
        Work::Stream | Work::AllToAll | Work::Pairs | Work::Shards => {
            let mut receive_buffers = ReceiveBuffers::new(&job);
            let mut unanswered = 0;
            loop {
                unanswered += read_some(&mut stream, &mut receive_buffers).await?;
                for _ in 0..unanswered / job.batch() {
                    stream.write_all(&[0; ANSWER_SIZE]).await?;
                }
                stream.flush().await?;
                unanswered %= job.batch();
            }
        }
        Work::Read => {
            for message in messages(&job).iter().cycle() {
                stream.read_exact(&mut [0; ANSWER_SIZE]).await?;
                stream.write_all(message).await?;
                stream.flush().await?;
            }
            Ok(())
        }
        Work::Write => {
            let mut receive_buffers = ReceiveBuffers::new(&job);
            loop {
                read_some(&mut stream, &mut receive_buffers).await?;
            }
        }
        _ => wait_for_the_end(stream).await,
    }
}

pub async fn call(config: EndConfig, gather: bool) -> Result<()> {
    let before = Memory::now(&config);
    let crowd = StatsBaseline::now(&config)?;
    let mut streams = Vec::new();
    let connections = config.job.connections;
    // One for each two endpoints.
    let count = match config.job.work {
        Work::AllToAll => connections * connections,
        Work::Neighbours => 2,
        _ => connections,
    };
    for _ in 0..count {
        let mut stream = TcpStream::connect(server_of(&config)).await?;
        stream.set_nodelay(true)?;
        stream.read_exact(&mut [0]).await?;
        streams.push(stream);
    }
    if config.job.work == Work::Neighbours {
        let stream = streams.pop().context("two connections")?;
        let bulk = streams.pop().context("a second connection")?;
        return neighbours(&config, bulk, stream).await;
    }
    call_over(config, streams, gather, (before, crowd)).await
}

/// The client's work over connections that are made; `before`: what there was before they were.
pub async fn call_over(
    config: EndConfig,
    mut streams: Vec<impl ByteStream>,
    gather: bool,
    (before, crowd): (Memory, StatsBaseline),
) -> Result<()> {
    match config.job.work {
        Work::Stream | Work::AllToAll => {
            return send_over_all(config, streams, gather, crowd).await;
        }
        Work::Idle => return idle(config, streams, before).await,
        _ => {}
    }
    let mut stream = streams.pop().context("one connection at least")?;
    match config.job.work {
        Work::PingPong => ping(&config, &mut stream).await,
        Work::Write => push(&config, &mut stream).await,
        Work::Read => fetch(&config, &mut stream).await,
        Work::Death => {
            say("READY", "");
            wait_for_the_end(stream).await?;
            say("ended_ns", sys::monotonic_ns());
            Ok(())
        }
        work => bail!("streams do no {work}"),
    }
}

async fn ping(config: &EndConfig, stream: &mut impl ByteStream) -> Result<()> {
    let mut message = payload(config.job.size);
    let mut pings = Pings::new(config)?;
    loop {
        stream.write_all(&message).await?;
        stream.flush().await?;
        stream.read_exact(&mut message).await?;
        if pings.add() {
            return Ok(());
        }
    }
}

/// Round trips on one stream, while a task keeps the other one full.
async fn neighbours(config: &EndConfig, bulk: TcpStream, mut stream: TcpStream) -> Result<()> {
    let counter = BulkCounter::default();
    let (counting, job) = (counter.clone(), bulk_job(&config.job));
    let batch = job.batch() as u64;
    let sending = tokio::spawn(send(job, bulk, false, move |answers| {
        counting.add(answers as u64 * batch);
        false
    }));
    counter.measure_alone(config).await;
    let beside = counter.begin(config);
    ping(config, &mut stream).await?;
    beside.end("beside");
    sending.abort();
    Ok(())
}

/// A task per connection, all of them counted together. Ends with the task that has counted enough.
async fn send_over_all(
    config: EndConfig,
    streams: Vec<impl ByteStream>,
    gather: bool,
    before: StatsBaseline,
) -> Result<()> {
    let crowd = Arc::new(Mutex::new(before.begin(&config)));
    let mut tasks = JoinSet::new();
    for (at, stream) in streams.into_iter().enumerate() {
        let crowd = Arc::clone(&crowd);
        let is_enough = move |answers| {
            let mut crowd = crowd.lock().expect("no task panics");
            answers > 0 && crowd.answered(at, answers)
        };
        tasks.spawn(send(config.job.clone(), stream, gather, is_enough));
    }
    tasks
        .join_next()
        .await
        .context("one connection at least")??
}

/// Both ends of all connections in tasks of this runtime, until it is enough.
pub async fn pair(job: Job, tally: Arc<Tally>) -> Result<()> {
    let listener = TcpListener::bind(job.any_port()).await?;
    let mut tasks = JoinSet::new();
    for _ in 0..job.connections {
        let here = TcpStream::connect(listener.local_addr()?).await?;
        let (there, _) = listener.accept().await?;
        for stream in [&here, &there] {
            stream.set_nodelay(true)?;
        }
        tasks.spawn(serve_one(there, job.clone()));
        let (batch, tally) = (job.batch() as u64, Arc::clone(&tally));
        let is_enough = move |answers| tally.add(answers as u64 * batch);
        tasks.spawn(send(job.clone(), here, false, is_enough));
    }
    tasks
        .join_next()
        .await
        .context("one connection at least")??
}

async fn send(
    job: Job,
    mut stream: impl ByteStream,
    gather: bool,
    mut is_enough: impl FnMut(usize) -> bool,
) -> Result<()> {
    let messages = messages(&job);
    let mut next = messages.iter().cycle();
    let gathered = if gather {
        messages.concat()
    } else {
        Vec::new()
    };
    let mut answers = ReceiveBuffers::of_answers();
    let mut credits = job.window;
    loop {
        if gather {
            stream.write_all(&gathered[..credits * job.size]).await?;
        } else {
            for message in next.by_ref().take(credits) {
                stream.write_all(message).await?;
            }
        }
        stream.flush().await?;
        let answered = read_some(&mut stream, &mut answers).await?;
        credits = answered * job.batch();
        if is_enough(answered) {
            return Ok(());
        }
    }
}

async fn push(config: &EndConfig, stream: &mut impl ByteStream) -> Result<()> {
    let messages = messages(&config.job);
    let mut meter = Meter::new(config);
    for message in messages.iter().cycle() {
        stream.write_all(message).await?;
        stream.flush().await?;
        if meter.add(1) {
            break;
        }
    }
    Ok(())
}

async fn fetch(config: &EndConfig, stream: &mut impl ByteStream) -> Result<()> {
    let mut receive_buffers = ReceiveBuffers::new(&config.job);
    let mut meter = Meter::new(config);
    let mut due = config.job.window;
    loop {
        for _ in 0..due {
            stream.write_all(&[0; ANSWER_SIZE]).await?;
        }
        stream.flush().await?;
        due = read_some(stream, &mut receive_buffers).await?;
        if due > 0 && meter.add(due as u64) {
            return Ok(());
        }
    }
}

/// Each connection has a task that waits for a message, as an application's would.
async fn idle(config: EndConfig, streams: Vec<impl ByteStream>, before: Memory) -> Result<()> {
    for stream in streams {
        tokio::spawn(async move { wait_for_the_end(stream).await.ok() });
    }
    tokio::time::sleep(config.job.warm).await;
    Memory::now(&config).report_since(&before);
    let watch = Watch::start(&config);
    tokio::time::sleep(config.job.run).await;
    watch.report(&config);
    Ok(())
}

async fn wait_for_the_end(mut stream: impl ByteStream) -> Result<()> {
    match stream.read(&mut [0; 64]).await {
        Ok(1..) => bail!("an idle end has sent something"),
        Ok(0) | Err(_) => Ok(()),
    }
}

/// Reads once. Gives the number of messages that are whole now.
async fn read_some(
    stream: &mut impl ByteStream,
    receive_buffers: &mut ReceiveBuffers,
) -> Result<usize> {
    match stream.read(receive_buffers.room()).await? {
        0 => bail!("the other end has gone"),
        bytes => Ok(receive_buffers.took(bytes)),
    }
}
