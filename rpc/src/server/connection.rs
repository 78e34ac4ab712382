//! A server's connection: the protocol machine, and the machine's endpoint, lock and handlers.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_fabric::{Endpoint, ErrorKind};

use super::bodies;
use super::fetches::{BodyShare, FetchTable};
use super::listening::{CallPermit, DRAINING, ServerShared};
use super::running;
use super::service::{Handling, Incoming, IncomingBody, Reply};
use crate::caught::{caught_async, log, wake_all};
use crate::cx::{CancelReason, Cx};
use crate::drive::{
    Came, Connection, EndCause, ItemSending, ReadTurn, ReadingCheck, close, send, send_batch,
    send_item, shares_processor, spawn,
};
use crate::lend::{BodyRoom, Bulk};
use crate::limits::{HEADER_LEN, RETRY_AFTER};
use crate::peer::Peer;
use crate::proto::{Admission, ServerMachine};
use crate::status::{Code, Started, Status};
use crate::wire::{
    BatchBuf, CallId, Frame, FrameBuf, FrameHead, Hello, Request, Streams, Violation, Window,
    each_frame, encode_goaway, encode_window, micros, response_head,
};

/// The machine. A call's context reaches its handler, and a waker wakes the reader of its items.
pub(super) type Machine = ServerMachine<Cx, Waker>;

/// Parts of a call that has ended that are reused for the next one.
#[derive(Default)]
pub(crate) struct Spare {
    pub(super) cx: Option<Cx>,
    pub(super) handling: Option<Handling>,
    /// The last call's method and its index at the server.
    method: Option<(u32, usize)>,
    /// Answers of the connection whose messages are being handled.
    answers: BatchBuf,
    /// The place of the call that is being handled. If the call is answered at its first poll, the
    /// next call takes the place over.
    pub(super) permit: Option<CallPermit>,
}

pub(super) type ServerTurn = ReadTurn<Spare>;

pub(crate) struct ServerConnection {
    pub(crate) endpoint: Endpoint,
    peer: Arc<Peer>,
    pub(super) server: Arc<ServerShared>,
    /// Bytes of the largest frame that the client accepts, and, below, of the largest body by
    /// reference.
    frame_max: usize,
    body_max: u64,
    pub(super) bulk: Arc<Bulk>,
    /// Room for requests that are read from the client's memory, and, below, for answers that the
    /// client reads from this server's memory.
    pub(super) requests: BodyRoom,
    pub(super) answers: BodyRoom,
    /// This connection's share of the server's room for requests.
    pub(super) share: BodyShare,
    machine: Mutex<Machine>,
    reading: ReadingCheck,
    has_failed: AtomicBool,
    /// Closed once the connection has ended. The semaphore has no permits, and only signals that.
    ended: Semaphore,
}

impl ServerConnection {
    pub(crate) fn new(
        endpoint: Endpoint,
        peer: Arc<Peer>,
        server: Arc<ServerShared>,
        client: &Hello,
        window: Window,
    ) -> Arc<ServerConnection> {
        Arc::new(ServerConnection {
            machine: Mutex::new(Machine::new(window.calls, window.bytes.into())),
            requests: BodyRoom::new(),
            answers: BodyRoom::new(),
            share: BodyShare::default(),
            bulk: Bulk::new(endpoint.clone(), Arc::clone(&server.chunks)),
            endpoint,
            peer,
            server,
            frame_max: client.frame_max as usize,
            body_max: client.body_max,
            reading: ReadingCheck::default(),
            has_failed: AtomicBool::new(false),
            ended: Semaphore::new(0),
        })
    }

    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(super) fn with_machine<R>(&self, act: impl FnOnce(&mut Machine) -> R) -> R {
        act(&mut self.lock())
    }

    /// Returns the number of calls that are not answered.
    pub(crate) fn running(&self) -> usize {
        self.with_machine(|machine| machine.running())
    }

    /// Refuses calls from now on, and sends GOAWAY to the client.
    pub(crate) fn drain(&self) {
        self.with_machine(|machine| machine.drain());
        self.send_bare(&encode_goaway());
    }

    /// Announces a window that the client may use from now on.
    pub(crate) fn announce(&self, window: Window) {
        self.with_machine(|machine| machine.widen(window));
        self.send_bare(&encode_window(window));
    }

    pub(super) fn frame_max(&self) -> usize {
        self.frame_max
    }

    /// Sends a frame. If sending fails, the connection is lost, and ends at both sides.
    pub(super) fn send(&self, frame: &mut FrameBuf) {
        self.reading.count_message();
        let _ = send(&self.endpoint, frame);
    }

