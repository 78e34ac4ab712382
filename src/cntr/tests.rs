use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake};
use std::time::Duration;

use futures::FutureExt;
use proptest::prelude::*;

use super::*;
use crate::sync::DomainScope;

fn counter() -> Counter {
    Counter::open(&DomainScope::apart(), None)
}

/// `fi_cntr(3)`: "a counter actually stores two distinct values, with error completions updating an
/// error specific value".
#[test]
fn value_and_errors_are_counted_apart() {
    let counter = counter();
    counter.add(3);
    counter.add_error(1);
    assert_eq!((counter.read(), counter.read_error()), (3, 1));
    counter.set(10);
    counter.set_error(7);
    assert_eq!((counter.read(), counter.read_error()), (10, 7));
    counter.add(u64::MAX);
    assert_eq!(counter.read(), u64::MAX);
}

/// `fi_cntr(3)`: "Upon successful return from this call, the counter will be greater than or equal
/// to the input threshold value."
#[tokio::test]
async fn wait_ends_at_or_above_the_threshold() {
    let counter = counter();
    assert_eq!(counter.wait_for(0).await, Ok(0));
    let wait = tokio::spawn(counter.wait_for(5));
    tokio::task::yield_now().await;
    counter.add(4);
    tokio::task::yield_now().await;
    assert!(!wait.is_finished());
    counter.add(3);
    assert_eq!(wait.await.unwrap(), Ok(7));
}

/// `fi_cntr(3)`: "Any change in a counter's error value will unblock any thread inside
/// fi_cntr_wait."
#[tokio::test]
async fn any_change_of_the_error_value_unblocks_every_waiter() {
    let counter = counter();
    counter.add(2);
    let waits: Vec<_> = (3..6)
        .map(|at| tokio::spawn(counter.wait_for(at)))
        .collect();
    tokio::task::yield_now().await;
    counter.set_error(0);
    counter.add_error(0);
    tokio::task::yield_now().await;
    assert!(
        waits.iter().all(|wait| !wait.is_finished()),
        "that was no change"
    );
    counter.add_error(2);
    for wait in waits {
        let failed = wait.await.unwrap().unwrap_err();
        assert_eq!(
            failed,
            CounterError::Failed {
                value: 2,
                errors: 2
            }
        );
        assert_eq!(failed.fi_errno(), 259);
    }
}

/// A change counts from the call, and also if it was changed back before anyone looked.
#[test]
fn an_error_change_is_seen_however_late_the_poll() {
    let counter = counter();
    let wait = counter.wait_for(1);
    counter.set_error(1);
    counter.set_error(0);
    let failed = wait.now_or_never().unwrap().unwrap_err();
    assert_eq!(
        failed,
        CounterError::Failed {
            value: 0,
            errors: 0
        }
    );
    assert!(
        counter.wait_for(1).now_or_never().is_none(),
        "older changes do not count"
    );
}

/// Between reading the error value and waiting, nothing is missed.
#[test]
fn errors_seen_names_changes_before_the_wait() {
    let counter = counter();
    let seen = counter.read_error();
    counter.add_error(1);
    assert!(
        counter
            .wait_for(1)
            .errors_seen(seen)
            .now_or_never()
            .unwrap()
            .is_err()
    );
    assert!(counter.wait_for(1).errors_seen(1).now_or_never().is_none());
    counter.add(1);
    let wait = counter.wait_for(1).errors_seen(seen);
    assert_eq!(wait.now_or_never().unwrap(), Ok(1), "the threshold wins");
}

/// `fi_cntr(3)`: "If the call returns due to timeout, [...] the error value associated with the
/// counter remains unchanged."
#[tokio::test(start_paused = true)]
async fn timeout_changes_nothing_and_leaves_no_waiter() {
    let counter = counter();
    let second = Duration::from_secs(1);
    assert!(
        tokio::time::timeout(second, counter.wait_for(1))
            .await
            .is_err()
    );
    assert_eq!((counter.read(), counter.read_error()), (0, 0));
    assert!(counter.shared.state.lock("test").waiting.is_empty());
}

