//! One suite for all backends, without and with injected faults: [`suite`]. Cases that only some
//! backends can do or get wrong: [`special`].

mod awaited;
mod special;
mod states;
mod suite;
#[cfg(all(feature = "io-uring", target_os = "linux"))]
mod uring;
#[cfg(all(feature = "io-uring", target_os = "linux"))]
mod uring_refused;

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use super::fault::Faults;
use super::select::Selection;
use super::*;
use crate::buf::Memory;
use crate::limits::LOCAL_RING_LEN;
use crate::sync::ProgressTask;

/// Reports once that tests are left out on io_uring; not by `println!`, whose output the test
/// runner hides when a test passes.
///
/// # Panics
///
/// With `TOKIO_FABRIC_REQUIRE_SYSTEM=1`.
pub(in crate::transport) fn say_left_out(why: &Error) {
    use std::io::Write;
    static SAID: std::sync::Once = std::sync::Once::new();
    let required = std::env::var_os("TOKIO_FABRIC_REQUIRE_SYSTEM");
    assert!(required.is_none_or(|it| it != "1"), "io-uring: {why}");
    SAID.call_once(|| {
        let _ = writeln!(std::io::stderr(), "left out: io-uring: {why}");
    });
}

/// A waker that can be awaited, and counts its wakes.
#[derive(Default)]
pub(in crate::transport) struct CountingWaker {
    notify: Notify,
    wakes: AtomicUsize,
}

impl CountingWaker {
    pub(in crate::transport) fn wakes(&self) -> usize {
        self.wakes.load(Ordering::SeqCst)
    }
}

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wakes.fetch_add(1, Ordering::SeqCst);
        self.notify.notify_one();
    }
}

/// A link that is driven only by its waker, so that a lost wake shows as a timeout.
pub(in crate::transport) struct Peer {
    pub(in crate::transport) link: Box<dyn Link>,
    waker: Arc<CountingWaker>,
}

/// Longer than any step takes; a step that lasts this long hangs.
const PATIENCE: Duration = Duration::from_secs(20);

impl Peer {
    pub(in crate::transport) fn new(make: impl FnOnce(Waker) -> Result<Box<dyn Link>>) -> Peer {
        let counting = Arc::new(CountingWaker::default());
        let link = make(Arc::clone(&counting).into()).expect("a link");
        Peer {
            link,
            waker: counting,
        }
    }

    #[track_caller]
    pub(in crate::transport) fn outcome(&mut self) -> impl Future<Output = Outcome> + '_ {
        let caller = std::panic::Location::caller();
        async move {
            let found = async {
                loop {
                    if let Some(outcome) = self.link.poll_outcome() {
                        return outcome;
                    }
                    self.waker.notify.notified().await;
                }
            };
            match tokio::time::timeout(PATIENCE, found).await {
                Ok(outcome) => outcome,
                Err(_) => panic!("no outcome and no wake at {caller}"),
            }
        }
    }

    /// Polls for the link's own work, while nothing is submitted to it.
    async fn idle(&mut self) {
        loop {
            assert!(self.link.poll_outcome().is_none(), "nothing is submitted");
            self.waker.notify.notified().await;
        }
    }

    /// True if the link wakes within a moment, or has done so since it was last asked.
    async fn is_woken_soon(&self) -> bool {
        let woken = self.waker.notify.notified();
        tokio::time::timeout(Duration::from_millis(50), woken)
            .await
            .is_ok()
    }

    pub(in crate::transport) async fn received(&mut self) -> Received {
        match self.outcome().await {
            Outcome::Received(received) => received,
            other => panic!("expected the end of a receive, found {other:?}"),
        }
    }

    async fn sent(&mut self) -> (Box<SendBatch>, Result<usize>) {
        match self.outcome().await {
            Outcome::Sent { batch, result } => (batch, result),
            other => panic!("expected the end of a send, found {other:?}"),
        }
    }

    /// Sends all of the batch, while `other` does nothing; for batches that fit into the buffers.
    pub(in crate::transport) async fn send_all(&mut self, mut batch: Box<SendBatch>) {
        while batch.remaining() > 0 {
            self.link.send(batch);
            let (back, result) = self.sent().await;
            batch = back;
            batch.drop_sent(result.expect("sent"));
        }
    }

    /// Receives into staging buffers until there are `len` bytes, or the stream ends.
    async fn receive_staged(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < len {
            self.link.receive(Receive::Stage);
            match self.received().await {
                Received::Stage(stage) => {
                    assert!(!stage.is_empty(), "a stage has bytes");
                    bytes.extend_from_slice(&stage);
                }
                Received::End { returned: None } => break,
                // With TLS the end of a peer that has just been dropped is a cut.
                Received::Failed { error, .. } if error.to_string().contains("close_notify") => {
                    break;
                }
                other => panic!("expected bytes, found {other:?}"),
            }
        }
        bytes
    }
}

