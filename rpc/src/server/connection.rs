//! The machine of a connection with what it lacks: an endpoint, a lock, and handlers.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_fabric::{Endpoint, Error};

use super::listening::ServerShared;
use super::running;
use super::service::{Incoming, Reply};
use crate::cx::{CallParts, CancelReason, Cx};
use crate::drive::{Clock, Connection, close, send};
use crate::lend::Bulk;
use crate::limits::RETRY_AFTER;
use crate::proto::{Admission, ServerMachine};
use crate::status::{Code, Started, Status};
use crate::wire::{
    CallId, Frame, FrameBuf, FrameHead, Metadata, Request, Violation, encode_goaway,
    write_response_head,
};

pub(crate) struct ServerConnection {
    pub(crate) endpoint: Endpoint,
    /// Asked for by every call; the endpoint has a lock around it.
    peer: SocketAddr,
    server: Arc<ServerShared>,
    frame_max: usize,
    bulk: Arc<Bulk>,
    machine: Mutex<ServerMachine<Cx>>,
    has_failed: AtomicBool,
    /// True once it has ended.
    ended: watch::Sender<bool>,
}

impl ServerConnection {
    pub(crate) fn new(
        endpoint: Endpoint,
        peer: SocketAddr,
        server: Arc<ServerShared>,
        frame_max: usize,
    ) -> Arc<ServerConnection> {
        Arc::new(ServerConnection {
            machine: Mutex::new(ServerMachine::new(server.limits.window)),
            bulk: Bulk::new(endpoint.clone(), Arc::clone(&server.chunks)),
            endpoint,
            peer,
            server,
            frame_max,
            has_failed: AtomicBool::new(false),
            ended: watch::Sender::new(false),
        })
    }

    fn with_machine<R>(&self, act: impl FnOnce(&mut ServerMachine<Cx>) -> R) -> R {
        act(&mut self.machine.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Calls that are not answered.
    pub(crate) fn running(&self) -> usize {
        self.with_machine(|machine| machine.running())
    }

    /// Refuses calls from now on, and says so to the client.
    pub(crate) fn drain(&self) {
        self.with_machine(|machine| machine.drain());
        let _ = send(&self.endpoint, FrameBuf::from_slice(&encode_goaway()));
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
    pub(crate) fn answer(&self, cx: &Cx, reply: Reply, now: Instant) {
        if self.with_machine(|machine| machine.answer(cx.id())) {
            let served = now.saturating_duration_since(cx.call().received);
            let routed = self.server.routes.at(cx.call().route);
            routed.counters.end(cx, reply.code, served);
            self.send_reply(cx.id(), served, reply);
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
                self.frame_max
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
            Frame::Request(request) => self.handle_request(request, clock),
            Frame::Cancel(call) => {
                let running = self.with_machine(|machine| {
                    machine.handle_cancel(call).map(|running| running.cloned())
                })?;
                if let Some(cx) = running {
                    cx.cancel(CancelReason::Caller);
                }
                Ok(())
            }
            Frame::Response(_) | Frame::Goaway => {
                Err(Violation("a frame that clients do not send"))
            }
        }
    }

    fn handle_request(
        self: &Arc<Self>,
        request: Request<'_>,
        clock: &mut Clock,
    ) -> Result<(), Violation> {
        let call = request.call;
        let admission = self.with_machine(|machine| machine.handle_request(call))?;
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
        let incoming = Incoming {
            cx: &cx,
            body: request.body,
            lent: &request.lent,
        };
        match self.server.dispatch(incoming) {
            Ok(handling) => {
                self.with_machine(|machine| machine.start(call, cx.clone()));
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
        let running = self.with_machine(|machine| machine.handle_end());
        for cx in &running {
            cx.cancel(CancelReason::Connection);
            let routed = self.server.routes.at(cx.call().route);
            let lost = Code::ConnectionLost.number();
            routed.counters.end(cx, lost, cx.call().received.elapsed());
        }
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
