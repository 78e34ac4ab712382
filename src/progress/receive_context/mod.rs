//! The receives of a connectionless endpoint, shared by all its connections.
//!
//! A posted receive lives here until a message is matched to it. One that had come ends it at once;
//! else the connection that brings the message takes the receive over as an operation of its own,
//! and tells its end. What is matched, and in which order, is the business of
//! [`SharedMatcher`]; this is the lock around it, the line of those who wait for room, and what
//! hangs on a receive: places in completion queues, times, wakers.
//!
//! Under the lock nothing is copied and nobody is told or woken: that is *due* ([`due`]) when it is
//! released. It is taken below a port's lock, and above those of completion queues and operation
//! cells.

#![allow(
    clippy::result_large_err,
    reason = "a receive that is not taken goes back whole, and by no allocation"
)]

mod claims;
mod due;
mod many;
#[cfg(loom)]
pub(super) mod models;
mod port;
mod quiet;
#[cfg(test)]
mod tests;
mod times;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::time::Instant;

use crate::buf::{BufferCursor, Payload};
use crate::cntr::Counter;
use crate::cq::{CompletionFlags, CompletionQueue, CqSlot, Sources};
use crate::error::{Error, ErrorKind, OperationKind, Phase, Result};
use crate::id::{EndpointId, UserContext};
use crate::proto::{
    Budget, ClaimKey, ClearToSend, ConnectionId, Identity, OpKey, PostOptions, PostedReceive,
    ReceiveKey, SharedMatcher, SourceId, Wanted, Withdrawn, WithdrawnReceive,
};
use crate::slab::Slab;
use crate::sync::{Lock, Mutex, MutexGuard};

use super::port::Posted;
use super::publish::CompletionContext;
use super::rdm::SourceAddresses;
use super::report::{OpCell, Report};
pub(super) use due::message_of;
use due::{Due, ended};
pub(crate) use many::ManyReceive;
pub(super) use port::PortReceives;
use quiet::Quiet;
pub(crate) use times::TimedReport;
use times::Times;

/// What a receive context is opened with.
#[derive(Clone)]
pub(crate) struct ReceiveConfig {
    /// The endpoint that completions name.
    pub(crate) endpoint: EndpointId,
    /// Receives that are posted at a time.
    pub(crate) size: usize,
    /// Bytes of early messages that are kept, of all peers together.
    pub(crate) unexpected_bytes: usize,
    /// The same of one peer.
    pub(crate) unexpected_bytes_per_peer: usize,
    /// The addresses of senders.
    pub(crate) addresses: Arc<SourceAddresses>,
    /// Takes the pieces of receives for many messages.
    pub(crate) queue: CompletionQueue,
    /// Counts receives.
    pub(crate) counter: Option<Counter>,
    /// Knows who sent what was received, if completions are to tell (`FI_SOURCE`).
    pub(crate) sources: Option<Arc<dyn Sources>>,
}

/// Which messages a receive takes, or a peek or a claim means.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sought {
    pub(crate) wanted: Wanted,
    pub(crate) source: Option<SourceId>,
}

/// A claimed message (`FI_CLAIM`): nobody else gets it. Names it within its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claimed(ClaimKey);

/// A receive that no connection has taken.
#[derive(Debug)]
enum Op {
    /// For room, in the line.
    Waiting,
    Posted(ReceiveKey),
    /// A buffer for many messages.
    Many(ReceiveKey, Arc<ManyReceive>),
    /// A connection brings the message that it was matched with, or asks for it.
    Taken {
        /// It is not to be posted again, should the message not come.
        canceled: bool,
    },
    /// It gets a claimed message and no other.
    Claiming,
}

/// What waits for room.
#[derive(Debug)]
enum Post {
    One(Sought, Payload, Report),
    Many(Sought, BufferCursor, Report),
}

impl Post {
    fn into_parts(self) -> (Payload, Report) {
        match self {
            Post::One(_, payload, report) => (payload, report),
            Post::Many(_, carving, report) => (carving.into_payload(), report),
        }
    }

    fn sought(&self) -> Sought {
        match self {
            Post::One(sought, ..) | Post::Many(sought, ..) => *sought,
        }
    }