    /// Sends an item of a stream.
    pub(super) fn send_within_room(&self, frame: &mut FrameBuf) -> ItemSending {
        self.reading.count_message();
        send_item(&self.endpoint, frame).unwrap_or(ItemSending::Sent)
    }

    /// Sends an answer; a small answer is gathered with others.
    #[inline]
    fn gather(&self, head: &[u8; HEADER_LEN], reply: &mut Reply, turn: &mut ServerTurn) {
        if !turn.kept.answers.has_room(reply.len()) {
            self.send_gathered(turn);
        }
        if !turn.kept.answers.has_room(reply.len()) {
            turn.kept.permit = None;
            return self.send(reply.frame(head));
        }
        turn.kept.answers.push_body(head, reply.body());
        if turn.kept.answers.is_due() && !shares_processor(&self.endpoint) {
            self.send_gathered(turn);
        }
    }

    /// Sends the gathered answers. Frees the place of their calls first, since a client that has an
    /// answer may call again.
    fn send_gathered(&self, turn: &mut ServerTurn) {
        turn.kept.permit = None;
        if !turn.kept.answers.message().is_empty() {
            self.reading.count_message();
            let _ = send_batch(&self.endpoint, &mut turn.kept.answers);
        }
    }

    pub(super) fn send_bare(&self, frame: &[u8; HEADER_LEN]) {
        self.send(&mut FrameBuf::from_slice(frame));
    }

    /// Ends a call, unless it is answered already: by then the id of a handler that continues after
    /// the answer may belong to another call.
    pub(super) fn end_call<T>(
        &self,
        cx: &Cx,
        end: impl FnOnce(&mut Machine) -> Option<T>,
    ) -> Option<T> {
        self.with_machine(|machine| {
            if cx.is_answered() {
                return None;
            }
            end(machine).inspect(|_| cx.set_answered())
        })
    }

    /// Runs a part of the call in its own task. If the part panics, the call is answered
    /// nevertheless.
    fn spawn(
        self: &Arc<Self>,
        cx: &Cx,
        what: &'static str,
        part: impl Future<Output = ()> + Send + 'static,
    ) {
        let (connection, cx) = (Arc::clone(self), cx.clone());
        spawn(async move {
            if caught_async(what, part).await.is_none() {
                connection.answer_panicked(&cx);
            }
        });
    }

    /// Answers a call after a panic outside of its handler.
    pub(super) fn answer_panicked(self: &Arc<Self>, cx: &Cx) {
        let status = Status::maybe_ran(Code::Internal, "what serves it has panicked");
        let served = cx.call().received.elapsed();
        self.answer(cx, Reply::refusal(&status), served, None);
    }

    pub(crate) fn cancel_all(&self, reason: CancelReason) {
        let all: Vec<Cx> = self.with_machine(|machine| machine.all_running().cloned().collect());
        all.iter().for_each(|cx| cx.cancel(reason));
    }

    /// Waits for the connection's end, which the client or [`close`] causes.
    pub(crate) async fn ended(&self) {
        // The semaphore never has permits, so this waits until it is closed.
        let _ = self.ended.acquire().await;
    }

    /// Answers a call that was served for `served`, unless it is answered already or its connection
    /// is lost. Returns the code that the client gets. Frees the call's place before sending the
    /// answer, but a large answer keeps the place until it is lent.
    pub(super) fn answer(
        self: &Arc<Self>,
        cx: &Cx,
        mut reply: Reply,
        served: Duration,
        permit: Option<CallPermit>,
    ) -> u32 {
        self.fit(&mut reply);
        let code = reply.code;
        if reply.len() > self.frame_max {
            let answering = bodies::answer(Arc::clone(self), cx.clone(), reply, permit);
            self.spawn(cx, "lending an answer", answering);
            return code;
        }
        drop(permit);
        if let Some(reader) = self.end_call(cx, |machine| machine.answer(cx.id())) {
            self.count_end(cx, reply.code, served);
            let head = head_of(cx.id(), micros(served), &reply);
            self.send(reply.frame(&head));
            wake_all(reader);
        }
        self.server.notice_idle();
        code
    }

    /// Like `answer`, for a call that was not [opened](Self::open_call) and whose answer
    /// [fits](Self::fits) into a frame.
    #[inline]
    pub(super) fn answer_at_once(&self, cx: &Cx, reply: &mut Reply, turn: &mut ServerTurn) {
        let routed = self.server.routes.at(cx.call().route);
        routed
            .counters
            .end_there(cx, reply.code, turn.last, turn.last_us);
        let head = head_of(cx.id(), turn.last_us, reply);
        self.gather(&head, reply, turn);
    }

