//! A receive context shared by endpoints (`fi_srx_context`; fi_endpoint(3)): the receives, and the
//! context's entry in an engine, whose driver keeps the time limits.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Instant;

use crate::error::{Error, ErrorKind, Result};
use crate::id::{EndpointId, PeerAddr};
use crate::limits::RDM_UNPIN_MIN;
use crate::mr::AuthSecret;
use crate::progress::budget::Budget;
use crate::progress::engine::Engine;
use crate::progress::pollable::{NextTurn, Pollable, TurnResult};
use crate::progress::port::{
    Bindings, ExtensionConfig, Port, PortKind, PortParts, PortSizes, PortTimers, PortWaker,
};
use crate::proto::{ConnIds, Connection, ConnectionId, LongMessages, SharedParams, SourceId};
use crate::sync::Lock;
use crate::transport::Clock;

use super::{ReceiveConfig, ReceiveContext};

pub(crate) struct SharedContextConfig {
    pub(crate) receives: ReceiveConfig,
    pub(crate) long_messages: LongMessages,
}

/// A receive context that endpoints share. Its last handle calls [`SharedContext::begin_close`]
/// when it is dropped.
pub(crate) struct SharedContext {
    receives: Arc<ReceiveContext>,
    long_messages: LongMessages,
    engine: Arc<Engine>,
    port_waker: Arc<PortWaker>,
    waker: Waker,
    timers: Lock<PortTimers>,
    closing: AtomicBool,
    pinned: Lock<PinnedPeers>,
    /// The authorization key of the connectionless endpoints, which the first of them has set.
    auth_key: OnceLock<Option<AuthSecret>>,
}

/// The peers from which the application has asked for receives. Their source ids are kept while the
/// address vector has them.
#[derive(Debug)]
struct PinnedPeers {
    peers: BTreeSet<PeerAddr>,
    /// Number of peers at which those that the vector no longer has are looked for.
    unpin_at: usize,
}

impl SharedContext {
    /// Opens a context and enters it in the engine, which need not be that of the endpoints.
    pub(crate) fn open(engine: &Arc<Engine>, config: SharedContextConfig) -> Result<Arc<Self>> {
        engine.check_alive()?;
        let port_waker = PortWaker::new(engine);
        let context = Arc::new(SharedContext {
            receives: ReceiveContext::new(config.receives),
            long_messages: config.long_messages,
            engine: Arc::clone(engine),
            waker: Waker::from(Arc::clone(&port_waker)),
            port_waker,
            timers: Lock::new(PortTimers::default()),
            closing: AtomicBool::new(false),
            pinned: Lock::new(PinnedPeers {
                peers: BTreeSet::new(),
                unpin_at: RDM_UNPIN_MIN,
            }),
            auth_key: OnceLock::new(),
        });
        context.receives.set_waker(&context.waker);
        let pollable: Arc<dyn Pollable> = Arc::clone(&context) as _;
        context.port_waker.insert_port(engine, pollable)?;
        Ok(context)
    }

    pub(crate) fn receives(&self) -> &Arc<ReceiveContext> {
        &self.receives
    }

    /// The limit for long messages of all connections that share the receives.
    pub(crate) fn long_messages(&self) -> LongMessages {
        self.long_messages
    }

    /// Checks that a connectionless endpoint has the authorization key of the others. With
    /// different keys, the source of a message would not say which one its sender has proven.
    pub(crate) fn check_key(&self, key: Option<&AuthSecret>) -> Result<()> {
        let of_others = self.auth_key.get_or_init(|| key.cloned());
        if of_others.as_ref() == key {
            return Ok(());
        }
        let what = "receive_context: its endpoints have another authorization key";
        Err(Error::new(ErrorKind::InvalidArgument, what))
    }

    /// Returns the source id of this peer at all endpoints that share the receives. The id stays
    /// the same as long as the address vector has the peer.
    pub(crate) fn source_of(
        &self,
        peer: PeerAddr,
        is_known: impl Fn(PeerAddr) -> bool,
    ) -> SourceId {
        let addresses = &self.receives.config.addresses;
        let mut pinned = self.pinned.lock("pin a peer");
        let PinnedPeers { peers, unpin_at } = &mut *pinned;
        if peers.len() >= *unpin_at {
            peers.retain(|peer| {
                let keep = is_known(*peer);
                if !keep {
                    addresses.release(*peer);
                }
                keep
            });
            *unpin_at = RDM_UNPIN_MIN.max(2 * peers.len());
        }
        if peers.insert(peer) {
            addresses.hold(peer);
        }
        addresses.source_of(peer, 0)
    }

    /// Opens a port for a connected endpoint with these receives.
    pub(crate) fn open_port(
        &self,
        engine: &Arc<Engine>,
        id: EndpointId,
        sizes: PortSizes,
        extension: ExtensionConfig,
        bindings: Bindings,
    ) -> Result<Arc<Port>> {
        let ids = ConnIds {
            source: SourceId(id.number()),
            connection: ConnectionId {
                endpoint: id,
                number: 0,
            },
        };
        let params = extension.params(engine);
        Port::open_with(engine, id, extension, bindings, |waker| {
            let (receives, promised_bytes) = self.receives.attach(ids, self.long_messages, waker);
            let shared = SharedParams {
                ids,
                promised_bytes,
                long_messages: self.long_messages,
            };
            PortParts {
                machine: Connection::new_shared(sizes, params, shared),
                peer: None,
                receives: Some(Box::new(receives)),
                kind: PortKind::Msg,
            }
        })
    }

    /// Ends the receives; no endpoint is bound to them any more.
    pub(crate) fn begin_close(&self) {
        self.end(Error::new(
            ErrorKind::Canceled,
            "the receive context was closed",
        ));
    }

    fn end(&self, why: Error) {
        self.closing.store(true, Ordering::Release);
        self.receives.close(why);
        self.waker.wake_by_ref();
    }
}

impl Pollable for SharedContext {
    fn turn(&self, now: Instant, _clock: &dyn Clock, _budget: &mut Budget) -> TurnResult {
        self.port_waker.mark_dequeued();
        let (next, expires) = match self.closing.load(Ordering::Acquire) {
            true => (NextTurn::Never, None),
            false => (NextTurn::WhenWoken, self.receives.expire(now)),
        };
        let mut timers = self.timers.lock("alarm");
        let alarm = timers.next_alarm(next, now, expires);
        TurnResult {
            next,
            alarm,
            stale_alarm: timers.stale_alarm.take(),
            completions: 0,
        }
    }

    fn begin_close(&self) {
        self.begin_close();
    }

    fn driver_gone(&self) {
        self.end(self.engine.why_gone());
    }
}
