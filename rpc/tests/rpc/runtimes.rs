//! Clients whose channel and whose calls belong to different runtimes.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use tokio_fabric::testing::Net;
use tokio_fabric::{Backend, Driver, ErrorKind, local};
use tokio_fabric_rpc::{Channel, Code, Cx, Result, Server, Started};

use super::{Handlers, ProbeClient, ProbeServer, expect};

/// Longer than anything here takes, and shorter than a call's default deadline.
const PATIENCE: Duration = Duration::from_secs(8);

fn runtime() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().unwrap()
}

/// A server on a runtime of its own, and a channel on that of a client.
fn client_of(server: &Runtime, client: &Runtime) -> (ProbeClient, Handlers) {
    client_on(&Net::on(Backend::Epoll), server, client)
}

/// The same over this network; the client has its driver.
fn client_on(net: &Net, server: &Runtime, client: &Runtime) -> (ProbeClient, Handlers) {
    let handlers = Handlers::default();
    let service = ProbeServer::new(handlers.clone());
    let at_server = net.clone().driver(Driver::Task).fabric().unwrap();
    let serving = Server::new().fabric(&at_server).add(service);
    let listening = server.block_on(serving.bind("127.0.0.1:0")).unwrap();
    let connecting = Channel::builder().fabric(&net.fabric().unwrap());
    let channel = client.block_on(connecting.connect(listening.local_addr()));
    // It serves until its runtime ends.
    std::mem::forget(listening);
    (ProbeClient::over(channel.unwrap()), handlers)
}

/// G1: "a call ends exactly once, at each side": one that is awaited elsewhere ends when the
/// channel's runtime does.
#[test]
fn a_call_ends_with_the_runtime_of_its_channel() {
    let (of_server, of_channel, of_call) = (runtime(), runtime(), runtime());
    let (client, Handlers(seen)) = client_of(&of_server, &of_channel);
    let call = of_call.spawn(client.wait(None).no_deadline().into_future());
    of_call.block_on(seen.wait_for(&seen.started, 1));
    drop(of_channel);
    let ended = of_call.block_on(async { timeout(PATIENCE, call).await });
    let status = ended.expect("it hangs").unwrap().unwrap_err();
    expect(&status, Code::ConnectionLost, Started::MaybeRan);
    of_call.block_on(seen.wait_for(&seen.dropped, 1));
    let refused = of_call.block_on(client.nothing().into_future());
    expect(
        &refused.unwrap_err(),
        Code::Unavailable,
        Started::NotStarted,
    );
}

/// `Channel::ready`: "or until there will be none: the channel was closed, or its runtime has ended.
/// Then calls fail at once", also those that would wait for another connection; and closing ends.
/// With each driver, on each backend.
#[test]
fn nothing_of_a_channel_waits_after_the_end_of_its_runtime() {
    for backend in [Backend::Loopback, Backend::Epoll, Backend::IoUring] {
        for driver in [Driver::Task, Driver::Thread, Driver::Manual] {
            let net = Net::on(backend).driver(driver);
            if runtime().block_on(async { net.peer().is_err() }) {
                continue; // This kernel has no io_uring.
            }
            let [of_server, of_channel, of_call] = [(); 3].map(|()| runtime());
            let (client, _) = client_on(&net, &of_server, &of_channel);
            let waits = {
                let channel = client.channel().clone();
                let busy = client.clone();
                of_call.spawn(async move {
                    busy.wait(None).no_deadline().await.unwrap_err();
                    channel.ready().await;
                    let call = busy.nothing().no_deadline().wait_for_ready();
                    call.await.unwrap_err();
                    channel.close().await;
                })
            };
            of_call.block_on(client.nothing().into_future()).unwrap();
            drop(of_channel);
            let ended = of_call.block_on(async { timeout(PATIENCE, waits).await });
            ended
                .unwrap_or_else(|_| panic!("{backend} {driver:?} hangs"))
                .unwrap();
        }
    }
}

/// G7: "the client ends first", also if the runtime of the channel's first call has ended.
#[test]
fn a_deadline_outlives_the_runtime_of_the_first_call() {
    let (of_server, of_channel) = (runtime(), runtime());
    let (client, Handlers(seen)) = client_of(&of_server, &of_channel);
    let of_first_call = runtime();
    let first = of_first_call.block_on(client.nothing().into_future());
    first.unwrap();
    drop(of_first_call);
    // The server says nothing from here on.
    let of_call = runtime();
    let call = client.wait(None).deadline(Duration::from_millis(500));
    let call = of_call.spawn(call.into_future());
    of_call.block_on(seen.wait_for(&seen.started, 1));
    let held = Arc::clone(&seen);
    of_server.spawn(async move {
        std::thread::sleep(2 * PATIENCE);
        drop(held);
    });
    let ended = of_call.block_on(async { timeout(PATIENCE, call).await });
    let status = ended.expect("it has no deadline").unwrap().unwrap_err();
    expect(&status, Code::DeadlineExceeded, Started::MaybeRan);
    of_server.shutdown_background();
}

