//! Wakers that call back when they are dropped: an executor of one's own may do so.

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use futures::Stream;
use tokio_fabric_rpc::{Cx, Result, Streaming, service, testing};

use super::{Handlers, ProbeClient, ProbeServer};

/// Calls this when the last of its clones is dropped.
struct CallsBack(Box<dyn Fn() + Send + Sync>);

impl Wake for CallsBack {
    fn wake(self: Arc<Self>) {}
}

impl Drop for CallsBack {
    fn drop(&mut self) {
        (self.0)();
    }
}

fn calls_back(back: impl Fn() + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(CallsBack(Box::new(back))))
}

/// In a thread of its own: a lock that is taken twice never ends.
fn within_seconds(test: impl AsyncFnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(test());
        done.send(()).unwrap();
    });
    let ended = is_done.recv_timeout(Duration::from_secs(30));
    ended.expect("it ends");
}

#[test]
fn a_callers_waker_may_call_when_it_is_dropped() {
    within_seconds(async || {
        let (channel, _server) = testing::pair(ProbeServer::new(Handlers::default()))
            .await
            .unwrap();
        let client = ProbeClient::over(channel.clone());
        let dropped = Arc::new(AtomicUsize::new(0));
        let waker = || {
            let (channel, dropped) = (channel.clone(), Arc::clone(&dropped));
            calls_back(move || {
                assert!(channel.open_calls() <= 1);
                dropped.fetch_add(1, SeqCst);
            })
        };
        let mut call = client.wait(None).into_future();
        for replaced in 0..3 {
            let waker = waker();
            let polled = Pin::new(&mut call).poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
            drop(waker);
            assert_eq!(dropped.load(SeqCst), replaced);
        }
        drop(call);
        assert_eq!(dropped.load(SeqCst), 3);
        // One that waits for nothing any more has none.
        client.nothing().await.unwrap();
    });
}

#[service]
trait Gather {
    async fn sum(&self, cx: &Cx, numbers: Streaming<u32>) -> Result<u32>;
}

/// What a reader's waker does when it is dropped.
type Back = Arc<Mutex<Option<Arc<dyn Fn() + Send + Sync>>>>;

struct Gatherer(Back);

impl Gather for Gatherer {
    async fn sum(&self, _: &Cx, mut numbers: Streaming<u32>) -> Result<u32> {
        let back = self.0.lock().unwrap().clone().unwrap();
        let waker = calls_back(move || back());
        let polled = Pin::new(&mut numbers).poll_next(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        drop(waker);
        let mut sum = 0;
        while let Some(number) = poll_fn(|task| Pin::new(&mut numbers).poll_next(task)).await {
            sum += number?;
        }
        Ok(sum)
    }
}

#[test]
fn a_readers_waker_may_change_its_server_when_it_is_dropped() {
    within_seconds(async || {
        let back = Back::default();
        let server = GatherServer::new(Gatherer(Arc::clone(&back)));
        let (channel, server) = testing::pair(server).await.unwrap();
        let (server, dropped) = (Arc::new(server), Arc::new(AtomicUsize::new(0)));
        let calling = (Arc::clone(&server), Arc::clone(&dropped));
        *back.lock().unwrap() = Some(Arc::new(move || {
            calling.0.set_window(7, 1 << 20);
            calling.1.fetch_add(1, SeqCst);
        }));
        let client = GatherClient::over(channel);
        let mut left = 3;
        let numbers = futures::stream::poll_fn(move |task| {
            // Not with the request: the handler waits first.
            if left == 3 {
                left = 2;
                task.waker().wake_by_ref();
                return Poll::Pending;
            }
            left -= 1;
            Poll::Ready((left >= 0).then_some(Ok(21)))
        });
        assert_eq!(client.sum(Streaming::new(numbers)).await.unwrap(), 42);
        assert_eq!(dropped.load(SeqCst), 1);
    });
}
