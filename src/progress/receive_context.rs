//! The receives of a connectionless endpoint, shared by all its connections.

use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::buf::Payload;
use crate::cntr::Counter;
use crate::cq::{CompletionQueue, Sources};
use crate::error::{Error, Phase, Result};
use crate::id::{Context, EndpointId};
use crate::proto::{
    Announcement, Arrival, Arrived, ConnectionId, EarlyMessage, Identity, OpKey, PostedReceive,
    Receives, SourceId, Wanted, Withdrawn,
};
use crate::sync::LockKind;

use super::port::Posted;
use super::posting::Manner;
use super::report::{OpCell, Report};

/// What a receive context is opened with.
#[derive(Clone)]
pub(crate) struct ReceiveConfig {
    pub(crate) lock_kind: LockKind,
    /// The endpoint that completions name.
    pub(crate) endpoint: EndpointId,
    /// Receives that are posted at a time.
    pub(crate) size: usize,
    /// Bytes of early messages that are kept, of all peers together.
    pub(crate) unexpected_bytes: usize,
    /// The same of one peer.
    pub(crate) unexpected_bytes_per_peer: usize,
    /// Takes the pieces of receives for many messages.
    pub(crate) queue: CompletionQueue,
    /// Counts receives.
    pub(crate) counter: Option<Counter>,
    /// Knows who sent what was received, if completions are to tell (`FI_SOURCE`).
    pub(crate) sources: Option<Arc<dyn Sources>>,
}

/// Which message a peek or a claim means.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sought {
    pub(crate) wanted: Wanted,
    pub(crate) source: Option<SourceId>,
}

/// A claimed message (`FI_CLAIM`): nobody else gets it. Names it within its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claimed(OpKey);

/// How an announcement that was kept is answered once a receive is matched with it: asks the
/// connection for the bytes. The receive comes back if there is no such announcement any more.
/// Called with no lock held.
pub(crate) type ClearToSend = Box<
    dyn Fn(ConnectionId, u8, PostedReceive<Report>) -> Result<(), PostedReceive<Report>>
        + Send
        + Sync,
>;

/// The receives of a connectionless endpoint, shared by all its connections.
pub(crate) struct ReceiveContext {
    config: ReceiveConfig,
}

impl ReceiveContext {
    pub(crate) fn new(config: ReceiveConfig) -> Arc<Self> {
        Arc::new(ReceiveContext { config })
    }

    /// How kept announcements are answered; set once, before anything is posted.
    pub(crate) fn set_rendezvous(&self, clear: ClearToSend) {
        let _ = clear;
        todo!()
    }

    /// Woken when [`ReceiveContext::expire`] is to be called earlier than it said last.
    pub(crate) fn set_waker(&self, waker: &Waker) {
        let _ = waker;
        todo!()
    }

    /// Posts a receive. A full context, or completion queue, makes it wait in one line with others
    /// (`manner.wait`), or is Again. A message that has come ends it at once.
    pub(crate) fn post(
        &self,
        sought: Sought,
        payload: Payload,
        report: Report,
        manner: Manner,
    ) -> Result<Posted, (Error, Payload)> {
        let _ = (sought, payload, report, manner);
        todo!()
    }

    /// Posts a buffer for many messages, one behind the other, until fewer than `free_min` bytes
    /// are left (`FI_MULTI_RECV`). Each piece is a completion of the context's queue, and so is the
    /// end of the buffer.
    pub(crate) fn post_many(
        &self,
        sought: Sought,
        payload: Payload,
        context: Context,
        free_min: usize,
        manner: Manner,
    ) -> Result<Posted, (Error, Payload)> {
        let _ = (sought, payload, context, free_min, manner);
        todo!()
    }

    /// How far a receive has come whose report has not ended.
    pub(crate) fn phase(&self, key: OpKey) -> Phase {
        let _ = key;
        todo!()
    }

    /// Asks a receive to end early.
    pub(crate) fn cancel(&self, key: OpKey) -> Withdrawn {
        let _ = key;
        todo!()
    }

    /// The future of a receive is dropped (ruling 4).
    pub(crate) fn detach(&self, key: OpKey, cell: &OpCell) {
        let _ = (key, cell);
        todo!()
    }

