//! Configuration of a port: its bindings, and its offers to the peer.

use crate::cntr::Counter;
use crate::cq::Completion;
use crate::eq::{EventSlot, WeakEventQueue};
use crate::error::{Error, ErrorKind, OperationKind, Result};
use crate::id::UserContext;
use crate::info::SideCaps;
use crate::mr::AuthSecret;
use crate::progress::engine::Engine;
use crate::progress::liveness::Liveness;
use crate::proto::{ExtensionParams, OFFERED};
use crate::sync::Ring;
use crate::transport::TrafficMark;
use crate::wire::Capabilities;

/// The endpoint's offer to its peer beyond libfabric's own protocol.
#[derive(Clone, Debug)]
pub(crate) struct ExtensionConfig {
    /// False: the endpoint does not offer the extension.
    pub(crate) offered: bool,
    /// Number of refused operations that the connection survives; 0: the first one ends it.
    pub(crate) refusals_max: u32,
    /// The settings that determine when a silent peer counts as dead.
    pub(crate) liveness: Liveness,
    /// The key that each side must prove to the other; `None`: none.
    pub(crate) auth_key: Option<AuthSecret>,
}

impl Default for ExtensionConfig {
    fn default() -> Self {
        ExtensionConfig {
            offered: true,
            refusals_max: 0,
            liveness: Liveness::default(),
            auth_key: None,
        }
    }
}

impl ExtensionConfig {
    pub(in crate::progress) fn params(&self, engine: &Engine) -> ExtensionParams {
        ExtensionParams {
            capabilities: if self.offered {
                OFFERED
            } else {
                Capabilities::empty()
            },
            incarnation: engine.incarnation(),
            refusals_max: self.refusals_max,
            probes_after_ms: self.liveness.probes_after_ms(),
        }
    }
}

/// The counters an endpoint is bound to, by what they count (`fi_ep_bind(3)`).
#[derive(Clone, Debug, Default)]
pub(crate) struct CounterSet {
    pub(crate) send: Option<Counter>,
    pub(crate) receive: Option<Counter>,
    pub(crate) read: Option<Counter>,
    pub(crate) write: Option<Counter>,
    pub(crate) remote_read: Option<Counter>,
    pub(crate) remote_write: Option<Counter>,
}

impl CounterSet {
    /// Boxes the set; `None` if nothing is counted.
    pub(crate) fn boxed(self) -> Option<Box<Self>> {
        let counts = self.all().next().is_some();
        counts.then(|| Box::new(self))
    }

    /// Returns the counters that are bound.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Counter> {
        let all = [
            &self.send,
            &self.receive,
            &self.read,
            &self.write,
            &self.remote_read,
            &self.remote_write,
        ];
        all.into_iter().flatten()
    }

    pub(in crate::progress) fn of(&self, operation: OperationKind) -> Option<&Counter> {
        match operation {
            OperationKind::Send | OperationKind::Inject => self.send.as_ref(),
            OperationKind::Receive => self.receive.as_ref(),
            OperationKind::Read | OperationKind::FetchAtomic => self.read.as_ref(),
            OperationKind::Write | OperationKind::Atomic => self.write.as_ref(),
            OperationKind::RemoteRead => self.remote_read.as_ref(),
            OperationKind::RemoteWrite => self.remote_write.as_ref(),
            _ => None,
        }
    }
}

pub(crate) struct Bindings {
    /// Queue for completions of peers' writes with CQ data, which no operation here has posted.
    pub(crate) receive_queue: Ring<Completion>,
    /// Capabilities of the endpoint, which limit its peer's operations.
    pub(crate) caps: SideCaps,
    /// `None`: nothing is counted.
    pub(crate) counters: Option<Box<CounterSet>>,
    /// True if peers' accesses are counted for the regions too (`FI_RMA_EVENT`).
    pub(crate) rma_events: bool,
    /// Traffic mark of the endpoint's sockets; `None`: the system's default, best effort.
    pub(crate) traffic: Option<TrafficMark>,
    /// Slots for Connected and Shutdown, reserved when the endpoint is opened (ruling 8).
    pub(crate) connected: Option<EventSlot>,
    pub(crate) shutdown: Option<EventSlot>,
    /// The queue of these slots, in which further attempts reserve theirs.
    pub(crate) events: Option<WeakEventQueue>,
    /// The endpoint's context, reported in its Shutdown event.
    pub(crate) context: Option<UserContext>,
}

impl Bindings {
    pub(in crate::progress) fn counter(&self, operation: OperationKind) -> Option<&Counter> {
        self.counters.as_ref()?.of(operation)
    }

    /// Reserves a slot for the Connected event of another attempt, if the failure of the last
    /// attempt has used the slot (ruling 8).
    pub(in crate::progress) fn reserve_connected(&mut self) -> Result<()> {
        let events = self.events.as_ref().and_then(WeakEventQueue::upgrade);
        if let (None, Some(events)) = (&self.connected, events) {
            let full = || {
                let message = "the event queue has no place free for the Connected of another try";
                Error::new(ErrorKind::Again, message)
            };
            self.connected = Some(events.try_reserve().ok_or_else(full)?);
        }
        Ok(())
    }
}
