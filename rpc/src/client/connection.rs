//! A client's connection: the protocol machine, and the machine's endpoint, lock, wakers and clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_fabric::{Endpoint, Error, RemoteRegion};

use crate::caught::{caught, caught_async, log, wake_all};
use crate::drive::{
    Came, Connection, EndCause, ItemSending, ReadTurn, ReadingCheck, close, send, send_batch,
    send_item, send_later, shares_processor, spawn,
};
use crate::lend::{BodyRoom, fetch};
use crate::limits::{GATHERED_CALLERS_MIN, HEADER_LEN};
use crate::proto::{CallKey, CallProgress, ClientMachine, ResponseOutcome, Time};
use crate::status::{Code, Result, Started, Status};
use crate::wire::{
    BatchBuf, CallId, CodecName, Frame, FrameBuf, FrameHead, Hello, Streams, Violation, budget_us,
    each_frame, encode_cancel, encode_credit, encode_last, encode_taken, write_item_head,
    write_request_head,
};

/// The reason why calls fail when the runtime of their channel has ended.
pub(super) const RUNTIME_ENDED: &str = "the runtime in which the channel was connected has ended: \
                                        connect in one that lives as long as the channel";

/// The parameters of a call that is about to begin.
pub(crate) struct NewCall {
    pub(crate) method: u32,
    /// The codec of the call's arguments.
    pub(crate) codec: Option<CodecName>,
    /// The time left until the deadline.
    pub(crate) budget_us: u32,
    /// Length of the call's body in bytes, if the body is sent by reference.
    pub(crate) body_len: u64,
    pub(crate) deadline: Option<Instant>,
    pub(crate) streams: Streams,
}

/// A request that waits for the window.
pub(crate) struct Unsent<'a> {
    pub(crate) frame: &'a mut FrameBuf,
    pub(crate) method: u32,
    pub(crate) deadline: Option<Instant>,
}

pub(crate) struct ClientConnection {
    pub(crate) endpoint: Endpoint,
    /// The codec of the server's services, as the server has stated it.
    codec: OnceLock<CodecName>,
    /// The channel's count of connections that ended with an error.
    losses: Arc<AtomicU64>,
    state: Mutex<State>,
    reading: ReadingCheck,
    /// Room for responses that are read from the server's memory.
    bodies: BodyRoom,
    /// The runtime in which the connection's messages are read. The clock also runs there, since
    /// the runtime of the first call may end before the other calls.
    runtime: Handle,
    /// Notifies the clock of an earlier deadline.
    earlier: Arc<Notify>,
    /// Notifies the task that reconnects that this connection takes no new calls.
    pub(crate) closing: Notify,
    /// Notifies services that wait for room that a slot is free, or that no slot will be.
    pub(crate) freed: Notify,
}

/// Reserves room for one call until it is dropped.
pub(crate) struct Reservation(Arc<ClientConnection>);

impl Reservation {
    /// Returns false once the connection takes no more calls.
    pub(crate) fn is_of_use(&self) -> bool {
        self.0.with_machine(|machine| machine.is_open())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.0.lock().reserved -= 1;
        self.0.notify_room();
    }
}

struct State {
    machine: ClientMachine<Waker>,
    /// Requests that are gathered into one message, of callers that were woken together.
    gathered: BatchBuf,
    gathers: bool,
    /// Number of calls for which services have reserved room.
    reserved: usize,
    is_room_wanted: bool,
    /// The time at which the last message was read.
    read_at: Instant,
    /// The time at which the clock checks deadlines next.
    armed: Option<Time>,
    has_clock: bool,
}

