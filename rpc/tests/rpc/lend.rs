//! Memory that is lent to calls.

use std::future::IntoFuture;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_fabric::error::Refusal;
use tokio_fabric::testing::Net;
use tokio_fabric::{Access, RemoteRegion};
use tokio_fabric_rpc::limits::{CHUNK, CHUNKS_PER_CONNECTION, CHUNKS_PER_SERVER};
use tokio_fabric_rpc::{
    Channel, Code, Cx, Lend, Pull, Push, Result, Server, Started, Status, service, testing,
};

use super::bodies::stranger;
use super::hostile::request;
use super::{expect, until_closed_calls};

#[service(signature = "")]
trait Store {
    /// The sum of the bytes, and how many there were.
    async fn put(&self, cx: &Cx, data: Pull) -> Result<(u64, u64)>;
    async fn get(&self, cx: &Cx, seed: u8, len: usize, into: Push) -> Result<u64>;
    async fn copy(&self, cx: &Cx, from: Pull, times: u32, to: Push) -> Result<u64>;
    async fn read_all(&self, cx: &Cx, data: Pull, max: usize) -> Result<Vec<u8>>;
    /// True if both have the same bytes: read side by side.
    async fn compare(&self, cx: &Cx, one: Pull, other: Pull) -> Result<bool>;
    /// Keeps so many chunks, and waits.
    async fn keep(&self, cx: &Cx, chunks: usize, data: Pull) -> Result<()>;
    /// Reads or writes when the call is not wanted any more, and says how that went.
    #[rpc(to_end)]
    async fn late_read(&self, cx: &Cx, data: Pull) -> Result<()>;
    #[rpc(to_end)]
    async fn late_write(&self, cx: &Cx, into: Push) -> Result<()>;
    /// Writes over and over, until it is refused.
    #[rpc(to_end)]
    async fn scribble(&self, cx: &Cx, into: Push) -> Result<()>;
    /// Lets the memory escape from its call.
    async fn steal(&self, cx: &Cx, data: Pull) -> Result<()>;
    async fn nothing(&self, cx: &Cx) -> Result<()>;
}

/// The server may find first that a call's time is over, by less than this.
const LATE: Duration = Duration::from_millis(10);

struct Memory {
    /// Chunks that handlers have.
    kept: Arc<AtomicUsize>,
    late: mpsc::UnboundedSender<Result<()>>,
    stolen: Arc<Mutex<Option<Pull>>>,
}

fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed) ^ (at >> 9) as u8)
        .collect()
}

impl Store for Memory {
    async fn put(&self, _: &Cx, data: Pull) -> Result<(u64, u64)> {
        let (mut sum, mut len) = (0, 0);
        let mut chunks = data.chunks();
        while let Some(chunk) = chunks.next().await? {
            sum += chunk.iter().map(|it| u64::from(*it)).sum::<u64>();
            len += chunk.len() as u64;
        }
        Ok((sum, len))
    }

    async fn get(&self, _: &Cx, seed: u8, len: usize, into: Push) -> Result<u64> {
        into.write(pattern(seed, len)).await
    }

    async fn copy(&self, _: &Cx, from: Pull, times: u32, to: Push) -> Result<u64> {
        let bytes = Bytes::from(from.read(1 << 20).await?);
        for time in 0..u64::from(times) {
            to.write_at(time * from.len(), bytes.clone()).await?;
        }
        Ok(from.len() * u64::from(times))
    }

    async fn read_all(&self, _: &Cx, data: Pull, max: usize) -> Result<Vec<u8>> {
        data.read(max).await
    }

    async fn keep(&self, _: &Cx, count: usize, data: Pull) -> Result<()> {
        let (mut chunks, mut kept) = (data.chunks(), Vec::new());
        while kept.len() < count {
            kept.extend(chunks.next().await?);
            self.kept.fetch_add(1, Ordering::SeqCst);
        }
        std::future::pending().await
    }

