//! One task reads the messages of all connections, from shared buffers, and the events of
//! connections that begin or end. It passes frames to the connections, which answer by posting.
//! Nothing here waits for an application.

mod reading;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use futures::{FutureExt, Stream};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_fabric::cq::{Completion, CompletionFlags};
use tokio_fabric::domain::DomainBuilder;
use tokio_fabric::ep::{Liveness, OnRefusal, SharedReceiveContext, TcpOps};
use tokio_fabric::eq::{ConnRequest, EndpointId};
use tokio_fabric::error::OperationKind;
use tokio_fabric::info::AuthKey;
use tokio_fabric::limits::INJECT_SIZE_MAX;
use tokio_fabric::op::Op;
use tokio_fabric::{
    Backend, Buffer, CompletionQueue, Domain, Endpoint, Error, ErrorKind, Event, EventQueue,
    Fabric, local,
};

use crate::caught::{caught, log};
use crate::limits::{
    BATCH_MAX, FIRST_POLL_MAX, FRAME_MAX, IDLE_INTERVAL, QUEUE_SIZE, RECEIVE_BUFFER,
    RECEIVE_BUFFERS, REFUSALS_MAX, TIME_RESOLUTION,
};
use crate::status::Status;
use crate::wire::{BatchBuf, Bodies, FrameBuf, micros};

pub(crate) use reading::{Came, ReadingCheck};

/// One end of a connection.
pub(crate) trait Connection: Send + Sync + 'static {
    /// State that passes from one message to the next, whichever connection handles it.
    type Kept: Default + Send;

    fn endpoint(&self) -> &Endpoint;
    /// Handles a message that has arrived.
    fn handle_message(self: &Arc<Self>, message: &[u8], turn: &mut ReadTurn<Self::Kept>);
    /// Called when no more messages of the connection are available for now. If this returns true,
    /// the connection gathers the frames that its woken tasks send, until [`flush`](Self::flush).
    fn handle_pause(self: &Arc<Self>, _: &mut ReadTurn<Self::Kept>) -> bool {
        false
    }
    /// Called after the woken tasks have run.
    fn flush(&self) {}
    fn handle_end(self: &Arc<Self>, why: EndCause<'_>);
}

/// The reason why a connection has ended.
#[derive(Clone, Copy)]
pub(crate) enum EndCause<'e> {
    /// Both sides agreed to close, or this side closed the connection.
    Closed,
    Lost(&'e Error),
    /// The runtime that reads the connection's messages has ended.
    OfRuntime,
}

/// State that passes from message to message, while the messages that were read from the queue
/// together are handled.
pub(crate) struct ReadTurn<K> {
    /// The time at which the messages were read.
    pub(crate) read: Instant,
    /// Time between `read` and `begun_at`. `begun_at` and later times come from `now`.
    before: Duration,
    begun_at: std::time::Instant,
    /// The clock of `begun_at` and later times.
    now: TurnClock,
    /// The time at which the last message was handled.
    last_at: std::time::Instant,
    /// The time at which `last` must be computed again.
    due_at: std::time::Instant,
    /// Approximate time from reading the messages to handling the last message; below, the same in
    /// microseconds.
    pub(crate) last: Duration,
    pub(crate) last_us: u32,
    /// Time that the last slow message took.
    pub(crate) took: Duration,
    /// Memory for the bodies that outlive their messages.
    pub(crate) bodies: Bodies,
    pub(crate) kept: K,
}

type TurnClock = fn() -> std::time::Instant;

/// Returns the clock for turns in this domain: the system's clock, which costs less than Tokio's.
/// In a network of the test kit it is Tokio's clock, so that nothing depends on the machine's
/// speed.
fn clock_of(domain: &Domain) -> TurnClock {
    match domain.backend() {
        Backend::Loopback => || Instant::now().into_std(),
        _ => std::time::Instant::now,
    }
}

impl<K: Default> ReadTurn<K> {
    pub(crate) fn new(domain: &Domain) -> Self {
        let now = clock_of(domain);
        let (read, begun_at) = (Instant::now(), now());
        ReadTurn {
            read,
            before: Duration::ZERO,
            begun_at,
            now,
            last_at: begun_at,
            due_at: begun_at,
            last: Duration::ZERO,
            last_us: 0,
            took: Duration::ZERO,
            bodies: Bodies::default(),
            kept: K::default(),
        }
    }

    /// Starts a turn with messages that were read now.
    fn restart(&mut self) {
        self.begin_at(Instant::now());
        self.before = Duration::ZERO;
    }