impl ClientConnection {
    pub(crate) fn new(endpoint: Endpoint, losses: &Arc<AtomicU64>) -> Arc<ClientConnection> {
        Arc::new(ClientConnection {
            endpoint,
            codec: OnceLock::new(),
            losses: Arc::clone(losses),
            state: Mutex::new(State {
                machine: ClientMachine::new(&Hello::default()),
                gathered: BatchBuf::default(),
                gathers: false,
                reserved: 0,
                is_room_wanted: false,
                read_at: Instant::now(),
                armed: None,
                has_clock: false,
            }),
            reading: ReadingCheck::default(),
            bodies: BodyRoom::new(),
            runtime: Handle::current(),
            earlier: Arc::default(),
            closing: Notify::new(),
            freed: Notify::new(),
        })
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn with_machine<R>(&self, act: impl FnOnce(&mut ClientMachine<Waker>) -> R) -> R {
        act(&mut self.lock().machine)
    }

    /// Applies the server's HELLO.
    pub(crate) fn agree(&self, server: &Hello) {
        // A connection is established only once.
        let _ = self.codec.set(server.codec);
        self.with_machine(|machine| machine.agree(server));
    }

    /// Checks that a call in this codec can be made.
    pub(crate) fn check_codec(&self, codec: CodecName) -> Result<(), Status> {
        match self.codec.get() {
            Some(of_server) if *of_server != codec => {
                let what = match of_server.is_none() {
                    true => {
                        format!("the server has no service with a codec, the call is in {codec}")
                    }
                    false => format!("the server speaks {of_server}, the call is in {codec}"),
                };
                Err(Status::not_started(Code::BadRequest, what))
            }
            _ => Ok(()),
        }
    }

    /// Reserves room for a call, if there is room that no other service has reserved.
    pub(crate) fn reserve(self: &Arc<Self>) -> Option<Reservation> {
        let mut state = self.lock();
        if state.machine.room() <= state.reserved {
            state.is_room_wanted = true;
            return None;
        }
        state.reserved += 1;
        Some(Reservation(Arc::clone(self)))
    }

    /// Returns the number of calls that are open or have a reservation.
    #[cfg(feature = "tower")]
    pub(crate) fn load(&self) -> usize {
        let state = self.lock();
        state.machine.open() + state.reserved
    }

    /// Begins a call, and sends its request if the window has room; otherwise the task is woken
    /// when the window has room.
    ///
    /// # Errors
    /// The reason why the call cannot be made; the call has not started.
    #[inline]
    pub(crate) fn begin(
        self: &Arc<Self>,
        call: &NewCall,
        frame: &mut FrameBuf,
        task: &Waker,
    ) -> Result<CallKey> {
        if let Some(codec) = call.codec {
            self.check_codec(codec)?;
        }
        let deadline = call.deadline.map(Instant::into_std);
        let (watcher, mut unused) = (task.clone(), None);
        let mut state = self.lock();
        if call.body_len > state.machine.body_max() {
            let max = state.machine.body_max();
            return Err(too_large(call.body_len, max));
        }
        let key = state.machine.begin(frame.len(), deadline, call.streams)?;
        state.machine.watch(key, watcher);
        if let Some(id) = state.machine.send(key) {
            write_request_head(frame, head_of(id, call.method, call.budget_us));
            self.send_request(&mut state, key, frame, &mut unused)?;
        }
        if deadline.is_some_and(|it| state.armed.is_none_or(|armed| it < armed)) {
            self.arm(state, deadline);
        }
        Ok(key)
    }

    /// Makes the clock check deadlines at `next`.
    #[cold]
    fn arm(self: &Arc<Self>, mut state: MutexGuard<'_, State>, next: Option<Time>) {
        state.armed = next;
        if !std::mem::replace(&mut state.has_clock, true) {
            let earlier = Arc::clone(&self.earlier);
            let clock = watch_deadlines(Arc::downgrade(self), earlier);
            self.runtime.spawn(clock);
        }
        drop(state);
        self.earlier.notify_one();
    }

    /// Sends a request under the lock, as a client sends everything, so that a cancellation is
    /// always between its call's request and the next request in the same slot, even across
    /// threads.
    #[inline]
    fn send_request(
        &self,
        state: &mut State,
        key: CallKey,
        frame: &mut FrameBuf,
        watcher: &mut Option<Waker>,
    ) -> Result<()> {
        self.send(state, frame).map_err(|error| {
            *watcher = state.machine.take_watcher(key);
            state.machine.unsent(key);
            error.into()
        })
    }

    /// Sends a frame in the order of the calls, alone or gathered with other frames. Called under
    /// the lock.
    #[inline]
    fn send(&self, state: &mut State, frame: &mut FrameBuf) -> Result<(), Error> {
        if state.gathers && !state.gathered.has_room(frame.len()) {
            self.send_gathered(state);
        }
        if !state.gathers || !state.gathered.has_room(frame.len()) {
            self.reading.count_message();
            return send(&self.endpoint, frame);
        }
        state.gathered.push(frame);
        // Frees the memory, so that the next call uses it while it is in the processor's cache.
        *frame = FrameBuf::default();
        if state.gathered.is_due() && !shares_processor(&self.endpoint) {
            self.send_gathered(state);
        }
        Ok(())
    }

    /// Sends the gathered frames. Called under the lock. If sending fails, the connection is lost.
    fn send_gathered(&self, state: &mut State) {
        if !state.gathered.message().is_empty() {
            self.reading.count_message();
            let _ = send_batch(&self.endpoint, &mut state.gathered);
        }
    }

    /// Calls `act` under the lock, with the task registered to be woken when the call progresses.
    /// Wakers are cloned and dropped without the lock: a waker runs the runtime's code, which may
    /// call back.
    fn watched<R>(&self, key: CallKey, task: &Waker, act: impl FnOnce(&mut State) -> R) -> R {
        let mut other = None;
        loop {
            let (mut state, mut last) = (self.lock(), None);
            if (state.machine).is_unwatched(key, |it| it.will_wake(task)) {
                let Some(watcher) = other.take() else {
                    drop(state);
                    other = Some(task.clone());
                    continue;
                };
                last = state.machine.watch(key, watcher);
            }
            let done = act(&mut state);
            drop(state);
            drop(last);
            return done;
        }
    }

    /// Takes the response of a call without streams, if it has arrived, and the time at which the
    /// last message was read.
    #[inline]
    pub(crate) fn take_response(&self, key: CallKey) -> Option<(u32, Bytes, Instant)> {
        let state = &mut *self.lock();
        let (code, body) = state.machine.take_response(key)?;
        Some((code, body, state.read_at))
    }

    /// Returns the call's progress. Sends the call's request if the request was waiting and the
    /// window now admits it, and the credit for an item that was read.
    pub(crate) fn poll_call<'f>(
        &self,
        key: CallKey,
        task: &Waker,
        request: impl FnOnce() -> Unsent<'f>,
    ) -> CallProgress {
        let mut unused = None;
        self.watched(key, task, |state| {
            let progress = state.machine.progress(key);
            match progress {
                CallProgress::Send(call) => {
                    let request = request();
                    // The time that the call has waited for the window is deducted.
                    let left = request.deadline;
                    let left = left.map(|it| it.saturating_duration_since(Instant::now()));
                    let head = head_of(call, request.method, left.map_or(0, budget_us));
                    write_request_head(request.frame, head);
                    let sent = self.send_request(state, key, request.frame, &mut unused);
                    match sent {
                        Ok(()) => CallProgress::Pending,
                        Err(status) => CallProgress::Ended(Err(status)),
                    }
                }
                CallProgress::Item(_, Some((call, credit))) => {
                    self.send_bare(state, &encode_credit(call, credit));
                    progress
                }
                progress => progress,
            }
        })
    }