    fn report(&mut self) -> &mut Report {
        match self {
            Post::One(.., report) | Post::Many(.., report) => report,
        }
    }
}

/// A connection that shares the receives.
#[derive(Debug)]
struct AttachedPort {
    waker: Waker,
    cleared: ClearedQueue,
}

/// Receives that were matched with a connection's announcements, until its next turn. Apart from
/// the context's state, so that a turn of a connection without any does not contend for that; its
/// lock is taken last.
type ClearedQueue = Arc<Mutex<VecDeque<ClearToSend<Report>>>>;

fn lock_cleared(queue: &ClearedQueue) -> MutexGuard<'_, VecDeque<ClearToSend<Report>>> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Everything that the lock guards.
#[derive(Debug)]
struct State {
    matcher: SharedMatcher<Report>,
    size: usize,
    ops: Slab<Op>,
    backlog: VecDeque<(OpKey, Post)>,
    /// Buffers for many messages that lack a place for the next completion.
    starved: Vec<OpKey>,
    ports: HashMap<ConnectionId, AttachedPort>,
    driver: Option<Waker>,
    times: Times,
    quiet: Quiet,
    /// Why nothing is accepted any more.
    closed: Option<Error>,
}

/// The receives of a connectionless endpoint, shared by all its connections.
pub(crate) struct ReceiveContext {
    config: ReceiveConfig,
    state: Lock<State>,
}

impl ReceiveContext {
    pub(crate) fn new(config: ReceiveConfig) -> Arc<Self> {
        let budget = Budget {
            total_bytes: config.unexpected_bytes as u64,
            peer_bytes: config.unexpected_bytes_per_peer as u64,
        };
        let state = State {
            matcher: SharedMatcher::new(budget),
            size: config.size,
            ops: Slab::new(),
            backlog: VecDeque::new(),
            starved: Vec::new(),
            ports: HashMap::new(),
            driver: None,
            times: Times::default(),
            quiet: Quiet::default(),
            closed: None,
        };
        Arc::new(ReceiveContext {
            state: Lock::new(state),
            config,
        })
    }

    /// Woken when [`ReceiveContext::expire`] is to be called earlier than it said last. To be
    /// called before that.
    pub(crate) fn set_waker(&self, waker: &Waker) {
        let mut state = self.lock("waker");
        if (state.driver.as_ref()).is_some_and(|driver| driver.will_wake(waker)) {
            return;
        }
        let before = state.driver.replace(waker.clone());
        drop(state);
        drop(before);
    }

    /// Posts a receive. A full context, or completion queue, makes it wait in one line with others
    /// (`options.wait`), or is Again. A message that has come ends it at once.
    pub(crate) fn post(
        &self,
        sought: Sought,
        payload: Payload,
        report: Report,
        options: PostOptions,
    ) -> Result<Posted, (Error, Payload)> {
        self.post_any(Post::One(sought, payload, report), options)
    }

    /// Posts a buffer for many messages, one behind the other, until fewer than `free_min` bytes
    /// are left (`FI_MULTI_RECV`). Each piece is a completion of the context's queue, and so is the
    /// end of the buffer, when its last piece has completed; that one has the flag alone.
    ///
    /// Refuses what is not one writable buffer of its own.
    pub(crate) fn post_many(
        &self,
        sought: Sought,
        payload: Payload,
        context: UserContext,
        free_min: usize,
        options: PostOptions,
    ) -> Result<Posted, (Error, Payload)> {
        let carving = BufferCursor::new(payload, free_min).map_err(|payload| {
            let message = "a buffer for many messages is one buffer, and no slice of a region";
            let error = Error::new(ErrorKind::InvalidArgument, message);
            (error.with_operation(OperationKind::Receive), payload)
        })?;
        let kind = match sought.wanted {
            Wanted::Message => CompletionFlags::MSG,
            Wanted::Tagged { .. } => CompletionFlags::TAGGED,
        };
        let report = Report::Queue {
            queue: self.config.queue.clone(),
            context,
            kind,
            slot: None,
            waiting: None,
        };
        self.post_any(Post::Many(sought, carving, report), options)
    }

