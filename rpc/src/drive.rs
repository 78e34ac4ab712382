//! One task that reads what comes: messages of all connections, out of buffers that they share, and
//! the beginnings and ends of connections. It hands frames to the connections, which answer by
//! posting; nothing here waits for an application.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use futures::Stream;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_fabric::cq::{Completion, CompletionFlags};
use tokio_fabric::domain::DomainBuilder;
use tokio_fabric::ep::{Liveness, OnRefusal, SharedReceiveContext};
use tokio_fabric::eq::{ConnRequest, EndpointId};
use tokio_fabric::error::OperationKind;
use tokio_fabric::info::AuthKey;
use tokio_fabric::limits::INJECT_SIZE_MAX;
use tokio_fabric::{CompletionQueue, Domain, Endpoint, Error, Event, EventQueue, Fabric};

use crate::limits::{
    BATCH_MAX, FRAME_MAX, IDLE_INTERVAL, QUEUE_SIZE, RECEIVE_BUFFER, RECEIVE_BUFFERS, REFUSALS_MAX,
};
use crate::status::Status;
use crate::wire::FrameBuf;

/// One end of a connection.
pub(crate) trait Connection: Send + Sync + 'static {
    /// A message has come.
    fn handle_frame(self: &Arc<Self>, frame: &[u8], clock: &mut Clock);
    /// Nothing more comes; the reason, unless the end was an agreed one.
    fn handle_end(self: &Arc<Self>, why: Option<&Error>);
}

/// The time while messages are read: asked for once per message at most.
pub(crate) struct Clock {
    /// When they were taken from the queue.
    pub(crate) read: Instant,
    /// When the last one was handled.
    pub(crate) last: Instant,
}

/// What a domain is opened with besides the defaults.
pub(crate) type Configure = Box<dyn FnOnce(DomainBuilder) -> DomainBuilder + Send>;

/// The connections of a domain that share their receives.
pub(crate) struct Hub<C> {
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
        let events = fabric.event_queue().size(2 * connections_max + 64).open()?;
        let queue = domain.completion_queue().size(QUEUE_SIZE).open()?;
        let receives = domain.receive_context().receive_queue(&queue);
        let receives = receives.min_multi_recv(FRAME_MAX).open()?;
        for _ in 0..RECEIVE_BUFFERS {
            post(&receives, vec![0; RECEIVE_BUFFER])?;
        }
        let connections = Arc::default();
        let reader = Reader {
            queue: queue.clone(),
            events: events.clone(),
            receives: receives.clone(),
            connections: Arc::clone(&connections),
            accept,
            batch: Vec::new(),
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
        lock(&self.connections).insert(endpoint, Arc::clone(connection));
    }

    /// Of a connection that was never made.
    pub(crate) fn remove(&self, endpoint: EndpointId) {
        lock(&self.connections).remove(&endpoint);
    }

    /// The connections there are.
    pub(crate) fn connections(&self) -> Vec<Arc<C>> {
        lock(&self.connections).values().cloned().collect()
    }

    pub(crate) fn connection_count(&self) -> usize {
        lock(&self.connections).len()
    }
}

impl<C> Drop for Hub<C> {
    fn drop(&mut self) {
        self.reader.abort();
        lock(&self.connections).clear();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the queue is full of what is not read yet, the buffer waits for its turn: a lost one would
/// never come back.
fn post(receives: &SharedReceiveContext, buffer: Vec<u8>) -> Result<(), Error> {
    let posted = receives.multi_recv(buffer).queue(0_usize).post();
    let posted = posted.map_err(|failed| failed.into_error())?;
    posted.detach();
    Ok(())
}

struct Reader<C, A> {
    queue: CompletionQueue,
    events: EventQueue,
    receives: SharedReceiveContext,
    connections: Arc<Table<C>>,
    accept: A,
    batch: Vec<Completion>,
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
        let read = Instant::now();
        let mut clock = Clock { read, last: read };
        // Messages come in runs of one connection.
        let mut last: Option<(EndpointId, Arc<C>)> = None;
        let mut batch = std::mem::take(&mut self.batch);
        for completion in batch.drain(..) {
            let id = completion.endpoint;
            if last.as_ref().is_none_or(|(it, _)| *it != id) {
                let found = lock(&self.connections).get(&id).cloned();
                last = found.map(|it| (id, it));
            }
            self.read_message(completion, last.as_ref().map(|(_, it)| it), &mut clock);
        }
        self.batch = batch;
    }

    fn read_message(&self, mut completion: Completion, from: Option<&Arc<C>>, clock: &mut Clock) {
        let buffer = completion.take_buffer();
        let is_message = completion.flags.contains(CompletionFlags::RECV);
        if completion.operation == OperationKind::Receive && is_message {
            match (&completion.result, &buffer, from) {
                (Ok(()), Some(message), Some(from)) => from.handle_frame(message, clock),
                // It does not fit, so it is no frame: an empty one is none either.
                (Err(failed), _, Some(from)) if failed.error.is_truncated() => {
                    from.handle_frame(&[], clock);
                }
                _ => {}
            }
        }
        if completion.flags.contains(CompletionFlags::MULTI_RECV) {
            // Its messages have been handled, and so the buffer comes back whole.
            let whole = buffer.and_then(|it| it.into_whole());
            let whole = whole.and_then(|it| it.into_vec().ok());
            let whole = whole.unwrap_or_else(|| vec![0; RECEIVE_BUFFER]);
            if let Err(error) = post(&self.receives, whole) {
                tracing::debug!(%error, "no receive was posted");
            }
        }
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::ConnRequest(request) => (self.accept)(request),
            Event::Shutdown {
                endpoint, error, ..
            } => {
                while self.queue.read_batch(&mut self.batch, BATCH_MAX) > 0 {
                    self.read_messages();
                }
                let connection = lock(&self.connections).remove(&endpoint);
                if let Some(connection) = connection {
                    connection.handle_end(error.as_ref());
                }
            }
            Event::Error(error) => tracing::debug!(%error, "an event"),
            _ => {}
        }
    }
}

/// Sends a frame, in the order of the calls. It waits for room within the library, so what is sent
/// is bounded by the calls that are open.
pub(crate) fn send(endpoint: &Endpoint, frame: FrameBuf) -> Result<(), Error> {
    if frame.len() <= INJECT_SIZE_MAX {
        match endpoint.inject(&frame) {
            Err(error) if error.is_again() => {}
            sent => return sent,
        }
    }
    let sent = endpoint.send(frame.into_vec()).detach();
    sent.map_err(|failed| failed.into_error())
}

/// Closes a connection without waiting for it.
pub(crate) fn close(endpoint: &Endpoint) {
    let endpoint = endpoint.clone();
    tokio::spawn(async move { endpoint.shutdown().await });
}