    /// Sends an item of the call; without credit, the task is woken when there is credit.
    ///
    /// # Errors
    /// The item is larger than a frame.
    pub(crate) fn send_item(
        &self,
        key: CallKey,
        mut frame: FrameBuf,
        task: &Waker,
    ) -> Result<ItemSending> {
        self.watched(key, task, |state| {
            let (len, max) = (frame.len(), state.machine.frame_max());
            if len > max {
                let what = format!("an item of {len} bytes, the server takes {max}");
                return Err(Status::maybe_ran(Code::TooLarge, what));
            }
            let Some(call) = state.machine.send_item(key, len - HEADER_LEN) else {
                return Ok(ItemSending::NoCredit(frame));
            };
            write_item_head(&mut frame, call);
            // If sending fails, the connection is lost, and the call's end follows.
            let sent = match state.gathers {
                true => self.send(state, &mut frame).map(|()| ItemSending::Sent),
                false => {
                    self.reading.count_message();
                    send_item(&self.endpoint, &mut frame)
                }
            };
            Ok(sent.unwrap_or(ItemSending::Sent))
        })
    }

    /// Ends the call's outgoing stream.
    pub(crate) fn end_items(&self, key: CallKey) {
        let state = &mut *self.lock();
        if let Some(call) = state.machine.end_items(key) {
            self.send_bare(state, &encode_last(call));
        }
    }

