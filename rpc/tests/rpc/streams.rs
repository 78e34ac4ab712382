//! Streams in each direction, and how they end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};
use tokio_fabric::testing::Net;
use tokio_fabric_rpc::{
    CallError, Channel, Code, Cx, Listening, Result, Server, Started, Status, Streaming, service,
    testing,
};

use super::{Seen, expect, until_closed_calls};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused;

#[service(signature = "")]
trait Flows {
    async fn count(&self, cx: &Cx, to: u64) -> Result<Streaming<u64>>;
    /// One per so many milliseconds.
    async fn tick(&self, cx: &Cx, millis: u64, to: u64) -> Result<Streaming<u64>>;
    async fn blocks(&self, cx: &Cx, len: usize, to: u64) -> Result<Streaming<Vec<u8>>>;
    async fn sum(&self, cx: &Cx, numbers: Streaming<u64>) -> Result<u64>;
    async fn first(&self, cx: &Cx, of: u64, numbers: Streaming<u64>) -> Result<Vec<u64>>;
    async fn double(&self, cx: &Cx, numbers: Streaming<u64>) -> Result<Streaming<u64>>;
    async fn refuse(&self, cx: &Cx, how: u32) -> Result<Streaming<u64>, Refused>;
    /// Gives a stream of which nothing comes.
    async fn silent(&self, cx: &Cx) -> Result<Streaming<u64>>;
    #[rpc(to_end)]
    async fn insist(&self, cx: &Cx, numbers: Streaming<u64>) -> Result<u64>;
    /// Reads nothing.
    async fn stall(&self, cx: &Cx, numbers: Streaming<u64>) -> Result<u64>;
    async fn none(&self, cx: &Cx) -> Result<u64>;
}

#[derive(Clone, Default)]
struct Handlers(Arc<Seen>);

/// Counts its end, whichever it is.
struct Guard(Arc<Seen>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.add(&self.0.dropped);
    }
}

impl Flows for Handlers {
    async fn count(&self, _: &Cx, to: u64) -> Result<Streaming<u64>> {
        let guard = Guard(Arc::clone(&self.0));
        let items = stream::iter(0..to).map(move |number| {
            guard.0.add(&guard.0.started);
            Ok(number)
        });
        Ok(Streaming::new(items))
    }

    async fn tick(&self, _: &Cx, millis: u64, to: u64) -> Result<Streaming<u64>> {
        let guard = Guard(Arc::clone(&self.0));
        Ok(Streaming::new(stream::iter(0..to).then(move |number| {
            let _ = &guard;
            async move {
                sleep(Duration::from_millis(millis)).await;
                Ok(number)
            }
        })))
    }

    async fn blocks(&self, _: &Cx, len: usize, to: u64) -> Result<Streaming<Vec<u8>>> {
        Ok(Streaming::of((0..to).map(move |it| vec![it as u8; len])))
    }

    async fn sum(&self, _: &Cx, mut numbers: Streaming<u64>) -> Result<u64> {
        let mut sum = 0;
        while let Some(number) = numbers.next().await {
            sum += number?;
        }
        Ok(sum)
    }

    async fn first(&self, _: &Cx, of: u64, numbers: Streaming<u64>) -> Result<Vec<u64>> {
        let first: Vec<Result<u64>> = numbers.take(of as usize).collect().await;
        first.into_iter().collect()
    }

    async fn double(&self, _: &Cx, numbers: Streaming<u64>) -> Result<Streaming<u64>> {
        Ok(Streaming::new(numbers.map(|it| Ok(2 * it?))))
    }

    async fn refuse(&self, _: &Cx, how: u32) -> Result<Streaming<u64>, Refused> {
        let failing = move |number: u64| match number {
            0..4 => Ok(number),
            _ => Err(Status::application(how, "after four")),
        };
        match how {
            0 => Err(Refused),
            1 => Ok(Streaming::new(
                stream::iter(0..9).map(|_| panic!("as it was asked to")),
            )),
            _ => Ok(Streaming::new(stream::iter(0..9).map(failing))),
        }
    }

