//! The machine of a connection with what it lacks: an endpoint, a lock, and handlers.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_fabric::{Endpoint, Error};

use super::bodies;
use super::listening::ServerShared;
use super::running;
use super::service::{Incoming, Reply};
use crate::cx::{CallParts, CancelReason, Cx};
use crate::drive::{Clock, Connection, close, send};
use crate::lend::{BodyRoom, Bulk};
use crate::limits::{HEADER_LEN, RETRY_AFTER};
use crate::proto::{Admission, ServerMachine};
use crate::status::{Code, Started, Status};
use crate::wire::{
    CallId, Frame, FrameBuf, FrameHead, Hello, Metadata, Request, Violation, Window, encode_goaway,
    encode_window, write_response_head,
};

/// Calls by their contexts, and readers of items by their tasks.
type Machine = ServerMachine<Cx, Waker>;

pub(crate) struct ServerConnection {
    pub(crate) endpoint: Endpoint,
    /// Asked for by every call; the endpoint has a lock around it.
    peer: SocketAddr,
    pub(super) server: Arc<ServerShared>,
    /// Bytes of a frame that the client takes, and of a body by reference.
    frame_max: usize,
    body_max: u64,
    bulk: Arc<Bulk>,
    /// For requests that are read out of the client's memory, and answers that it reads here.
    pub(super) requests: BodyRoom,
    pub(super) answers: BodyRoom,
    machine: Mutex<Machine>,
    has_failed: AtomicBool,
    /// True once it has ended.
    ended: watch::Sender<bool>,
}

impl ServerConnection {
    pub(crate) fn new(
        endpoint: Endpoint,
        peer: SocketAddr,
        server: Arc<ServerShared>,
        client: &Hello,
        window: Window,
    ) -> Arc<ServerConnection> {
        Arc::new(ServerConnection {
            machine: Mutex::new(Machine::new(window.calls, window.bytes.into())),
            requests: BodyRoom::of_connection(),
            answers: BodyRoom::of_connection(),
            bulk: Bulk::new(endpoint.clone(), Arc::clone(&server.chunks)),
            endpoint,
            peer,
            server,
            frame_max: client.frame_max as usize,
            body_max: client.body_max,
            has_failed: AtomicBool::new(false),
            ended: watch::Sender::new(false),
        })
    }

