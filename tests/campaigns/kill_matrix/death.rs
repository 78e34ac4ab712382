//! What is alike in both matrices: how a victim dies, and where, and how soon it is to be found.

use std::fmt;
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

impl Protocol {
    /// Without keys and TLS.
    pub const ALL: [Protocol; 2] = [Protocol::Plain, Protocol::Extended];

    pub fn named(name: &str) -> Protocol {
        let same = |protocol: &Protocol| protocol.to_string() == name;
        let [plain, extended] = Protocol::ALL;
        [plain, extended, Protocol::Keyed, Protocol::Secure]
            .into_iter()
            .find(same)
            .expect("the name of a protocol")
    }

    /// Whether it has the extension.
    pub fn is_extended(self) -> bool {
        self != Protocol::Plain
    }

    /// How far a victim comes with TLS, if it speaks it, and goes so far at this step.
    pub fn tls(self, until: TlsStep) -> Option<TlsStep> {
        (self == Protocol::Secure).then_some(until)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Plain => "plain",
            Protocol::Extended => "extended",
            Protocol::Keyed => "keyed",
            Protocol::Secure => "TLS",
        })
    }
}
