//! A port of a connectionless endpoint: the state that attaches it, its reports to the endpoint's
//! task, and the end of its connection. Attempts are in [`attempt`](super::attempt).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, ErrorKind};
use crate::id::PeerAddr;
use crate::mr::AuthSecret;
use crate::proto::{
    AttemptId, ConnIds, Connection, Failure, Lifecycle, RdmParams, Receives, SharedParams,
};
use crate::sync::WakeList;
use crate::wire::PeerData;

use super::super::engine::Engine;
use super::super::listen::Handover;
use super::super::port::{Bindings, ExtensionConfig, Port, PortKind, PortParts, PortState};
use super::Rdm;
use super::notice::{Notice, NoticeQueue};
use super::peer_feed::{PeerFeed, Presence};

/// The state that attaches a port to its connectionless endpoint.
pub(in crate::progress) struct RdmAttachment {
    notices: Arc<NoticeQueue>,
    peer_feed: Arc<PeerFeed>,
    pub(super) peer: PeerAddr,
    ids: ConnIds,
    /// The attempt in progress, or the one that has become the connection.
    pub(super) attempt: Option<AttemptId>,
    /// The error of the last attempt, until one succeeds.
    last_failure: Option<Error>,
    /// True if the last connection has ended in order, but not all posted messages were sent.
    pub(super) carries_over: bool,
    /// The step to take when the link has returned everything.
    pub(super) after: Option<AfterRetract>,
    /// The state of the connection in the endpoint's peer feed.
    pub(super) presence: Presence,
}

/// The step that follows an attempt that is given up.
pub(super) enum AfterRetract {
    /// The task is notified, and decides.
    Notify(Failure, Error),
    /// A request of the peer is accepted.
    Accept(AcceptedConn),
}

/// A connection that the listener has accepted for a peer.
pub(super) struct AcceptedConn {
    /// `None`: the accepted side of a connection to ourselves.
    pub(super) attempt: Option<AttemptId>,
    pub(super) handover: Handover,
    pub(super) asked: PeerData,
}

/// The reason why a port does not take over an accepted connection.
pub(super) enum TakeOverError {
    /// The port's own connection is up: this attempt, with that incarnation of the peer.
    AlreadyUp(AttemptId, u32),
    /// The port has ended, or is ending.
    Superseded(Box<AcceptedConn>),
}

/// Set once the port's connection ends, and posts must go to another port. Written under the port's
/// lock, and read without it.
#[derive(Debug, Default)]
pub(in crate::progress) struct SupersededFlag(AtomicBool);

