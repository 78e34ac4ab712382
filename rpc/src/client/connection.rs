//! The machine of a connection with what it lacks: an endpoint, a lock, wakers and a clock.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::task::{Poll, Waker};

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_fabric::{Endpoint, Error};

use crate::drive::{Clock, Connection, close, send};
use crate::proto::{CallEnd, CallKey, CallProgress, ClientMachine, Time};
use crate::status::{Code, Status};
use crate::wire::{CallId, CodecName, Frame, FrameBuf, Hello, Violation, encode_cancel};

pub(crate) struct ClientConnection {
    pub(crate) endpoint: Endpoint,
    /// What the server has said that its services are in.
    codec: OnceLock<CodecName>,
    /// What the machine's times count from.
    origin: Instant,
    state: Mutex<State>,
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
        self.0.freed.notify_waiters();
    }
}

struct State {
    machine: ClientMachine<Waker>,
    /// Room that is kept for calls of services.
    reserved: usize,
    /// When the clock looks next.
    armed: Option<Time>,
    has_clock: bool,
}

impl ClientConnection {
    pub(crate) fn new(endpoint: Endpoint) -> Arc<ClientConnection> {
        Arc::new(ClientConnection {
            endpoint,
            codec: OnceLock::new(),
            origin: Instant::now(),
            state: Mutex::new(State {
                machine: ClientMachine::new(&Hello::default()),
                reserved: 0,
                armed: None,
                has_clock: false,
            }),
            earlier: Arc::default(),
            closing: Notify::new(),
            freed: Notify::new(),
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
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

    /// Begins a call.
    pub(crate) fn begin(
        self: &Arc<Self>,
        len: usize,
        deadline: Option<Instant>,
    ) -> Result<CallKey, Status> {
        let deadline = deadline.map(|it| it.saturating_duration_since(self.origin));
        let mut state = self.lock();
        let key = state.machine.begin(len, deadline)?;
        let is_earlier = deadline.is_some_and(|it| state.armed.is_none_or(|armed| it < armed));
        if is_earlier {
            state.armed = deadline;
            if !std::mem::replace(&mut state.has_clock, true) {
                let earlier = Arc::clone(&self.earlier);
                tokio::spawn(watch_deadlines(Arc::downgrade(self), earlier));
            }
            drop(state);
            self.earlier.notify_one();
        }
        Ok(key)
    }

    /// Sends the call's request if it is its turn, and gives its end if that has come. All that a
    /// client sends is sent under the lock, so that a cancellation is between its call's request
    /// and the next one in its slot, whichever threads they come from.
    pub(crate) fn poll_call(
        &self,
        key: CallKey,
        task: &Waker,
        frame: impl FnOnce(CallId) -> FrameBuf,
    ) -> Poll<CallEnd> {
        let watch = |old: Option<Waker>| match old {
            Some(waker) if waker.will_wake(task) => waker,
            _ => task.clone(),
        };
        let machine = &mut self.lock().machine;
        match machine.progress(key, watch) {
            CallProgress::Pending => Poll::Pending,
            CallProgress::Ended(end) => Poll::Ready(end),
            CallProgress::Send(call) => match send(&self.endpoint, frame(call)) {
                Ok(()) => Poll::Pending,
                Err(error) => {
                    machine.unsent(key);
                    Poll::Ready(Err(error.into()))
                }
            },
        }
    }

    /// The caller of a call has gone.
    pub(crate) fn abandon(&self, key: CallKey) {
        let admitted = self.with_machine(|machine| {
            let cancel = machine.abandon(key);
            self.cancel(cancel);
            admit(machine)
        });
        admitted.into_iter().for_each(Waker::wake);
        self.freed.notify_waiters();
        self.close_if_drained();
    }

    /// Under the lock. What cannot be sent has lost its connection, and its answer with it.
    fn cancel(&self, calls: impl IntoIterator<Item = CallId>) {
        for call in calls {
            let _ = send(&self.endpoint, FrameBuf::from_slice(&encode_cancel(call)));
        }
    }

    /// Ends calls whose time is over; when to look again.
    fn expire(&self) -> Option<Instant> {
        let now = self.origin.elapsed();
        let (mut cancel, mut wake) = (Vec::new(), Vec::new());
        let next = {
            let mut state = self.lock();
            let next = state.machine.expire(now, &mut cancel, &mut wake);
            wake.extend(admit(&mut state.machine));
            state.armed = next;
            self.cancel(cancel);
            next
        };
        wake.into_iter().for_each(Waker::wake);
        next.map(|it| self.origin + it)
    }

    fn close_if_drained(&self) {
        if self.with_machine(|machine| machine.is_drained()) {
            close(&self.endpoint);
        }
    }

    fn handle(&self, frame: &[u8]) -> Result<(), Violation> {
        match Frame::decode(frame)? {
            Frame::Response(response) => {
                let (woken, admitted, drained) = {
                    let machine = &mut self.lock().machine;
                    let woken = machine.handle_response(&response)?;
                    (woken, admit(machine), machine.is_drained())
                };
                admitted.into_iter().chain(woken).for_each(Waker::wake);
                self.freed.notify_waiters();
                if drained {
                    close(&self.endpoint);
                }
                Ok(())
            }
            Frame::Goaway => {
                let mut wake = Vec::new();
                self.with_machine(|machine| machine.handle_goaway(&mut wake));
                self.closing.notify_one();
                self.freed.notify_waiters();
                wake.into_iter().for_each(Waker::wake);
                self.close_if_drained();
                Ok(())
            }
            Frame::Request(_) | Frame::Cancel(_) => {
                Err(Violation("a call of a server to its client"))
            }
        }
    }

    fn end(&self, status: &Status) {
        let mut wake = Vec::new();
        self.with_machine(|machine| machine.handle_end(status, &mut wake));
        self.closing.notify_one();
        self.freed.notify_waiters();
        wake.into_iter().for_each(Waker::wake);
    }
}

/// Those who wait and have room now.
fn admit(machine: &mut ClientMachine<Waker>) -> Vec<Waker> {
    let mut admitted = Vec::new();
    while let Some(waker) = machine.poll_admit() {
        admitted.extend(waker);
    }
    admitted
}

impl Connection for ClientConnection {
    fn handle_frame(self: &Arc<Self>, frame: &[u8], _: &mut Clock) {
        if let Err(violation) = self.handle(frame) {
            let peer = self.endpoint.peer_addr();
            tracing::warn!(?peer, "{}: the connection is closed", violation.0);
            let what = format!("the server broke the protocol: {}", violation.0);
            self.end(&Status::maybe_ran(Code::ConnectionLost, what));
            close(&self.endpoint);
        }
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