    async fn silent(&self, _: &Cx) -> Result<Streaming<u64>> {
        let guard = Guard(Arc::clone(&self.0));
        Ok(Streaming::new(stream::pending().inspect(
            move |_: &Result<u64>| {
                let _ = &guard;
            },
        )))
    }

    async fn insist(&self, cx: &Cx, mut numbers: Streaming<u64>) -> Result<u64> {
        self.0.add(&self.0.started);
        let mut last = None;
        // In a task of its own, which learns of the end as well.
        let reading = cx.shield(async move {
            while let Some(number) = numbers.next().await {
                last = Some(number);
            }
            last
        });
        let last = reading.await.expect("there is an end");
        let code = last.unwrap_err().code();
        // Whose clock is first.
        assert!([Code::Cancelled, Code::DeadlineExceeded].contains(&code));
        self.0.add(&self.0.ended);
        Ok(0)
    }

    async fn stall(&self, _: &Cx, numbers: Streaming<u64>) -> Result<u64> {
        std::future::pending::<()>().await;
        drop(numbers);
        Ok(0)
    }

    async fn none(&self, _: &Cx) -> Result<u64> {
        Ok(0)
    }
}

async fn flows() -> (FlowsClient, Arc<Seen>, Listening) {
    let handlers = Handlers::default();
    let (channel, listening) = testing::pair(FlowsServer::new(handlers.clone()))
        .await
        .unwrap();
    (FlowsClient::over(channel), handlers.0, listening)
}

async fn all<T>(items: Streaming<T>) -> Vec<T> {
    items.map(|it| it.unwrap()).collect().await
}