    /// Sends a frame without a body. Called under the lock. If sending fails, the connection is
    /// lost.
    fn send_bare(&self, state: &mut State, frame: &[u8; HEADER_LEN]) {
        let _ = self.send(state, &mut FrameBuf::from_slice(frame));
    }

    /// Abandons a call whose caller has dropped it.
    pub(crate) fn abandon(&self, key: CallKey) {
        let mut wake = Vec::new();
        let (_unused, freed) = {
            let state = &mut *self.lock();
            let watcher = state.machine.take_watcher(key);
            let cancel = state.machine.abandon(key);
            self.cancel(state, cancel);
            (watcher, state.free(&mut wake))
        };
        wake_all(wake);
        self.notify_freed(freed);
    }

    /// Cancels calls at the server. Called under the lock.
    fn cancel(&self, state: &mut State, calls: impl IntoIterator<Item = CallId>) {
        for call in calls {
            let mut frame = FrameBuf::from_slice(&encode_cancel(call));
            // If sending fails, the connection is lost.
            let _ = match state.gathers {
                true => self.send(state, &mut frame),
                false => {
                    self.reading.count_message();
                    send_later(&self.endpoint, frame)
                }
            };
        }
    }

    /// Ends calls whose deadline has passed; returns when to check again.
    fn expire(&self) -> Option<Instant> {
        let now = Instant::now().into_std();
        let (mut cancel, mut wake) = (Vec::new(), Vec::new());
        let (next, freed) = {
            let state = &mut *self.lock();
            let next = state.machine.expire(now, &mut cancel, &mut wake);
            state.armed = next;
            self.cancel(state, cancel);
            (next, state.free(&mut wake))
        };
        wake_all(wake);
        self.notify_freed(freed);
        next.map(Instant::from_std)
    }

    /// Sends the gathered frames, then starts closing the connection.
    fn close(&self) {
        self.flush();
        close(&self.endpoint);
    }

    /// Handles a frame, under the lock. Puts work that must run without the lock into `after`.
    #[inline]
    fn handle(
        &self,
        state: &mut State,
        message: &[u8],
        frame: &[u8],
        turn: &mut ReadTurn<Woken>,
        after: &mut FollowUpWork,
    ) -> Result<(), Violation> {
        // Matched in place: frames are large.
        match &Frame::decode(frame) {
            Err(violation) => Err(*violation),
            Ok(Frame::Response(response)) => {
                let keep = |body: &[u8]| turn.bodies.copy(message, body);
                match state.machine.handle_response(response, keep)? {
                    ResponseOutcome::Ended(woken) => {
                        turn.kept.woken += 1;
                        turn.kept.wake.extend(woken);
                    }
                    ResponseOutcome::Taken(call) => self.send_bare(state, &encode_taken(call)),
                    ResponseOutcome::Fetch(call, region) => after.fetches.push((call, region)),
                }
                Ok(())
            }
            Ok(other) => self.handle_other(state, other, turn, after),
        }
    }

