use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use proptest::prelude::*;

use super::*;
use crate::id::{self, EndpointId};
use crate::limits::ERR_DATA_SIZE_MAX;
use crate::sync::Ticket;

fn queue(size: usize) -> EventQueue {
    EventQueue::builder(None)
        .size(size)
        .writable()
        .open()
        .unwrap()
}

#[track_caller]
fn code(event: Option<Event>) -> Option<u32> {
    match event {
        Some(Event::User { code, .. }) => Some(code),
        Some(other) => panic!("not a user event: {other:?}"),
        None => None,
    }
}

fn user(code: u32) -> Event {
    Event::User {
        code,
        data: Bytes::new(),
    }
}

fn request() -> (ConnRequest, crate::sync::TicketHolder<Verdict>) {
    let peer = SocketAddr::from(([10, 0, 0, 1], 4000));
    let local = SocketAddr::from(([10, 0, 0, 2], 7471));
    ConnRequest::new(
        EndpointId::next(),
        peer,
        local,
        Bytes::from_static(b"hello"),
        false,
    )
}

/// Sharing across threads is part of the API (api.md, decision 8).
#[test]
fn queues_and_events_may_move_between_threads() {
    fn send_sync<T: Send + Sync + Unpin>() {}
    fn send<T: Send>(_: &T) {}
    send_sync::<EventQueue>();
    send_sync::<ConnRequest>();
    let queue = queue(1);
    send(&queue.next());
    send(&user(1));
}

/// `fi_eq(3)`: "At most one event will be returned per EQ read operation", in the order they
/// happened.
#[tokio::test]
async fn events_come_one_by_one_in_order() {
    let mut queue = queue(8);
    for code in 0..6 {
        queue.write(code, Bytes::new()).unwrap();
    }
    assert_eq!(code(queue.try_next()), Some(0));
    assert_eq!(code(queue.next().await), Some(1));
    assert_eq!(code(StreamExt::next(&mut queue).await), Some(2));
    assert_eq!(code(queue.try_next()), Some(3));
    assert_eq!(queue.len(), 2);
}

