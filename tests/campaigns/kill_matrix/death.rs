//! What is alike in both matrices: how a victim dies, and where, and how soon it is to be found.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use tokio_fabric::Backend;

use crate::common::wire::TlsStep;

/// Whatever a machine under load needs for what does not depend on the victim.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// The probe interval: quick enough for a test, slow enough for a busy machine.
/// Found dead within 1.2 s.
pub const INTERVAL: Duration = Duration::from_millis(200);
pub const ROUNDS: u32 = 4;
/// So long nothing may happen to a peer that might be slow.
pub const QUIET: Duration = Duration::from_millis(1800);

/// Everything has ended by then, however busy the machine is: after `SIGSTOP` if our side is to
/// find it. No deadline is longer.
const LIMIT: Duration = Duration::from_secs(15);

/// How the victim dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// `kill -9`.
    Killed,
    /// `SIGSTOP`: it holds its sockets, and does nothing.
    Stopped,
}

/// What the victim speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// libfabric's, and no more.
    Plain,
    /// With the extension, and heartbeats in it.
    Extended,
    /// The same behind the proof of an authorization key.
    Keyed,
    /// The extension, within TLS.
    Secure,
    /// The same behind the proof of an authorization key.
    KeyedSecure,
}

/// Where, and as whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell<Step, Victim> {
    pub step: Step,
    pub victim: Victim,
    pub protocol: Protocol,
    pub backend: Backend,
    pub death: Death,
}

impl Death {
    pub const ALL: [Death; 2] = [Death::Killed, Death::Stopped];

    /// How often each cell is played.
    pub fn times(self) -> usize {
        match self {
            _ if !is_deep() => 1,
            Death::Killed => 25,
            Death::Stopped => 5,
        }
    }

    /// Whether all has ended soon enough, if it was for us to find. A killed peer is.
    pub fn is_in_time(self, time: Option<Duration>) -> bool {
        match self {
            Death::Killed => time.is_some_and(|time| time < LIMIT),
            Death::Stopped => time.is_none_or(|time| time < LIMIT),
        }
    }
}

#[cfg(feature = "tls")]
impl<Step, Victim> Cell<Step, Victim> {
    /// Over TLS a short run has some of the cells, on one backend.
    pub fn is_played_if(&self, is_one: bool) -> bool {
        is_deep() || is_one && self.backend == Backend::Epoll
    }
}

impl Protocol {
    /// Without keys and TLS.
    pub const ALL: [Protocol; 2] = [Protocol::Plain, Protocol::Extended];

    pub fn named(name: &str) -> Protocol {
        let every = [
            Protocol::Plain,
            Protocol::Extended,
            Protocol::Keyed,
            Protocol::Secure,
            Protocol::KeyedSecure,
        ];
        let named = |protocol: &Protocol| format!("{protocol:?}") == name;
        (every.into_iter().find(named)).expect("the name of a protocol")
    }

    /// Whether it has the extension.
    pub fn is_extended(self) -> bool {
        self != Protocol::Plain
    }

    /// Whether it has a key.
    pub fn is_keyed(self) -> bool {
        matches!(self, Protocol::Keyed | Protocol::KeyedSecure)
    }

    pub fn is_secure(self) -> bool {
        matches!(self, Protocol::Secure | Protocol::KeyedSecure)
    }

    /// The bits of what a victim offers: heartbeats, and the proof if it has a key.
    pub fn capabilities(self) -> u8 {
        if self.is_keyed() { 0x12 } else { 2 }
    }

    /// How far a victim comes with TLS, if it speaks it, and goes so far at this step.
    pub fn tls(self, until: TlsStep) -> Option<TlsStep> {
        self.is_secure().then_some(until)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Plain => "plain",
            Protocol::Extended => "extended",
            Protocol::Keyed => "keyed",
            Protocol::Secure => "TLS",
            Protocol::KeyedSecure => "keyed, TLS",
        })
    }
}

pub fn is_deep() -> bool {
    std::env::var("TOKIO_FABRIC_DEEP").is_ok_and(|deep| deep != "0")
}

/// The backends that have sockets.
pub fn backends() -> Vec<Backend> {
    let mut backends = crate::common::backends();
    backends.retain(|backend| *backend != Backend::Loopback);
    backends
}

/// Does the same with all, `at_once` at a time, and keeps their order.
pub fn each<T: Send, R: Send>(all: Vec<T>, at_once: usize, act: impl Fn(T) -> R + Sync) -> Vec<R> {
    let count = all.len();
    let (all, done) = (
        Mutex::new(all.into_iter().enumerate()),
        Mutex::new(BTreeMap::new()),
    );
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let next = all.lock().unwrap().next();
                    let Some((number, one)) = next else { return };
                    let result = act(one);
                    done.lock().unwrap().insert(number, result);
                }
            });
        }
    });
    let done = done.into_inner().unwrap();
    assert_eq!(done.len(), count);
    done.into_values().collect()
}

/// Plays each cell on a runtime of its own, `at_once` at a time, and keeps their order.
pub fn play_all<C, R, F>(cells: Vec<C>, at_once: usize, play: impl Fn(C) -> F + Sync) -> Vec<R>
where
    C: Copy + Send + fmt::Debug,
    R: Send,
    F: Future<Output = R>,
{
    each(cells, at_once, |cell| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let limited = tokio::time::timeout(PATIENCE * 3, play(cell));
            limited.await.unwrap_or_else(|_| panic!("{cell:?} hangs"))
        })
    })
}
