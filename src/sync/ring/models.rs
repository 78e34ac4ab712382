//! The entries and wake-ups of a ring, in every order of reserving, filling, reading, peeking and
//! closing.

use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};

use loom::future::block_on;
use loom::thread;

use super::*;
use crate::sync::model::Model;
use crate::sync::{ProgressTask, ReadinessSource};

pub(crate) const MODELS: &[Model] = &[
    Model::of("ring: a reader that waits for an entry gets it", filled),
    Model::of("ring: a waiter for a place gets one that is freed", freed),
    Model::of("ring: a waker registered for room misses none", registered),
    Model::of(
        "ring: each entry goes to one of two readers, and each producer finds room",
        shared,
    )
    .bounded(2),
    Model::of("ring: a reader that goes away takes no wake-up along", left).bounded(3),
    Model::of(
        "ring: a peek lends the entry, and readers find it after",
        lent,
    ),
    Model::of("ring: the close of a ring wakes all waiters", closed).bounded(3),
    Model::of(
        "ring: a ring is closed or has a slot out, never both",
        closed_or_reserved,
    ),
    Model::of(
        "ring: what no reader is left for is dropped once",
        abandoned,
    ),
    Model::of(
        "ring: a reader that waits drives who comes to use the ring",
        driven,
    ),
];

fn ring<T>(capacity: usize) -> Ring<T> {
    Ring::new(capacity, None).unwrap()
}

fn put<T>(ring: &Ring<T>, item: T) {
    let slot = ring.try_reserve().expect("there is room");
    slot.fill(item, &mut WakeList::new());
}

/// Awaits the next entry.
fn next<T>(reader: &mut Reader<T>) -> Option<T> {
    block_on(poll_fn(|cx| reader.poll_pop(cx)))
}

fn filled() {
    let ring = ring(1);
    let slot = ring.try_reserve().unwrap();
    let fills = thread::spawn(move || slot.fill(7, &mut WakeList::new()));
    assert_eq!(next(&mut Reader::new(ring)), Some(7));
    fills.join().unwrap();
}

fn freed() {
    let ring = ring::<u8>(1);
    let slot = ring.try_reserve().unwrap();
    let frees = thread::spawn(move || drop(slot));
    let slot = block_on(ring.reserve());
    assert!(slot.is_some());
    frees.join().unwrap();
}

/// Operations and ports wait for a place in a completion queue in this way.
fn registered() {
    let ring = ring(1);
    put(&ring, 7);
    let pops = {
        let ring = ring.clone();
        thread::spawn(move || assert_eq!(ring.try_pop(), Some(7)))
    };
    let slot = block_on(poll_fn(|cx| match ring.reserve_or_wake(cx.waker()) {
        Some(slot) => Poll::Ready(slot),
        None => Poll::Pending,
    }));
    drop(slot);
    pops.join().unwrap();
}

fn shared() {
    let ring = ring(1);
    let producer = {
        let ring = ring.clone();
        thread::spawn(move || {
            for item in [1, 2] {
                let slot = block_on(ring.reserve()).expect("it is open");
                slot.fill(item, &mut WakeList::new());
            }
        })
    };
    let reader = {
        let mut reader = Reader::new(ring.clone());
        thread::spawn(move || next(&mut reader).unwrap())
    };
    let mine = next(&mut Reader::new(ring.clone())).unwrap();
    let theirs = reader.join().unwrap();
    assert_eq!(mine + theirs, 3, "each to one");
    producer.join().unwrap();
}

fn left() {
    let ring = ring(1);
    let slot = ring.try_reserve().unwrap();
    let fills = thread::spawn(move || slot.fill(7, &mut WakeList::new()));
    let leaves = {
        // It polls once without an entry and is dropped, like a future that lost a race.
        let mut reader = Reader::new(ring.clone());
        thread::spawn(move || {
            let mut batch = Context::from_waker(Waker::noop());
            reader.poll_with(&mut batch, |_, _| None::<()>).is_pending()
        })
    };
    assert_eq!(next(&mut Reader::new(ring)), Some(7));
    assert!(leaves.join().unwrap());
    fills.join().unwrap();
}

fn lent() {
    let ring = ring(1);
    put(&ring, 7);
    let peeks = {
        let ring = ring.clone();
        thread::spawn(move || ring.peek(|item| *item))
    };
    assert_eq!(next(&mut Reader::new(ring)), Some(7));
    assert!(matches!(peeks.join().unwrap(), None | Some(7)));
}

fn closed() {
    let ring = ring::<u8>(1);
    put(&ring, 7);
    let reserves = {
        let ring = ring.clone();
        thread::spawn(move || block_on(ring.reserve()).is_some())
    };
    let reads = {
        let mut reader = Reader::new(ring.clone());
        thread::spawn(move || while next(&mut reader).is_some() {})
    };
    // Refused while the reserving thread has its slot.
    block_on(poll_fn(|cx| match ring.close() {
        Ok(()) => Poll::Ready(()),
        Err(_) => {
            thread::yield_now();
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    }));
    reserves.join().unwrap();
    reads.join().unwrap();
    assert_eq!(ring.try_pop(), None);
}

fn closed_or_reserved() {
    let ring = ring(1);
    let fills = {
        let ring = ring.clone();
        thread::spawn(move || match ring.try_reserve() {
            Some(slot) => slot.fill(7, &mut WakeList::new()),
            None => assert!(ring.is_closed()),
        })
    };
    let closed = ring.close().is_ok();
    fills.join().unwrap();
    assert_eq!(ring.is_closed(), closed);
    assert_eq!(
        ring.try_pop().is_some(),
        !closed,
        "not lost, not after the end"
    );
}

fn abandoned() {
    struct Counted(Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    let drops = Arc::new(AtomicUsize::new(0));
    let ring = ring(2);
    put(&ring, Counted(Arc::clone(&drops)));
    let slot = ring.try_reserve().unwrap();
    let fills = {
        let item = Counted(Arc::clone(&drops));
        thread::spawn(move || slot.fill(item, &mut WakeList::new()))
    };
    ring.peek(|_| ());
    ring.abandon();
    fills.join().unwrap();
    assert_eq!((drops.load(Ordering::Relaxed), ring.len()), (2, 0));
}

/// A task that fills a slot when it is driven.
struct Filler(Option<Slot<u8>>);

impl Future for Filler {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if let Some(slot) = self.0.take() {
            slot.fill(7, &mut WakeList::new());
        }
        Poll::Ready(())
    }
}

impl ProgressTask for Filler {
    fn is_due(&mut self) -> bool {
        false
    }

    fn has_moved(&mut self) -> bool {
        true
    }
}

/// Nothing becomes ready.
struct NoReadiness;

impl ReadinessSource for NoReadiness {}

fn driven() {
    let ring = ring(1);
    let progress = ManualProgress::new(Box::new(NoReadiness));
    progress.add(Box::new(Filler(ring.try_reserve())));
    let uses = {
        let (ring, progress) = (ring.clone(), Arc::clone(&progress));
        thread::spawn(move || ring.drive(Some(&progress)))
    };
    assert_eq!(next(&mut Reader::new(ring)), Some(7));
    uses.join().unwrap();
}