/// `fi_eq(3)`: "If the FI_WRITE flag is not set, then the application may not invoke fi_eq_write."
#[test]
fn writing_needs_a_writable_queue() {
    let plain = EventQueue::builder(None).open().unwrap();
    assert!(!plain.is_writable());
    let refused = plain.write(1, Bytes::new()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert!(queue(1).is_writable());
}

/// `fi_eq(3)`, fi_eq_write: "an event to insert into the event queue" comes back with its code and
/// bytes; a full queue refuses it and loses nothing.
#[test]
fn user_events_come_back_whole_and_a_full_queue_says_again() {
    let queue = queue(2);
    let slot = queue.try_reserve().unwrap();
    queue.write(77, Bytes::from_static(b"mine")).unwrap();
    assert!(
        queue.write(78, Bytes::new()).unwrap_err().is_again(),
        "a reserved place is taken"
    );
    match queue.try_next() {
        Some(Event::User { code: 77, data }) => assert_eq!(&data[..], b"mine"),
        other => panic!("{other:?}"),
    }
    drop(slot);
    queue.write(79, Bytes::new()).unwrap();
    queue.write(80, Bytes::new()).unwrap();
    assert_eq!(
        (code(queue.try_next()), code(queue.try_next())),
        (Some(79), Some(80))
    );
}

/// `fi_eq(3)`: "The FI_PEEK flag may be used to indicate that event data should be read from the EQ
/// without being consumed. A subsequent read without the FI_PEEK flag would then remove the event".
#[test]
fn peek_leaves_the_event_for_the_next_read() {
    let queue = queue(2);
    assert!(queue.peek(|_| ()).is_none());
    queue.write(5, Bytes::new()).unwrap();
    for _ in 0..2 {
        let seen = queue.peek(|event| matches!(event, Event::User { code: 5, .. }));
        assert_eq!(seen, Some(true));
    }
    assert_eq!(
        (code(queue.try_next()), code(queue.try_next())),
        (Some(5), None)
    );
}

/// `fi_eq(3)`: "err_data_size will be set to the number of bytes copied": all up to the limit, no
/// more.
#[test]
fn error_events_carry_err_data_up_to_the_limit() {
    let queue = queue(4);
    let endpoint = EndpointId::next();
    for (given, kept) in [(0, 0), (1, 1), (256, 256), (300, ERR_DATA_SIZE_MAX)] {
        let error = Error::new(ErrorKind::ConnectionRefused, "").with_data(vec![7; given].into());
        let event = EventError::new(error)
            .with_context(Some(id::UserContext(3)))
            .with_endpoint(endpoint);
        let slot = queue.try_reserve().unwrap();
        slot.fill(Event::Error(event), &mut WakeList::new());
        let Some(Event::Error(event)) = queue.try_next() else {
            panic!("an error event was written");
        };
        assert_eq!(event.data, vec![7; kept]);
        assert_eq!(
            (event.context, event.endpoint),
            (Some(id::UserContext(3)), Some(endpoint))
        );
        assert_eq!(
            (event.error.kind(), event.error.fi_errno()),
            (ErrorKind::ConnectionRefused, 111)
        );
        assert!(event.to_string().starts_with("connection refused"));
    }
}

/// Ruling 6: "`EventQueue: Stream<Item = Event>`. A failure is `Event::Error`": the stream goes on.
#[tokio::test]
async fn a_failure_stands_in_line_and_does_not_end_the_stream() {
    let queue = queue(4);
    queue.write(1, Bytes::new()).unwrap();
    let slot = queue.try_reserve().unwrap();
    let failure = EventError::new(Error::new(ErrorKind::TimedOut, ""));
    slot.fill(Event::Error(failure), &mut WakeList::new());
    queue.write(2, Bytes::new()).unwrap();
    let events: Vec<_> = queue.clone().take(3).collect().await;
    assert!(matches!(events[0], Event::User { code: 1, .. }));
    assert!(matches!(events[1], Event::Error(_)));
    assert!(matches!(events[2], Event::User { code: 2, .. }));
}

/// Ruling 8: "Slots of an event queue are reserved [...] No event is lost."
#[test]
fn a_reserved_event_always_finds_its_place() {
    let queue = queue(3);
    let slots: VecDeque<_> = (0..3).map(|_| queue.try_reserve().unwrap()).collect();
    assert!(queue.try_reserve().is_none());
    assert!(queue.reserve().now_or_never().is_none());
    assert!(queue.write(9, Bytes::new()).unwrap_err().is_again());
    for (number, slot) in (0..).zip(slots) {
        slot.fill(user(number), &mut WakeList::new());
    }
    assert!(queue.try_reserve().is_none());
    for number in 0..3 {
        assert_eq!(code(queue.try_next()), Some(number));
    }
    assert!(queue.reserve().now_or_never().unwrap().is_some());
}

/// Each event goes to exactly one of many readers, on whatever threads they wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_event_goes_to_exactly_one_of_many_readers() {
    const COUNT: u32 = 6_000;
    let queue = queue(8);
    let readers: Vec<_> = (0..6)
        .map(|_| {
            let queue = queue.clone();
            tokio::spawn(
                queue
                    .map(|event| code(Some(event)).unwrap())
                    .collect::<Vec<_>>(),
            )
        })
        .collect();
    for number in 0..COUNT {
        let slot = queue.reserve().await.unwrap();
        slot.fill(user(number), &mut WakeList::new());
    }
    while !queue.is_empty() {
        tokio::task::yield_now().await;
    }
    queue.close().await.unwrap();
    let mut all = Vec::new();
    for reader in readers {
        all.extend(reader.await.unwrap());
    }
    all.sort_unstable();
    assert_eq!(all, (0..COUNT).collect::<Vec<_>>());
}

/// "A dropped waiting future never loses a wake": the one that gave up was woken too, and another
/// reads.
#[tokio::test]
async fn a_reader_that_gives_up_after_its_wake_loses_nothing() {
    let queue = queue(2);
    let mut first = Box::pin(queue.next());
    assert!(futures::poll!(&mut first).is_pending());
    let other = queue.clone();
    let second = tokio::spawn(async move { code(other.next().await) });
    tokio::task::yield_now().await;
    queue.write(1, Bytes::new()).unwrap();
    drop(first);
    assert_eq!(second.await.unwrap(), Some(1));
}

/// `fi_eq(3)`, fi_eq_sread: waits "until either an event has been read from the EQ or an error or
/// timeout occurs".
#[tokio::test(start_paused = true)]
async fn a_timed_out_wait_takes_nothing() {
    let queue = queue(2);
    let second = Duration::from_secs(1);
    assert!(tokio::time::timeout(second, queue.next()).await.is_err());
    queue.write(4, Bytes::new()).unwrap();
    assert_eq!(code(queue.next().await), Some(4));
}

