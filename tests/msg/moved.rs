//! Futures that are polled by one task and then by another: the last one to poll is woken, as
//! `Future::poll` asks, and the first one's waker goes with no lock held.

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};

use crate::common::on_every_backend;
use tokio::task::JoinHandle;
use tokio_fabric::testing::Net;
use tokio_fabric::{Access, Event, Hints, domain::DomainBind, info::MrMode};

/// A task of which nothing is left but this waker: whatever it had goes with it, so that code of
/// the application's runs wherever the waker is dropped.
struct DropWaker<F: Fn() + Send + Sync + 'static> {
    goes: F,
    gone: Arc<AtomicUsize>,
}

impl<F: Fn() + Send + Sync> Wake for DropWaker<F> {
    fn wake(self: Arc<Self>) {}
}

impl<F: Fn() + Send + Sync> Drop for DropWaker<F> {
    fn drop(&mut self) {
        (self.goes)();
        self.gone.fetch_add(1, Ordering::AcqRel);
    }
}

/// Lets a task poll the future that ends, and another take it over. `goes`: what the first one's
/// end does.
fn moved<F>(future: F, goes: impl Fn() + Send + Sync + 'static) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    let mut future: Pin<Box<F>> = Box::pin(future);
    let gone = Arc::new(AtomicUsize::new(0));
    let last = DropWaker {
        goes,
        gone: Arc::clone(&gone),
    };
    let first = Waker::from(Arc::new(last));
    let polled = future.as_mut().poll(&mut Context::from_waker(&first));
    assert!(polled.is_pending(), "it ends before it can be moved");
    drop(first);
    // A second task, which is of no consequence, so that the third is seen to be woken.
    let mut idle = Context::from_waker(Waker::noop());
    assert!(future.as_mut().poll(&mut idle).is_pending());
    assert_eq!(gone.load(Ordering::Acquire), 1, "its waker is kept");
    tokio::spawn(future)
}

/// Operations of connected endpoints, of which the first task may have had more.
#[test]
fn an_operation_wakes_the_task_that_awaits_it_now() {
    on_every_backend(|net| async move {
        let (a, b) = net.pair().await.unwrap();
        let another = b.recv(vec![0; 8]).post().unwrap();
        let (name, theirs) = (another.id(), b.clone());
        let received = moved(b.recv(vec![0; 8]).into_future(), move || {
            assert!(theirs.cancel(name));
        });
        tokio::task::yield_now().await;
        a.send(vec![7; 8]).await.unwrap();
        assert_eq!(received.await.unwrap().unwrap().1, [7; 8]);
        assert!(another.await.is_err());
    });
}

/// The same of connectionless endpoints.
#[test]
fn a_shared_receive_wakes_the_task_that_awaits_it_now() {
    on_every_backend(|net| async move {
        let (a, b) = net.rdm_pair().unwrap();
        let theirs = b.endpoint.clone();
        let receive = b.endpoint.recv_tagged(vec![0; 8], 1).into_future();
        let received = moved(receive, move || {
            theirs.unexpected_bytes();
        });
        a.endpoint
            .send_tagged(vec![7; 8], a.other, 1)
            .await
            .unwrap();
        assert_eq!(received.await.unwrap().unwrap().1, [7; 8]);
    });
}

/// An operation that waits for room in its context and reports to a queue, and a task that waits
/// for that queue.
#[test]
fn acceptance_and_completions_wake_the_task_that_awaits_them_now() {
    on_every_backend(|net| async move {
        let peer = net.peer().unwrap();
        let other = net.peer().unwrap();
        let queue = peer.domain.completion_queue().open().unwrap();
        let endpoint = peer.domain.endpoint().receive_size(1);
        let b = endpoint.completion_queue(&queue).open().unwrap();
        let a = other.domain.endpoint().open().unwrap();
        tokio_fabric::testing::connect_endpoints(&b, &a, &other.fabric)
            .await
            .unwrap();
        b.recv(vec![0; 8]).queue(1u64).await.unwrap();
        let (one, two) = (b.clone(), queue.clone());
        let accepted = moved(b.recv(vec![0; 8]).queue(2u64).into_future(), move || {
            one.is_connected();
        });
        let waiting = queue.clone();
        let completion = moved(async move { waiting.next().await }, move || {
            two.len();
        });
        a.send(vec![7; 8]).await.unwrap();
        accepted.await.unwrap().unwrap();
        assert_eq!(completion.await.unwrap().unwrap().context.0, 1);
    });
}