    pub(super) fn with_machine<R>(&self, act: impl FnOnce(&mut Machine) -> R) -> R {
        act(&mut self.machine.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Calls that are not answered.
    pub(crate) fn running(&self) -> usize {
        self.with_machine(|machine| machine.running())
    }

    /// Refuses calls from now on, and says so to the client.
    pub(crate) fn drain(&self) {
        self.with_machine(|machine| machine.drain());
        self.send_bare(&encode_goaway());
    }

    /// The client may have so much under way from now on.
    pub(crate) fn announce(&self, window: Window) {
        self.with_machine(|machine| machine.widen(window));
        self.send_bare(&encode_window(window));
    }

    pub(super) fn frame_max(&self) -> usize {
        self.frame_max
    }

    /// What cannot be sent has lost its connection, which ends at both sides.
    pub(super) fn send_bare(&self, frame: &[u8; HEADER_LEN]) {
        let _ = send(&self.endpoint, FrameBuf::from_slice(frame));
    }

    /// Cancels what runs.
    pub(crate) fn cancel_all(&self, reason: CancelReason) {
        let all: Vec<Cx> = self.with_machine(|machine| machine.all_running().cloned().collect());
        all.iter().for_each(|cx| cx.cancel(reason));
    }

    /// Waits for the connection's end, which the client makes or [`close`] does.
    pub(crate) async fn ended(&self) {
        // The sender lives as long as this does.
        let _ = self.ended.subscribe().wait_for(|it| *it).await;
    }

    /// Answers a call that is done now, unless it was answered before or has lost its connection.
    pub(crate) fn answer(self: &Arc<Self>, cx: &Cx, reply: Reply, now: Instant) {
        let body_len = (reply.frame.len() - HEADER_LEN) as u64;
        if reply.frame.len() > self.frame_max && body_len <= self.body_max {
            tokio::spawn(bodies::answer(Arc::clone(self), cx.clone(), reply));
            return;
        }
        if let Some(reader) = self.with_machine(|machine| machine.answer(cx.id())) {
            let served = now.saturating_duration_since(cx.call().received);
            let routed = self.server.routes.at(cx.call().route);
            routed.counters.end(cx, reply.code, served);
            self.send_reply(cx.id(), served, reply);
            reader.into_iter().for_each(Waker::wake);
        }
        self.server.notice_idle();
    }

    fn refuse(&self, call: CallId, route: Option<usize>, status: &Status) {
        if let Some(route) = route {
            let routed = self.server.routes.at(route);
            routed.counters.refuse(routed.method, status.code());
        }
        self.server.refused.fetch_add(1, Ordering::Relaxed);
        self.send_reply(call, Duration::ZERO, Reply::status(status));
    }

    fn send_reply(&self, call: CallId, served: Duration, mut reply: Reply) {
        if reply.frame.len() > self.frame_max {
            let what = format!(
                "an answer of {} bytes, the client takes {}: write what is large to memory that \
                 it lends",
                reply.frame.len(),
                self.body_max.max(self.frame_max as u64)
            );
            reply = Reply::status(&Status::new(Code::TooLarge, what));
        }
        let head = FrameHead {
            call,
            method_or_code: reply.code,
            time_us: u32::try_from(served.as_micros()).unwrap_or(u32::MAX),
        };
        write_response_head(&mut reply.frame, head, reply.not_started);
        // What cannot be sent has lost its connection, which ends at both sides.
        let _ = send(&self.endpoint, reply.frame);
    }

    fn handle(self: &Arc<Self>, frame: &[u8], clock: &mut Clock) -> Result<(), Violation> {
        match Frame::decode(frame)? {
            Frame::Request(request) => self.handle_request(request, frame.len(), clock),
            Frame::Cancel(call) => {
                let running = self.with_machine(|machine| {
                    machine.handle_cancel(call).map(|running| running.cloned())
                })?;
                if let Some(cx) = running {
                    cx.cancel(CancelReason::Caller);
                }
                Ok(())
            }
            Frame::Item(call, item) => {
                let reader = self.with_machine(|machine| machine.handle_item(call, item))?;
                reader.into_iter().for_each(Waker::wake);
                Ok(())
            }
            Frame::Credit(call, more) => {
                let sender = self.with_machine(|machine| {
                    machine.handle_credit(call, more).map(|it| it.cloned())
                })?;
                sender.iter().for_each(Cx::wake);
                Ok(())
            }
            Frame::Taken(call) => {
                let taken = self.with_machine(|machine| machine.handle_taken(call))?;
                // Who lends the answer waits for this.
                taken.iter().for_each(|cx| cx.cancel(CancelReason::Caller));
                self.server.notice_idle();
                Ok(())
            }
            Frame::Response(_) | Frame::Window(_) | Frame::Goaway => {
                Err(Violation("a frame that clients do not send"))
            }
        }
    }

    fn handle_request(
        self: &Arc<Self>,
        request: Request<'_>,
        len: usize,
        clock: &mut Clock,
    ) -> Result<(), Violation> {
        let call = request.call;
        let admission = self.with_machine(|machine| machine.handle_request(call, len))?;
        let refusal = |code, what: &'static str| Status::not_started(code, what);
        let route = self.server.routes.find(request.method);
        if admission == Admission::Draining {
            self.refuse(call, route, &refusal(Code::Draining, ""));
            return Ok(());
        }
        let Some(route) = route else {
            let status = refusal(Code::UnknownMethod, "this server has no such method");
            self.refuse(call, None, &status);
            return Ok(());
        };
        let routed = self.server.routes.at(route);
        let Some(permit) = self.server.admit(routed.is_builtin) else {
            let status = refusal(Code::Overloaded, "as many calls run as the server takes");
            self.refuse(call, Some(route), &status.with_retry_after(RETRY_AFTER));
            return Ok(());
        };
        let cx = self.context_of(&request, route, clock.read);
        if let Some(Err(status)) = self.server.authorize.as_ref().map(|it| it.authorize(&cx)) {
            let status = status.with_started(Started::NotStarted);
            self.refuse(call, Some(route), &status);
            return Ok(());
        }
        if let Some(region) = request.by_reference {
            self.with_machine(|machine| machine.start(call, cx.clone(), request.streams));
            routed.counters.start();
            let fetch = bodies::Fetch {
                cx,
                region,
                lent: request.lent,
                streams: request.streams,
                permit,
            };
            tokio::spawn(fetch.run(Arc::clone(self)));
            return Ok(());
        }
        let incoming = Incoming {
            cx: &cx,
            body: request.body,
            lent: &request.lent,
            streams: request.streams,
            connection: self,
        };
        match self.server.dispatch(incoming) {
            Ok(handling) => {
                self.with_machine(|machine| machine.start(call, cx.clone(), request.streams));
                routed.counters.start();
                running::start(Arc::clone(self), cx, handling, permit, clock);
            }
            Err(status) => self.refuse(call, Some(route), &status),
        }
        Ok(())
    }

    fn context_of(&self, request: &Request<'_>, route: usize, now: Instant) -> Cx {
        let budget = Duration::from_micros(request.budget_us.into());
        Cx::new(CallParts {
            id: request.call,
            method: self.server.routes.at(route).method,
            route,
            peer: self.peer,
            received: now,
            deadline: (request.budget_us > 0).then(|| now + budget),
            trace: request.trace,
            metadata: Metadata::of_checked(request.metadata),
            bulk: Arc::clone(&self.bulk),
        })
    }

    fn end(&self) {
        let (running, readers) = self.with_machine(|machine| machine.handle_end());
        for cx in &running {
            cx.cancel(CancelReason::Connection);
            let routed = self.server.routes.at(cx.call().route);
            let lost = Code::ConnectionLost.number();
            routed.counters.end(cx, lost, cx.call().received.elapsed());
        }
        readers.into_iter().for_each(Waker::wake);
        self.server.notice_idle();
    }
}

impl Connection for ServerConnection {
    fn handle_frame(self: &Arc<Self>, frame: &[u8], clock: &mut Clock) {
        if self.has_failed.load(Ordering::Relaxed) {
            return;
        }
        if let Err(violation) = self.handle(frame, clock) {
            tracing::warn!(peer = %self.peer, "{}: the connection is closed", violation.0);
            self.has_failed.store(true, Ordering::Relaxed);
            self.server.violations.fetch_add(1, Ordering::Relaxed);
            self.end();
            close(&self.endpoint);
        }
    }

    fn handle_end(self: &Arc<Self>, _: Option<&Error>) {
        self.end();
        self.ended.send_replace(true);
    }
}