    fn post_any(&self, mut post: Post, options: PostOptions) -> Result<Posted, (Error, Payload)> {
        let refuse = |error: Error, post: Post| {
            let error = error.with_operation(OperationKind::Receive);
            Err((error, post.into_parts().0))
        };
        let mut due = Due::default();
        let mut state = self.lock("post");
        if let Some(error) = state.closed.clone() {
            return refuse(error, post);
        }
        let free = state.has_room() && state.backlog.is_empty();
        let accepted = free && state.reserve(post.report(), &mut due);
        if !accepted && !options.wait {
            let what = match free {
                true => "the completion queue that the receive reports to is full".to_owned(),
                false => format!(
                    "the endpoint's receive context is full: {} of {} receives are posted, and {} \
                     wait; await one, or open the endpoint with a larger receive_size",
                    state.matcher.posted_len(),
                    state.size,
                    state.backlog.len()
                ),
            };
            return refuse(Error::new(ErrorKind::Again, what), post);
        }
        let key = state.ops.insert(Op::Waiting);
        let mut waiting = None;
        if !accepted && let Report::Queue { waiting: cell, .. } = post.report() {
            waiting = Some(Arc::clone(cell.insert(OpCell::new())));
        }
        if let Some(timeout) = options.timeout {
            let report = std::mem::replace(post.report(), Report::Nowhere);
            let report = TimedReport::new(report);
            state.times.add(key, timeout, Arc::clone(&report));
            *post.report() = Report::Timed(report);
            state.wake_driver(&mut due);
        }
        if accepted {
            state.accept(key, post, &mut due);
        } else {
            state.backlog.push_back((key, post));
        }
        state.settle(&mut due);
        drop(state);
        self.carry_out(due);
        Ok(Posted { key, waiting })
    }

    /// How far a receive has come whose report has not ended.
    pub(crate) fn phase(&self, key: OpKey) -> Phase {
        match self.lock("phase").ops.get(key) {
            Some(Op::Waiting) => Phase::Waiting,
            Some(Op::Posted(_) | Op::Many(..)) => Phase::Queued,
            Some(Op::Taken { .. } | Op::Claiming) | None => Phase::Moving,
        }
    }

    /// Asks a receive to end early: as Canceled, if no message was matched to it. `Gone` if a
    /// connection has it, or it has ended.
    pub(crate) fn cancel(&self, key: OpKey) -> Withdrawn {
        let mut due = Due::default();
        let mut state = self.lock("cancel");
        let withdrawn = state.withdraw(key, Error::new(ErrorKind::Canceled, ""), &mut due);
        state.settle(&mut due);
        drop(state);
        self.carry_out(due);
        withdrawn
    }

    /// The future of a receive is dropped (ruling 4). A message that lands in it later comes back
    /// from the cell to whoever brings it.
    ///
    /// True if it had neither ended nor could be withdrawn: a connection has it, and is to be told.
    pub(crate) fn withdraw(&self, key: OpKey, cell: &OpCell) -> bool {
        let Some(end) = cell.abandon() else {
            return self.cancel(key) != Withdrawn::Ended;
        };
        let mut due = Due::default();
        if !end.is_message() {
            due.leftovers.push(end.payload);
        } else {
            match message_of(end) {
                Ok(early) => self.keep_again(early, &mut due),
                Err(payload) => due.leftovers.push(payload),
            }
        }
        self.carry_out(due);
        false
    }

    /// Whoever waited for the acceptance of a queued receive goes away: it is withdrawn if it still
    /// waits.
    pub(crate) fn withdraw_waiting(&self, key: OpKey, cell: &OpCell) {
        let mut due = Due::default();
        let mut state = self.lock("withdraw");
        if let Some(Op::Waiting) = state.ops.get(key)
            && !cell.has_ended()
        {
            state.withdraw(key, Error::new(ErrorKind::Canceled, ""), &mut due);
        }
        state.settle(&mut due);
        drop(state);
        self.carry_out(due);
    }