    /// Whoever waited for the acceptance of a queued receive goes away.
    pub(crate) fn withdraw_waiting(&self, key: OpKey, cell: &OpCell) {
        let _ = (key, cell);
        todo!()
    }

    /// The first message that such a receive would take (`FI_PEEK`).
    pub(crate) fn peek(&self, sought: Sought) -> Option<Arrival> {
        let _ = sought;
        todo!()
    }

    /// The same, and only who has the claim gets it (`FI_PEEK | FI_CLAIM`).
    pub(crate) fn claim(&self, sought: Sought) -> Option<(Claimed, Arrival)> {
        let _ = sought;
        todo!()
    }

    /// Receives the claimed message (`FI_CLAIM`). `NoMessage` if its sender's connection ended
    /// before its bytes were there; the claim is over then.
    pub(crate) fn receive_claimed(
        &self,
        claimed: Claimed,
        payload: Payload,
        report: Report,
        timeout: Option<Duration>,
    ) -> Result<Posted, (Error, Payload)> {
        let _ = (claimed, payload, report, timeout);
        todo!()
    }

    /// Drops the claimed message (`FI_CLAIM | FI_DISCARD`). False if it is gone.
    pub(crate) fn discard_claimed(&self, claimed: Claimed) -> bool {
        let _ = claimed;
        todo!()
    }

    /// Gives up the claim: the message is matched again, in its place.
    pub(crate) fn release_claimed(&self, claimed: Claimed) {
        let _ = claimed;
        todo!()
    }

    /// Drops the first message that such a receive would take (`FI_PEEK | FI_DISCARD`).
    pub(crate) fn discard(&self, sought: Sought) -> Option<Arrival> {
        let _ = sought;
        todo!()
    }

    /// Ends receives whose time has passed, lets in those who wait for room in their queue, and
    /// answers announcements. Tells when to be called next, if not woken before.
    pub(crate) fn expire(&self, now: Instant) -> Option<Instant> {
        let _ = now;
        todo!()
    }

    /// A connection joins; tells how many bytes of its messages are kept for sure. `waker` is woken
    /// when it may read on or owes credit.
    pub(crate) fn attach(&self, identity: Identity, waker: &Waker) -> u64 {
        let _ = (identity, waker);
        todo!()
    }

    /// A connection has gone: what it announced is forgotten, what came in full stays.
    pub(crate) fn leave(&self, connection: ConnectionId) {
        let _ = connection;
        todo!()
    }

    /// Ends all receives for this reason, and drops all messages. Later posts get the same.
    pub(crate) fn close(&self, error: Error) {
        let _ = error;
        todo!()
    }

    /// Bytes of early messages that are kept, each with its overhead.
    pub(crate) fn unexpected_bytes(&self) -> usize {
        todo!()
    }
}

/// The receives of a context as one port's connection sees them.
#[derive(Debug)]
pub(super) struct PortReceives {
    context: Arc<ReceiveContext>,
    identity: Identity,
}

impl PortReceives {
    pub(super) fn new(context: Arc<ReceiveContext>, identity: Identity) -> Self {
        PortReceives { context, identity }
    }
}

impl Receives<Report> for PortReceives {
    fn arrive(&mut self, arrival: &mut Arrival) -> Arrived<Report> {
        let _ = arrival;
        todo!()
    }

    fn landed(&mut self, early: EarlyMessage) {
        let _ = early;
        todo!()
    }

    fn abandoned(&mut self, arrival: &Arrival) {
        let _ = arrival;
        todo!()
    }

    fn announced(&mut self, announcement: &mut Announcement) -> Arrived<Report> {
        let _ = announcement;
        todo!()
    }

    fn forget_announcements(&mut self) {
        todo!()
    }

    fn give_back(&mut self, early: EarlyMessage) {
        let _ = early;
        todo!()
    }

    fn held(&self) -> u64 {
        todo!()
    }

    fn awaits_credit(&mut self) {
        todo!()
    }
}

impl fmt::Debug for ReceiveContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveContext")
            .field("endpoint", &self.config.endpoint)
            .finish_non_exhaustive()
    }
}
