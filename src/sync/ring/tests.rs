use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Wake;
use std::time::Duration;

use futures::FutureExt;
use proptest::prelude::*;

use super::*;

fn ring<T>(capacity: usize) -> Ring<T> {
    Ring::new(capacity, None).unwrap()
}

#[track_caller]
fn put<T>(ring: &Ring<T>, item: T) {
    let slot = ring.try_reserve().expect("there is room");
    slot.fill(item, &mut WakeList::new());
}

async fn next<T>(reader: &mut Reader<T>) -> Option<T> {
    std::future::poll_fn(|cx| reader.poll_pop(cx)).await
}

/// A waker that counts its wakes.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Count {
    fn new() -> (Arc<Count>, Waker) {
        let count = Arc::new(Count::default());
        (Arc::clone(&count), Waker::from(count))
    }

    fn wakes(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

#[derive(Clone, Debug)]
enum Op {
    Reserve,
    Fill(usize),
    DropSlot(usize),
    Pop,
    PopBatch(usize),
    Peek,
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => Just(Op::Reserve),
        2 => (0..8usize).prop_map(Op::Fill),
        1 => (0..8usize).prop_map(Op::DropSlot),
        2 => Just(Op::Pop),
        1 => (0..5usize).prop_map(Op::PopBatch),
        1 => Just(Op::Peek),
    ]
}

proptest! {
    /// House, section 6: "reserved + filled ≤ capacity", and the ring is a plain queue otherwise.
    #[test]
    fn reserved_and_filled_never_exceed_capacity(
        capacity in 1..6usize,
        ops in proptest::collection::vec(any_op(), 0..200),
    ) {
        let ring = ring::<u32>(capacity);
        let mut oracle = VecDeque::new();
        let mut slots = Vec::new();
        let mut number = 0;
        for op in ops {
            match op {
                Op::Reserve => {
                    let room = slots.len() + oracle.len() < capacity;
                    let slot = ring.try_reserve();
                    prop_assert_eq!(slot.is_some(), room);
                    slots.extend(slot);
                }
                Op::Fill(at) if !slots.is_empty() => {
                    let slot = slots.swap_remove(at % slots.len());
                    slot.fill(number, &mut WakeList::new());
                    oracle.push_back(number);
                    number += 1;
                }
                Op::DropSlot(at) if !slots.is_empty() => {
                    drop(slots.swap_remove(at % slots.len()));
                }
                Op::Fill(_) | Op::DropSlot(_) => {}
                Op::Pop => prop_assert_eq!(ring.try_pop(), oracle.pop_front()),
                Op::PopBatch(max) => {
                    let mut batch = vec![u32::MAX];
                    let count = ring.try_pop_batch(&mut batch, max);
                    let expected: Vec<_> = oracle.drain(..max.min(oracle.len())).collect();
                    prop_assert_eq!(count, expected.len());
                    prop_assert_eq!(&batch[1..], &expected[..]);
                }
                Op::Peek => prop_assert_eq!(ring.peek(|item| *item), oracle.front().copied()),
            }
            prop_assert_eq!(ring.len(), oracle.len());
            prop_assert_eq!(ring.reserved(), slots.len());
            prop_assert!(ring.reserved() + ring.len() <= ring.capacity());
        }
    }
}

