//! User code that panics within the library: at its k-th call, for every k. Whatever it takes along
//! with it, every operation ends, and every domain closes.
//!
//! Wakers and subscribers that panic end the driver that they panic in, with `DriverGone` for the
//! operations of its domain; buffers that panic as they are dropped end nothing.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_fabric::testing::{Net, connect_endpoints};
use tokio_fabric::{Access, Backend, Driver, Endpoint};

use crate::common::{backends, is_deep};

/// An operation that should end is given so long, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(20);
/// Of all calls of one kind, so many are tried here.
const SAMPLES: u64 = 6;

/// Which user code panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UserCode {
    Waker,
    Buffer,
    Subscriber,
}

/// Counts the calls of user code, and panics at one of them.
struct Injector {
    calls: AtomicU64,
    panics_at: u64,
}

impl Injector {
    fn new(panics_at: u64) -> Arc<Self> {
        Arc::new(Injector {
            calls: AtomicU64::new(0),
            panics_at,
        })
    }

    fn called(&self) {
        if std::thread::panicking() {
            return; // Two panics that meet end the process, in whatever code the second is.
        }
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        assert!(call != self.panics_at, "injected at call {call}");
    }
}

struct InjectedWaker {
    task: Waker,
    injector: Arc<Injector>,
}

impl Wake for InjectedWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.task.wake_by_ref();
        self.injector.called();
    }
}

/// A future whose waker is injected.
struct Injected<F>(Pin<Box<F>>, Option<Arc<Injector>>);

impl<F: Future> Future for Injected<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Some(injector) = self.1.clone() else {
            return self.0.as_mut().poll(cx);
        };
        let task = cx.waker().clone();
        let waker = Waker::from(Arc::new(InjectedWaker { task, injector }));
        self.0.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

/// A buffer of the user's own type.
struct Own(Vec<u8>, Option<Arc<Injector>>);

impl AsRef<[u8]> for Own {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Some(injector) = &self.1 {
            injector.called();
        }
    }
}

/// Counts the events of the library.
struct InjectedSubscriber(Arc<Injector>);

impl tracing::Subscriber for InjectedSubscriber {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("tokio_fabric")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.called();
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// One program, with this user code of it.
struct Program {
    waker: Option<Arc<Injector>>,
    buffer: Option<Arc<Injector>>,
    tasks: Vec<(String, JoinHandle<()>)>,
}

impl Program {
    fn go<T>(&mut self, name: impl Into<String>, future: impl Future<Output = T> + Send + 'static) {
        let injected = Injected(
            Box::pin(async move { drop(future.await) }),
            self.waker.clone(),
        );
        self.tasks.push((name.into(), tokio::spawn(injected)));
    }

    fn buffer(&self, len: usize) -> Bytes {
        Bytes::from_owner(Own(vec![7; len], self.buffer.clone()))
    }