/// "Wakes without locks held": a waker may use the counter that wakes it.
#[test]
fn wakers_run_unlocked_and_only_when_their_threshold_is_reached() {
    struct Reads(Counter, AtomicUsize);
    impl Wake for Reads {
        fn wake(self: Arc<Self>) {
            self.0.add(100);
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }
    let counter = counter();
    let reads = Arc::new(Reads(counter.clone(), AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&reads));
    let mut wait = counter.wait_for(3);
    let polled = wait.poll_unpin(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    counter.add(2);
    assert_eq!(reads.1.load(Ordering::SeqCst), 0);
    counter.add(1);
    assert_eq!((reads.1.load(Ordering::SeqCst), counter.read()), (1, 103));
}

/// Many tasks wait and give up while others count: each that stays gets its threshold.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_waiter_of_many_is_woken_although_others_give_up() {
    let counter = counter();
    let waits: Vec<_> = (0..200u64)
        .map(|at| {
            let counter = counter.clone();
            tokio::spawn(async move {
                for _ in 0..at % 5 {
                    let _ = counter.wait_for(2_000).now_or_never();
                    tokio::task::yield_now().await;
                }
                counter.wait_for(at * 10).await
            })
        })
        .collect();
    let adders: Vec<_> = (0..4)
        .map(|_| {
            let counter = counter.clone();
            tokio::spawn(async move {
                for _ in 0..500 {
                    counter.add(1);
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for adder in adders {
        adder.await.unwrap();
    }
    for (at, wait) in (0..).zip(waits) {
        let wait = tokio::time::timeout(Duration::from_secs(60), wait)
            .await
            .unwrap();
        assert!(wait.unwrap().unwrap() >= at * 10);
    }
    assert!(counter.shared.state.lock("test").waiting.is_empty());
}

/// `fi_cntr(3)`, fi_close: "If resources are still associated with the counter when attempting to
/// close, the call will return -FI_EBUSY."
#[tokio::test]
async fn close_is_busy_while_bound_and_then_ends_waits() {
    let counter = counter();
    let scope = &DomainScope::new(counter.shared.domain, None, None);
    let bound = counter.depend(scope, "region 1".into()).unwrap();
    let wait = tokio::spawn(counter.wait_for(9));
    tokio::task::yield_now().await;
    let busy = counter.close().await.unwrap_err();
    assert!(busy.is_busy() && busy.to_string().contains("region 1"));
    drop(bound);
    counter.close().await.unwrap();
    counter.close().await.unwrap();
    assert_eq!(wait.await.unwrap(), Err(CounterError::Closed));
    assert!(counter.is_closed() && counter.depend(scope, "late".into()).is_err());
}

#[derive(Clone, Debug)]
enum Op {
    Add(u64),
    AddError(u64),
    Set(u64),
    SetError(u64),
    Wait(u64),
    Poll,
    Drop(usize),
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0..4u64).prop_map(Op::Add),
        (0..2u64).prop_map(Op::AddError),
        (0..9u64).prop_map(Op::Set),
        (0..2u64).prop_map(Op::SetError),
        (0..12u64).prop_map(Op::Wait),
        Just(Op::Poll),
        (0..9usize).prop_map(Op::Drop),
    ]
}

proptest! {
    /// A plain model of the page: values, and for each wait its threshold and whether an error
    /// changed.
    #[test]
    fn counter_agrees_with_a_plain_model(ops in proptest::collection::vec(any_op(), 0..100)) {
        let counter = counter();
        let (mut value, mut errors) = (0, 0);
        let mut waits: Vec<(CounterWait, u64, bool)> = Vec::new();
        for op in ops {
            let errors_before = errors;
            match op {
                Op::Add(count) => {
                    counter.add(count);
                    value += count;
                }
                Op::AddError(count) => {
                    counter.add_error(count);
                    errors += count;
                }
                Op::Set(to) => {
                    counter.set(to);
                    value = to;
                }
                Op::SetError(to) => {
                    counter.set_error(to);
                    errors = to;
                }
                Op::Wait(threshold) => waits.push((counter.wait_for(threshold), threshold, false)),
                Op::Drop(at) if !waits.is_empty() => {
                    drop(waits.swap_remove(at % waits.len()));
                }
                Op::Drop(_) => {}
                Op::Poll => {
                    for (mut wait, threshold, failed) in std::mem::take(&mut waits) {
                        match (&mut wait).now_or_never() {
                            Some(Ok(seen)) => prop_assert!(seen == value && seen >= threshold),
                            Some(Err(_)) => prop_assert!(failed && value < threshold),
                            None => {
                                prop_assert!(!failed && value < threshold);
                                waits.push((wait, threshold, failed));
                            }
                        }
                    }
                }
            }
            if errors != errors_before {
                waits.iter_mut().for_each(|(_, _, failed)| *failed = true);
            }
            prop_assert_eq!((counter.read(), counter.read_error()), (value, errors));
        }
        drop(waits);
        prop_assert!(counter.shared.state.lock("test").waiting.is_empty());
    }
}