    /// Handles a frame other than a response.
    fn handle_other(
        &self,
        state: &mut State,
        frame: &Frame<'_>,
        turn: &mut ReadTurn<Woken>,
        after: &mut FollowUpWork,
    ) -> Result<(), Violation> {
        match *frame {
            Frame::Item(call, item) => {
                turn.kept
                    .wake
                    .extend(state.machine.handle_item(call, item)?);
                let calls_max = state.machine.calls_most();
                self.reading.check(Came::Item, calls_max, &self.endpoint)
            }
            Frame::Credit(call, more) => {
                turn.kept
                    .wake
                    .extend(state.machine.handle_credit(call, more)?);
                Ok(())
            }
            Frame::Window(window) => state.machine.handle_window(window),
            Frame::Goaway => {
                state.machine.handle_goaway(&mut turn.kept.wake);
                after.is_closing = true;
                Ok(())
            }
            Frame::Request(_) | Frame::Response(_) | Frame::Cancel(_) | Frame::Taken(_) => {
                Err(Violation("a frame that servers do not send"))
            }
        }
    }

    /// Reads the body of a response, even if its caller does not poll: the server keeps the body
    /// until it is read.
    async fn fetch_body(self: Arc<Self>, call: CallId, region: RemoteRegion) {
        let read = async {
            let room = self.bodies.reserve(region.len).await?;
            fetch(&self.endpoint, region, room).await
        };
        let read = caught_async("reading an answer", read).await;
        let body = read.unwrap_or_else(|| Err(Status::new(Code::Internal, "it was not read")));
        let body = body.map_err(|status| status.with_started(Started::MaybeRan));
        let mut wake = Vec::new();
        let freed = {
            let state = &mut *self.lock();
            let Some(woken) = state.machine.handle_body(call, body) else {
                return;
            };
            self.send_bare(state, &encode_taken(call));
            wake.extend(woken);
            state.free(&mut wake)
        };
        wake_all(wake);
        self.notify_freed(freed);
    }

    /// Notifies services of a free slot or a larger window, or that no more slots will be free.
    fn notify_freed(&self, freed: Freed) {
        if freed.is_room_wanted {
            self.notify_room();
        }
        if freed.is_drained {
            self.close();
        }
    }

    /// Stops taking calls, and ends when the open calls have ended: the channel has another
    /// connection.
    pub(super) fn retire(&self) {
        let mut wake = Vec::new();
        let freed = {
            let state = &mut *self.lock();
            state.machine.handle_goaway(&mut wake);
            state.free(&mut wake)
        };
        self.closing.notify_one();
        wake_all(wake);
        self.notify_freed(freed);
    }

    fn end(&self, status: &Status) {
        let mut wake = Vec::new();
        self.with_machine(|machine| machine.handle_end(status, &mut wake));
        self.closing.notify_one();
        wake_all(wake);
        self.notify_room();
    }

    /// Runs the program's wakers, which may panic.
    fn notify_room(&self) {
        caught("a waker", || self.freed.notify_waiters());
    }
}

/// Callers that are woken while messages of a connection are handled.
#[derive(Default)]
pub(crate) struct Woken {
    /// Number of callers that were woken.
    woken: usize,
    /// Wakers of callers, to wake after a message.
    wake: Vec<Waker>,
}

/// Work that follows a message and runs without the lock, in addition to waking callers.
#[derive(Default)]
struct FollowUpWork {
    /// Responses whose bodies must be read.
    fetches: Vec<(CallId, RemoteRegion)>,
    /// Whether the server drains.
    is_closing: bool,
}

/// Work without the lock that follows when slots may have become free, in addition to waking
/// callers.
struct Freed {
    is_room_wanted: bool,
    is_drained: bool,
}

