//! What one run asks of its two ends. It goes to them as `name=value` words, which the C program
//! understands too.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

/// Which end a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Listens, serves, and is killed when the client is done.
    Server,
    /// Connects, measures and reports.
    Client,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Server => "server",
            Role::Client => "client",
        })
    }
}

/// What the two ends do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Work {
    /// A message there, the same back.
    PingPong,
    /// Messages one way, at most `window` on the way per connection; the receiver answers each
    /// half window.
    Stream,
    /// RMA writes, `window` under way. Of plain TCP: bytes one way, unasked.
    Write,
    /// RMA reads, `window` under way. Of plain TCP: small requests, large answers.
    Read,
    /// Receives are posted, then the server is killed.
    Death,
    /// RMA reads, one after the other, until the link has gone down.
    LinkDown,
    /// Calls and answers, `window` under way; an answer brings `bulk` bytes besides.
    Rpc,
    /// One small call after the other: first alone, then beside a transfer of `bulk` bytes over
    /// the same connection, again and again. Peers have it in answers of a megabyte, a few under
    /// way.
    RpcMixed,
    /// Calls that lend memory are dropped while their handlers run.
    RpcCancel,
    /// Calls at `load` percent of what a server of bounded calls can answer, which is measured
    /// first.
    RpcOverload,
    /// `window` callers of a server that drains and starts anew all the time.
    RpcDrain,
    /// Connections with nothing to do.
    Idle,
    /// Registers `window` buffers as one region within the call, and takes it back; alone.
    Register,
    /// The same of a range of addresses, which has no owner: what libfabric is given.
    RegisterRange,
    /// As `Register`, awaited in a domain that registers asynchronously; pages are left.
    RegisterAwaited,
    /// The same as it is by default: pages are faulted in beside the runtime; a few at once.
    RegisterFaulted,
    /// Asks a cache that has the registration.
    CacheHit,
    /// Asks a cache that has to make room and register.
    CacheMiss,
    /// Messages among connectionless endpoints: each of the client's `connections` to each of the
    /// server's, answered as in `Stream`. Of plain TCP: a stream for each two.
    AllToAll,
    /// Round trips on one connection while `window` messages of `bulk` bytes are always under way
    /// on another one of the same domain; these alone first.
    Neighbours,
    /// The work of `Stream` between two ends in this process: first one such pair in one thread,
    /// then two in two threads on two processors; alone.
    Pairs,
    /// The same on one runtime of two threads, all connections in one domain per end and divided
    /// among two tasks: first with one driver per domain, then with two; alone.
    Shards,
    /// On one runtime of two threads, messages of each context of `connections` scalable endpoints
    /// to each context of all: first with one context and driver per endpoint, then with two;
    /// alone.
    Contexts,
}

impl Work {
    /// True of what takes no other end: no server is started.
    pub fn is_alone(self) -> bool {
        use Work::{Contexts, Pairs, Shards};
        self.registers() || matches!(self, Pairs | Shards | Contexts)
    }

    /// True of what can be done over a link: there is another end, and it is met at one address.
    pub fn crosses_links(self) -> bool {
        !self.is_alone() && self != Work::AllToAll
    }

    /// True of what registers memory, and does nothing else.
    pub fn registers(self) -> bool {
        use Work::{CacheHit, CacheMiss};
        use Work::{Register, RegisterAwaited, RegisterFaulted, RegisterRange};
        let all = [
            Register,
            RegisterRange,
            RegisterAwaited,
            RegisterFaulted,
            CacheHit,
            CacheMiss,
        ];
        all.contains(&self)
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().expect("no kind of work is hidden");
        f.write_str(value.get_name())
    }
}

/// A message that answers others; its content is nothing.
pub const ANSWER_SIZE: usize = 8;

/// One run.
#[derive(Clone, Debug)]
pub struct Job {
    pub work: Work,
    /// Where the server is.
    pub host: Ipv4Addr,
    /// Bytes of a message or of an RMA.
    pub size: usize,
    /// Operations under way per connection.
    pub window: usize,
    pub connections: usize,
    /// Bytes that the answer to a call brings besides.
    pub bulk: usize,
    /// Calls offered, in percent of what the server can answer.
    pub load: usize,
    /// Each connection is watched: how long its answers take, how often it has its turn, and the
    /// memory that it takes.
    pub watches_each: bool,
    /// System calls are counted, which costs each of them a little.
    pub counts_syscalls: bool,
    pub warm: Duration,
    pub run: Duration,
}

impl Job {
    /// Messages that one answer answers: half a window, so that the sender need not stop.
    pub fn batch(&self) -> usize {
        (self.window / 2).max(1)
    }

    /// Answers that may be on the way at once, per connection.
    pub fn answers(&self) -> usize {
        self.window / self.batch() + 1
    }

    /// Where the server listens.
    pub fn any_port(&self) -> SocketAddr {
        (self.host, 0).into()
    }

    pub fn words(&self) -> Vec<String> {
        vec![
            format!("work={}", self.work),
            format!("host={}", self.host),
            format!("size={}", self.size),
            format!("window={}", self.window),
            format!("connections={}", self.connections),
            format!("bulk={}", self.bulk),
            format!("load={}", self.load),
            format!("watches_each={}", u8::from(self.watches_each)),
            format!("counts_syscalls={}", u8::from(self.counts_syscalls)),
            format!("warm_ms={}", self.warm.as_millis()),
            format!("run_ms={}", self.run.as_millis()),
        ]
    }
}

/// A job as one end sees it: with where it runs and whom it meets.
#[derive(Clone, Debug)]
pub struct EndConfig {
    pub job: Job,
    /// The processor to stay on.
    pub cpu: usize,
    /// The other one, of work that is alone.
    pub other_cpu: usize,
    /// Of a client: the server's port, and its process.
    pub port: u16,
    pub peer: u32,
}

impl EndConfig {
    pub fn parse(words: &[String]) -> Result<EndConfig> {
        let text = |name: &str| {
            let found = words
                .iter()
                .find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            found.with_context(|| format!("no {name} was given"))
        };
        let number = |name: &str| -> Result<u64> {
            text(name)?
                .parse()
                .with_context(|| format!("{name} is no number"))
        };
        let optional = |name: &str| -> u32 {
            text(name)
                .ok()
                .and_then(|text| text.parse().ok())
                .unwrap_or_default()
        };
        let work = match Work::from_str(text("work")?, false) {
            Ok(work) => work,
            Err(why) => bail!("work: {why}"),
        };
        Ok(EndConfig {
            job: Job {
                work,
                host: text("host")?.parse().context("host is no address")?,
                size: number("size")? as usize,
                window: number("window")?.max(1) as usize,
                connections: number("connections")?.max(1) as usize,
                bulk: optional("bulk") as usize,
                load: optional("load") as usize,
                watches_each: optional("watches_each") != 0,
                counts_syscalls: optional("counts_syscalls") != 0,
                warm: Duration::from_millis(number("warm_ms")?),
                run: Duration::from_millis(number("run_ms")?),
            },
            cpu: number("cpu")? as usize,
            other_cpu: optional("other_cpu") as usize,
            port: optional("port") as u16,
            peer: optional("peer"),
        })
    }
}