/// Rule: "several readers: each event to exactly one", with nothing lost and no reader left asleep.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_entry_goes_to_exactly_one_of_many_readers() {
    const ITEMS: usize = 20_000;
    let ring = ring::<usize>(16);
    let readers: Vec<_> = (0..8)
        .map(|_| {
            let mut reader = Reader::new(ring.clone());
            tokio::spawn(async move {
                let mut seen = Vec::new();
                while let Some(item) = next(&mut reader).await {
                    seen.push(item);
                }
                seen
            })
        })
        .collect();
    let next_item = Arc::new(AtomicUsize::new(0));
    let writers: Vec<_> = (0..4)
        .map(|_| {
            let (ring, next_item) = (ring.clone(), Arc::clone(&next_item));
            tokio::spawn(async move {
                loop {
                    let slot = ring.reserve().await.unwrap();
                    let item = next_item.fetch_add(1, Ordering::Relaxed);
                    if item >= ITEMS {
                        break;
                    }
                    slot.fill(item, &mut WakeList::new());
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    while ring.len() > 0 {
        tokio::task::yield_now().await;
    }
    ring.close().unwrap();
    let mut all = Vec::new();
    for reader in readers {
        all.extend(reader.await.unwrap());
    }
    all.sort_unstable();
    assert_eq!(all, (0..ITEMS).collect::<Vec<_>>());
}

/// A single reader sees the entries in the order in which they were filled, not reserved.
#[test]
fn entries_leave_in_the_order_they_were_filled() {
    let ring = ring(3);
    let early = ring.try_reserve().unwrap();
    put(&ring, 1);
    early.fill(2, &mut WakeList::new());
    put(&ring, 3);
    assert_eq!(
        [ring.try_pop(), ring.try_pop(), ring.try_pop()],
        [1, 2, 3].map(Some)
    );
}

/// "A dropped waiting future never loses a wake": readers come and go at random moments, and still
/// every entry is read.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reader_dropped_while_waiting_takes_no_wake_with_it() {
    const ITEMS: usize = 2_000;
    let ring = ring::<usize>(4);
    let stop = Arc::new(AtomicBool::new(false));
    let fickle: Vec<_> = (0..2)
        .map(|_| {
            let (ring, stop) = (ring.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                // Waits, is woken or not, and goes away without ever reading.
                while !stop.load(Ordering::Relaxed) {
                    let mut slot = Box::pin(ring.reserve());
                    let _ = futures::poll!(&mut slot);
                    let mut reader = Reader::new(ring.clone());
                    let _ = std::future::poll_fn(|cx| {
                        Poll::Ready(reader.poll_with(cx, |_, _| None::<()>))
                    })
                    .await;
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    let mut reader = Reader::new(ring.clone());
    let steady = tokio::spawn(async move {
        for expected in 0..ITEMS {
            assert_eq!(next(&mut reader).await, Some(expected));
        }
    });
    for item in 0..ITEMS {
        let slot = ring.reserve().await.unwrap();
        slot.fill(item, &mut WakeList::new());
    }
    tokio::time::timeout(Duration::from_secs(60), steady)
        .await
        .unwrap()
        .unwrap();
    stop.store(true, Ordering::Relaxed);
    for task in fickle {
        task.await.unwrap();
    }
    let state = ring.shared.state.lock("test");
    assert!(state.readers.is_empty() && state.room.is_empty());
}

/// A free place is taken, and no waker is left registered.
#[test]
fn a_waker_is_registered_only_when_there_is_no_room() {
    let ring = ring::<u8>(1);
    let (count, waker) = Count::new();
    drop(ring.reserve_or_wake(&waker).expect("there is room"));
    assert_eq!(count.wakes(), 0);
}

/// "Woken once when a slot frees", by reading as well as by dropping the slot.
#[test]
fn a_registered_waker_is_woken_once_by_a_read_and_by_a_dropped_slot() {
    let ring = ring::<u8>(1);
    let (count, waker) = Count::new();
    put(&ring, 1);
    assert!(ring.reserve_or_wake(&waker).is_none());
    assert!(ring.reserve_or_wake(&waker).is_none());
    assert_eq!(count.wakes(), 0);
    assert_eq!(ring.try_pop(), Some(1));
    assert_eq!(count.wakes(), 1);
    let slot = ring.try_reserve().unwrap();
    assert!(ring.reserve_or_wake(&waker).is_none());
    drop(slot);
    assert_eq!(count.wakes(), 2);
    drop(ring.try_reserve());
    assert_eq!(count.wakes(), 2);
}

/// "Wakes only after unlocking through WakeList": a waker may use the queue it is woken by.
#[test]
fn wakers_run_with_the_queue_unlocked() {
    struct PoppingWaker(Ring<u8>, AtomicUsize);
    impl Wake for PoppingWaker {
        fn wake(self: Arc<Self>) {
            self.1
                .fetch_add(usize::from(self.0.try_pop().is_some()), Ordering::SeqCst);
        }
    }
    let ring = ring(2);
    let popping = Arc::new(PoppingWaker(ring.clone(), AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&popping));
    let mut reader = Reader::new(ring.clone());
    assert!(
        reader
            .poll_pop(&mut Context::from_waker(&waker))
            .is_pending()
    );
    let mut wakes = WakeList::new();
    ring.try_reserve().unwrap().fill(9, &mut wakes);
    assert_eq!(
        popping.1.load(Ordering::SeqCst),
        0,
        "only when the list is dropped"
    );
    drop(wakes);
    assert_eq!(popping.1.load(Ordering::SeqCst), 1);
}

/// `fi_eq(3)`: with FI_PEEK "event data should be read from the EQ without being consumed. A
/// subsequent read without the FI_PEEK flag would then remove the event".
#[test]
fn peek_consumes_nothing_and_may_use_the_queue() {
    let ring = ring(2);
    assert_eq!(ring.peek(|item: &u8| *item), None);
    put(&ring, 1);
    let seen = ring.peek(|item| {
        put(&ring, 2);
        assert_eq!(ring.len(), 2);
        assert!(ring.try_reserve().is_none());
        assert_eq!(ring.try_pop(), None, "no reader may pass the first entry");
        assert_eq!(ring.peek(|_| ()), None);
        *item
    });
    assert_eq!(seen, Some(1));
    assert_eq!(
        (ring.try_pop(), ring.try_pop(), ring.try_pop()),
        (Some(1), Some(2), None)
    );
}

/// A reader that came during a peek is woken when the entry is back, even if the peek panicked.
#[tokio::test]
async fn peek_gives_the_entry_back_even_by_a_panic() {
    let ring = ring(1);
    put(&ring, 5);
    let mut reader = Reader::new(ring.clone());
    let (count, waker) = Count::new();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        ring.peek(|_| {
            assert!(
                reader
                    .poll_pop(&mut Context::from_waker(&waker))
                    .is_pending()
            );
            panic!("in the closure");
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(count.wakes(), 1);
    assert_eq!(next(&mut reader).await, Some(5));
}

/// `fi_eq(3)`, fi_close: "Any events which remain on the EQ when it is closed are lost." Waiting
/// readers end.
#[tokio::test]
async fn close_ends_every_reader_and_loses_what_is_left() {
    let kept = Arc::new(());
    let keep: Keep = Box::new(Arc::clone(&kept));
    let ring = Ring::new(2, Some(keep)).unwrap();
    let item = Arc::new(());
    let mut waiting = Reader::new(ring.clone());
    let waits = tokio::spawn(async move { next(&mut waiting).await });
    tokio::task::yield_now().await;
    put(&ring, Arc::clone(&item));
    assert!(ring.peek(|_| ring.close()).unwrap().is_ok());
    assert_eq!(waits.await.unwrap(), None);
    assert_eq!((Arc::strong_count(&item), Arc::strong_count(&kept)), (1, 1));
    assert!(ring.is_closed() && ring.try_pop().is_none() && ring.try_reserve().is_none());
    assert!(ring.reserve().await.is_none());
    assert!(ring.depend("late".into()).is_none());
    assert_eq!(ring.close(), Ok(()));
}

/// Ruling 22: Busy "and their names", and nothing has changed then.
#[test]
fn close_is_refused_while_something_is_bound_or_will_report() {
    let ring = ring(2);
    let slot = ring.try_reserve().unwrap();
    let message = ring.close().unwrap_err();
    assert!(message.ends_with("report to it: 1"), "{message}");
    let bound = ring.depend("endpoint 3".into()).unwrap();
    assert_eq!(ring.close().unwrap_err(), "still used by endpoint 3");
    slot.fill(1, &mut WakeList::new());
    assert_eq!(ring.close().unwrap_err(), "still used by endpoint 3");
    assert_eq!(ring.try_pop(), Some(1));
    drop(bound);
    assert_eq!(ring.close(), Ok(()));
}

/// A reader of a queue that never runs dry yields, so that other tasks of its thread can run.
#[tokio::test]
async fn a_busy_reader_yields_to_other_tasks() {
    let ring = ring(1);
    let ran = Arc::new(AtomicBool::new(false));
    let other = Arc::clone(&ran);
    let task = tokio::spawn(async move { other.store(true, Ordering::SeqCst) });
    let mut reader = Reader::new(ring.clone());
    let mut reads = 0;
    while !ran.load(Ordering::SeqCst) {
        assert!(reads < 10_000, "the reader starves its neighbours");
        put(&ring, ());
        next(&mut reader).await;
        reads += 1;
    }
    task.await.unwrap();
}

/// "All storage bounded and preallocated": impossible sizes are errors, not aborts.
#[test]
fn impossible_sizes_are_refused() {
    let none = Ring::<u64>::new(0, None).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::InvalidArgument);
    let vast = Ring::<u64>::new(usize::MAX, None).unwrap_err();
    assert_eq!(vast.kind(), ErrorKind::LimitReached);
}

/// A place is given to one waiter at a time, and a dropped waiter blocks no other.
#[test]
fn waiters_for_room_each_get_a_place_in_time() {
    let ring = ring(1);
    put(&ring, 1);
    let mut first = Box::pin(ring.reserve());
    let mut second = Box::pin(ring.reserve());
    assert!((&mut first).now_or_never().is_none());
    assert!((&mut second).now_or_never().is_none());
    assert_eq!(ring.try_pop(), Some(1));
    drop(first);
    let slot = second.now_or_never().unwrap().unwrap();
    slot.fill(2, &mut WakeList::new());
    assert_eq!(ring.try_pop(), Some(2));
}

/// Several places are reserved together or not at all, and a waiter for several takes no single
/// place meanwhile.
#[test]
fn several_places_come_together_or_not_at_all() {
    let ring = ring::<u32>(3);
    let first = ring.try_reserve_many(2).unwrap();
    assert_eq!((first.len(), ring.reserved()), (2, 2));
    assert!(ring.try_reserve_many(2).is_none());
    let (wakes, waker) = Count::new();
    let mut cx = Context::from_waker(&waker);
    let mut waiting = ring.reserve_many(3);
    assert!(waiting.poll_unpin(&mut cx).is_pending());
    drop(ring.try_reserve().unwrap());
    assert!(wakes.wakes() > 0);
    assert!(waiting.poll_unpin(&mut cx).is_pending());
    assert_eq!(ring.reserved(), 2);
    drop(first);
    let Poll::Ready(Some(slots)) = waiting.poll_unpin(&mut cx) else {
        panic!("all places are free");
    };
    assert_eq!((slots.len(), ring.reserved()), (3, 3));
    drop(slots);
    let mut late = ring.reserve_many(1);
    ring.close().unwrap();
    assert!(matches!(late.poll_unpin(&mut cx), Poll::Ready(None)));
}