    /// Returns whether the answer fits into a frame that the client accepts.
    pub(super) fn fits(&self, reply: &Reply) -> bool {
        reply.len() <= self.frame_max
    }

    fn count_end(&self, cx: &Cx, code: u32, served: Duration) {
        let routed = self.server.routes.at(cx.call().route);
        routed.counters.end(cx, code, served);
    }

    /// Opens an admitted call: from now on it can be cancelled, and its items can be read.
    pub(super) fn open_call(&self, cx: &Cx, streams: Streams) {
        if !self.with_machine(|machine| machine.start(cx.id(), cx.clone(), streams)) {
            self.lose(cx);
        }
        // A drain that cancelled all calls before this did not see the call.
        if self.server.is_cut.load(Ordering::SeqCst) {
            cx.cancel(CancelReason::Drain);
        }
    }

    /// Ends a call whose connection has ended.
    fn lose(&self, cx: &Cx) {
        cx.cancel(CancelReason::Connection);
        if !cx.is_answered() {
            let lost = Code::ConnectionLost.number();
            self.count_end(cx, lost, cx.call().received.elapsed());
        }
    }

    /// Makes the answer one that the client accepts, in a frame or by reference. Cuts the text of a
    /// status if necessary.
    fn fit(&self, reply: &mut Reply) {
        if reply.len() <= self.frame_max {
            return;
        }
        if reply.code().is_none() {
            let body_len = reply.body().len() as u64;
            if body_len <= self.body_max {
                return;
            }
            let what = format!(
                "an answer of {} bytes, the client takes {}: write what is large to memory that \
                 it lends",
                reply.len(),
                self.body_max.max(self.frame_max as u64)
            );
            *reply = Reply::status(&Status::new(Code::TooLarge, what));
        }
        reply.truncate(self.frame_max);
    }

    fn refuse(&self, call: CallId, route: Option<usize>, status: &Status, turn: &mut ServerTurn) {
        match route.map(|route| self.server.routes.at(route)) {
            Some(routed) => routed.counters.refuse(routed.method, status.code()),
            None => drop(self.server.unknown.fetch_add(1, Ordering::Relaxed)),
        }
        let mut reply = Reply::refusal(status);
        self.fit(&mut reply);
        let head = head_of(call, 0, &reply);
        self.gather(&head, &mut reply, turn);
    }

    #[inline]
    fn handle(
        self: &Arc<Self>,
        message: &[u8],
        frame: &[u8],
        turn: &mut ServerTurn,
    ) -> Result<(), Violation> {
        // Matched in place: a request is large.
        match &Frame::decode(frame) {
            Err(violation) => Err(*violation),
            Ok(Frame::Request(request)) => self.handle_request(request, message, frame.len(), turn),
            Ok(other) => self.handle_other(other),
        }
    }

