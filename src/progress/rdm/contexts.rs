//! The contexts of one endpoint behind its listener: each request goes to the context that it
//! names, and its connection to that context's engine. Messages do not pass through here.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Context;
use std::time::Instant;

use crate::error::Error;
use crate::stats::ListenerStats;
use crate::wire::PeerData;

use super::super::listen::{
    Handover, IncomingRequest, ListenHandle, RequestDecision, RequestHandler,
};
use super::requests::AcceptedRequest;
use super::task::RdmTask;

/// The tasks of the contexts, in order; the listener's task runs them.
pub(super) struct ContextTasks {
    /// The endpoint's incarnation.
    incarnation: NonZeroU32,
    /// `None`: the context has closed while others are open.
    tasks: Vec<Option<RdmTask>>,
}

impl ContextTasks {
    pub(super) fn new(incarnation: NonZeroU32, tasks: impl Iterator<Item = RdmTask>) -> Self {
        ContextTasks {
            incarnation,
            tasks: tasks.map(Some).collect(),
        }
    }

    /// Ends the contexts that have closed while others are open. The last open contexts end with
    /// the listener, so that the address is free once their end has been awaited.
    fn end_closed(&mut self) {
        if self.tasks.iter().flatten().all(RdmTask::is_over) {
            return;
        }
        for task in &mut self.tasks {
            drop(task.take_if(|task| task.is_over()));
        }
    }
}

impl RequestHandler for ContextTasks {
    /// The index of the context, and its accepted request.
    type Accepted = (usize, AcceptedRequest);

    fn on_request(
        &mut self,
        incoming: &IncomingRequest<'_>,
        now: Instant,
        _cx: &mut Context<'_>,
    ) -> RequestDecision<Self::Accepted> {
        // The first context refuses requests whose data cannot be read.
        let asked = PeerData::read(incoming.data).ok();
        let index = asked.map_or(0, |asked| usize::from(asked.contexts().to));
        let task = self.tasks.get_mut(index).and_then(Option::as_mut);
        let Some(task) = task.filter(|task| !task.is_gone()) else {
            let peer = incoming.peer;
            tracing::debug!(%peer, index, "asked for a context that is not there");
            let reject = asked.map(|asked| asked.reject_context(self.incarnation));
            return RequestDecision::Reject(reject.unwrap_or_default().into());
        };
        match task.on_request(incoming, now) {
            RequestDecision::Accept(accepted) => RequestDecision::Accept((index, accepted)),
            RequestDecision::NoRoom => RequestDecision::NoRoom,
            RequestDecision::Deferred(holder) => RequestDecision::Deferred(holder),
            RequestDecision::Reject(data) => RequestDecision::Reject(data),
            RequestDecision::Challenge(challenge, bytes) => {
                RequestDecision::Challenge(challenge, bytes)
            }
        }
    }

    fn hand_over(
        &mut self,
        (index, accepted): Self::Accepted,
        handover: Option<Handover>,
        now: Instant,
    ) {
        if let Some(task) = self.tasks.get_mut(index).and_then(Option::as_mut) {
            task.take_handover(accepted, handover, now);
        }
    }

    fn on_broken(&mut self, _error: &Error, _cx: &mut Context<'_>) -> bool {
        // The listener has logged the error. Peers can still be dialled from here.
        true
    }

    fn poll(&mut self, now: Instant, cx: &mut Context<'_>) -> Option<Instant> {
        let tasks = self.tasks.iter_mut().flatten();
        let next = tasks.filter_map(|task| task.poll(now, cx)).min();
        self.end_closed();
        next
    }

    fn is_over(&self) -> bool {
        self.tasks.iter().flatten().all(RdmTask::is_over)
    }
}

/// A context's share of the listener, which closes when the last share is returned.
#[derive(Debug)]
pub(super) struct ListenerShare {
    listener: Arc<SharedListener>,
    is_given_back: AtomicBool,
}

#[derive(Debug)]
struct SharedListener {
    handle: ListenHandle,
    /// Number of contexts that have not closed.
    open: AtomicUsize,
}

impl ListenerShare {
    /// Divides the listener into `count` shares.
    pub(super) fn divide(
        handle: ListenHandle,
        count: usize,
    ) -> impl Iterator<Item = ListenerShare> {
        let open = AtomicUsize::new(count);
        let listener = Arc::new(SharedListener { handle, open });
        (0..count).map(move |_| ListenerShare {
            listener: Arc::clone(&listener),
            is_given_back: AtomicBool::new(false),
        })
    }

    pub(super) fn stats(&self) -> ListenerStats {
        self.listener.handle.stats()
    }

    pub(super) fn local_addr(&self) -> std::net::SocketAddr {
        self.listener.handle.local_addr()
    }

    /// Returns the share, since the context closes. Only the first call counts.
    pub(super) fn give_back(&self) {
        if !self.is_given_back.swap(true, Ordering::AcqRel)
            && self.listener.open.fetch_sub(1, Ordering::AcqRel) == 1
        {
            self.listener.handle.stop();
        }
    }
}