    fn exchange(&mut self, x: &Endpoint, y: &Endpoint, memory: &tokio_fabric::RemoteRegion) {
        for at in 0..4 {
            let (a, buffer) = (x.clone(), self.buffer(at * 30_000));
            self.go(format!("send {at}"), async move { a.send(buffer).await });
            let b = y.clone();
            let receive = async move { b.recv(vec![0; 200_000]).await };
            self.go(format!("receive {at}"), receive);
            let (a, buffer, to) = (
                x.clone(),
                self.buffer(10_000),
                memory.slice(..10_000).unwrap(),
            );
            let write = async move { a.write(buffer, to).delivery_complete().await };
            self.go(format!("write {at}"), write);
            let (a, from) = (x.clone(), memory.slice(..10_000).unwrap());
            self.go(format!("read {at}"), async move {
                a.read(vec![0; 10_000], from).await
            });
            let (a, buffer) = (x.clone(), self.buffer(1000));
            self.go(format!("queued {at}"), async move {
                a.send(buffer).queue(at).await
            });
        }
    }
}

/// Runs the program; gives what has not ended.
async fn run(net: Net, waker: Option<Arc<Injector>>, buffer: Option<Arc<Injector>>) -> Vec<String> {
    let mut program = Program {
        waker,
        buffer,
        tasks: Vec::new(),
    };
    let (p, q) = (net.peer().unwrap(), net.peer().unwrap());
    let queue = p.domain.completion_queue().open().unwrap();
    let counter = p.domain.counter().unwrap();
    let x = p
        .domain
        .endpoint()
        .transmit_size(8)
        .completion_queue(&queue);
    let x = x.send_counter(&counter).open().unwrap();
    let y = q.domain.endpoint().open().unwrap();
    let region = q.domain.register(vec![0; 100_000]);
    let region = region.access(Access::REMOTE | Access::LOCAL).await;
    let connected = timeout(PATIENCE, connect_endpoints(&x, &y, &q.fabric)).await;
    let mut left = Vec::new();
    if connected.is_err() {
        left.push("connect".to_owned());
    }
    if let Ok(region) = &region {
        program.exchange(&x, &y, &region.remote());
    }
    let b = y.clone();
    program.go("a receive without a message", async move {
        b.recv(vec![0; 10]).await
    });
    let rdm = net.rdm_pair();
    if let Ok((from, to)) = &rdm {
        for at in 0..3 {
            let (e, other, buffer) = (
                from.endpoint.clone(),
                from.other,
                program.buffer(at * 40_000),
            );
            let send = async move { e.send_tagged(buffer, other, 5).await };
            program.go(format!("rdm send {at}"), send);
            let e = to.endpoint.clone();
            let receive = async move { e.recv_tagged(vec![0; 200_000], 5).await };
            program.go(format!("rdm receive {at}"), receive);
        }
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    // An operation that is dropped, with its buffer.
    drop(x.send(program.buffer(50_000)).post());
    for (name, endpoint) in [("shutdown x", x.clone()), ("shutdown y", y.clone())] {
        program.go(name, async move { endpoint.shutdown().await });
    }
    if let Ok((from, to)) = rdm {
        program.go(
            "rdm shutdown",
            async move { from.endpoint.shutdown().await },
        );
        program.go("rdm shutdown", async move { to.endpoint.shutdown().await });
    }
    let deadline = Instant::now() + PATIENCE;
    for (name, task) in std::mem::take(&mut program.tasks) {
        // A task that has panicked has ended, too.
        if timeout_at(deadline, task).await.is_err() {
            left.push(name);
        }
    }
    drop((x, y, queue, counter));
    if let Ok(region) = region
        && timeout(PATIENCE, region.deregister()).await.is_err()
    {
        left.push("deregister".to_owned());
    }
    for domain in [p.domain, q.domain] {
        let domain_of_task = domain.clone();
        program.go("closed", async move { domain_of_task.closed().await });
        let closes = timeout(PATIENCE, domain.closed()).await;
        if closes.is_err() {
            left.push(format!("{domain:?}"));
        }
    }
    left
}

/// How often this user code was called, and what was left when it panicked at that call.
fn panics_at(call: u64, code: UserCode, backend: Backend, driver: Driver) -> (u64, Vec<String>) {
    let injector = Injector::new(call);
    let only = |this| (code == this).then(|| Arc::clone(&injector));
    // The program ends also where its main task is what panics.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let net = Net::on(backend).driver(driver);
    let program = run(net, only(UserCode::Waker), only(UserCode::Buffer));
    let subscriber = only(UserCode::Subscriber).map(InjectedSubscriber);
    // While a process has one subscriber only, an event that another test's thread comes to first
    // is switched off for all.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let logged = subscriber.map(tracing::subscriber::set_default);
    let ended = runtime.block_on(async { tokio::spawn(program).await });
    drop(logged);
    runtime.shutdown_timeout(Duration::from_secs(3));
    let is_buffer = code == UserCode::Buffer;
    let left = ended.unwrap_or_else(|_| match is_buffer {
        true => vec!["the program's task".to_owned()],
        false => Vec::new(),
    });
    (injector.calls.load(Ordering::Relaxed), left)
}

/// ARCHITECTURE.md: "Every accepted operation completes exactly once"; the guide, 10: a panic of
/// the application's code in the driver ends the operations of the domain with `DriverGone`.
#[test]
fn whatever_user_code_panics_every_operation_ends() {
    for code in [UserCode::Waker, UserCode::Buffer, UserCode::Subscriber] {
        for backend in backends() {
            for driver in [Driver::Task, Driver::Thread, Driver::Manual] {
                // Subscribers are of a thread here, and a driver's own has none.
                let is_beside = driver == Driver::Thread || backend == Backend::Loopback;
                if is_beside && (code == UserCode::Subscriber || driver != Driver::Task) {
                    continue;
                }
                let (calls, left) = panics_at(u64::MAX, code, backend, driver);
                assert!(left.is_empty(), "without a panic: {left:?}");
                assert!(calls > 5, "{code:?} is called: {calls}");
                let step = if is_deep() {
                    1
                } else {
                    calls.div_ceil(SAMPLES)
                };
                for call in (0..calls).step_by(step as usize) {
                    let (_, left) = panics_at(call, code, backend, driver);
                    let what = format!("{code:?} at {call} of {calls}, {backend}, {driver:?}");
                    assert!(left.is_empty(), "{what}: {left:?} did not end");
                }
            }
        }
    }
}