/// A runtime without timers is a typed error where a channel or a server is opened, and no panic.
#[test]
fn a_runtime_without_timers_is_an_error_that_says_so() {
    let bare = Builder::new_current_thread().enable_io().build().unwrap();
    let no_runtime = |status: tokio_fabric_rpc::Status| {
        expect(&status, Code::Unavailable, Started::NotStarted);
        let error = status.fabric_error().expect("the library's error");
        assert_eq!(error.kind(), tokio_fabric::ErrorKind::NoRuntime);
        let text = status.to_string();
        assert_eq!(
            text.matches("no suitable Tokio runtime").count(),
            1,
            "{text}"
        );
        text
    };
    bare.block_on(async {
        let connected = Channel::connect("127.0.0.1:1").await.map(drop);
        assert!(no_runtime(connected.unwrap_err()).contains("enable_time"));
        let lazy = Channel::builder().connect_lazy("127.0.0.1:1").map(drop);
        no_runtime(lazy.unwrap_err());
        let bound = Server::new().bind("127.0.0.1:0").await.map(drop);
        assert!(no_runtime(bound.unwrap_err()).contains("enable_time"));
    });
    // Outside of any runtime, also for a name, which would be looked up in one.
    let lazy = Channel::builder().connect_lazy("127.0.0.1:1").map(drop);
    no_runtime(lazy.unwrap_err());
    let bound = futures::executor::block_on(Server::new().bind("localhost:0"));
    no_runtime(bound.map(drop).unwrap_err());
}

/// What is awaited in a runtime without timers, or in none, uses those of its channel or server.
#[test]
fn calls_and_drains_of_a_runtime_with_timers_are_awaited_in_any() {
    let (home, bare) = (runtime(), Builder::new_current_thread().build().unwrap());
    let server = home.block_on(Server::new().bind("127.0.0.1:0")).unwrap();
    let address = server.local_addr();
    let lazy = |address: &str| {
        let _entered = home.enter();
        let builder = Channel::builder().deadline(Duration::from_millis(300));
        builder.connect_lazy(address).unwrap()
    };
    let (there, nowhere) = (lazy(&address.to_string()), lazy("127.0.0.1:1"));
    bare.block_on(there.check()).unwrap();
    futures::executor::block_on(there.refresh()).unwrap();
    let waiting = ProbeClient::over(nowhere.clone());
    let late = bare.block_on(waiting.nothing().wait_for_ready().into_future());
    let late = late.unwrap_err();
    expect(&late, Code::DeadlineExceeded, Started::NotStarted);
    let late = waiting.nothing().wait_for_ready().into_future();
    let late = futures::executor::block_on(late).unwrap_err();
    expect(&late, Code::DeadlineExceeded, Started::NotStarted);
    bare.block_on(nowhere.refresh()).unwrap();
    bare.block_on(server.drain(Duration::from_secs(1)));
    futures::executor::block_on(there.close());
}

#[tokio_fabric_rpc::service]
trait Where {
    /// The thread that the handler runs on, from beginning to end.
    async fn thread(&self, cx: &Cx) -> Result<String>;
}

struct Here;

impl Where for Here {
    async fn thread(&self, _: &Cx) -> Result<String> {
        let name = || format!("{:?}", std::thread::current().id());
        let begun = name();
        for _ in 0..10 {
            tokio::task::yield_now().await;
            assert_eq!(name(), begun);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(name(), begun);
        Ok(begun)
    }
}

/// `in_domain`: "calls are then made, and handlers run, on that thread"; a channel and a server
/// share the domain, and end with it.
#[test]
fn calls_share_the_thread_of_their_domain() {
    for backend in [Backend::Epoll, Backend::IoUring] {
        let net = Net::on(backend);
        let fabric = net.fabric().unwrap();
        let domain = match fabric.domain().driver(Driver::Local).open() {
            Err(error) if error.kind() == ErrorKind::Unsupported => continue,
            opened => opened.unwrap(),
        };
        let ended = local::block_on(&domain, async {
            let server = Server::new().fabric(&fabric).in_domain(&domain);
            let server = server.add(WhereServer::new(Here));
            let listening = server.bind("127.0.0.1:0").await.unwrap();
            let builder = Channel::builder().fabric(&fabric).in_domain(&domain);
            let channel = builder.connect(listening.local_addr()).await.unwrap();
            let client = WhereClient::over(channel);
            let here = format!("{:?}", std::thread::current().id());
            for _ in 0..100 {
                assert_eq!(client.thread().await.unwrap(), here);
            }
            let elsewhere = client.clone();
            let called = tokio::spawn(async move { elsewhere.thread().await });
            assert_eq!(called.await.unwrap().unwrap(), here);
            let limit = client.thread().deadline(Duration::from_micros(1)).await;
            assert_eq!(limit.unwrap_err().code(), Code::DeadlineExceeded);
            (client, listening)
        });
        let (client, _listening) = ended.unwrap();
        let status = runtime().block_on(client.thread().into_future());
        expect(&status.unwrap_err(), Code::Unavailable, Started::NotStarted);
    }
}
