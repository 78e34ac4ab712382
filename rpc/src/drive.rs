//! One task that reads what comes: messages of all connections, out of buffers that they share, and
//! the beginnings and ends of connections. It hands frames to the connections, which answer by
//! posting; nothing here waits for an application.

mod reading;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use futures::{FutureExt, Stream};
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
use tokio_fabric::{Buffer, CompletionQueue, Domain, Endpoint, Error, Event, EventQueue, Fabric};

use crate::caught::{caught, log};
use crate::limits::{
    BATCH_MAX, FIRST_POLL_MAX, FRAME_MAX, IDLE_INTERVAL, QUEUE_SIZE, RECEIVE_BUFFER,
    RECEIVE_BUFFERS, REFUSALS_MAX, TIME_RESOLUTION,
};
use crate::status::Status;
use crate::wire::{BatchBuf, Bodies, FrameBuf};

pub(crate) use reading::{Came, ReadingCheck};

/// One end of a connection.
pub(crate) trait Connection: Send + Sync + 'static {
    /// What it keeps from one message to the next.
    type Kept: Default + Send;

    /// What it goes over.
    fn endpoint(&self) -> &Endpoint;
    /// A message has come.
    fn handle_message(self: &Arc<Self>, message: &[u8], turn: &mut ReadTurn<Self::Kept>);
    /// No more messages of it are there for now. True: it gathers what those send that it has
    /// woken, until [`flush`](Self::flush).
    fn handle_pause(self: &Arc<Self>, _: &mut ReadTurn<Self::Kept>) -> bool {
        false
    }
    /// Those that were woken have run.
    fn flush(&self) {}
    /// Nothing more comes; the reason, unless the end was an agreed one.
    fn handle_end(self: &Arc<Self>, why: Option<&Error>);
}

/// What is kept from one message to the next while those that were taken from the queue together
/// are handled.
pub(crate) struct ReadTurn<K> {
    /// When they were taken from it.
    pub(crate) read: Instant,
    /// Before the system's clock was first asked, which costs less than Tokio's.
    before: Duration,
    clock: std::time::Instant,
    /// When the last one was handled.
    last_at: std::time::Instant,
    /// When `last` is to be set anew.
    due_at: std::time::Instant,
    /// About how long that was behind their being read.
    pub(crate) last: Duration,
    /// What the last one has taken that has taken long.
    pub(crate) took: Duration,
    /// For what of the messages is kept.
    pub(crate) bodies: Bodies,
    pub(crate) kept: K,
}

impl<K: Default> ReadTurn<K> {
    pub(crate) fn new() -> Self {
        let (read, clock) = (Instant::now(), std::time::Instant::now());
        ReadTurn {
            read,
            before: Duration::ZERO,
            clock,
            last_at: clock,
            due_at: clock,
            last: Duration::ZERO,
            took: Duration::ZERO,
            bodies: Bodies::default(),
            kept: K::default(),
        }
    }

    /// Of what was taken now.
    fn restart(&mut self) {
        self.begin_at(Instant::now());
        self.before = Duration::ZERO;
    }

    /// Of one that was read then.
    pub(crate) fn begin_at(&mut self, read: Instant) {
        let clock = std::time::Instant::now();
        self.before = self.read.saturating_duration_since(read);
        (self.read, self.last) = (read, self.before);
        (self.clock, self.last_at, self.due_at) = (clock, clock, clock);
    }

    /// One has been handled. True if that [took](Self::took) long.
    #[inline]
    pub(crate) fn measure(&mut self) -> bool {
        let now = std::time::Instant::now();
        let last_at = std::mem::replace(&mut self.last_at, now);
        now >= self.due_at && self.measure_from(last_at)
    }

    fn measure_from(&mut self, last_at: std::time::Instant) -> bool {
        self.last = self.before + self.last_at.duration_since(self.clock);
        self.due_at = self.last_at + TIME_RESOLUTION;
        self.took = self.last_at.duration_since(last_at);
        self.took > FIRST_POLL_MAX
    }
}