    /// Ends receives whose time has passed, and lets in those who wait for room in their queue.
    /// Tells when to be called next, if not woken before.
    ///
    /// `orphan` tells the connection that has taken a receive over that nobody awaits it any more,
    /// and takes its report in the same moment. Called with no lock held.
    pub(crate) fn expire(
        &self,
        now: Instant,
        orphan: impl Fn(&Arc<TimedReport>) -> Option<(Report, Option<SocketAddr>)>,
    ) -> Option<Instant> {
        let mut due = Due::default();
        let mut landing = Vec::new();
        let mut state = self.lock("expire");
        state.times.start(now);
        while let Some((key, report)) = state.times.pop_due(now) {
            let peer = (state.source_of(key)).and_then(|it| self.config.addresses.get(it));
            let error = timed_out(peer);
            if state.withdraw(key, error, &mut due) != Withdrawn::Ended {
                landing.push(report);
            }
        }
        state.feed_starved(&mut due);
        state.settle(&mut due);
        let next = [state.times.first(), state.rest(now)];
        drop(state);
        for report in landing {
            // A message is landing in it. Its owner is told without; the message goes back.
            let orphaned = orphan(&report).or_else(|| report.take().map(|it| (it, None)));
            if let Some((report, peer)) = orphaned {
                let end = ended(Payload::empty(), timed_out(peer), Phase::Moving);
                due.ended.push((report, end));
            }
        }
        self.carry_out(due);
        next.into_iter().flatten().min()
    }

    /// A connection joins; tells how many bytes of its messages are kept for sure. `waker` is woken
    /// when it may read on, owes credit, or is to ask for announced messages.
    pub(super) fn attach(
        self: &Arc<Self>,
        identity: Identity,
        waker: &Waker,
    ) -> (PortReceives, u64) {
        let mut state = self.lock("attach");
        let Identity { source, connection } = identity;
        let cleared = ClearedQueue::default();
        let port = AttachedPort {
            waker: waker.clone(),
            cleared: Arc::clone(&cleared),
        };
        state.ports.insert(connection, port);
        let promised = state.matcher.join(connection, source);
        drop(state);
        let receives = PortReceives::new(Arc::clone(self), identity, cleared);
        (receives, promised)
    }

    /// Ends all receives for this reason, and drops all messages. Later posts get the same.
    pub(crate) fn close(&self, error: Error) {
        let mut due = Due::default();
        let mut state = self.lock("close");
        if state.closed.is_none() {
            state.closed = Some(error.clone());
        }
        for key in state.ops.keys_by_age() {
            state.withdraw(key, error.clone(), &mut due);
        }
        for early in state.matcher.clear() {
            due.leftovers.push(early.payload);
        }
        state.settle(&mut due);
        drop(state);
        self.carry_out(due);
    }

    /// Bytes of early messages that are kept, each with its overhead.
    pub(crate) fn unexpected_bytes(&self) -> usize {
        self.lock("unexpected bytes").matcher.held_bytes() as usize
    }

    fn lock(&self, purpose: &'static str) -> MutexGuard<'_, State> {
        self.state.lock(purpose)
    }
}

impl State {
    fn has_room(&self) -> bool {
        self.matcher.posted_len() < self.size
    }

    /// The sender whose messages alone a receive takes that no message was matched to.
    fn source_of(&self, key: OpKey) -> Option<SourceId> {
        match self.ops.get(key)? {
            Op::Posted(receive) | Op::Many(receive, _) => self.matcher.source_of(*receive),
            Op::Waiting => {
                let (_, post) = self.backlog.iter().find(|(waiting, _)| *waiting == key)?;
                post.sought().source
            }
            Op::Taken { .. } | Op::Claiming => None,
        }
    }

    /// Takes a place in a queue; if there is none, the driver is told once there is.
    fn reserve_place(&self, queue: &CompletionQueue) -> Option<CqSlot> {
        let slot = queue.try_reserve();
        if slot.is_some() {
            return slot;
        }
        // Register, then look again: a place freed in between would not be told.
        if let Some(driver) = &self.driver {
            queue.on_room(driver);
        }
        queue.try_reserve()
    }

    /// Completes what lets the end be reported; `false`: there is no room now.
    fn reserve(&self, report: &mut Report, due: &mut Due) -> bool {
        match report {
            Report::Queue {
                queue,
                slot: slot @ None,
                waiting,
                ..
            } => {
                *slot = self.reserve_place(queue);
                if slot.is_none() {
                    return false;
                }
                if let Some(cell) = waiting.take() {
                    cell.accept(&mut due.wakes);
                }
                true
            }
            Report::Timed(timed) => timed
                .with(|report| self.reserve(report, due))
                .unwrap_or(true),
            _ => true,
        }
    }