    async fn compare(&self, _: &Cx, one: Pull, other: Pull) -> Result<bool> {
        let (mut left, mut right) = (one.chunks(), other.chunks());
        loop {
            match (left.next().await?, right.next().await?) {
                (Some(left), Some(right)) if left[..] == right[..] => {}
                (None, None) => return Ok(true),
                _ => return Ok(false),
            }
        }
    }

    async fn late_read(&self, cx: &Cx, data: Pull) -> Result<()> {
        cx.cancelled().await;
        tokio::time::sleep(LATE).await;
        let end = data.read(1 << 20).await.map(drop);
        let _ = self.late.send(end);
        Ok(())
    }

    async fn late_write(&self, cx: &Cx, into: Push) -> Result<()> {
        cx.cancelled().await;
        tokio::time::sleep(LATE).await;
        let end = into.write(vec![0xee; into.len() as usize]).await.map(drop);
        let _ = self.late.send(end);
        Ok(())
    }

    async fn scribble(&self, _: &Cx, into: Push) -> Result<()> {
        let bytes = Bytes::from(vec![0xee; into.len() as usize]);
        loop {
            if let Err(status) = into.write(bytes.clone()).await {
                let _ = self.late.send(Err(status));
                return Ok(());
            }
        }
    }

    async fn steal(&self, _: &Cx, data: Pull) -> Result<()> {
        *self.stolen.lock().unwrap() = Some(data);
        Ok(())
    }

    async fn nothing(&self, _: &Cx) -> Result<()> {
        Ok(())
    }
}

struct Pair {
    client: StoreClient,
    late: Late,
    stolen: Arc<Mutex<Option<Pull>>>,
    server: tokio_fabric_rpc::Listening,
}

type Late = mpsc::UnboundedReceiver<Result<()>>;

fn store() -> (Server, Late, Arc<Mutex<Option<Pull>>>) {
    store_keeping(&Arc::default())
}

fn store_keeping(kept: &Arc<AtomicUsize>) -> (Server, Late, Arc<Mutex<Option<Pull>>>) {
    let (late, receiver) = mpsc::unbounded_channel();
    let stolen = Arc::default();
    let memory = Memory {
        kept: Arc::clone(kept),
        late,
        stolen: Arc::clone(&stolen),
    };
    (
        Server::new().add(StoreServer::new(memory)),
        receiver,
        stolen,
    )
}

async fn pair() -> Pair {
    let (server, late, stolen) = store();
    let (channel, server) = testing::connect(&Net::new(21), server).await.unwrap();
    Pair {
        client: StoreClient::over(channel),
        late,
        stolen,
        server,
    }
}

/// The handler's end of an access that came too late.
#[track_caller]
fn expect_refused(status: &Status) {
    assert_eq!(status.code(), Code::LentRefused, "{status}");
    let refusal = status.fabric_error().and_then(|it| it.refusal());
    assert_eq!(refusal, Some(Refusal::Revoked));
}

#[tokio::test(start_paused = true)]
async fn lent_memory_is_read_written_and_comes_back() {
    let Pair { client, server, .. } = pair().await;
    for len in [
        0,
        1,
        CHUNK - 1,
        CHUNK + 1,
        2 * CHUNK,
        2 * CHUNK + 1,
        5 * CHUNK + 77,
    ] {
        let bytes = pattern(3, len);
        let sum = bytes.iter().map(|it| u64::from(*it)).sum::<u64>();
        let at = bytes.as_ptr();
        let (answer, back) = client.put(Lend::read(bytes)).await.unwrap();
        assert_eq!(answer, (sum, len as u64));
        assert_eq!((back.as_ptr(), back.len()), (at, len), "the very buffer");

        let into = vec![0; len + 3];
        let (count, back) = client.get(9, len, Lend::write(into)).await.unwrap();
        assert_eq!((count, &back[..len]), (len as u64, &pattern(9, len)[..]));
        assert_eq!(back[len..], [0; 3]);
    }
    // Of every kind that can be lent.
    client
        .put(Lend::read(Bytes::from_static(b"abc")))
        .await
        .unwrap();
    client.put(Lend::read("text")).await.unwrap();
    client
        .put(Lend::read(Arc::<[u8]>::from(&b"abc"[..])))
        .await
        .unwrap();
    client
        .get(1, 8, Lend::write(BytesMut::zeroed(8)))
        .await
        .unwrap();
    client
        .get(1, 8, Lend::write(vec![0; 8].into_boxed_slice()))
        .await
        .unwrap();
    assert_eq!(server.stats().running, 0);
}

