//! Insertions while lookups are running; the tests answer the lookups by hand.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use futures::FutureExt;

use super::*;
use crate::eq::Event;
use crate::info::{AddressFormat, Hints};
use crate::{Fabric, Info};

/// Lookups wait until the test has answered their name.
#[derive(Clone)]
struct TestResolver {
    answers: Arc<Mutex<HashMap<String, Receiver<Result<SocketAddr>>>>>,
    asked: Sender<String>,
}

impl TestResolver {
    fn new(
        names: &[&str],
    ) -> (
        TestResolver,
        HashMap<String, Sender<Result<SocketAddr>>>,
        Receiver<String>,
    ) {
        let (asked, was_asked) = channel();
        let (mut senders, mut receivers) = (HashMap::new(), HashMap::new());
        for name in names {
            let (sender, receiver) = channel();
            senders.insert((*name).to_owned(), sender);
            receivers.insert((*name).to_owned(), receiver);
        }
        let resolver = TestResolver {
            answers: Arc::new(Mutex::new(receivers)),
            asked,
        };
        (resolver, senders, was_asked)
    }

    fn lookup(&self) -> Resolver {
        let resolver = self.clone();
        Arc::new(move |name, _| {
            let answer = resolver.answers.lock().unwrap().remove(name).unwrap();
            // Not every test wants to know.
            let _ = resolver.asked.send(name.to_owned());
            answer.recv().unwrap_or_else(|_| Err(no_host()))
        })
    }
}

fn no_host() -> Error {
    Error::new(ErrorKind::NoMatch, "no such host")
}

fn node(last: u8) -> Result<SocketAddr> {
    Ok(SocketAddr::from(([10, 0, 0, last], 0)))
}

fn address(last: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, last], port))
}

fn info() -> Info {
    let hints = Hints::new().address_format(AddressFormat::SockaddrIn);
    crate::discover(&hints).unwrap().remove(0)
}

/// A vector whose resolver this resolver looks up, and its event queue.
fn open(resolver: &TestResolver) -> (AddressVector, EventQueue) {
    let fabric = Fabric::open(Hints::new()).unwrap();
    let domain = fabric.domain().info(info()).open().unwrap();
    let builder = domain.address_vector().asynchronous();
    let vector = builder.resolver(resolver.lookup()).open().unwrap();
    let events = fabric.event_queue().open().unwrap();
    vector.bind(&events).unwrap();
    (vector, events)
}

async fn events_of(events: &EventQueue) -> (Vec<(usize, ErrorKind)>, UserContext, usize) {
    let mut failed = Vec::new();
    loop {
        match events.next().await {
            Some(Event::Error(error)) => failed.push((error.index.unwrap(), error.error.kind())),
            Some(Event::AvComplete { context, count, .. }) => return (failed, context, count),
            other => panic!("{other:?} instead of an insertion's event"),
        }
    }
}

/// fi_av(3): "Index values accumulate across successive insert calls in the order the calls are
/// made, not necessarily in the order the insertions complete."
#[tokio::test]
async fn indices_follow_the_order_of_the_calls() {
    let (resolver, answers, _) = TestResolver::new(&["slow1", "slow2"]);
    let (vector, events) = open(&resolver);
    vector
        .insert_symmetric("slow1", 2, "5", 2)
        .submit(1u64)
        .unwrap();
    let quick = vector.insert(address(9, 9)).await.unwrap();
    assert_eq!(quick.index(), 4);
    assert_eq!(vector.at(0), None);
    answers["slow2"].send(node(2)).unwrap();
    answers["slow1"].send(node(1)).unwrap();
    assert_eq!(events_of(&events).await, (vec![], UserContext(1), 4));
    let looked_up = |index| vector.lookup(vector.at(index).unwrap()).unwrap();
    let wanted = [address(1, 5), address(1, 6), address(2, 5), address(2, 6)];
    assert_eq!([0, 1, 2, 3].map(looked_up), wanted);
}