/// One backend to test, with or without faults.
pub(in crate::transport) struct TestTransport {
    pub(in crate::transport) transport: Arc<dyn Transport>,
    /// The name of its backend and options.
    name: &'static str,
    /// The length of the rings in shared memory through which its connections' bytes go.
    local: Option<usize>,
    /// Ends the driver's thread when dropped, if there is one.
    #[cfg_attr(
        not(feature = "io-uring"),
        allow(dead_code, reason = "only a ring has a driver to end")
    )]
    drives: Option<oneshot::Sender<()>>,
}

impl TestTransport {
    fn new(name: &'static str, backend: Backend, faults: Option<FaultPlan>) -> TestTransport {
        TestTransport::try_new(name, backend, faults).expect("a transport")
    }

    fn try_new(
        name: &'static str,
        backend: Backend,
        faults: Option<FaultPlan>,
    ) -> Result<TestTransport> {
        let options = TransportOptions {
            backend: Some(backend),
            net: Some(LoopbackNet::new()),
            runner: match name.contains("thread") {
                true => Runner::Thread,
                false => Runner::Task,
            },
            faults: faults.map(Faults::new),
            #[cfg(feature = "tls")]
            tls: name.starts_with("tls").then(super::tls::for_tests),
            ..TransportOptions::default()
        };
        let Selection {
            transport,
            executor,
            ..
        } = open(&options)?;
        let drives = Some(drive_on(executor, &transport)?);
        Ok(TestTransport {
            transport,
            name,
            local: None,
            drives,
        })
    }

    /// `None`, with a message, if the kernel refuses.
    pub(super) fn io_uring() -> Option<TestTransport> {
        TestTransport::if_offered("io-uring", None)
    }

    pub(super) fn io_uring_with(plan: FaultPlan) -> Option<TestTransport> {
        TestTransport::if_offered("io-uring with faults", Some(plan))
    }

    /// As `io_uring`, with a thread that alone enters the kernel.
    pub(super) fn thread() -> Option<TestTransport> {
        TestTransport::if_offered("io-uring on a thread", None)
    }

    pub(super) fn thread_with(plan: FaultPlan) -> Option<TestTransport> {
        TestTransport::if_offered("io-uring on a thread with faults", Some(plan))
    }

    fn if_offered(name: &'static str, faults: Option<FaultPlan>) -> Option<TestTransport> {
        match TestTransport::try_new(name, Backend::IoUring, faults) {
            Ok(world) => Some(world),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported);
                say_left_out(&error);
                None
            }
        }
    }

    /// One transport per kind of socket, and the in-process one.
    pub(super) fn all() -> impl Iterator<Item = TestTransport> {
        [
            TestTransport::epoll(),
            TestTransport::epoll().through_rings(LOCAL_RING_LEN),
            TestTransport::loopback(),
        ]
        .into_iter()
        .chain(TestTransport::io_uring())
        .chain(TestTransport::thread())
        .chain(TestTransport::io_uring().map(|it| it.through_rings(LOCAL_RING_LEN)))
        .chain(TestTransport::thread().map(|it| it.through_rings(LOCAL_RING_LEN)))
    }

    pub(in crate::transport) fn epoll() -> TestTransport {
        TestTransport::new("epoll", Backend::Epoll, None)
    }

    pub(super) fn loopback() -> TestTransport {
        TestTransport::new("loopback", Backend::Loopback, None)
    }

    /// Has the bytes of each connection go through rings of this length in shared memory.
    pub(super) fn through_rings(mut self, ring_len: usize) -> TestTransport {
        self.local = Some(ring_len);
        self
    }

    pub(super) fn epoll_with(plan: FaultPlan) -> TestTransport {
        TestTransport::new("epoll with faults", Backend::Epoll, Some(plan))
    }

    pub(super) fn loopback_with(plan: FaultPlan) -> TestTransport {
        TestTransport::new("loopback with faults", Backend::Loopback, Some(plan))
    }

    #[cfg(feature = "tls")]
    pub(in crate::transport) fn epoll_tls() -> TestTransport {
        TestTransport::new("tls", Backend::Epoll, None)
    }

    #[cfg(feature = "tls")]
    pub(super) fn loopback_tls_with(plan: FaultPlan) -> TestTransport {
        TestTransport::new("tls with faults", Backend::Loopback, Some(plan))
    }

    #[cfg(feature = "tls")]
    pub(super) fn io_uring_tls() -> Option<TestTransport> {
        TestTransport::if_offered("tls on io-uring", None)
    }

    fn is_faulty(&self) -> bool {
        self.name.ends_with("faults")
    }

    /// Makes a connection: the side that connected, and the side that accepted.
    pub(super) async fn pair(&self) -> (Peer, Peer) {
        let mut listener = self.transport.listen(localhost()).expect("a listener");
        let to = listener.local_addr();
        let mut near = Peer::new(|waker| self.transport.connect(to, None, waker));
        let raw = accept(&mut *listener).await.expect("a connection");
        let mut far = Peer::new(|waker| self.transport.adopt(raw, waker));
        let is_tls = self.name.starts_with("tls");
        let far_is_up = async {
            while is_tls && far.link.peer_identity().is_none() {
                assert!(far.link.poll_outcome().is_none(), "nothing is submitted");
                if far.link.peer_identity().is_none() {
                    far.waker.notify.notified().await;
                }
            }
        };
        let (outcome, ()) = tokio::join!(near.outcome(), far_is_up);
        match outcome {
            Outcome::Connected => {}
            other => panic!("expected to be connected, found {other:?}"),
        }
        assert_eq!(near.link.peer_addr(), to);
        assert_eq!(near.link.local_addr(), far.link.peer_addr());
        assert_eq!(near.link.peer_addr(), far.link.local_addr());
        if let Some(ring_len) = self.local {
            let links = [&mut near.link, &mut far.link];
            for (link, parts) in links.into_iter().zip(super::local::parts_of_len(ring_len)) {
                let localized = link.localize(parts, &*self.transport);
                localized.expect("both are of this process");
            }
        }
        (near, far)
    }
}