#[tokio::test(start_paused = true)]
async fn a_call_lends_several_pieces() {
    let Pair {
        client,
        server: _server,
        ..
    } = pair().await;
    let (from, to) = (Lend::read("abc"), Lend::write(vec![0; 7]));
    let (count, (from, to)) = client.copy(from, 2, to).await.unwrap();
    assert_eq!((count, from, &to[..]), (6, "abc", &b"abcabc\0"[..]));
    let (from, to) = (Lend::read("abc"), Lend::write(vec![0; 5]));
    let failed = client.copy(from, 2, to).await.unwrap_err();
    expect(failed.error(), Code::TooLarge, Started::Ran);
    let (_, buffers) = failed.into_parts();
    assert_eq!(
        buffers.unwrap().1,
        b"abc\0\0",
        "what was written before is there"
    );
}

#[tokio::test(start_paused = true)]
async fn a_length_is_checked_before_memory_is_taken() {
    let Pair {
        client,
        server: _server,
        ..
    } = pair().await;
    let (bytes, _) = client
        .read_all(Lend::read(vec![7; 100]), 100)
        .await
        .unwrap();
    assert_eq!(bytes, [7; 100]);
    let failed = client
        .read_all(Lend::read(vec![7; 101]), 100)
        .await
        .unwrap_err();
    assert_eq!(failed.error().code(), Code::TooLarge);
}

/// G4: "once the future is ready, no peer reads or writes what was lent", on error too.
#[tokio::test(start_paused = true)]
async fn memory_is_back_at_the_deadline_and_late_accesses_are_refused() {
    let Pair {
        client,
        mut late,
        server,
        ..
    } = pair().await;
    let within = Duration::from_millis(20);
    let call = client.late_read(Lend::read(vec![1; 4096])).deadline(within);
    let failed = call.await.unwrap_err();
    expect(failed.error(), Code::DeadlineExceeded, Started::MaybeRan);
    assert_eq!(failed.into_parts().1.unwrap(), [1; 4096]);
    expect_refused(&late.recv().await.unwrap().unwrap_err());

    let call = client
        .late_write(Lend::write(vec![1; 4096]))
        .deadline(within);
    let failed = call.await.unwrap_err();
    let back = failed.into_parts().1.unwrap();
    expect_refused(&late.recv().await.unwrap().unwrap_err());
    assert_eq!(back, [1; 4096]);

    client.nothing().await.unwrap();
    let stats = server.stats();
    assert_eq!(
        (stats.connections, stats.violations),
        (1, 0),
        "the connection lives"
    );
}

/// The same in the middle of transfers, which keep paused time from passing.
#[tokio::test]
async fn memory_is_back_in_the_middle_of_transfers() {
    let Pair {
        client,
        mut late,
        server,
        ..
    } = pair().await;
    for millis in 1..6 {
        let call = client.scribble(Lend::write(vec![1; 3 << 20]));
        let ended = call.deadline(Duration::from_millis(millis)).await;
        let mut back = ended.unwrap_err().into_parts().1.unwrap();
        back.fill(2);
        expect_refused(&late.recv().await.unwrap().unwrap_err());
        assert!(back.iter().all(|it| *it == 2));
    }
    client.nothing().await.unwrap();
    assert_eq!(server.stats().connections, 1);
}

