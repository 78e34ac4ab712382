//! The machine of a connection with what it lacks: an endpoint, a lock, wakers and a clock.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_fabric::{Endpoint, Error, RemoteRegion};

use crate::caught::{caught, caught_async, log, wake_all};
use crate::drive::{
    Came, Connection, ItemSending, ReadTurn, ReadingCheck, close, send, send_batch, send_item,
    send_later, shares_processor,
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

/// A call to be begun.
pub(crate) struct NewCall {
    pub(crate) method: u32,
    /// What its arguments are in.
    pub(crate) codec: Option<CodecName>,
    /// What is left of its time.
    pub(crate) budget_us: u32,
    /// Bytes of its body, if that is by reference.
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
    /// What the server has said that its services are in.
    codec: OnceLock<CodecName>,
    state: Mutex<State>,
    reading: ReadingCheck,
    /// For answers that are read out of the server's memory.
    bodies: BodyRoom,
    /// In which its messages are read: its clock goes there too, and not in that of the first call,
    /// which may end before the others.
    runtime: Handle,
    /// The clock is to look anew.
    earlier: Arc<Notify>,
    /// It takes no new calls any more; for the one who connects anew.
    pub(crate) closing: Notify,
    /// A slot is free, or will never be: for those who wait for room without a call.
    pub(crate) freed: Notify,
}

/// Room for one call, until this is dropped.
pub(crate) struct Reservation(Arc<ClientConnection>);

impl Reservation {
    /// False once the connection takes no more calls.
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
    /// Frames of callers that were woken together, while they are gathered.
    gathered: BatchBuf,
    gathers: bool,
    /// Room that is kept for calls of services.
    reserved: usize,
    /// A task waits for room without a call.
    is_room_wanted: bool,
    /// When the last message was read.
    read_at: Instant,
    /// When the clock looks next.
    armed: Option<Time>,
    has_clock: bool,
}

impl ClientConnection {
    pub(crate) fn new(endpoint: Endpoint) -> Arc<ClientConnection> {
        Arc::new(ClientConnection {
            endpoint,
            codec: OnceLock::new(),
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

    /// The server has answered.
    pub(crate) fn agree(&self, server: &Hello) {
        // A connection is made once.
        let _ = self.codec.set(server.codec);
        self.with_machine(|machine| machine.agree(server));
    }

    /// Before a call in this codec.
    pub(crate) fn check_codec(&self, codec: CodecName) -> Result<(), Status> {
        match self.codec.get() {
            Some(of_server) if *of_server != codec => {
                let what = match of_server.is_none() {
                    true => format!("the server's services have no codec, the call is in {codec}"),
                    false => format!("the server speaks {of_server}, the call is in {codec}"),
                };
                Err(Status::not_started(Code::BadRequest, what))
            }
            _ => Ok(()),
        }
    }

    /// Keeps room for a call, if there is any that no other service has.
    pub(crate) fn reserve(self: &Arc<Self>) -> Option<Reservation> {
        let mut state = self.lock();
        if state.machine.room() <= state.reserved {
            state.is_room_wanted = true;
            return None;
        }
        state.reserved += 1;
        Some(Reservation(Arc::clone(self)))
    }

    /// Calls that are open or have a reservation.
    #[cfg(feature = "tower")]
    pub(crate) fn load(&self) -> usize {
        let state = self.lock();
        state.machine.open() + state.reserved
    }

    /// Begins a call, and sends its request if there is room in the window; if not, the task is
    /// woken when there is.
    ///
    /// # Errors
    /// Why it cannot be made; it has not started.
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
            return Err(super::request::too_large(call.body_len, max));
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

    /// The clock is to look then.
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

    /// All that a client sends is sent under the lock, so that a cancellation is between its call's
    /// request and the next one in its slot, whichever threads they come from.
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

    /// Under the lock, in the order of these: alone, or with what else is sent now.
    fn send(&self, state: &mut State, frame: &mut FrameBuf) -> Result<(), Error> {
        if state.gathers && !state.gathered.has_room(frame.len()) {
            self.send_gathered(state);
        }
        if !state.gathers || !state.gathered.has_room(frame.len()) {
            self.reading.count_message();
            return send(&self.endpoint, frame);
        }
        state.gathered.push(frame);
        frame.clear();
        if state.gathered.is_due() && !shares_processor(&self.endpoint) {
            self.send_gathered(state);
        }
        Ok(())
    }

    /// Under the lock. What cannot be sent has lost its connection.
    fn send_gathered(&self, state: &mut State) {
        if !state.gathered.message().is_empty() {
            self.reading.count_message();
            let _ = send_batch(&self.endpoint, &mut state.gathered);
        }
    }

    /// Acts under the lock, with the task to be woken when there is more of the call. What makes
    /// and drops wakers is the runtime's, and may call: it is done without the lock.
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

    /// How far the call is, and if it has ended without streams, when its answer was there. Sends
    /// its request if it has waited and it is its turn, and the credit of an item.
    #[inline]
    pub(crate) fn poll_call<'f>(
        &self,
        key: CallKey,
        task: &Waker,
        request: impl FnOnce() -> Unsent<'f>,
    ) -> (CallProgress, Option<Instant>) {
        let end = {
            let state = &mut *self.lock();
            let end = state.machine.take_plain_end(key);
            end.map(|it| (CallProgress::Ended(it), Some(state.read_at)))
        };
        end.unwrap_or_else(|| (self.poll_open_call(key, task, request), None))
    }

    fn poll_open_call<'f>(
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
                    // What it has waited for the window is gone.
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

    /// Sends an item of the call; the task is woken when there is credit for it.
    ///
    /// # Errors
    /// It is larger than a frame.
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
            // What cannot be sent has lost its connection, and its call's end is on its way.
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

    /// The call's stream is over.
    pub(crate) fn end_items(&self, key: CallKey) {
        let state = &mut *self.lock();
        if let Some(call) = state.machine.end_items(key) {
            self.send_bare(state, &encode_last(call));
        }
    }

    /// Under the lock. What cannot be sent has lost its connection.
    fn send_bare(&self, state: &mut State, frame: &[u8; HEADER_LEN]) {
        let _ = self.send(state, &mut FrameBuf::from_slice(frame));
    }

    /// The caller of a call has gone.
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

    /// Under the lock.
    fn cancel(&self, state: &mut State, calls: impl IntoIterator<Item = CallId>) {
        for call in calls {
            let mut frame = FrameBuf::from_slice(&encode_cancel(call));
            // What cannot be sent has lost its connection.
            let _ = match state.gathers {
                true => self.send(state, &mut frame),
                false => {
                    self.reading.count_message();
                    send_later(&self.endpoint, frame)
                }
            };
        }
    }

    /// Ends calls whose time is over; when to look again.
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

    /// Without waiting for it, behind what was gathered.
    fn close(&self) {
        self.flush();
        close(&self.endpoint);
    }

    /// Handles a frame, under the lock; what follows without it is kept.
    #[inline]
    fn handle(
        &self,
        state: &mut State,
        message: &[u8],
        frame: &[u8],
        turn: &mut ReadTurn<Woken>,
        after: &mut Aftermath,
    ) -> Result<(), Violation> {
        match Frame::decode(frame)? {
            Frame::Response(response) => {
                let keep = |body: &[u8]| turn.bodies.copy(message, body);
                match state.machine.handle_response(&response, keep)? {
                    ResponseOutcome::Ended(woken) => {
                        turn.kept.woken += 1;
                        turn.kept.wake.extend(woken);
                    }
                    ResponseOutcome::Taken(call) => self.send_bare(state, &encode_taken(call)),
                    ResponseOutcome::Fetch(call, region) => after.fetches.push((call, region)),
                }
                Ok(())
            }
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
            Frame::Request(_) | Frame::Cancel(_) | Frame::Taken(_) => {
                Err(Violation("a frame that servers do not send"))
            }
        }
    }

    /// Reads the body of an answer, whether or not its caller looks: the server keeps it until
    /// then.
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

    /// A slot is free, or the window is larger, or there will be no more slots.
    fn notify_freed(&self, freed: Freed) {
        if freed.is_room_wanted {
            self.notify_room();
        }
        if freed.is_drained {
            self.close();
        }
    }

    fn end(&self, status: &Status) {
        let mut wake = Vec::new();
        self.with_machine(|machine| machine.handle_end(status, &mut wake));
        self.closing.notify_one();
        wake_all(wake);
        self.notify_room();
    }

    /// Those who wait are the program's.
    fn notify_room(&self) {
        caught("a waker", || self.freed.notify_waiters());
    }
}

/// Callers, while messages of a connection are handled.
#[derive(Default)]
pub(crate) struct Woken {
    /// How many were woken.
    woken: usize,
    /// Those who are to be woken behind a message.
    wake: Vec<Waker>,
}

/// What follows from a message, without the lock, beside those who are woken.
#[derive(Default)]
struct Aftermath {
    /// Answers whose bodies are to be read.
    fetches: Vec<(CallId, RemoteRegion)>,
    /// The server drains.
    is_closing: bool,
}

/// What follows, without the lock, when a slot may have become free, beside those who are woken.
struct Freed {
    is_room_wanted: bool,
    is_drained: bool,
}

impl State {
    /// Wakes those who wait and have room now.
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

    /// Callers are woken once all of the message is handled.
    fn handle_message(self: &Arc<Self>, message: &[u8], turn: &mut ReadTurn<Woken>) {
        let mut after = Aftermath::default();
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
            tokio::spawn(Arc::clone(self).fetch_body(call, region));
        }
        wake_all(turn.kept.wake.drain(..));
        self.notify_freed(freed);
        if let Err(violation) = handled {
            // What follows the first says nothing new.
            if self.with_machine(|machine| machine.has_ended()) {
                return;
            }
            let peer = self.endpoint.peer_addr();
            log(|| tracing::warn!(?peer, "{}: the connection is closed", violation.0));
            let what = format!("the server broke the protocol: {}", violation.0);
            self.end(&Status::maybe_ran(Code::ConnectionLost, what));
            close(&self.endpoint);
        }
    }

    /// Those that were woken together make their next calls together.
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

    fn handle_end(self: &Arc<Self>, why: Option<&Error>) {
        let status = match why {
            Some(error) => {
                let status = Status::maybe_ran(Code::ConnectionLost, error.to_string());
                status.with_source(error.clone())
            }
            None => Status::maybe_ran(Code::ConnectionLost, "it was closed"),
        };
        self.end(&status);
    }
}

impl Drop for ClientConnection {
    fn drop(&mut self) {
        self.earlier.notify_one();
    }
}

/// One task per connection, asleep until the earliest deadline that was known when it looked last:
/// a call costs no timer of its own.
async fn watch_deadlines(connection: Weak<ClientConnection>, earlier: Arc<Notify>) {
    loop {
        // Not held while it sleeps, so that the connection ends with its channel.
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

/// The head of a request that is sent now.
fn head_of(call: CallId, method: u32, budget_us: u32) -> FrameHead {
    FrameHead {
        call,
        method_or_code: method,
        time_us: budget_us,
    }
}
