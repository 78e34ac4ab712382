//! The floor: frames with a length in front over Tokio's `TcpStream`, or over tokio-rustls, calls
//! pipelined, what is ready to be written at a time in one write.

use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot};

use super::super::secure::{self, TlsListener};
use super::super::{payload, say, server_of};
use super::{Caller, bulk_of, check, message, number_of};
use crate::job::EndConfig;

const BUFFER_SIZE: usize = 64 << 10;

/// Bytes on their way out, and who writes them.
#[derive(Debug, Default)]
struct Outgoing {
    bytes: Mutex<Vec<u8>>,
    some: Notify,
}

impl Outgoing {
    fn frame(&self, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let mut bytes = self.bytes.lock().expect("no thread panics");
        bytes.extend_from_slice(&(len as u32).to_le_bytes());
        for part in parts {
            bytes.extend_from_slice(part);
        }
        drop(bytes);
        self.some.notify_one();
    }

    async fn write(self: Arc<Self>, mut to: impl AsyncWrite + Unpin) -> Result<()> {
        let mut batch = Vec::new();
        loop {
            self.some.notified().await;
            std::mem::swap(
                &mut batch,
                &mut *self.bytes.lock().expect("no thread panics"),
            );
            to.write_all(&batch).await?;
            to.flush().await?;
            batch.clear();
        }
    }
}

async fn read_frame(from: &mut (impl AsyncRead + Unpin), into: &mut Vec<u8>) -> Result<()> {
    let mut len = [0; 4];
    from.read_exact(&mut len).await?;
    into.resize(u32::from_le_bytes(len) as usize, 0);
    from.read_exact(into).await?;
    Ok(())
}

pub async fn serve(config: EndConfig, is_secure: bool) -> Result<()> {
    if is_secure {
        let stream = TlsListener::open(&config.job).await?.accept().await?;
        return serve_over(config, tokio::io::split(stream)).await;
    }
    let listener = TcpListener::bind(config.job.any_port()).await?;
    say("PORT", listener.local_addr()?.port());
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    serve_over(config, stream.into_split()).await
}

async fn serve_over<R, W>(config: EndConfig, (read, write): (R, W)) -> Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let outgoing = Arc::new(Outgoing::default());
    tokio::spawn(Arc::clone(&outgoing).write(write));
    let mut read = BufReader::with_capacity(BUFFER_SIZE, read);
    let mut request = Vec::new();
    let bulk = payload(config.job.bulk);
    loop {
        read_frame(&mut read, &mut request).await?;
        outgoing.frame(&[&request, &bulk[..bulk_of(&config.job, request.len())]]);
    }
}

/// Where the answer to each caller's call goes.
type Awaited = Arc<Vec<Mutex<Option<oneshot::Sender<Vec<u8>>>>>>;

#[derive(Debug)]
struct Plain {
    at: usize,
    size: usize,
    outgoing: Arc<Outgoing>,
    awaited: Awaited,
}

impl Caller for Plain {
    async fn call(&mut self, number: u64) -> Result<()> {
        let (sender, answer) = oneshot::channel();
        *self.awaited[self.at].lock().expect("no thread panics") = Some(sender);
        self.outgoing.frame(&[&message(number, self.size)]);
        check(&answer.await?, number)
    }
}

pub async fn call(config: EndConfig, is_secure: bool) -> Result<()> {
    let to = server_of(&config);
    if is_secure {
        let stream = secure::connect(&secure::connector()?, to).await?;
        return call_over(config, tokio::io::split(stream)).await;
    }
    let stream = TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    call_over(config, stream.into_split()).await
}

async fn call_over<R, W>(config: EndConfig, (read, write): (R, W)) -> Result<()>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let outgoing = Arc::new(Outgoing::default());
    tokio::spawn(Arc::clone(&outgoing).write(write));
    let callers = super::callers(&config.job);
    let awaited: Awaited = Arc::new((0..callers).map(|_| Mutex::default()).collect());
    tokio::spawn(dispatch(
        BufReader::with_capacity(BUFFER_SIZE, read),
        Arc::clone(&awaited),
    ));
    let caller = |at, size| Plain {
        at,
        size,
        outgoing: Arc::clone(&outgoing),
        awaited: Arc::clone(&awaited),
    };
    super::call(&config, caller).await
}

async fn dispatch(mut from: impl AsyncRead + Unpin, awaited: Awaited) -> Result<()> {
    loop {
        let mut answer = Vec::new();
        read_frame(&mut from, &mut answer).await?;
        let at = number_of(&answer)? as usize % awaited.len();
        let sender = awaited[at].lock().expect("no thread panics").take();
        // A caller that has gone needs no answer.
        let _ = sender.context("an answer without a call")?.send(answer);
    }
}