/// What a domain is opened with besides the defaults.
pub(crate) type Configure = Box<dyn FnOnce(DomainBuilder) -> DomainBuilder + Send>;

/// The connections of a domain that share their receives.
pub(crate) struct Hub<C: Connection> {
    pub(crate) fabric: Fabric,
    /// Of its endpoints.
    auth_key: Option<AuthKey>,
    pub(crate) domain: Domain,
    pub(crate) events: EventQueue,
    queue: CompletionQueue,
    receives: SharedReceiveContext,
    connections: Arc<Table<C>>,
    reader: JoinHandle<()>,
}

/// The connections by their endpoints.
type Table<C> = Mutex<HashMap<EndpointId, Arc<C>>>;

impl<C: Connection> Hub<C> {
    /// For so many connections; requests for new ones go to `accept`.
    pub(crate) fn open(
        fabric: Fabric,
        configure: Option<Configure>,
        auth_key: Option<AuthKey>,
        connections_max: usize,
        accept: impl FnMut(ConnRequest) + Send + 'static,
    ) -> Result<Hub<C>, Status> {
        let builder = fabric.domain();
        let domain = match configure {
            Some(configure) => configure(builder).open()?,
            None => builder.open()?,
        };
        // Two of each endpoint; requests find room beside them.
        let events = fabric.event_queue();
        let events = events
            .size(connections_max.saturating_mul(2).saturating_add(64))
            .open()?;
        let queue = domain.completion_queue().size(QUEUE_SIZE).open()?;
        let receives = domain.receive_context().receive_queue(&queue);
        let receives = receives.min_multi_recv(FRAME_MAX);
        // So that a peer that stops within a frame does not keep a part of a buffer from others.
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
            turn: ReadTurn::new(),
            gathering: Vec::new(),
            last_parts: [const { None }; RECEIVE_BUFFERS],
        };
        Ok(Hub {
            fabric,
            auth_key,
            domain,
            events,
            queue,
            receives,
            connections,
            reader: tokio::spawn(reader.run()),
        })
    }

    /// An endpoint for a connection with so many calls open.
    pub(crate) fn endpoint(&self, calls: u32) -> Result<Endpoint, Status> {
        let builder = self.domain.endpoint().receive_queue(&self.queue);
        let builder = builder
            .event_queue(&self.events)
            .receive_context(&self.receives);
        let builder = match &self.auth_key {
            Some(key) => builder.auth_key(key.clone()),
            None => builder,
        };
        // An answer or a request, and a cancellation, of each call; and what bulk takes.
        let builder = builder.transmit_size(2 * calls as usize + 256);
        let builder = builder.on_refusal(OnRefusal::Continue {
            limit: REFUSALS_MAX,
        });
        let liveness = Liveness::default().idle_interval(IDLE_INTERVAL);
        Ok(builder.liveness(liveness).open()?)
    }

    /// Messages of the endpoint go there from now on.
    pub(crate) fn insert(&self, endpoint: EndpointId, connection: &Arc<C>) {
        let none = lock(&self.connections).insert(endpoint, Arc::clone(connection));
        debug_assert!(none.is_none(), "an endpoint has one connection");
    }

    /// Of a connection that was never made.
    pub(crate) fn remove(&self, endpoint: EndpointId) {
        // Dropped without the lock.
        let _removed = lock(&self.connections).remove(&endpoint);
    }

    /// The connections there are.
    pub(crate) fn connections(&self) -> Vec<Arc<C>> {
        lock(&self.connections).values().cloned().collect()
    }

    pub(crate) fn connection_count(&self) -> usize {
        lock(&self.connections).len()
    }
}

/// Its connections end with it, and not only when the runtime comes to drop the reader.
impl<C: Connection> Drop for Hub<C> {
    fn drop(&mut self) {
        self.reader.abort();
        end_all(&self.connections);
    }
}

