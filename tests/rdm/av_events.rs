//! Asynchronous insertion (`fi_av(3)`, `FI_EVENT`; rulings 6 to 8).

use std::net::SocketAddr;

use crate::common::on_every_backend;
use tokio_fabric::testing::Net;
use tokio_fabric::*;
use tokio_fabric::{av::*, info::*};

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

/// An asynchronous vector, and an event queue of this size that it is bound to.
fn open(net: &Net, size: usize) -> (AddressVector, EventQueue) {
    let hints = Hints::new().address_format(AddressFormat::SockaddrIn);
    let fabric = net.fabric_with(hints).unwrap();
    let events = fabric.event_queue().size(size).open().unwrap();
    let domain = fabric.domain().open().unwrap();
    let vector = domain.address_vector().asynchronous().open().unwrap();
    assert!(vector.is_asynchronous());
    vector.bind(&events).unwrap();
    (vector, events)
}

/// UserContext, count and results of the next event, which must be a completion.
async fn complete(events: &EventQueue) -> (UserContext, usize, Vec<Result<FabricAddr>>) {
    match events.next().await {
        Some(Event::AvComplete {
            context,
            count,
            addresses,
        }) => (context, count, addresses),
        other => panic!("{other:?} instead of AvComplete"),
    }
}

/// UserContext, index and kind of the next event, which must be an error.
async fn failure(events: &EventQueue) -> (Option<UserContext>, Option<usize>, ErrorKind) {
    match events.next().await {
        Some(Event::Error(failed)) => (failed.context, failed.index, failed.error.kind()),
        other => panic!("{other:?} instead of an error"),
    }
}

/// fi_av(3): "There will be one EQ error entry generated for each failed address insertion,
/// followed by one non-error event indicating that the insertion operation has completed."
/// fi_av(3): "The context field in all completions will be the context specified to the insert
/// call, and the data field in the final completion entry will report the number of addresses
/// successfully inserted." fi_av(3): "Error completions for failed insertions will contain the
/// index of the failed address in the index field of the error completion entry." fi_av(3):
/// `FI_EVENT`, flag. `fi_av_bind`, function. fi_domain(3): `fi_av_bind`, function. fi_domain(3):
/// "They include address vector, memory registration, and connection management routines."
#[test]
fn each_failed_address_is_an_error_before_the_completion() {
    on_every_backend(async |net| {
        let (vector, events) = open(&net, 8);
        let given = [address(1), address(0), address(2), address(1)];
        vector.insert_all(given).submit(5u64).unwrap();
        let five = Some(UserContext(5));
        let (first, second) = (failure(&events).await, failure(&events).await);
        assert_eq!(first, (five, Some(1), ErrorKind::InvalidArgument));
        assert_eq!(second, (five, Some(3), ErrorKind::AddressInUse));
        let (context, count, addresses) = complete(&events).await;
        assert_eq!((context, count, addresses.len()), (UserContext(5), 2, 4));
        assert_eq!(
            vector.lookup(*addresses[2].as_ref().unwrap()).unwrap(),
            address(2)
        );
        assert!(addresses[1].is_err() && addresses[3].is_err());
        vector
            .insert_service("localhost", "9")
            .submit(6u64)
            .unwrap();
        let (context, count, addresses) = complete(&events).await;
        assert_eq!((context, count), (UserContext(6), 1));
        let named = vector.lookup(*addresses[0].as_ref().unwrap()).unwrap();
        assert_eq!(named, SocketAddr::from(([127, 0, 0, 1], 9)));
        let grid = vector.insert_symmetric("10.0.0.1", 2, "2", 2);
        grid.submit(7u64).unwrap();
        let failed = failure(&events).await;
        assert_eq!(
            failed,
            (Some(UserContext(7)), Some(0), ErrorKind::AddressInUse)
        );
        let (context, count, addresses) = complete(&events).await;
        assert_eq!((context, count, addresses.len()), (UserContext(7), 3, 4));
        assert!(events.is_empty());
    });
}

/// fi_av(3): "There will always be one non-error completion event for each insert operation, even
/// if all addresses fail."
#[tokio::test]
async fn an_insertion_completes_even_if_all_addresses_fail() {
    let (vector, events) = open(&Net::loopback(), 8);
    vector.insert_all([address(0)]).submit(1u64).unwrap();
    vector.insert_all([]).submit(2u64).unwrap();
    assert_eq!(failure(&events).await.1, Some(0));
    assert_eq!(complete(&events).await.1, 0);
    let (context, count, addresses) = complete(&events).await;
    assert_eq!((context, count, addresses.len()), (UserContext(2), 0, 0));
}