impl State {
    /// Admits waiting calls for which there is room now.
    fn free(&mut self, wake: &mut Vec<Waker>) -> Freed {
        while let Some(waker) = self.machine.poll_admit() {
            wake.extend(waker);
        }
        Freed {
            is_room_wanted: std::mem::take(&mut self.is_room_wanted),
            is_drained: self.machine.is_drained(),
        }
    }
}

impl Connection for ClientConnection {
    type Kept = Woken;

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Wakes callers once the whole message is handled.
    fn handle_message(self: &Arc<Self>, message: &[u8], turn: &mut ReadTurn<Woken>) {
        let mut after = FollowUpWork::default();
        let (handled, freed) = {
            let state = &mut *self.lock();
            state.read_at = turn.read;
            let handled = each_frame(message, |frame| {
                self.handle(state, message, frame, turn, &mut after)
            });
            (handled, state.free(&mut turn.kept.wake))
        };
        if after.is_closing {
            self.closing.notify_one();
        }
        for (call, region) in after.fetches {
            spawn(Arc::clone(self).fetch_body(call, region));
        }
        wake_all(turn.kept.wake.drain(..));
        self.notify_freed(freed);
        if let Err(violation) = handled {
            // Violations after the first are not reported.
            if self.with_machine(|machine| machine.has_ended()) {
                return;
            }
            let peer = self.endpoint.peer_addr();
            let what = violation.0;
            log(|| tracing::warn!(?peer, what, "a server has broken the protocol"));
            self.losses.fetch_add(1, Ordering::Relaxed);
            let what = format!("the server broke the protocol: {}", violation.0);
            self.end(&Status::maybe_ran(Code::ConnectionLost, what));
            close(&self.endpoint);
        }
    }

    /// Callers that were woken together send their next requests together.
    fn handle_pause(self: &Arc<Self>, turn: &mut ReadTurn<Woken>) -> bool {
        let gathers = std::mem::take(&mut turn.kept.woken) >= GATHERED_CALLERS_MIN;
        if gathers {
            self.lock().gathers = true;
        }
        gathers
    }

    fn flush(&self) {
        let state = &mut *self.lock();
        state.gathers = false;
        self.send_gathered(state);
        state.gathered.begin_turn();
    }

    fn handle_end(self: &Arc<Self>, why: EndCause<'_>) {
        let lost = |what: &'static str| Status::maybe_ran(Code::ConnectionLost, what);
        let status = match why {
            EndCause::Lost(error) => {
                self.losses.fetch_add(1, Ordering::Relaxed);
                lost("").with_source(error)
            }
            EndCause::Closed => lost("it was closed"),
            EndCause::OfRuntime => lost(RUNTIME_ENDED),
        };
        self.end(&status);
    }
}

impl Drop for ClientConnection {
    fn drop(&mut self) {
        self.earlier.notify_one();
    }
}

/// One task per connection sleeps until the earliest deadline known at its last check, so that a
/// call needs no timer of its own.
async fn watch_deadlines(connection: Weak<ClientConnection>, earlier: Arc<Notify>) {
    loop {
        // The connection is not held while the task sleeps, so that it ends with its channel.
        let next = match connection.upgrade() {
            Some(alive) => alive.expire(),
            None => return,
        };
        let earlier = std::pin::pin!(earlier.notified());
        match next {
            Some(next) => {
                futures::future::select(std::pin::pin!(sleep_until(next)), earlier).await;
            }
            None => earlier.await,
        }
    }
}

/// Returns the status of a call whose body is too large.
pub(super) fn too_large(len: u64, max: u64) -> Status {
    let what = format!("a request of {len} bytes, the server takes {max}: lend what is large");
    Status::not_started(Code::TooLarge, what)
}

/// Returns the head of a request that is sent now.
fn head_of(call: CallId, method: u32, budget_us: u32) -> FrameHead {
    FrameHead {
        call,
        method_or_code: method,
        time_us: budget_us,
    }
}