    /// Starts a turn with a message that was read at `read`.
    pub(crate) fn begin_at(&mut self, read: Instant) {
        let begun_at = (self.now)();
        self.before = self.read.saturating_duration_since(read);
        self.read = read;
        self.set_last(self.before);
        (self.begun_at, self.last_at, self.due_at) = (begun_at, begun_at, begun_at);
    }

    /// Records that a message was handled; returns whether handling it [took](Self::took) long.
    #[inline]
    pub(crate) fn measure(&mut self) -> bool {
        let now = (self.now)();
        let last_at = std::mem::replace(&mut self.last_at, now);
        now >= self.due_at && self.measure_from(last_at)
    }

    fn set_last(&mut self, last: Duration) {
        (self.last, self.last_us) = (last, micros(last));
    }

    fn measure_from(&mut self, last_at: std::time::Instant) -> bool {
        self.set_last(self.before + self.last_at.duration_since(self.begun_at));
        self.due_at = self.last_at + TIME_RESOLUTION;
        self.took = self.last_at.duration_since(last_at);
        self.took > FIRST_POLL_MAX
    }
}

/// A function that opens a hub's domain, or returns an open domain.
pub(crate) type OpenDomain = Box<dyn FnOnce(DomainBuilder) -> Result<Domain, Error> + Send>;

/// Starts a task where the caller runs: on the thread of a `local::block_on`, together with its
/// driver, or on the current runtime.
pub(crate) fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    match local::is_here() {
        true => local::spawn(future),
        false => tokio::spawn(future),
    }
}

#[derive(Clone)]
pub(crate) struct EndpointSettings {
    pub(crate) auth_key: Option<AuthKey>,
    /// The name of `auth_key`, which a client sends.
    pub(crate) key_name: Option<Arc<str>>,
    pub(crate) liveness: Liveness,
}

impl Default for EndpointSettings {
    fn default() -> Self {
        EndpointSettings {
            auth_key: None,
            key_name: None,
            liveness: Liveness::default().idle_interval(IDLE_INTERVAL),
        }
    }
}

/// The connections of a domain, which share their receives.
pub(crate) struct Hub<C: Connection> {
    /// The runtime of the hub's tasks. Calls use its timers, whichever runtime polls them.
    pub(crate) runtime: Handle,
    pub(crate) fabric: Fabric,
    settings: EndpointSettings,
    pub(crate) domain: Domain,
    pub(crate) events: EventQueue,
    queue: CompletionQueue,
    receives: SharedReceiveContext,
    connections: Arc<Table<C>>,
    reader: JoinHandle<()>,
}

/// The connections by their endpoints, in the order in which the endpoints were opened, so that
/// actions on all connections have the same order in each run.
type Table<C> = Mutex<BTreeMap<EndpointId, Arc<C>>>;

impl<C: Connection> Hub<C> {
    /// Opens a hub for `connections_max` connections. Connection requests go to `accept`.
    pub(crate) fn open(
        fabric: Fabric,
        open: Option<OpenDomain>,
        settings: EndpointSettings,
        connections_max: usize,
        accept: impl FnMut(ConnRequest) + Send + 'static,
    ) -> Result<Hub<C>, Status> {
        let runtime = runtime_with_timers()?;
        let builder = fabric.domain();
        let domain = match open {
            Some(open) => open(builder)?,
            None => builder.open()?,
        };
        // Two slots for the events of each endpoint, and some for connection requests.
        let events = fabric.event_queue();
        let events = events
            .size(connections_max.saturating_mul(2).saturating_add(64))
            .open()?;
        let queue = domain.completion_queue().size(QUEUE_SIZE).open()?;
        let receives = domain.receive_context().receive_queue(&queue);
        let receives = receives.min_multi_recv(FRAME_MAX);
        // With this limit, a peer that stops within a frame does not block a part of a buffer.
        let receives = receives.max_message_size(FRAME_MAX).open()?;
        for number in 0..RECEIVE_BUFFERS {
            post(&receives, number, vec![0; RECEIVE_BUFFER])?;
        }
        let connections = Arc::default();
        let reader = Reader {
            queue: queue.clone(),
            events: events.clone(),
            receives: receives.clone(),
            connections: Arc::clone(&connections),
            accept,
            batch: Vec::new(),
            turn: ReadTurn::new(&domain),
            gathering: Vec::new(),
            last_parts: [const { None }; RECEIVE_BUFFERS],
        };
        Ok(Hub {
            runtime,
            fabric,
            settings,
            domain,
            events,
            queue,
            receives,
            connections,
            reader: spawn(reader.run()),
        })
    }