/// Connecting and shutting down.
#[test]
fn connecting_and_closing_wake_the_task_that_awaits_them_now() {
    on_every_backend(|net| async move {
        let (us, them) = (net.peer().unwrap(), net.peer().unwrap());
        let requests = them.fabric.event_queue().open().unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let listener = them.fabric.passive_endpoint(&requests);
        let listener = listener.listen_at(any).unwrap();
        let (waiting, look) = (requests.clone(), requests.clone());
        let request = moved(async move { waiting.next().await }, move || {
            look.len();
        });
        let ours = us.domain.endpoint().open().unwrap();
        let connecting = ours.connect(listener.local_addr()).into_future();
        let endpoint = ours.clone();
        let connecting = moved(connecting, move || {
            endpoint.peer_addr();
        });
        let Some(Event::ConnRequest(request)) = request.await.unwrap() else {
            panic!("no request");
        };
        let theirs = them.domain.endpoint().open().unwrap();
        theirs.accept(request).await.unwrap();
        connecting.await.unwrap().unwrap();
        // Any number of tasks may await the end.
        let mut shutdown = Box::pin(async move { ours.shutdown().await });
        let mut idle = Context::from_waker(Waker::noop());
        if shutdown.as_mut().poll(&mut idle).is_pending() {
            tokio::spawn(shutdown).await.unwrap().unwrap();
        }
    });
}

/// What waits for those who use a region.
#[test]
fn a_region_wakes_the_task_that_awaits_it_now() {
    on_every_backend(|net| async move {
        let (_a, b) = net.pair().await.unwrap();
        let domain = b.domain();
        let region = domain
            .register(vec![0; 64])
            .access(Access::all())
            .await
            .unwrap();
        for _ in 0..2 {
            let inside = b.recv(region.slice(..8).unwrap()).post().unwrap();
            let look = region.clone();
            let quiesced = moved(region.quiesce(), move || {
                look.remote();
            });
            drop(inside);
            drop(quiesced.await.unwrap().unwrap());
        }
        let inside = b.recv(region.slice(..8).unwrap()).post().unwrap();
        let look = region.clone();
        let bytes = moved(region.deregister(), move || {
            look.remote();
        });
        drop(inside);
        bytes.await.unwrap().unwrap();
    });
}

/// Registrations and lookups of names, which run beside the runtime.
#[test]
fn work_beside_the_runtime_wakes_the_task_that_awaits_it_now() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()
        .unwrap();
    runtime.block_on(async {
        let hints = Hints::new().domain(|domain| domain.required_mr_mode(MrMode::ALLOCATED));
        let fabric = Net::loopback().fabric_with(hints).unwrap();
        let domain = fabric.domain().open().unwrap();
        let events = fabric.event_queue().open().unwrap();
        domain.bind(&events, DomainBind::REG_MR).unwrap();
        // Nothing ends before this does.
        let (go_on, held) = std::sync::mpsc::channel::<()>();
        let holding = tokio::task::spawn_blocking(move || held.recv().unwrap());
        let look = domain.clone();
        let registered = moved(domain.register(vec![0u8; 4096]).into_future(), move || {
            look.region_count();
        });
        let vector = domain.address_vector().open().unwrap();
        let look = vector.clone();
        let insertion = vector.insert_service("localhost", "7").into_future();
        let inserted = moved(insertion, move || {
            look.len();
        });
        go_on.send(()).unwrap();
        holding.await.unwrap();
        assert_eq!(registered.await.unwrap().unwrap().len(), 4096);
        inserted.await.unwrap().unwrap();
    });
}

/// Counters.
#[tokio::test]
async fn a_counter_wakes_the_task_that_awaits_it_now() {
    let counter = Net::loopback().peer().unwrap().domain.counter().unwrap();
    let look = counter.clone();
    let counted = moved(counter.wait_for(2), move || {
        look.read();
    });
    counter.add(2);
    assert_eq!(counted.await.unwrap(), Ok(2));
}