    fn handle_other(&self, frame: &Frame<'_>) -> Result<(), Violation> {
        match *frame {
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
                let (reader, calls_max) = self.with_machine(|machine| {
                    let reader = machine.handle_item(call, item);
                    reader.map(|reader| (reader, machine.calls_max()))
                })?;
                wake_all(reader);
                self.reading.check(Came::Item, calls_max, &self.endpoint)
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
                // The task that lends the answer waits for this cancellation.
                taken.iter().for_each(|cx| cx.cancel(CancelReason::Caller));
                self.server.notice_idle();
                Ok(())
            }
            Frame::Request(_) | Frame::Response(_) | Frame::Window(_) | Frame::Goaway => {
                Err(Violation("a frame that clients do not send"))
            }
        }
    }

    #[inline]
    fn handle_request(
        self: &Arc<Self>,
        request: &Request<'_>,
        message: &[u8],
        len: usize,
        turn: &mut ServerTurn,
    ) -> Result<(), Violation> {
        let call = request.call;
        let (admission, calls_max, running) = self.with_machine(|machine| {
            let admission = machine.handle_request(call, len);
            admission.map(|it| (it, machine.calls_max(), machine.running()))
        })?;
        self.reading
            .check(Came::Request, calls_max, &self.endpoint)?;
        let refusal = |code, what: &'static str| Status::not_started(code, what);
        let route = match turn.kept.method {
            Some((method, route)) if method == request.method => Some(route),
            _ => self.server.routes.find(request.method),
        };
        if admission == Admission::Draining {
            self.refuse(call, route, &refusal(Code::Draining, DRAINING), turn);
            return Ok(());
        }
        let Some(route) = route else {
            let status = self.server.routes.why_unknown(request.method);
            self.refuse(call, None, &status, turn);
            return Ok(());
        };
        turn.kept.method = Some((request.method, route));
        if !self.server.admit(&mut turn.kept.permit, route, running) {
            let status = refusal(Code::Overloaded, "as many calls run as the server takes");
            let status = status.with_retry_after(RETRY_AFTER);
            self.refuse(call, Some(route), &status, turn);
            return Ok(());
        }
        let cx = self.context_of(request, route, turn);
        if request.budget_us > 0 && request.budget_us <= turn.last_us {
            let status = refusal(Code::DeadlineExceeded, "behind other calls");
            self.refuse(call, Some(route), &status, turn);
            return Ok(());
        }
        if let Err(status) = self.server.authorize(&cx) {
            let status = status.with_started(Started::NotStarted);
            self.server.unauthorized.note_call(&cx, &status);
            self.refuse(call, Some(route), &status, turn);
            return Ok(());
        }
        if let Some(region) = request.by_reference
            && let Some(permit) = turn.kept.permit.take()
        {
            self.open_call(&cx, request.streams);
            let (ticket, given_up) = FetchTable::insert(self, route, permit);
            let fetch = bodies::Fetch {
                cx,
                region,
                lent: request.lent.clone(),
                streams: request.streams,
                ticket,
                given_up,
            };
            let (of, run) = (fetch.cx.clone(), fetch.run(Arc::clone(self)));
            self.spawn(&of, "reading a request", run);
            return Ok(());
        }
        let incoming = Incoming {
            cx: &cx,
            body: IncomingBody::Read {
                body: request.body,
                message,
                bodies: &mut turn.bodies,
            },
            lent: &request.lent,
            streams: request.streams,
            connection: self,
            spare: turn.kept.handling.take(),
        };
        let begun = running::begin(incoming, false, true);
        if let Err(status) = begun.go_on(self, cx, turn) {
            self.refuse(call, Some(route), &status, turn);
        }
        Ok(())
    }

    #[inline]
    fn context_of(&self, request: &Request<'_>, route: usize, turn: &mut ServerTurn) -> Cx {
        let most = self.server.limits.deadline;
        let budget = match request.budget_us {
            0 => most,
            asked => Duration::from_micros(asked.into()).min(most),
        };
        let method = self.server.routes.at(route).method;
        Cx::renew(turn.kept.cx.take(), method, &self.peer, |parts| {
            parts.id = request.call;
            parts.route = route;
            parts.received = turn.read;
            parts.budget = budget;
            parts.trace = request.trace;
            parts.metadata.set_checked(request.metadata);
        })
    }

    fn end(&self) {
        let (running, readers) = self.with_machine(|machine| machine.handle_end());
        running.iter().for_each(|cx| self.lose(cx));
        wake_all(readers);
        self.server.notice_idle();
    }

    fn count_violation(&self, what: &str) {
        self.server.violations.fetch_add(1, Ordering::Relaxed);
        let peer = self.peer.address;
        log(|| tracing::warn!(%peer, what, "a client has broken the protocol"));
    }
}

impl Connection for ServerConnection {
    type Kept = Spare;

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn handle_message(self: &Arc<Self>, message: &[u8], turn: &mut ServerTurn) {
        if self.has_failed.load(Ordering::Relaxed) {
            return;
        }
        let handled = each_frame(message, |frame| self.handle(message, frame, turn));
        if let Err(violation) = handled {
            self.count_violation(violation.0);
            self.has_failed.store(true, Ordering::Relaxed);
            self.end();
            close(&self.endpoint);
        }
    }

    fn handle_pause(self: &Arc<Self>, turn: &mut ServerTurn) -> bool {
        self.send_gathered(turn);
        turn.kept.answers.begin_turn();
        false
    }

    fn handle_end(self: &Arc<Self>, why: EndCause<'_>) {
        // A client that ends with its process, and awaits no call, has lost nothing.
        if let EndCause::Lost(error) = &why
            && (error.kind() != ErrorKind::PeerClosed
                || self.with_machine(|machine| machine.running() > 0))
        {
            self.server.lost.fetch_add(1, Ordering::Relaxed);
        }
        // The library refuses messages that are longer than the largest frame.
        if matches!(why, EndCause::Lost(error) if error.kind() == ErrorKind::TooLarge) {
            self.count_violation("a frame that is too long");
        }
        self.end();
        self.ended.close();
    }
}

/// Returns the head of the answer to a call that was served for `time_us`.
fn head_of(call: CallId, time_us: u32, reply: &Reply) -> [u8; HEADER_LEN] {
    let head = FrameHead {
        call,
        method_or_code: reply.code,
        time_us,
    };
    response_head(head, reply.not_started)
}