/// `fi_eq(3)`, fi_close: "The EQ must not be bound to any other objects prior to being closed,
/// otherwise the call will return -FI_EBUSY."
#[tokio::test]
async fn close_is_busy_while_bound_and_names_who() {
    let queue = queue(2);
    let domain = queue.depend("domain 1".into(), None).unwrap();
    let busy = queue.close().await.unwrap_err();
    assert!(busy.is_busy());
    assert_eq!(
        busy.to_string(),
        "in use: event queue still used by domain 1"
    );
    drop(domain);
    let slot = queue.try_reserve().unwrap();
    assert!(queue.close().await.unwrap_err().is_busy());
    drop(slot);
    queue.close().await.unwrap();
    assert_eq!(
        queue.write(1, Bytes::new()).unwrap_err().kind(),
        ErrorKind::BadState
    );
    assert_eq!(
        queue.depend("late".into(), None).unwrap_err().kind(),
        ErrorKind::BadState
    );
}

/// Streams never end while the queue lives; closing ends them all.
#[tokio::test]
async fn a_stream_ends_only_by_close() {
    let queue = queue(2);
    let mut stream = queue.clone();
    let waiting = tokio::spawn(async move { StreamExt::next(&mut stream).await.is_none() });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished() && !queue.is_terminated());
    queue.close().await.unwrap();
    assert!(waiting.await.unwrap() && queue.is_terminated());
}

/// `fi_eq(3)`: "Any events which remain on the EQ when it is closed are lost": a request in it is
/// rejected.
#[tokio::test]
async fn requests_left_in_a_closed_queue_are_rejected() {
    let queue = queue(2);
    let (request, mut holder) = request();
    let slot = queue.try_reserve().unwrap();
    slot.fill(Event::ConnRequest(request), &mut WakeList::new());
    queue.close().await.unwrap();
    assert!(poll_fn(|cx| holder.poll_verdict(cx)).await.is_none());
}

/// A request shows who asks whom and what for; "dropping it = reject without data".
#[tokio::test]
async fn a_request_is_decided_once_and_dropping_it_decides_too() {
    let (asked, mut holder) = request();
    assert_eq!(asked.peer_addr().port(), 4000);
    assert_eq!(asked.local_addr().port(), 7471);
    assert_eq!(&asked.data()[..], b"hello");
    assert!(!asked.is_withdrawn());
    let (link, mut link_holder) = Ticket::<()>::pair();
    let taker = LinkTaker::new(|taken| drop((taken, link)));
    let sent = asked.take_ticket().decide(Verdict::Accept(taker));
    assert!(sent.is_ok());
    match poll_fn(|cx| holder.poll_verdict(cx)).await {
        Some(Verdict::Accept(link)) => drop(link),
        other => panic!("{other:?}"),
    }
    let handed_over = poll_fn(|cx| link_holder.poll_verdict(cx)).await;
    assert!(handed_over.is_none(), "whom it was sent to dropped it");
    let (dropped, mut holder) = request();
    drop(dropped);
    assert!(poll_fn(|cx| holder.poll_verdict(cx)).await.is_none());
    let (withdrawn, holder) = request();
    drop(holder);
    assert!(withdrawn.is_withdrawn());
}

/// Ruling 18: sizes that cannot be had are errors; 0 is the default.
#[test]
fn size_zero_is_the_default_and_vast_sizes_are_errors() {
    assert_eq!(queue(0).capacity(), EQ_SIZE_DEFAULT);
    assert_eq!(queue(5).capacity(), 5);
    let vast = EventQueue::builder(None)
        .size(usize::MAX)
        .open()
        .unwrap_err();
    assert_eq!(vast.kind(), ErrorKind::LimitReached);
}

proptest! {
    /// "reserved + filled <= capacity" with the application's own writes among reservations,
    /// against a plain queue.
    #[test]
    fn writes_and_reservations_share_one_bound(
        size in 1..5usize,
        ops in proptest::collection::vec(0..5u8, 0..120),
    ) {
        let queue = queue(size);
        let mut oracle = VecDeque::new();
        let mut slots = VecDeque::new();
        for (number, op) in (0u32..).zip(ops) {
            let room = slots.len() + oracle.len() < size;
            match op {
                0 => {
                    prop_assert_eq!(queue.write(number, Bytes::new()).is_ok(), room);
                    oracle.extend(room.then_some(number));
                }
                1 => {
                    let slot = queue.try_reserve();
                    prop_assert_eq!(slot.is_some(), room);
                    slots.extend(slot);
                }
                2 => if let Some(slot) = slots.pop_front() {
                    slot.fill(user(number), &mut WakeList::new());
                    oracle.push_back(number);
                },
                3 => drop(slots.pop_front()),
                _ => prop_assert_eq!(code(queue.try_next()), oracle.pop_front()),
            }
            prop_assert_eq!(queue.len(), oracle.len());
            prop_assert!(slots.len() + queue.len() <= queue.capacity());
        }
    }
}