impl SupersededFlag {
    fn set(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    pub(in crate::progress) fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Port {
    /// Opens a port of a connectionless endpoint to this peer, without a connection. The peer must
    /// prove this key.
    pub(super) fn open_to(
        engine: &Arc<Engine>,
        rdm: &Rdm,
        peer: PeerAddr,
        key: Option<AuthSecret>,
        ids: ConnIds,
    ) -> crate::error::Result<Arc<Port>> {
        let config = &rdm.config;
        let bindings = Bindings {
            receive_queue: config.bindings.receive_queue.clone(),
            caps: config.bindings.caps,
            counters: config.bindings.counters.clone().boxed(),
            rma_events: config.bindings.rma_events,
            traffic: config.bindings.traffic,
            connected: None,
            events: None,
            shutdown: None,
            context: None,
        };
        let extension = ExtensionConfig {
            auth_key: key,
            ..config.extension.clone()
        };
        Port::open_with(engine, config.id, extension, bindings, |waker| {
            let (receives, promised_bytes) =
                config.receives.attach(ids, config.long_messages, waker);
            let binding = RdmParams {
                shared: SharedParams {
                    ids,
                    promised_bytes,
                    long_messages: config.long_messages,
                },
                listening_port: rdm.local_addr().port(),
                incarnation: rdm.incarnation,
                contexts: rdm.contexts_with(peer),
            };
            let params = rdm.extension_params(peer);
            PortParts {
                machine: Connection::new_rdm(config.sizes, params, binding),
                peer: Some(peer.socket),
                receives: Some(Box::new(receives)),
                kind: PortKind::Rdm(Box::new(RdmAttachment {
                    notices: Arc::clone(&rdm.notices),
                    peer_feed: Arc::clone(&rdm.peer_feed),
                    peer,
                    ids,
                    attempt: None,
                    last_failure: None,
                    carries_over: false,
                    after: None,
                    presence: Presence::default(),
                })),
            }
        })
    }

    /// Returns true once the connection ends or has ended: a post refused here has had no effect,
    /// and [`Rdm::port_to`] finds the port to post to instead.
    pub(crate) fn is_superseded(&self) -> bool {
        self.superseded.get()
    }

    /// Closes the connection in order. Returns false, and lets the attempt go on, if the connection
    /// is not up and an operation waits for it.
    pub(super) fn close_if_up(&self) -> bool {
        let state = self.lock("close if up");
        let is_up = state.machine.lifecycle() == Lifecycle::Connected;
        let is_up = is_up && !state.machine.has_carried_over();
        let waits = !is_up && state.machine.outstanding() > 0 && !state.life.is_final();
        drop(state);
        if !waits {
            self.begin_close();
        }
        !waits
    }

    /// Returns the connection's activity count; `None` if the connection is in use, or cannot be
    /// closed in order.
    pub(super) fn activity(&self) -> Option<u64> {
        self.lock("activity").activity()
    }

    /// Closes the connection in order, if it is up. An attempt of the peer is left alone, since the
    /// peer may have sent messages over it.
    pub(super) fn disconnect(&self) {
        let mut state = self.lock("disconnect");
        let is_up = state.machine.lifecycle() == Lifecycle::Connected;
        if is_up && state.life.is_open() && !state.machine.has_carried_over() {
            self.begin_flushing(&mut state);
            self.waker.wake_by_ref();
        }
    }

    /// Closes the connection in order, unless it is in use again.
    pub(super) fn close_if_idle(&self) {
        let mut state = self.lock("close if idle");
        if state.activity().is_some() {
            self.begin_flushing(&mut state);
            self.waker.wake_by_ref();
        }
    }

    // Reports to the task and to the peer feed, under the port's lock.

    /// Marks the port as superseded, as the connection ends: posts must go to another port.
    pub(in crate::progress) fn supersede(&self, state: &mut PortState) {
        let PortKind::Rdm(attachment) = &mut state.kind else {
            return;
        };
        attachment.after = None;
        if self.superseded.set()
            && let Some(attempt) = attachment.attempt
        {
            let peer = attachment.peer;
            attachment.notify_task(Notice::Ending { peer, attempt }, &mut state.deferred.wakes);
        }
    }

    /// Reports that the connection is up.
    pub(in crate::progress) fn report_connected(&self, state: &mut PortState) {
        if let PortKind::Rdm(attachment) = &mut state.kind {
            attachment.last_failure = None;
            attachment.carries_over = false;
            let incarnation = state.machine.peer_data().map_or(0, PeerData::incarnation);
            let notice = Notice::Connected {
                peer: attachment.peer,
                attempt: attachment.attempt,
                connection: attachment.ids.connection,
                incarnation,
            };
            attachment.notify_task(notice, &mut state.deferred.wakes);
            let said = (incarnation != 0).then_some(incarnation);
            let (presence, peer) = (&mut attachment.presence, attachment.peer);
            attachment
                .peer_feed
                .connected(presence, peer, said, &mut state.deferred.wakes);
        }
    }

    /// Reports a connection that is up to the first reader of the peer feed.
    pub(super) fn present_peer(&self) {
        let mut guard = self.lock("present the peer");
        let state = &mut *guard;
        if let PortKind::Rdm(attachment) = &mut state.kind {
            let (presence, peer) = (&mut attachment.presence, attachment.peer);
            attachment
                .peer_feed
                .present(presence, peer, &mut state.deferred.wakes);
        }
    }

    /// Reports that the connection has ended. `lost`: the reason, unless it ended in order.
    pub(in crate::progress) fn report_closed(&self, state: &mut PortState, lost: Option<Error>) {
        if let Some(receives) = &mut state.receives {
            receives.detach();
        }
        if let PortKind::Rdm(attachment) = &mut state.kind {
            let in_order = lost.is_none();
            let (presence, peer) = (&mut attachment.presence, attachment.peer);
            attachment
                .peer_feed
                .closed(presence, peer, lost, &mut state.deferred.wakes);
            self.superseded.set();
            let notice = Notice::Closed {
                peer: attachment.peer,
                attempt: attachment.attempt,
                connection: attachment.ids.connection,
                in_order,
            };
            attachment.notify_task(notice, &mut state.deferred.wakes);
        }
    }
}

impl PortState {
    fn activity(&self) -> Option<u64> {
        let (PortKind::Rdm(_), Some(receives)) = (&self.kind, &self.receives) else {
            return None;
        };
        let is_idle = self.life.is_open()
            && self.machine.may_end_idle()
            && self.machine.outstanding() == 0
            && self.machine.is_transmit_drained()
            && !self.machine.is_read_paused()
            && receives.held_messages() == 0;
        is_idle.then_some(self.activity)
    }
}

impl RdmAttachment {
    /// Returns the error of the last attempt, if it failed.
    pub(in crate::progress) fn last_failure(&self) -> Option<&Error> {
        self.last_failure.as_ref()
    }

    #[cfg(debug_assertions)]
    pub(in crate::progress) fn has_attempt(&self) -> bool {
        self.attempt.is_some()
    }

    /// Returns true if a step follows once the link has returned everything.
    #[cfg(debug_assertions)]
    pub(in crate::progress) fn is_followed(&self) -> bool {
        self.after.is_some()
    }

    /// Returns true if another connection must follow the last one.
    #[cfg(debug_assertions)]
    pub(in crate::progress) fn carries_over(&self) -> bool {
        self.carries_over
    }

    /// Returns true if the peer feed has reported the connection, and not its end.
    #[cfg(debug_assertions)]
    pub(in crate::progress) fn is_reported_up(&self) -> bool {
        self.presence.connected.is_some()
    }

    /// Classifies the error of an attempt.
    pub(super) fn failure_of(&self, error: Error) -> (Failure, Error) {
        // The peer's endpoint is closed, not merely idle.
        let is_unreachable =
            error.kind() == ErrorKind::ConnectionRefused && error.data().is_empty();
        if self.carries_over && is_unreachable {
            let what = "before it had a receive for this";
            return (Failure::Final, Error::new(ErrorKind::PeerClosed, what));
        }
        (failure_of(&error), error)
    }

    /// Queues a notice for the endpoint's task.
    fn notify_task(&self, notice: Notice, wakes: &mut WakeList) {
        if let Some(task) = self.notices.push(notice) {
            wakes.push(task);
        }
    }

    /// Notifies the task that the attempt has failed.
    pub(super) fn notify_failed(&mut self, failure: Failure, error: Error, wakes: &mut WakeList) {
        if let Some(attempt) = self.attempt {
            let peer = self.peer;
            self.last_failure = Some(error.clone());
            let notice = Notice::Failed {
                peer,
                attempt,
                failure,
                incarnation: rejecting_incarnation(&error),
                error,
            };
            self.notify_task(notice, wakes);
        }
    }
}

/// Returns the incarnation that a peer of this library reports when it rejects an attempt.
fn rejecting_incarnation(error: &Error) -> Option<u32> {
    let said = PeerData::read(error.data()).ok()?;
    said.offer().map(|_| said.incarnation())
}

/// Classifies the error of an attempt.
fn failure_of(error: &Error) -> Failure {
    match error.kind() {
        // A rejection by the peer carries data; a refusal by its system carries none.
        ErrorKind::ConnectionRefused if !error.data().is_empty() => Failure::Rejected,
        ErrorKind::ProtocolViolation
        | ErrorKind::Incompatible
        | ErrorKind::NotAuthorized
        | ErrorKind::DriverGone => Failure::Final,
        _ => Failure::Passing,
    }
}
