//! More messages than the queue has places for.

use std::future::IntoFuture;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_fabric::info::Driver;
use tokio_fabric::testing::Net;

use super::*;

/// Small ones, of which a buffer has several times what the queue has places for.
const LEN: usize = 32;
/// More than both buffers hold.
const MESSAGES: usize = 3 * RECEIVE_BUFFER / LEN;
/// Whatever two loaded processors need.
const PATIENCE: Duration = Duration::from_secs(60);

/// Looks at each message only when the queue is full of others.
struct Slow {
    endpoint: Endpoint,
    queue: CompletionQueue,
    came: AtomicUsize,
    has_given_up: AtomicBool,
}

impl Slow {
    fn wait_until_full(&self) {
        let begin = std::time::Instant::now();
        while begin.elapsed() < PATIENCE / 4 {
            let stats = self.queue.stats();
            if stats.len + stats.reserved >= stats.capacity {
                return;
            }
            std::thread::yield_now();
        }
        // It will not be full any more: so many messages have not come.
        self.has_given_up.store(true, Ordering::Relaxed);
    }
}

impl Connection for Slow {
    type Kept = ();

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn handle_message(self: &Arc<Self>, frame: &[u8], _: &mut ReadTurn<()>) {
        assert_eq!(frame.len(), LEN);
        let came = self.came.fetch_add(1, Ordering::SeqCst);
        // What is left has to fill it once more.
        if came + 2 * QUEUE_SIZE < MESSAGES && !self.has_given_up.load(Ordering::Relaxed) {
            self.wait_until_full();
        }
    }

    fn handle_end(self: &Arc<Self>, _: EndCause<'_>) {}
}

/// A buffer that is to be posted anew while the queue is full waits for its turn; it was lost, and
/// after two of them nothing was received any more.
#[test]
fn no_receive_is_lost_where_the_queue_is_full() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        // The reader keeps its thread: others move the bytes.
        let net = Net::loopback().driver(Driver::Thread);
        let (sender, mut requests) = mpsc::unbounded_channel();
        let open: OpenDomain = Box::new(|builder| builder.driver(Driver::Thread).open());
        let hub = Hub::open(
            net.fabric().unwrap(),
            Some(open),
            EndpointSettings::default(),
            1,
            move |request| {
                let _ = sender.send(request);
            },
        );
        let hub = hub.unwrap();
        let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = hub.fabric.passive_endpoint(&hub.events);
        let listener = listener.listen_at(any).unwrap();
        let peer = net.peer().unwrap();
        let endpoint = peer.domain.endpoint().open().unwrap();
        let accepting = async {
            let accepted = hub.endpoint(1).unwrap();
            let slow = Arc::new(Slow {
                endpoint: accepted.clone(),
                queue: hub.queue.clone(),
                came: AtomicUsize::new(0),
                has_given_up: AtomicBool::new(false),
            });
            hub.insert(accepted.id(), &slow);
            let request = requests.recv().await.unwrap();
            accepted.accept(request).await.unwrap();
            slow
        };
        let connecting = endpoint.connect(listener.local_addr()).into_future();
        let (slow, connected) = tokio::join!(accepting, connecting);
        connected.unwrap();
        let sending = async {
            for _ in 0..MESSAGES {
                while let Err(error) = endpoint.inject(&[7; LEN]) {
                    assert!(error.is_again(), "{error}");
                    tokio::task::yield_now().await;
                }
            }
            while slow.came.load(Ordering::SeqCst) < MESSAGES {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let all = tokio::time::timeout(PATIENCE, sending).await;
        let came = slow.came.load(Ordering::SeqCst);
        assert!(all.is_ok(), "{came} of {MESSAGES} messages came");
        let was_full = !slow.has_given_up.load(Ordering::Relaxed);
        assert!(was_full, "with a full queue not all messages came");
    });
}
