//! The kit for tests of programs: mocks, faults of a seed, accounts.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio_fabric::testing::FaultPlan;
use tokio_fabric_rpc::{
    CallError, Code, Cx, Lend, Pull, Push, Result, Started, Status, service, testing,
};

use super::{Handlers, ProbeClient, ProbeServer, Refusal, expect};

#[service]
trait Store {
    async fn put(&self, cx: &Cx, name: String, data: Pull) -> Result<u64>;
    async fn get(&self, cx: &Cx, into: Push, at: u64) -> Result<u64, Refusal>;
    async fn list(&self, cx: &Cx) -> Result<Vec<String>>;
}

#[tokio::test(start_paused = true)]
async fn a_mock_answers_by_script_and_then_by_closure() {
    let mock = Arc::new(StoreMock::new());
    mock.script_list([
        Ok(vec!["a".to_owned()]),
        Err(Status::application(5, "as the script says")),
    ]);
    mock.on_list(|| async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        Ok(Vec::new())
    });
    mock.on_put(|name, data| async move {
        assert_eq!(name, "x");
        data.read(1 << 20).await.map(|it| it.len() as u64)
    });
    mock.script_get([Err(Refusal::TooOld { by: 3 })]);
    let server = StoreServer::from_arc(Arc::clone(&mock));
    let (channel, server) = testing::pair(server).await.unwrap();
    let ledger = testing::Ledger::open(&server, [&channel]);
    let store = StoreClient::over(channel);
    assert_eq!(store.list().await.unwrap(), ["a"]);
    let failed = store.list().await.unwrap_err();
    expect(&failed, Code::Application(5), Started::Ran);
    let begin = tokio::time::Instant::now();
    assert!(store.list().await.unwrap().is_empty());
    assert!(begin.elapsed() >= Duration::from_secs(3));
    assert_eq!(mock.calls_of_list(), 3);
    let (len, _) = store
        .put("x".into(), Lend::read(Bytes::from_static(b"123")))
        .await
        .unwrap();
    assert_eq!(len, 3);
    let refused = store.get(Lend::write(vec![0; 8]), 1).await.unwrap_err();
    assert!(matches!(
        refused.error(),
        CallError::App(Refusal::TooOld { by: 3 })
    ));
    // Without an answer it panics, which is a handler's end as any other.
    let nothing = store.get(Lend::write(vec![0; 8]), 1).await.unwrap_err();
    let CallError::Rpc(status) = nothing.into_error() else {
        panic!()
    };
    expect(&status, Code::HandlerPanicked, Started::MaybeRan);
    ledger.close().await;
}

/// G1: "a call ends exactly once, at each side", whatever the connection does.
#[tokio::test(start_paused = true)]
async fn accounts_are_even_under_faults_of_any_seed() {
    for seed in 0..20 {
        let faults = FaultPlan::seeded(seed)
            .short_io(0.2)
            .delay(Duration::ZERO..=Duration::from_millis(5))
            .cut_after_bytes(2_000..=20_000);
        let handlers = ProbeServer::new(Handlers::default());
        let (channel, server) = testing::pair_with_faults(handlers, faults).await.unwrap();
        let ledger = testing::Ledger::open(&server, [&channel]);
        let client = ProbeClient::over(channel);
        let calls = (0..200_u64).map(|at| {
            let client = client.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(at)).await;
                let call = client.wait(Some(at % 7)).wait_for_ready();
                match at % 3 {
                    // Given up at some time.
                    0 => {
                        let within = Duration::from_millis(at % 11);
                        let _ = tokio::time::timeout(within, call.into_future()).await;
                    }
                    1 => drop(call.deadline(Duration::from_millis(at % 13)).await),
                    _ => drop(call.await),
                }
            })
        });
        for call in calls.collect::<Vec<_>>() {
            call.await.unwrap();
        }
        let stats = client.channel().stats();
        assert!(
            stats.succeeded > 0 && stats.begun == 200,
            "seed {seed}: {stats:?}"
        );
        ledger.close().await;
    }
}

/// It can fail: a call that is under way is not even.
#[tokio::test(start_paused = true)]
#[should_panic(expected = "the accounts are not even")]
async fn accounts_with_a_call_under_way_are_not_even() {
    let (client, seen, server) = super::probe().await;
    let ledger = testing::Ledger::open(&server, [client.channel()]);
    let _running = tokio::spawn(client.wait(None).no_deadline().into_future());
    seen.wait_for(&seen.started, 1).await;
    ledger.close().await;
}