/// What the program has given is guarded where it is called, so this finds what is not known of:
/// then the connection ends, and others go on.
fn guarded<C: Connection>(connection: &Arc<C>, act: impl FnOnce()) {
    if caught("what serves a connection", act).is_none() {
        caught("the end of a connection", || connection.handle_end(None));
        caught("the end of a connection", || close(connection.endpoint()));
    }
}

/// What these receive is read no more.
fn end_all<C: Connection>(connections: &Table<C>) {
    let connections = std::mem::take(&mut *lock(connections));
    for connection in connections.into_values() {
        caught("the end of a connection", || {
            connection.handle_end(None);
            close(connection.endpoint());
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the queue is full of what is not read yet, the buffer waits for its turn: a lost one would
/// never come back.
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
    /// Connections that are to be flushed.
    gathering: Vec<Arc<C>>,
    /// The last message of each buffer: whose others are read and gone, so it brings all of the
    /// buffer back.
    last_parts: [Option<Buffer>; RECEIVE_BUFFERS],
}

/// A runtime that ends drops it, and so does a panic, while calls are awaited elsewhere.
impl<C: Connection, A> Drop for Reader<C, A> {
    fn drop(&mut self) {
        end_all(&self.connections);
    }
}

/// What the reader is woken for.
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
                // Behind all that is ready to run.
                tokio::task::yield_now().await;
                self.gathering
                    .drain(..)
                    .for_each(|it| guarded(&it, || it.flush()));
            }
            tokio::task::coop::consume_budget().await;
        }
    }

    /// Messages first: the end of a connection is reported behind them.
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
        // Messages come in runs of one connection.
        let mut last: Option<(EndpointId, Arc<C>)> = None;
        let mut batch = std::mem::take(&mut self.batch);
        // Where they are: they are large, and each move is a copy.
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

    /// The next message is of another connection, or there is none.
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
                // It does not fit, so it is no frame: an empty one is none either.
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
                    let ending = || connection.handle_end(error.as_ref());
                    caught("the end of a connection", ending);
                }
            }
            Event::Error(error) => log(|| tracing::debug!(%error, "an event")),
            _ => {}
        }
    }
}

/// Sends a frame, in the order of the calls. It waits for room within the library, so what is sent
/// is bounded by the calls that are open. Empty afterwards: small ones are copied from where they
/// are.
pub(crate) fn send(endpoint: &Endpoint, frame: &mut FrameBuf) -> Result<(), Error> {
    if let Some(sent) = try_inject(endpoint, frame) {
        return sent;
    }
    let sent = endpoint.send(std::mem::take(frame).into_vec()).detach();
    sent.map_err(|failed| failed.into_error())
}

/// Sends an item of a stream. If the library has no room, returns what the stream must await, so
/// that a peer that does not read cannot make items pile up.
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

/// What becomes of an item that is to be sent.
pub(crate) enum ItemSending {
    Sent,
    /// It is sent, in its order, when there is room. To be awaited before the next one.
    NoRoom(Op<Vec<u8>>),
    /// It is not sent: there is no credit for it.
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

/// The same, at the library's next turn: nothing is sent within this call.
pub(crate) fn send_later(endpoint: &Endpoint, frame: FrameBuf) -> Result<(), Error> {
    let sent = endpoint.send(frame.into_vec()).more().detach();
    sent.map_err(|failed| failed.into_error())
}

/// Sends the gathered frames, at least one, as [`send`] does.
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

/// True if the peer cannot work while the rest of a turn is gathered, so that nothing is sent
/// before it ends.
pub(crate) fn shares_processor(endpoint: &Endpoint) -> bool {
    let tcp = endpoint.ops::<TcpOps>();
    tcp.is_ok_and(|tcp| tcp.peer_shares_processor())
}

/// Closes a connection without waiting for it.
pub(crate) fn close(endpoint: &Endpoint) {
    // Begun by its first poll, it goes on by itself.
    let _ = endpoint.shutdown().now_or_never();
}