    /// Opens an endpoint for a connection with at most this number of open calls.
    pub(crate) fn endpoint(&self, calls: u32) -> Result<Endpoint, Status> {
        self.endpoint_with_key(calls, self.settings.auth_key.as_ref())
    }

    /// Like `endpoint`, with this authorization key.
    pub(crate) fn endpoint_with_key(
        &self,
        calls: u32,
        auth_key: Option<&AuthKey>,
    ) -> Result<Endpoint, Status> {
        let builder = self.domain.endpoint().receive_queue(&self.queue);
        let builder = builder
            .event_queue(&self.events)
            .receive_context(&self.receives);
        let builder = match auth_key {
            Some(key) => builder.auth_key(key.clone()),
            None => builder,
        };
        // A request or response and a cancellation for each call, and room for bulk transfers.
        let builder = builder.transmit_size(2 * calls as usize + 256);
        let builder = builder.on_refusal(OnRefusal::Continue {
            limit: REFUSALS_MAX,
        });
        Ok(builder.liveness(self.settings.liveness).open()?)
    }

    /// Returns the name of the key of the hub's endpoints.
    pub(crate) fn key_name(&self) -> Option<&str> {
        self.settings.key_name.as_deref()
    }

    /// Routes the messages of the endpoint to the connection from now on.
    pub(crate) fn insert(&self, endpoint: EndpointId, connection: &Arc<C>) {
        let none = lock(&self.connections).insert(endpoint, Arc::clone(connection));
        debug_assert!(none.is_none(), "an endpoint has one connection");
    }

    /// Removes a connection that was never established.
    pub(crate) fn remove(&self, endpoint: EndpointId) {
        // The connection is dropped without the lock.
        let _removed = lock(&self.connections).remove(&endpoint);
    }

    pub(crate) fn connections(&self) -> Vec<Arc<C>> {
        lock(&self.connections).values().cloned().collect()
    }

    pub(crate) fn connection_count(&self) -> usize {
        lock(&self.connections).len()
    }
}

/// Ends the connections with the hub, even before the runtime drops the reader.
impl<C: Connection> Drop for Hub<C> {
    fn drop(&mut self) {
        self.reader.abort();
        end_all(&self.connections, EndCause::Closed);
    }
}

/// Ends only this connection if `act` panics. Calls of the program's code have their own guards, so
/// this catches only unexpected panics.
fn guarded<C: Connection>(connection: &Arc<C>, act: impl FnOnce()) {
    if caught("what serves a connection", act).is_none() {
        caught("the end of a connection", || {
            connection.handle_end(EndCause::Closed)
        });
        caught("the end of a connection", || close(connection.endpoint()));
    }
}

