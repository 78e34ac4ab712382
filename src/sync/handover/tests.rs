use std::sync::atomic::AtomicUsize as Count;
use std::sync::{Arc, mpsc};
use std::task::Wake;
use std::time::Duration;

use super::*;

/// Counts its drops.
struct Counted(Arc<Count>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A record is dropped once, by the side that has it last, in each order in which the two sides go.
#[test]
fn a_record_is_dropped_once_by_who_has_it_last() {
    let wakes = &mut WakeList::new();
    type Play = fn(OwnedRecord<Counted>, AwaitedRecord<Counted>, &mut WakeList);
    let plays: [Play; 8] = [
        |held, awaited, _| drop((held, awaited)),
        |held, awaited, _| drop((awaited, held)),
        |held, awaited, wakes| {
            assert!(held.hand_over(wakes).is_ok());
            drop(awaited);
        },
        |held, awaited, wakes| {
            assert!(held.hand_over(wakes).is_ok());
            drop(awaited.detach().expect("it has ended"));
        },
        |held, awaited, wakes| {
            assert!(awaited.abandon().is_none());
            let (held, why) = held.hand_over(wakes).expect_err("it is not awaited");
            assert_eq!(why, Unawaited::Abandoned);
            drop(held);
        },
        |held, awaited, wakes| {
            assert!(awaited.detach().is_none());
            let (_held, why) = held.hand_over(wakes).expect_err("it is not awaited");
            assert_eq!(why, Unawaited::Detached);
        },
        |held, mut awaited, wakes| {
            held.accept(wakes);
            assert!(awaited.has_ended());
            drop(held);
            let accepted = awaited.poll_accepted(Waker::noop(), &mut None);
            assert!(matches!(accepted, Poll::Ready(Ok(()))));
        },
        |mut held, awaited, _| {
            drop(awaited);
            drop(held.await_acceptance());
        },
    ];
    for (at, play) in plays.into_iter().enumerate() {
        let drops = Arc::new(Count::new(0));
        let (held, awaited) = OwnedRecord::awaited(Counted(Arc::clone(&drops)));
        play(held, awaited, wakes);
        assert_eq!(drops.load(Ordering::Relaxed), 1, "{at}");
    }
}

/// The waker of a task that also has the record's future, for instance, and polls it when dropped.
struct AskingWaker(mpsc::Sender<()>);

impl Wake for AskingWaker {
    fn wake(self: Arc<Self>) {}
}

impl Drop for AskingWaker {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// Makes a record that a task has polled, of which only the waker is left; `then` must drop the
/// waker.
#[track_caller]
fn waker_goes(then: impl FnOnce(AwaitedRecord<u8>, &mut Option<Waker>)) {
    let (gone, has_gone) = mpsc::channel();
    let (_held, mut awaited) = OwnedRecord::awaited(7);
    let waker = Waker::from(Arc::new(AskingWaker(gone)));
    assert!(awaited.poll(&waker, &mut None).is_pending());
    drop(waker);
    let mut stale = None;
    then(awaited, &mut stale);
    drop(stale);
    let waited = has_gone.recv_timeout(Duration::from_secs(10));
    waited.expect("the waker was kept");
}

/// A waker that is no longer needed is returned to the caller, who drops it with nothing borrowed,
/// or is dropped at once.
#[test]
fn a_waker_that_is_not_wanted_any_more_is_let_go() {
    waker_goes(|mut awaited, stale| {
        assert!(awaited.poll(Waker::noop(), stale).is_pending());
        assert!(stale.is_some(), "it is for the caller to drop");
    });
    waker_goes(|mut awaited, stale| {
        assert!(awaited.poll_accepted(NO_TASK, stale).is_pending());
        assert!(stale.is_some(), "it is for the caller to drop");
    });
    waker_goes(|awaited, _| assert!(awaited.abandon().is_none()));
    waker_goes(|awaited, _| assert!(awaited.detach().is_none()));
    waker_goes(|awaited, _| drop(awaited));
}

/// The memory of a record is reused for the thread's next one, whatever its type.
#[test]
fn the_memory_of_a_record_is_used_again() {
    let first = OwnedRecord::new([1_u8; 16]);
    let at = first.node.as_ptr().addr();
    drop(first);
    let second = OwnedRecord::new(2_u64);
    assert_eq!(second.node.as_ptr().addr(), at);
    // Larger records have memory of their own.
    const { assert!(!is_kept::<RecordNode<[u8; 1000]>>()) };
    assert_eq!(OwnedRecord::new([3_u8; 1000])[999], 3);
}