/// G4, "once it is dropped, all new access is refused"; G5, "a late access is refused with a
/// reason, never served".
#[tokio::test(start_paused = true)]
async fn a_dropped_call_shuts_its_memory() {
    let Pair {
        client,
        mut late,
        stolen,
        server,
    } = pair().await;
    let call = client
        .late_write(Lend::write(vec![1; 100_000]))
        .into_future();
    assert!(timeout(Duration::from_millis(5), call).await.is_err());
    expect_refused(&late.recv().await.unwrap().unwrap_err());
    // One that is never polled lends nothing to anybody.
    drop(client.late_write(Lend::write(vec![1; 10])).into_future());
    // A key outlives its call nowhere.
    client.steal(Lend::read("secret")).await.unwrap();
    let pull = stolen.lock().unwrap().take().unwrap();
    expect_refused(&pull.read(100).await.unwrap_err());
    until_closed_calls(client.channel()).await;
    client.nothing().await.unwrap();
    assert_eq!(server.stats().connections, 1);
}

/// G8: "a slow handler stops its own call only"; G9: it gets no more than its connection's share.
/// Handlers keep all that the server has, and stand still: the others go on, on their
/// connections too.
#[tokio::test(start_paused = true)]
async fn handlers_that_keep_what_they_read_hold_up_no_other() {
    let (net, kept) = (Net::new(22), Arc::default());
    let (server, _late, _) = store_keeping(&kept);
    let (channel, server) = testing::connect(&net, server).await.unwrap();
    let mut channels = vec![channel];
    let connections = CHUNKS_PER_SERVER / CHUNKS_PER_CONNECTION;
    while channels.len() <= connections {
        let builder = Channel::builder().fabric(&net.fabric().unwrap());
        channels.push(builder.connect(server.local_addr()).await.unwrap());
    }
    let ledger = testing::Ledger::open(&server, &channels);
    let clients: Vec<_> = channels.into_iter().map(StoreClient::over).collect();
    let bytes = Bytes::from(vec![1; 20 * CHUNK]);
    let greedy: Vec<_> = clients[..connections]
        .iter()
        .map(|it| tokio::spawn(it.keep(20, Lend::read(bytes.clone())).into_future()))
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    // And the one of their own.
    let each = CHUNKS_PER_CONNECTION + 1;
    assert_eq!(kept.load(Ordering::SeqCst), connections * each);
    for client in [&clients[0], &clients[connections]] {
        client.nothing().await.unwrap();
        let within = Duration::from_secs(1);
        let all = (0..100).map(|_| {
            let put = client.put(Lend::read(bytes.slice(..CHUNK + 77)));
            put.deadline(within).into_future()
        });
        for put in futures::future::join_all(all).await {
            assert_eq!(put.unwrap().0.1, CHUNK as u64 + 77);
        }
        let (one, other) = (Lend::read(pattern(1, 99_999)), pattern(1, 99_999));
        let same = client.compare(one, Lend::read(other)).deadline(within);
        assert!(same.await.unwrap().0);
    }
    assert!(greedy.iter().all(|it| !it.is_finished()));
    greedy.iter().for_each(|it| it.abort());
    // Their ends give it back.
    until_closed_calls(clients[0].channel()).await;
    let (answer, _) = clients[0].put(Lend::read(bytes)).await.unwrap();
    assert_eq!(answer.1, 20 * CHUNK as u64);
    ledger.close().await;
}