/// fi_av(3): "Any calls to insert addresses before an event queue has been bound will fail with
/// -FI_ENOEQ."
/// fi_av(3): "the application must first bind an event queue to the AV before inserting addresses."
/// fi_av(3): "Associates an event queue with the AV."
/// fi_av(3): "will return 0 if the operation was successfully initiated. In the case of failure, a
/// negative fabric errno will be returned."
/// It is bound once, and cannot be closed meanwhile.
#[tokio::test]
async fn insertions_before_an_event_queue_is_bound_are_refused() {
    let fabric = Net::loopback().fabric().unwrap();
    let domain = fabric.domain().open().unwrap();
    let vector = domain.address_vector().asynchronous().open().unwrap();
    let refused = [
        vector.insert(address(1)).await.map(drop),
        vector.insert(address(1)).submit(1u64),
    ];
    for error in refused.map(Result::unwrap_err) {
        assert_eq!(
            (error.kind(), error.fi_errno()),
            (ErrorKind::NoEventQueue, 261)
        );
    }
    let events = fabric.event_queue().open().unwrap();
    vector.bind(&events).unwrap();
    assert_eq!(vector.bind(&events).unwrap_err().kind(), ErrorKind::Busy);
    let busy = events.close().await.unwrap_err();
    assert!(
        busy.is_busy() && busy.to_string().contains("address vector"),
        "{busy}"
    );
    vector.close().await.unwrap();
    events.close().await.unwrap();
}

/// fi_av(3): "When the flag FI_EVENT is specified, all insert operations on this AV will occur
/// asynchronously."
/// fi_av(3): "AV operations are synchronous by default"
/// Only an asynchronous vector has events.
#[tokio::test]
async fn each_kind_of_vector_inserts_in_its_way_only() {
    let (vector, events) = open(&Net::loopback(), 8);
    let now = vector.insert(address(1)).now().unwrap_err();
    assert_eq!(now.kind(), ErrorKind::BadState);
    let domain = Net::loopback().fabric().unwrap().domain().open().unwrap();
    let plain = domain.address_vector().open().unwrap();
    assert!(!plain.is_asynchronous());
    plain.bind(&events).unwrap();
    let submit = plain.insert_all([]).submit(1u64).unwrap_err();
    assert_eq!(submit.kind(), ErrorKind::BadState);
    plain.insert_all([]).context(1u64).await.unwrap();
    assert!(events.is_empty() && vector.is_empty());
}

/// Rulings 6 and 7: awaited with a context, the result comes both ways; without one, to the future
/// alone.
#[test]
fn a_future_says_the_same_as_the_events() {
    on_every_backend(async |net| {
        let (vector, events) = open(&net, 8);
        let both = vector.insert(address(1)).context(3u64).await.unwrap();
        let (context, count, addresses) = complete(&events).await;
        assert_eq!((context, count), (UserContext(3), 1));
        assert_eq!(*addresses[0].as_ref().unwrap(), both);
        vector.insert(address(2)).await.unwrap();
        let failed = vector.insert(address(2)).context(4u64).await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::AddressInUse);
        assert_eq!(failure(&events).await.2, ErrorKind::AddressInUse);
        assert_eq!(complete(&events).await.0, UserContext(4));
        assert!(events.is_empty());
    });
}

/// Ruling 8: a place for every event is reserved when the insertion begins, or it does not begin:
/// `submit` answers Again, and a future waits. Those that were not needed are free again.
#[tokio::test]
async fn insertions_reserve_places_for_all_their_events() {
    let (vector, events) = open(&Net::loopback(), 3);
    vector
        .insert_all([address(1), address(2)])
        .submit(1u64)
        .unwrap();
    // One event is there; two places are left.
    vector.insert(address(3)).submit(2u64).unwrap();
    let full = vector.insert(address(4)).submit(3u64).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::Again);
    let mut waiting = by_hand(vector.insert(address(4)).context(4u64).into_future());
    assert!(waiting.poll_once().is_none());
    assert_eq!(
        vector.fabric_addr(address(4)),
        None,
        "nothing begins before"
    );
    complete(&events).await;
    assert!(waiting.poll_once().unwrap().is_ok());
    assert_eq!(complete(&events).await.0, UserContext(2));
    assert_eq!(complete(&events).await.0, UserContext(4));
    let never = vector
        .insert_all((10..13).map(address))
        .submit(5u64)
        .unwrap_err();
    assert_eq!(never.kind(), ErrorKind::TooLarge);
    // Without events there is nothing to reserve.
    let many = vector.insert_all((10..13).map(address)).await.unwrap();
    assert_eq!(many.iter().flatten().count(), 3);
}

/// fi_av(3): "any events queued on an event queue referencing the AV are left untouched."
#[tokio::test]
async fn events_outlive_the_vector_they_are_about() {
    let (vector, events) = open(&Net::loopback(), 8);
    vector
        .insert_all([address(1), address(0)])
        .submit(1u64)
        .unwrap();
    vector.close().await.unwrap();
    drop(vector);
    assert_eq!(failure(&events).await.1, Some(1));
    assert_eq!(complete(&events).await.0, UserContext(1));
}

/// The queue is gone: a future still gets its result, `submit` has nowhere to report.
#[tokio::test]
async fn an_event_queue_without_readers_keeps_no_insertion() {
    let (vector, events) = open(&Net::loopback(), 3);
    drop(events);
    vector.insert(address(1)).context(1u64).await.unwrap();
    let absent = vector.insert(address(2)).submit(1u64).unwrap_err();
    assert_eq!(absent.kind(), ErrorKind::BadState);
}

/// A future that is polled by hand.
struct Polled<F> {
    future: std::pin::Pin<Box<F>>,
}

fn by_hand<F: Future>(future: F) -> Polled<F> {
    Polled {
        future: Box::pin(future),
    }
}

impl<F: Future> Polled<F> {
    fn poll_once(&mut self) -> Option<F::Output> {
        futures::FutureExt::now_or_never(self.future.as_mut())
    }
}