/// A future in the place of a driver.
pub(super) struct Polled<F>(pub(super) F);

impl<F: Future<Output = ()> + Unpin> Future for Polled<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl<F: Future<Output = ()> + Send + Unpin> ProgressTask for Polled<F> {
    fn is_due(&mut self) -> bool {
        false
    }

    fn has_moved(&mut self) -> bool {
        false
    }
}

/// Polls the transport as a driver does, until the returned value is dropped.
pub(super) fn drive_on(
    executor: Executor,
    transport: &Arc<dyn Transport>,
) -> Result<oneshot::Sender<()>> {
    let driven = Arc::clone(transport);
    let (sender, mut end) = oneshot::channel();
    let driver = poll_fn(move |cx| {
        if Pin::new(&mut end).poll(cx).is_ready() {
            driven.shutdown();
            return Poll::Ready(());
        }
        loop {
            let _ = driven.poll_drive(cx);
            if driven.try_park(cx.waker()) {
                return Poll::Pending;
            }
        }
    });
    executor.start("driver", Polled(driver))?;
    Ok(sender)
}

/// Polls the transport as a driver does, for as long as the runtime lives.
#[cfg_attr(
    not(feature = "io-uring"),
    allow(dead_code, reason = "only a ring has a driver to end")
)]
pub(super) fn drive(transport: Arc<dyn Transport>) {
    tokio::spawn(std::future::poll_fn(move |cx| {
        loop {
            let _ = transport.poll_drive(cx);
            if transport.try_park(cx.waker()) {
                return Poll::<()>::Pending;
            }
        }
    }));
}

pub(in crate::transport) async fn accept(listener: &mut dyn Listener) -> Result<RawLink> {
    let accepted = std::future::poll_fn(|cx| listener.poll_accept(cx));
    tokio::time::timeout(PATIENCE, accepted)
        .await
        .expect("no connection came")
}

pub(in crate::transport) fn localhost() -> SocketAddr {
    (std::net::Ipv4Addr::LOCALHOST, 0).into()
}

/// Bytes that differ from their neighbours, and from those with another `salt`.
pub(super) fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ salt) as u8)
        .collect()
}

/// One frame with this header and these payload parts.
pub(super) fn frame(header: &[u8], parts: Vec<Vec<u8>>) -> (&[u8], Payload) {
    (header, scattered(parts))
}

pub(super) fn scattered(parts: Vec<Vec<u8>>) -> Payload {
    let parts = parts.into_iter().map(|piece| Memory::Owned(piece.into()));
    Payload::from_parts(parts.collect())
}

/// A batch of frames with these headers and payloads.
pub(super) fn batch<'a>(frames: impl IntoIterator<Item = (&'a [u8], Payload)>) -> Box<SendBatch> {
    let mut batch = Box::<SendBatch>::default();
    for (header, payload) in frames {
        let write = |room: &mut [u8]| room.copy_from_slice(header);
        batch.push(header.len(), write, payload, 7);
    }
    batch
}

/// A batch of these bytes, as one frame without header.
pub(in crate::transport) fn plain(bytes: &[u8]) -> Box<SendBatch> {
    batch([frame(&[], vec![bytes.to_vec()])])
}

pub(super) fn direct(payload: Payload, offset: usize, len: usize) -> DirectBuffer {
    let leases = payload.lease().expect("an open gate");
    DirectBuffer {
        payload,
        offset,
        len: len as u32,
        leases,
        wake_bytes: wake_bytes(len as u64, len as u64),
    }
}

pub(super) fn contents(payload: &Payload) -> Vec<u8> {
    let mut bytes = vec![0; payload.len()];
    payload.copy_out(0, &mut bytes).expect("an open gate");
    bytes
}