/// `Server::deadline_max`: "occupies a place no longer than that", nor does a handler that goes on
/// to its end. In less time than it takes to find that a client does not even answer probes.
#[tokio::test(start_paused = true)]
async fn a_client_that_serves_no_transfer_holds_no_handler_that_goes_on() {
    let net = Net::new(23);
    let (server, mut late, _) = store();
    let server = server.deadline_max(Duration::from_millis(500));
    let (_channel, server) = testing::connect(&net, server).await.unwrap();
    let lent = |call, method, access| {
        let region = RemoteRegion {
            access,
            ..RemoteRegion::new(0, 1 << 20, 0x1234_5678)
        };
        request(call, method, 1 << 1, &region.to_bytes())
    };
    let asks = vec![
        lent(0, "Store/late_read", Access::REMOTE_READ),
        lent(1, "Store/late_write", Access::REMOTE_WRITE),
        lent(2, "Store/scribble", Access::REMOTE_WRITE),
    ];
    let _stranger = stranger(&net, server.local_addr(), asks).await;
    for _ in 0..3 {
        let ended = timeout(Duration::from_secs(2), late.recv()).await;
        let end = ended.expect("its transfer ends").unwrap().unwrap_err();
        assert_eq!(end.code(), Code::DeadlineExceeded, "{end}");
    }
    let stats = server.stats();
    assert_eq!((stats.running, stats.connections), (0, 2), "both are there");
}

#[service(name = "Store", signature = "")]
trait Other {
    async fn put(&self, cx: &Cx, data: Push) -> Result<(u64, u64)>;
    async fn copy(&self, cx: &Cx, times: u32) -> Result<u64>;
}

#[tokio::test(start_paused = true)]
async fn memory_lent_for_another_purpose_is_a_bad_request() {
    let Pair {
        client,
        server: _server,
        ..
    } = pair().await;
    let other = OtherClient::over(client.channel().clone());
    let wrong = other.put(Lend::write(vec![0; 8])).await.unwrap_err();
    expect(wrong.error(), Code::BadRequest, Started::NotStarted);
    let none = other.copy(2).await.unwrap_err();
    expect(&none, Code::BadRequest, Started::NotStarted);
}

/// Over sockets and threads: transfers that are given up at any moment leave no region, no slot and
/// no chunk behind, and end no connection.
#[test]
fn a_storm_of_transfers_that_are_given_up_leaves_nothing_behind() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let (server, _late, _) = store();
        let server = server.bind("127.0.0.1:0").await.unwrap();
        let client = StoreClient::connect(server.local_addr()).await.unwrap();
        let ledger = testing::Ledger::open(&server, [client.channel()]);
        let callers = (0..8_u64).map(|caller| {
            let client = client.clone();
            tokio::spawn(async move {
                let mut buffer = vec![0; 2 * CHUNK];
                for number in 0..28_u64 {
                    let micros = (caller * 131 + number * 97) % 3000;
                    let get = client.get(1, 2 * CHUNK, Lend::write(vec![0; 2 * CHUNK]));
                    let put = client.put(Lend::read(Bytes::from(vec![1; CHUNK + 5])));
                    match number % 4 {
                        0 => drop(get.into_future().now_or_never()),
                        1 => drop(timeout(Duration::from_micros(micros), get).await),
                        2 => drop(timeout(Duration::from_micros(micros), put).await),
                        _ => {
                            let lent = Lend::write(std::mem::take(&mut buffer));
                            let call = client.get(caller as u8, 2 * CHUNK, lent);
                            let call = call.deadline(Duration::from_micros(100 + 5 * micros));
                            buffer = match call.await {
                                Ok((_, bytes)) => {
                                    assert!(bytes == pattern(caller as u8, 2 * CHUNK));
                                    bytes
                                }
                                Err(failed) => failed.into_parts().1.expect("it comes back"),
                            };
                        }
                    }
                }
            })
        });
        for caller in callers.collect::<Vec<_>>() {
            caller.await.unwrap();
        }
        until_closed_calls(client.channel()).await;
        let (answer, _) = client.put(Lend::read(vec![1; 40 * CHUNK])).await.unwrap();
        assert_eq!(answer.1, 40 * CHUNK as u64);
        ledger.close().await;
        let stats = server.stats();
        assert_eq!(
            (stats.running, stats.connections, stats.violations),
            (0, 1, 0)
        );
    });
}
