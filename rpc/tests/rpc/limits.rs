//! Every duration and count with the least and the most that its type has.

use std::time::Duration;

use tokio_fabric::testing::Net;
use tokio_fabric_rpc::{Channel, Code, Result, Server, Started, testing};

use super::{Handlers, ProbeClient, ProbeServer, expect};

const DURATIONS: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_nanos(1),
    Duration::from_secs(1 << 40),
    Duration::MAX,
];

async fn probe(server: Server) -> Result<(ProbeClient, tokio_fabric_rpc::Listening)> {
    let server = server.add(ProbeServer::new(Handlers::default()));
    let (channel, listening) = testing::connect(&Net::new(3), server).await?;
    Ok((ProbeClient::over(channel), listening))
}

#[tokio::test(start_paused = true)]
async fn a_server_takes_any_number_as_a_limit() {
    for most in [0, 1, usize::MAX] {
        let (probe, _server) = probe(Server::new().calls_max(most)).await.unwrap();
        assert_eq!(probe.nothing().await.is_ok(), most > 0);
    }
    for most in [0, 1, usize::MAX] {
        let server = Server::new().method_calls_max("Probe/nothing", most);
        let (probe, _server) = self::probe(server).await.unwrap();
        assert_eq!(probe.nothing().await.is_ok(), most > 0);
    }
    for most in [0, 1, usize::MAX] {
        match probe(Server::new().connections_max(most)).await {
            Ok((probe, _server)) => probe.nothing().await.unwrap(),
            Err(status) => assert_eq!((most, status.code()), (0, Code::Overloaded)),
        }
    }
    for calls in [0, 1, u32::MAX] {
        let (probe, server) = probe(Server::new()).await.unwrap();
        server.set_window(calls, calls);
        probe.nothing().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_takes_any_duration_as_a_limit() {
    for within in DURATIONS {
        let (probe, server) = probe(Server::new().deadline_max(within)).await.unwrap();
        let called = probe.wait(Some(1)).await;
        assert_eq!(
            called.is_ok(),
            within > Duration::from_secs(1),
            "{within:?}"
        );
        server.drain(within).await;
    }
    for within in DURATIONS {
        let server = Server::new().drain_deadline(within).drain_on(async {});
        let server = server.fabric(&Net::new(3).fabric().unwrap());
        server.listen("127.0.0.1:0").await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_takes_any_duration_as_its_deadline() {
    let (probe, _server) = probe(Server::new()).await.unwrap();
    for within in DURATIONS {
        let called = probe.wait(Some(1)).deadline(within).await;
        assert_eq!(
            called.is_ok(),
            within > Duration::from_secs(1),
            "{within:?}"
        );
        let called = probe.wait(Some(1)).deadline(within).wait_for_ready().await;
        assert_eq!(
            called.is_ok(),
            within > Duration::from_secs(1),
            "{within:?}"
        );
    }
}

/// A frame has room for budgets of 71 minutes; one that is longer is no shorter for that.
#[tokio::test(start_paused = true)]
async fn a_deadline_that_no_frame_has_room_for_is_kept() {
    let (probe, _server) = probe(Server::new().deadline_max(Duration::MAX))
        .await
        .unwrap();
    let hours = |hours: u64| Duration::from_secs(hours * 3600);
    let two_hours = Some(hours(2).as_millis() as u64);
    for within in [hours(3), Duration::MAX] {
        probe.wait(two_hours).deadline(within).await.unwrap();
    }
    probe.wait(two_hours).no_deadline().await.unwrap();
    let late = probe.wait(None).deadline(hours(2)).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
}

#[tokio::test(start_paused = true)]
async fn a_channel_takes_any_duration_as_its_deadline() {
    let net = Net::new(3);
    let server = Server::new().add(ProbeServer::new(Handlers::default()));
    let server = server.fabric(&net.fabric().unwrap());
    let server = server.bind("127.0.0.1:0").await.unwrap();
    for within in DURATIONS {
        let builder = Channel::builder().fabric(&net.fabric().unwrap());
        let builder = builder.deadline(within);
        let channel = builder.connect(server.local_addr()).await.unwrap();
        let called = ProbeClient::over(channel).wait(Some(1)).await;
        assert_eq!(
            called.is_ok(),
            within > Duration::from_secs(1),
            "{within:?}"
        );
    }
}

#[cfg(feature = "tower")]
#[tokio::test(start_paused = true)]
async fn retries_take_any_number_and_any_pause() {
    use tokio_fabric_rpc::retry::NotStarted;
    use tower::{ServiceBuilder, ServiceExt};

    let (probe, _server) = probe(Server::new().calls_max(0)).await.unwrap();
    for pause in DURATIONS {
        for retries in [0, 1, u32::MAX] {
            let policy = NotStarted::new().pause(pause).retries_max(retries);
            let service = ServiceBuilder::new()
                .retry(policy)
                .service(probe.channel().service());
            let call = probe.nothing().deadline(Duration::from_secs(1));
            assert_eq!(
                service.oneshot(call).await.unwrap_err().code(),
                Code::Overloaded
            );
        }
    }
}

/// "1 to 1,024. `bind` fails with another number."
#[tokio::test]
async fn a_window_out_of_its_range_is_an_error() {
    for calls in [0, 1025] {
        let bound = Server::new().window(calls).bind("127.0.0.1:0").await;
        let status = bound.map(drop).unwrap_err();
        expect(&status, Code::Internal, Started::NotStarted);
        let text = status.to_string();
        assert!(
            text.contains(&format!("window: {calls} calls, 1 to 1024")),
            "{text}"
        );
    }
    for calls in [1, 1024] {
        let bound = Server::new().window(calls).bind("127.0.0.1:0").await;
        drop(bound.unwrap());
    }
}