/// Ends these connections, whose messages are no longer read.
fn end_all<C: Connection>(connections: &Table<C>, why: EndCause<'_>) {
    let connections = std::mem::take(&mut *lock(connections));
    for connection in connections.into_values() {
        caught("the end of a connection", || {
            connection.handle_end(why);
            close(connection.endpoint());
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// If the queue is full of unread completions, the buffer is posted once the queue has room: a lost
/// buffer would never come back.
fn post(receives: &SharedReceiveContext, number: usize, buffer: Vec<u8>) -> Result<(), Error> {
    let posted = receives.multi_recv(buffer).queue(number).post();
    let posted = posted.map_err(|failed| failed.into_error())?;
    posted.detach();
    Ok(())
}

struct Reader<C: Connection, A> {
    queue: CompletionQueue,
    events: EventQueue,
    receives: SharedReceiveContext,
    connections: Arc<Table<C>>,
    accept: A,
    batch: Vec<Completion>,
    turn: ReadTurn<C::Kept>,
    /// Connections to be flushed.
    gathering: Vec<Arc<C>>,
    /// The last message of each buffer. The buffer's other messages are handled and dropped by
    /// then, so dropping the last message returns the whole buffer.
    last_parts: [Option<Buffer>; RECEIVE_BUFFERS],
}

/// Ends the connections if the runtime ends or the reader panics: calls may be awaited in other
/// runtimes.
impl<C: Connection, A> Drop for Reader<C, A> {
    fn drop(&mut self) {
        end_all(&self.connections, EndCause::OfRuntime);
    }
}

/// The event that wakes the reader.
enum Next {
    Completions,
    Event(Event),
    Closed,
}

impl<C: Connection, A: FnMut(ConnRequest)> Reader<C, A> {
    async fn run(mut self) {
        loop {
            match self.next().await {
                Next::Completions => self.read_messages(),
                Next::Event(event) => self.handle_event(event),
                Next::Closed => return,
            }
            if !self.gathering.is_empty() {
                // Continues after all ready tasks have run.
                tokio::task::yield_now().await;
                self.gathering
                    .drain(..)
                    .for_each(|it| guarded(&it, || it.flush()));
            }
            tokio::task::coop::consume_budget().await;
        }
    }

    /// Messages come first: the end of a connection is reported after them.
    async fn next(&mut self) -> Next {
        poll_fn(|cx| {
            if self.queue.read_batch(&mut self.batch, BATCH_MAX) > 0 {
                return Poll::Ready(Next::Completions);
            }
            match Pin::new(&mut self.queue).poll_next(cx) {
                Poll::Ready(Some(completion)) => {
                    self.batch.push(completion);
                    return Poll::Ready(Next::Completions);
                }
                Poll::Ready(None) => return Poll::Ready(Next::Closed),
                Poll::Pending => {}
            }
            match Pin::new(&mut self.events).poll_next(cx) {
                Poll::Ready(Some(event)) => Poll::Ready(Next::Event(event)),
                Poll::Ready(None) => Poll::Ready(Next::Closed),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    fn read_messages(&mut self) {
        self.turn.restart();
        // Consecutive messages usually belong to one connection.
        let mut last: Option<(EndpointId, Arc<C>)> = None;
        let mut batch = std::mem::take(&mut self.batch);
        // Handled in place: completions are large, and each move would copy one.
        for completion in &mut batch {
            let id = completion.endpoint;
            if last.as_ref().is_none_or(|(it, _)| *it != id) {
                self.pause(last);
                let found = lock(&self.connections).get(&id).cloned();
                last = found.map(|it| (id, it));
            }
            self.read_message(completion, last.as_ref().map(|(_, it)| it));
        }
        self.pause(last);
        batch.clear();
        self.batch = batch;
    }

    /// Called when the next message belongs to another connection, or when there is no next
    /// message.
    fn pause(&mut self, last: Option<(EndpointId, Arc<C>)>) {
        let Some((_, connection)) = last else {
            return;
        };
        guarded(&connection, || {
            if connection.handle_pause(&mut self.turn) {
                self.gathering.push(Arc::clone(&connection));
            }
        });
    }

    fn read_message(&mut self, completion: &mut Completion, from: Option<&Arc<C>>) {
        let turn = &mut self.turn;
        let buffer = completion.take_buffer();
        let is_message = completion.flags.contains(CompletionFlags::RECV);
        if completion.operation == OperationKind::Receive && is_message {
            turn.bodies.begin_message();
            match (&completion.result, &buffer, from) {
                (Ok(()), Some(message), Some(from)) => {
                    guarded(from, || from.handle_message(message, turn));
                }
                // A message that does not fit is handled as an empty message: neither is a frame.
                (Err(failed), _, Some(from)) if failed.error.is_truncated() => {
                    guarded(from, || from.handle_message(&[], turn));
                }
                _ => {}
            }
        }
        let number = completion.context.0 as usize;
        if buffer.is_some() {
            self.last_parts[number] = buffer;
        }
        if completion.flags.contains(CompletionFlags::MULTI_RECV) {
            let whole = self.last_parts[number].take();
            let whole = whole.and_then(|it| it.into_whole()?.into_vec().ok());
            let whole = whole.unwrap_or_else(|| vec![0; RECEIVE_BUFFER]);
            if let Err(error) = post(&self.receives, number, whole) {
                log(|| tracing::debug!(%error, "no receive was posted"));
            }
        }
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::ConnRequest(request) => {
                caught("accepting a connection", || (self.accept)(request));
            }
            Event::Shutdown {
                endpoint, error, ..
            } => {
                while self.queue.read_batch(&mut self.batch, BATCH_MAX) > 0 {
                    self.read_messages();
                }
                let connection = lock(&self.connections).remove(&endpoint);
                if let Some(connection) = connection {
                    let why = error.as_ref().map_or(EndCause::Closed, EndCause::Lost);
                    let ending = || connection.handle_end(why);
                    caught("the end of a connection", ending);
                }
            }
            Event::Error(error) => log(|| tracing::debug!(%error, "an event")),
            _ => {}
        }
    }
}

/// Returns the current runtime, if it has timers.
///
/// # Errors
/// A status whose error is of the kind [`ErrorKind::NoRuntime`]. Tokio reports missing timers only
/// by a panic. It is caught here, but the process's panic hook has run by then.
pub(crate) fn runtime_with_timers() -> Result<Handle, Status> {
    let none = |what: String| {
        let status = Status::from(Error::from(ErrorKind::NoRuntime));
        let reason = status.reason();
        status.with_message(format!("{reason}: {what}"))
    };
    let runtime = Handle::try_current().map_err(|error| none(error.to_string()))?;
    // Creating a sleep looks up the runtime's timers; dropping it unpolled costs nothing.
    let probe = || drop(tokio::time::sleep(Duration::ZERO));
    match std::panic::catch_unwind(probe) {
        Ok(()) => Ok(runtime),
        Err(_) => Err(none(
            "calls need timers (Builder::enable_time or enable_all)".to_owned(),
        )),
    }
}

/// Polls the future in the context of `runtime`, so that it uses the timers of `runtime`: the
/// runtime that polls may have none.
pub(crate) async fn within_runtime<F: Future>(runtime: Handle, future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    poll_fn(|cx| {
        let _entered = runtime.enter();
        future.as_mut().poll(cx)
    })
    .await
}

/// Sends a frame, in the order of the calls. The frame waits for room within the library, so the
/// number of open calls limits the queue. Leaves `frame` empty; a small frame is copied in place.
pub(crate) fn send(endpoint: &Endpoint, frame: &mut FrameBuf) -> Result<(), Error> {
    if let Some(sent) = try_inject(endpoint, frame) {
        return sent;
    }
    let sent = endpoint.send(std::mem::take(frame).into_vec()).detach();
    sent.map_err(|failed| failed.into_error())
}

/// Sends an item of a stream. If the library has no room, returns the operation that the stream
/// must await, so that items cannot accumulate for a peer that does not read.
pub(crate) fn send_item(endpoint: &Endpoint, frame: &mut FrameBuf) -> Result<ItemSending, Error> {
    if let Some(sent) = try_inject(endpoint, frame) {
        return sent.map(|()| ItemSending::Sent);
    }
    let sent = endpoint.send(std::mem::take(frame).into_vec()).try_post();
    match sent.map_err(|failed| failed.into_parts()) {
        Ok(sending) => {
            sending.detach();
            Ok(ItemSending::Sent)
        }
        Err((error, Some(frame))) if error.is_again() => {
            let sending = endpoint.send(frame).post();
            let sending = sending.map_err(|failed| failed.into_error())?;
            Ok(ItemSending::NoRoom(sending))
        }
        Err((error, _)) => Err(error),
    }
}

pub(crate) enum ItemSending {
    Sent,
    /// The item will be sent in order once the library has room. Await this before sending the next
    /// item.
    NoRoom(Op<Vec<u8>>),
    /// The item is not sent: there is no credit for it.
    NoCredit(FrameBuf),
}

/// Sends a small frame, if there is room within the library.
fn try_inject(endpoint: &Endpoint, frame: &mut FrameBuf) -> Option<Result<(), Error>> {
    if frame.len() > INJECT_SIZE_MAX {
        return None;
    }
    match endpoint.inject(&*frame) {
        Err(error) if error.is_again() => None,
        sent => {
            frame.clear();
            Some(sent)
        }
    }
}

/// Sends a frame at the library's next turn, not within this call.
pub(crate) fn send_later(endpoint: &Endpoint, frame: FrameBuf) -> Result<(), Error> {
    let sent = endpoint.send(frame.into_vec()).more().detach();
    sent.map_err(|failed| failed.into_error())
}

/// Sends the gathered frames (at least one), as [`send`] does.
pub(crate) fn send_batch(endpoint: &Endpoint, batch: &mut BatchBuf) -> Result<(), Error> {
    let message = batch.message();
    if message.len() <= INJECT_SIZE_MAX {
        match endpoint.inject(message) {
            Err(error) if error.is_again() => {}
            sent => {
                batch.clear();
                return sent;
            }
        }
    }
    let sent = endpoint.send(batch.take()).detach();
    sent.map_err(|failed| failed.into_error())
}

/// Returns whether the peer runs on this processor. Such a peer cannot work while a turn gathers
/// frames, so nothing is sent before the turn ends.
pub(crate) fn shares_processor(endpoint: &Endpoint) -> bool {
    let tcp = endpoint.ops::<TcpOps>();
    tcp.is_ok_and(|tcp| tcp.peer_shares_processor())
}

/// Starts closing a connection.
pub(crate) fn close(endpoint: &Endpoint) {
    // The first poll begins the shutdown, which then continues by itself.
    let _ = endpoint.shutdown().now_or_never();
}