#[tokio::test(start_paused = true)]
async fn items_come_in_order_in_each_direction() {
    let (client, _, server) = flows().await;
    for to in [0, 1, 16, 17, 5000] {
        let expected: Vec<u64> = (0..to).collect();
        assert_eq!(all(client.count(to).await.unwrap()).await, expected);
        let sum = client.sum(Streaming::of(0..to)).await.unwrap();
        assert_eq!(sum, expected.iter().sum::<u64>());
        let doubled = client.double(Streaming::of(0..to)).await.unwrap();
        let expected: Vec<u64> = (0..to).map(|it| 2 * it).collect();
        assert_eq!(all(doubled).await, expected);
    }
    assert_eq!(client.channel().open_calls(), 0);
    assert_eq!((server.stats().running, server.stats().violations), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn items_of_every_size_that_a_frame_has_room_for() {
    let (client, _, _server) = flows().await;
    for len in [0, 1, 111, 4096, 40_000, 65_516] {
        let blocks = all(client.blocks(len, 40).await.unwrap()).await;
        assert_eq!(blocks.len(), 40);
        assert!(
            blocks
                .iter()
                .enumerate()
                .all(|(at, it)| *it == vec![at as u8; len])
        );
    }
    let items = client.blocks(65_530, 1).await;
    let failed = items.unwrap_err();
    expect(&failed, Code::TooLarge, Started::Ran);
}

/// Both are under way at once: the server's stream begins before the client's has an item.
#[tokio::test(start_paused = true)]
async fn a_dialogue_takes_turns() {
    let (client, _, _server) = flows().await;
    let (send, receive) = futures::channel::mpsc::unbounded();
    let mut doubled = client
        .double(Streaming::new(receive.map(Ok)))
        .await
        .unwrap();
    for number in 0..100 {
        send.unbounded_send(number).unwrap();
        assert_eq!(doubled.next().await.unwrap().unwrap(), 2 * number);
    }
    drop(send);
    assert!(doubled.next().await.is_none());
    assert!(doubled.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_handler_may_end_before_the_stream_that_it_takes() {
    let (client, _, server) = flows().await;
    let endless = Streaming::new(stream::iter(0..).map(Ok));
    assert_eq!(client.first(3, endless).await.unwrap(), [0, 1, 2]);
    let pending = Streaming::new(stream::pending());
    assert_eq!(client.first(0, pending).await.unwrap(), [0; 0]);
    assert_eq!(client.none().await.unwrap(), 0);
    assert_eq!(server.stats().violations, 0);
}

#[tokio::test(start_paused = true)]
async fn errors_are_the_end_of_a_stream() {
    let (client, _, server) = flows().await;
    match client.refuse(0).await.unwrap_err() {
        CallError::App(refused) => assert_eq!(refused, Refused),
        CallError::Rpc(status) => panic!("{status}"),
    }
    let panicked = client.refuse(1).await.unwrap_err();
    let CallError::Rpc(panicked) = panicked else {
        panic!("{panicked:?}")
    };
    expect(&panicked, Code::HandlerPanicked, Started::MaybeRan);
    let mut items = client.refuse(7).await.unwrap();
    for number in 0..4 {
        assert_eq!(items.next().await.unwrap().unwrap(), number);
    }
    let failed = items.next().await.unwrap().unwrap_err();
    expect(&failed, Code::Application(7), Started::Ran);
    assert!(items.next().await.is_none());
    // An error in what the client sends cancels, and is what the caller gets.
    let failing = |number: u64| match number {
        0..4 => Ok(number),
        _ => Err(Status::application(9, "of the client")),
    };
    let failed = client.sum(Streaming::new(stream::iter(0..9).map(failing)));
    assert_eq!(failed.await.unwrap_err().code(), Code::Application(9));
    let doubled = client.double(Streaming::new(stream::iter(0..9).map(failing)));
    // The server's stream has not begun.
    assert_eq!(doubled.await.unwrap_err().code(), Code::Application(9));
    let late = stream::iter(0..9).then(move |number| async move {
        sleep(Duration::from_millis(1)).await;
        failing(number)
    });
    let doubled: Vec<_> = client
        .double(Streaming::new(late))
        .await
        .unwrap()
        .collect()
        .await;
    assert_eq!(doubled.len(), 5);
    let failed = doubled[4].as_ref().unwrap_err();
    assert_eq!(failed.code(), Code::Application(9));
    until_closed_calls(client.channel()).await;
    assert_eq!((server.stats().running, server.stats().violations), (0, 0));
}

/// G6, for streams: "cancel by drop on either side".
#[tokio::test(start_paused = true)]
async fn a_stream_that_is_dropped_cancels_its_call() {
    let (client, seen, server) = flows().await;
    // Before it has begun, before its first item, in the middle, and with all items there.
    drop(client.silent());
    let silent = client.silent().await.unwrap();
    drop(silent);
    seen.wait_for(&seen.dropped, 1).await;
    let mut ticks = client.tick(5, 1000).no_deadline().await.unwrap();
    assert_eq!(ticks.next().await.unwrap().unwrap(), 0);
    drop(ticks);
    seen.wait_for(&seen.dropped, 2).await;
    let count = client.count(3).await.unwrap();
    sleep(Duration::from_millis(5)).await;
    drop(count);
    until_closed_calls(client.channel()).await;
    assert_eq!((server.stats().running, server.stats().violations), (0, 0));
    client.none().await.unwrap();
}

/// A cancelled method that goes on learns of the end of what it reads.
#[tokio::test(start_paused = true)]
async fn a_method_to_end_reads_to_the_cancellation() {
    let (client, seen, _server) = flows().await;
    let late = client
        .insist(Streaming::new(stream::pending()))
        .deadline(Duration::from_millis(5));
    expect(
        &late.await.unwrap_err(),
        Code::DeadlineExceeded,
        Started::MaybeRan,
    );
    seen.wait_for(&seen.ended, 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_deadline_counts_for_the_whole_stream() {
    let (client, seen, server) = flows().await;
    let begin = Instant::now();
    let items = client.tick(30, 100).deadline(Duration::from_millis(100));
    let items: Vec<_> = items.await.unwrap().collect().await;
    assert_eq!(begin.elapsed().as_millis(), 100);
    assert_eq!(items.len(), 4);
    let late = items[3].as_ref().unwrap_err();
    expect(late, Code::DeadlineExceeded, Started::MaybeRan);
    seen.wait_for(&seen.dropped, 1).await;
    until_closed_calls(client.channel()).await;
    assert_eq!(server.stats().running, 0);
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_is_the_end_of_its_streams() {
    let net = Net::new(31);
    let handlers = Handlers::default();
    let seen = Arc::clone(&handlers.0);
    let fabric = net.node("server").fabric().unwrap();
    let server = Server::new().add(FlowsServer::new(handlers));
    let server = server
        .fabric(&fabric)
        .bind(net.node("server").addr(7000))
        .await
        .unwrap();
    let fabric = net.node("client").fabric().unwrap();
    let channel = Channel::builder().fabric(&fabric);
    let client = FlowsClient::over(channel.connect(server.local_addr()).await.unwrap());
    let mut ticks = client.tick(5, 1000).await.unwrap();
    assert_eq!(ticks.next().await.unwrap().unwrap(), 0);
    let sum = client.sum(Streaming::new(stream::pending()));
    let crash = async {
        sleep(Duration::from_millis(12)).await;
        net.crash("server");
    };
    let (summed, ()) = tokio::join!(sum, crash);
    expect(
        &summed.unwrap_err(),
        Code::ConnectionLost,
        Started::MaybeRan,
    );
    // What came before is there.
    let rest: Vec<_> = ticks.collect().await;
    let (lost, came) = rest.split_last().unwrap();
    assert!(came.iter().all(|it| it.is_ok()) && !came.is_empty());
    expect(
        lost.as_ref().unwrap_err(),
        Code::ConnectionLost,
        Started::MaybeRan,
    );
    seen.wait_for(&seen.dropped, 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_drain_lets_streams_go_on_until_its_deadline() {
    let (client, _, server) = flows().await;
    let short = client.tick(10, 10).await.unwrap();
    let long = client.tick(10, 100_000).no_deadline().await.unwrap();
    let begin = Instant::now();
    let (short, long, _) = tokio::join!(
        short.collect::<Vec<_>>(),
        long.collect::<Vec<_>>(),
        server.drain(Duration::from_millis(500))
    );
    assert!(short.iter().all(|it| it.is_ok()) && short.len() == 10);
    let cut = long.last().unwrap().as_ref().unwrap_err();
    expect(cut, Code::Draining, Started::MaybeRan);
    assert!(long.len() > 40 && begin.elapsed() < Duration::from_secs(3));
}

/// G8: "no window shared by calls can be held by a reader that stands still", at either side. Half
/// of the readers stop for good; what the others do takes the time that it takes alone.
#[tokio::test(start_paused = true)]
async fn readers_that_stand_still_stop_nothing_else() {
    let (client, seen, server) = flows().await;
    let work = |client: FlowsClient| async move {
        let begin = Instant::now();
        let streams = (0..32).map(|_| async {
            let ticks = client.tick(1, 300).await.unwrap();
            let (ticks, sum) = tokio::join!(all(ticks), client.sum(Streaming::of(0..3000)));
            assert_eq!((ticks.len(), sum.unwrap()), (300, 4_498_500));
            client.none().await.unwrap();
        });
        futures::future::join_all(streams).await;
        begin.elapsed()
    };
    let alone = work(client.clone()).await;
    let mut still = Vec::new();
    for _ in 0..64 {
        let mut items = client.count(u64::MAX).no_deadline().await.unwrap();
        items.next().await.unwrap().unwrap();
        still.push(items);
    }
    // Handlers that read nothing of large items, whose clients go on sending.
    let stuck = (0..64).map(|_| {
        let client = client.clone();
        tokio::spawn(async move {
            let endless = Streaming::new(stream::iter(0..).map(Ok));
            client.stall(endless).await
        })
    });
    let stuck: Vec<_> = stuck.collect();
    let beside = work(client.clone()).await;
    assert!(
        beside.as_secs_f64() <= alone.as_secs_f64() / 0.9,
        "{beside:?}, alone {alone:?}"
    );
    // Each of them has what its reader has read, and its credit.
    let made = seen.started.load(Ordering::SeqCst);
    assert!(made <= 64 * 18, "{made} items");
    stuck.iter().for_each(|it| it.abort());
    drop(still);
    until_closed_calls(client.channel()).await;
    assert_eq!((server.stats().running, server.stats().violations), (0, 0));
}

/// A clone of a call is for a second attempt; a stream is read once.
#[tokio::test(start_paused = true)]
async fn a_stream_is_sent_once() {
    let (client, _, _server) = flows().await;
    let call = client.sum(Streaming::of(0..4));
    let again = call.clone();
    assert_eq!(call.await.unwrap(), 6);
    expect(
        &again.await.unwrap_err(),
        Code::BadRequest,
        Started::NotStarted,
    );
    let call = client.count(3);
    assert_eq!(all(call.clone().await.unwrap()).await.len(), 3);
    assert_eq!(all(call.await.unwrap()).await.len(), 3);
}

#[service(name = "Flows", signature = "")]
trait Other {
    async fn none(&self, cx: &Cx) -> Result<Streaming<u64>>;
    async fn sum(&self, cx: &Cx) -> Result<u64>;
    async fn count(&self, cx: &Cx, to: u64) -> Result<Streaming<String>>;
}

#[tokio::test(start_paused = true)]
async fn who_thinks_of_other_streams_is_a_bad_request() {
    let (client, _, server) = flows().await;
    let other = OtherClient::over(client.channel().clone());
    let unstarted = other.none().await.unwrap_err();
    expect(&unstarted, Code::BadRequest, Started::NotStarted);
    let unstarted = other.sum().await.unwrap_err();
    expect(&unstarted, Code::BadRequest, Started::NotStarted);
    let mut items = other.count(200).await.unwrap();
    let undecodable = loop {
        if let Err(status) = items.next().await.unwrap() {
            break status;
        }
    };
    assert_eq!(undecodable.code(), Code::BadRequest);
    assert!(items.next().await.is_none());
    until_closed_calls(client.channel()).await;
    assert_eq!((server.stats().running, server.stats().violations), (0, 0));
}

/// Over sockets and threads: streams that are read, given up early, late and in the middle.
#[test]
fn a_storm_of_streams_leaves_nothing_behind() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let server = Server::new().add(FlowsServer::new(Handlers::default()));
        let server = server.bind("127.0.0.1:0").await.unwrap();
        let client = FlowsClient::connect(server.local_addr()).await.unwrap();
        let read = Arc::new(AtomicUsize::new(0));
        let callers = (0..32_usize).map(|caller| {
            let (client, read) = (client.clone(), Arc::clone(&read));
            tokio::spawn(async move {
                for number in 0..40_usize {
                    let items = client.double(Streaming::of(0..100)).await.unwrap();
                    let until = match number % 2 {
                        0 => 100,
                        _ => (caller * 7 + number * 13) % 100,
                    };
                    let items: Vec<_> = items.take(until).collect().await;
                    assert!(
                        (0_u64..)
                            .zip(&items)
                            .all(|(at, it)| *it.as_ref().unwrap() == 2 * at)
                    );
                    read.fetch_add(items.len(), Ordering::Relaxed);
                }
            })
        });
        for caller in callers.collect::<Vec<_>>() {
            caller.await.unwrap();
        }
        assert!(read.load(Ordering::Relaxed) >= 32 * 20 * 100);
        until_closed_calls(client.channel()).await;
        client.none().await.unwrap();
        let stats = server.stats();
        assert_eq!(
            (stats.running, stats.connections, stats.violations),
            (0, 1, 0)
        );
    });
}