/// fi_av(3): "Note that the order of delivery of insert completions may not match the order in
/// which the calls to fi_av_insert were made." fi_av(3): "all error completions for a given call to
/// fi_av_insert will precede the single associated non-error completion."
#[tokio::test]
async fn a_name_that_is_not_found_fails_all_its_addresses() {
    let (resolver, answers, _) = TestResolver::new(&["n1", "n2", "n3"]);
    let (vector, events) = open(&resolver);
    vector
        .insert_symmetric("n1", 3, "5", 2)
        .submit(1u64)
        .unwrap();
    vector.insert(address(9, 9)).submit(2u64).unwrap();
    assert_eq!(events_of(&events).await.1, UserContext(2));
    answers["n1"].send(node(1)).unwrap();
    answers["n2"].send(Err(no_host())).unwrap();
    // The same host by another name.
    answers["n3"].send(node(1)).unwrap();
    let failed = vec![
        (2, ErrorKind::NoMatch),
        (3, ErrorKind::NoMatch),
        (4, ErrorKind::AddressInUse),
        (5, ErrorKind::AddressInUse),
    ];
    assert_eq!(events_of(&events).await, (failed, UserContext(1), 2));
    // The slots of the failed addresses are free again.
    assert_eq!(vector.insert(address(8, 8)).await.unwrap().index(), 2);
}

/// fi_av(3): "Addresses that are not inserted because they were aborted will fail with an error
/// code of FI_ECANCELED."
/// At once, and not when the resolver answers.
/// fi_av(3): "If resources are still associated with the AV when attempting to close, the call will
/// return -FI_EBUSY."
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_insertion_that_is_dropped_is_canceled() {
    let (resolver, answers, asked) = TestResolver::new(&["slow"]);
    let (vector, events) = open(&resolver);
    let insertion = vector
        .insert_service("slow", "5")
        .context(1u64)
        .into_future();
    assert_eq!(asked.recv().unwrap(), "slow");
    assert!(vector.close().await.unwrap_err().is_busy());
    drop(insertion);
    let canceled = vec![(0, ErrorKind::Canceled)];
    assert_eq!(events_of(&events).await, (canceled, UserContext(1), 0));
    let next = vector.insert(address(1, 5)).await.unwrap();
    assert_eq!(next.index(), 0);
    // The late answer changes nothing.
    answers["slow"].send(node(7)).unwrap();
    drop(answers);
    vector.close().await.unwrap();
    assert_eq!(vector.inner.store.len().unwrap(), 1);
    assert!(events.is_empty());
}

/// fi_av(3): "the addresses would be: host10:5000, host10:5001, host11:5000, host11:5001."
#[tokio::test]
async fn host_names_are_inserted_in_the_order_of_the_example() {
    let (resolver, answers, _) = TestResolver::new(&["host10", "host11"]);
    let (vector, _events) = open(&resolver);
    answers["host10"].send(node(10)).unwrap();
    answers["host11"].send(node(11)).unwrap();
    let added = vector
        .insert_symmetric("host10", 2, "5000", 2)
        .await
        .unwrap();
    let added = added
        .into_iter()
        .map(|addr| vector.lookup(addr.unwrap()).unwrap());
    let wanted = [(10, 5000), (10, 5001), (11, 5000), (11, 5001)];
    assert!(added.eq(wanted.map(|(last, port)| address(last, port))));
}

/// Lookups run on blocking threads: the runtime's only worker continues.
#[tokio::test(flavor = "current_thread")]
async fn a_slow_resolver_blocks_no_worker() {
    let (resolver, answers, _) = TestResolver::new(&["slow"]);
    let (vector, _events) = open(&resolver);
    let mut insertion = vector.insert_service("slow", "5").into_future();
    assert!((&mut insertion).now_or_never().is_none());
    answers["slow"].send(node(1)).unwrap();
    let addr = insertion.await.unwrap();
    assert_eq!(vector.lookup(addr).unwrap(), address(1, 5));
}

/// Ruling 11: "If the runtime stops, every pending and later operation fails with `DriverGone`."
#[test]
fn an_insertion_whose_runtime_ends_has_an_end() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().unwrap()
    };
    let (resolver, answers, asked) = TestResolver::new(&["a", "b", "c"]);
    let (first, other) = (runtime(), runtime());
    let (vector, events) = first.block_on(async { open(&resolver) });
    let mut insertions: Vec<_> = ["a", "b", "c"]
        .map(|name| vector.insert_service(name, "5").into_future())
        .into();
    // Two lookups are with the resolver, the third waits for its turn.
    let running: Vec<String> = asked.iter().take(2).collect();
    // A thread that has ended a lookup continues with the next one, unless that took long.
    std::thread::sleep(std::time::Duration::from_millis(5));
    first.shutdown_background();
    drop(answers);
    let mut kinds: Vec<ErrorKind> = Vec::new();
    for insertion in insertions.drain(..) {
        let ended = other.block_on(insertion);
        kinds.push(ended.unwrap_err().kind());
    }
    assert_eq!(running.len(), 2);
    let gone = kinds.iter().filter(|kind| **kind == ErrorKind::DriverGone);
    assert_eq!(gone.count(), 1, "{kinds:?}");
    assert!(events.is_empty());
}