    /// Lets those in who wait, as far as there is room.
    fn admit(&mut self, due: &mut Due) {
        while self.has_room()
            && let Some((key, mut post)) = self.backlog.pop_front()
        {
            if !self.reserve(post.report(), due) {
                self.backlog.push_front((key, post));
                return;
            }
            self.accept(key, post, due);
        }
    }

    fn accept(&mut self, key: OpKey, post: Post, due: &mut Due) {
        match post {
            Post::One(Sought { wanted, source }, payload, token) => {
                let found = self.matcher.post(PostedReceive {
                    token,
                    payload,
                    wanted,
                    source,
                    order: 0,
                    key,
                });
                self.found(key, found, due);
            }
            Post::Many(sought, carving, report) => {
                self.accept_many(key, sought, carving, report, due)
            }
        }
    }

    /// Ends a receive that no message was matched to.
    fn withdraw(&mut self, key: OpKey, error: Error, due: &mut Due) -> Withdrawn {
        let (payload, report, phase) = match self.ops.get_mut(key) {
            None => return Withdrawn::Gone,
            Some(Op::Claiming) => return Withdrawn::Running,
            Some(Op::Taken { canceled }) => {
                *canceled = true;
                return Withdrawn::Running;
            }
            Some(Op::Many(..)) => {
                self.end_many(key, Err(error.with_operation(OperationKind::Receive)), due);
                return Withdrawn::Ended;
            }
            Some(Op::Waiting) => {
                let at = self.backlog.iter().position(|(waiting, _)| *waiting == key);
                let (_, post) = at
                    .and_then(|at| self.backlog.remove(at))
                    .expect("who waits is in the line");
                let (payload, report) = post.into_parts();
                (payload, report, Phase::Waiting)
            }
            Some(Op::Posted(receive)) => {
                let receive = *receive;
                let Some(WithdrawnReceive::Whole(payload, report)) = self.matcher.withdraw(receive)
                else {
                    unreachable!("a posted receive is with the matcher");
                };
                (payload, report, Phase::Queued)
            }
        };
        self.ops.remove(key);
        due.ended.push((report, ended(payload, error, phase)));
        Withdrawn::Ended
    }

    /// What follows from any change: room for those who wait, and ports that may go on.
    fn settle(&mut self, due: &mut Due) {
        self.admit(due);
        while let Some(connection) = self.matcher.poll_wake() {
            if let Some(port) = self.ports.get(&connection) {
                due.wakes.push(port.waker.clone());
            }
        }
        if self.is_stirred() {
            self.wake_driver(due);
        }
    }

    /// A connection has gone: its announcements are void, and so is what was matched with them.
    fn leave(
        &mut self,
        connection: ConnectionId,
        completion_context: &CompletionContext<'_>,
        due: &mut Due,
    ) {
        let gone = self.matcher.leave(connection);
        let error = || Error::new(ErrorKind::PeerClosed, "before it had sent the message");
        if let Some(receive) = gone.receive {
            self.ops.remove(receive.key);
            let end = ended(receive.payload, error(), Phase::Queued);
            due.ended.push((receive.token, end));
        }
        if let Some(port) = self.ports.remove(&connection) {
            let cleared = std::mem::take(&mut *lock_cleared(&port.cleared));
            for ClearToSend { receive, .. } in cleared {
                self.put_back(receive, due, completion_context, error());
            }
            due.ports.push(port);
        }
        self.settle(due);
    }

    fn wake_driver(&self, due: &mut Due) {
        if let Some(driver) = &self.driver {
            due.wakes.push(driver.clone());
        }
    }
}

/// The end of a receive whose time has passed, from this peer if it is known which.
fn timed_out(peer: Option<SocketAddr>) -> Error {
    let error = Error::new(ErrorKind::TimedOut, "");
    match peer {
        Some(peer) => error.with_peer(peer),
        None => error,
    }
}

impl fmt::Debug for ReceiveContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveContext")
            .field("endpoint", &self.config.endpoint)
            .finish_non_exhaustive()
    }
}
