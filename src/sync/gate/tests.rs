//! The promises of a gate to its users, to waiters and to callers that shut it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Context;
use std::thread;

use super::*;

/// fi_mr(3), `fi_close`: buffers go to one caller, once no user is inside any more; a user that
/// only looks at them delays that too.
#[test]
fn what_is_behind_a_gate_that_is_over_goes_to_one() {
    let gate = Gate::new();
    assert!(!gate.try_claim(), "open");
    let looking = gate.enter_unless_closed().unwrap();
    assert_eq!(gate.close(), Ok(false));
    assert!(!gate.try_claim(), "a user is inside");
    drop(looking);
    assert_eq!(gate.enter_unless_closed().unwrap_err(), GateError::Closed);
    let count = thread::scope(|scope| {
        let all: Vec<_> = (0..4).map(|_| scope.spawn(|| gate.try_claim())).collect();
        let claimed = all.into_iter().map(|it| it.join().unwrap());
        claimed.filter(|claimed| *claimed).count()
    });
    assert_eq!(count, 1);
    assert!(!gate.try_claim(), "claimed");
}

impl HasGate for Gate {
    fn gate(&self) -> &Gate {
        self
    }
}

fn gate() -> Arc<Gate> {
    Arc::new(Gate::new())
}

/// Rule 4: "mark the region refused", after which peers are refused and local use goes on.
#[test]
fn revoke_refuses_peers_for_ever_and_leaves_local_use() {
    let gate = gate();
    gate.revoke();
    assert_eq!(
        gate.enter_owned(Role::Remote).unwrap_err(),
        GateError::Revoked
    );
    assert!(gate.enter_owned(Role::Local).is_ok());
    gate.begin_quiesce().unwrap();
    gate.end_quiesce();
    assert_eq!(gate.is_open(Role::Remote), Err(GateError::Revoked));
}

/// An operation that is inside can admit another user for a part of its memory, whatever was shut
/// meanwhile, and the drain waits for that user too.
#[test]
fn another_user_beside_one_inside_is_waited_for() {
    let gate = gate();
    let first = gate.enter_operation().unwrap();
    assert_eq!(gate.close(), Ok(false));
    assert!(gate.enter_operation().is_err());
    let second = first.another();
    drop(first);
    assert!(!gate.try_claim(), "one is inside");
    drop(second);
    assert!(gate.try_claim());
}

/// Rule 3: "taking it excludes peers, local operations on the region and all clones".
#[test]
fn quiesce_excludes_everyone_and_a_second_quiesce_until_it_ends() {
    let gate = gate();
    gate.begin_quiesce().unwrap();
    for role in [Role::Local, Role::Remote] {
        assert_eq!(gate.enter_owned(role).unwrap_err(), GateError::Quiesced);
    }
    assert_eq!(gate.begin_quiesce(), Err(GateError::Quiesced));
    gate.end_quiesce();
    assert!(gate.enter_owned(Role::Local).is_ok());
    assert!(gate.enter_owned(Role::Remote).is_ok());
}

/// A cache's idle registration refuses all users until it has a handle again.
#[test]
fn parked_refuses_everyone_until_it_is_lifted() {
    let gate = gate();
    let inside = gate.enter_owned(Role::Local).unwrap();
    gate.park(true);
    for role in [Role::Local, Role::Remote] {
        assert_eq!(gate.enter_owned(role).unwrap_err(), GateError::Parked);
    }
    drop(inside);
    gate.park(false);
    assert!(gate.enter_owned(Role::Remote).is_ok());
    gate.park(true);
    assert_eq!(gate.close(), Ok(true));
    assert_eq!(gate.is_open(Role::Local), Err(GateError::Closed));
}

/// Rule 3: "a leaked guard leaves the region excluded, and `deregister` then answers Busy".
#[test]
fn close_says_quiesced_while_a_guard_is_out_and_changes_nothing() {
    let gate = gate();
    gate.begin_quiesce().unwrap();
    assert_eq!(gate.close(), Err(GateError::Quiesced));
    gate.end_quiesce();
    assert!(gate.is_open(Role::Local).is_ok());
    let inside = gate.enter(Role::Local).unwrap();
    assert_eq!(gate.close(), Ok(false));
    assert!(!gate.is_closed_and_drained());
    drop(inside);
    assert_eq!(gate.close(), Ok(true));
    assert!(gate.is_closed_and_drained());
    assert_eq!(
        gate.enter_owned(Role::Local).unwrap_err(),
        GateError::Closed
    );
    assert_eq!(
        gate.enter_owned(Role::Remote).unwrap_err(),
        GateError::Closed
    );
    assert_eq!(gate.begin_quiesce(), Err(GateError::Closed));
}

/// fi_mr(3): regions are "created in a disabled state", and their owner may fill them meanwhile.
#[test]
fn a_disabled_gate_lets_copies_in_and_neither_peers_nor_operations() {
    let gate = Arc::new(Gate::new_disabled());
    assert_eq!(
        gate.enter_owned(Role::Remote).unwrap_err(),
        GateError::Disabled
    );
    assert_eq!(gate.enter_operation().unwrap_err(), GateError::Disabled);
    assert!(gate.enter_owned(Role::Local).is_ok());
    gate.enable();
    assert!(gate.enter_owned(Role::Remote).is_ok());
    assert!(gate.enter_operation().is_ok());
}

/// Ruling 16: "A region that is quiesced, refreshed [...] refuses accesses by peers", and a receive
/// that is already posted stays inside.
#[tokio::test]
async fn a_refresh_refuses_newcomers_and_waits_for_peers_only() {
    let gate = gate();
    let posted = gate.enter_operation().unwrap();
    let peer = gate.enter_owned(Role::Remote).unwrap();
    let refresh = gate.begin_refresh().unwrap();
    for role in [Role::Local, Role::Remote] {
        assert_eq!(gate.enter_owned(role).unwrap_err(), GateError::Refreshing);
    }
    assert_eq!(gate.begin_refresh().unwrap_err(), GateError::Refreshing);
    assert_eq!(gate.begin_quiesce().unwrap_err(), GateError::Refreshing);
    let mut drained = Box::pin(gate.drained(DrainScope::Remote));
    assert!(futures::poll!(&mut drained).is_pending());
    drop(peer);
    drained.await;
    drop(refresh);
    assert!(gate.enter_owned(Role::Remote).is_ok());
    drop(posted);
    gate.begin_quiesce().unwrap();
    assert_eq!(gate.begin_refresh().unwrap_err(), GateError::Quiesced);
}

/// Rule 4: "await their own ends": a mark does not end a use, and the drain waits for it.
#[tokio::test]
async fn drained_waits_for_those_inside_by_role() {
    let gate = gate();
    let local = gate.enter_owned(Role::Local).unwrap();
    let remote = gate.enter_owned(Role::Remote).unwrap();
    gate.revoke();
    let mut peers = Box::pin(gate.drained(DrainScope::Remote));
    let mut all = Box::pin(gate.drained(DrainScope::All));
    assert!(futures::poll!(&mut peers).is_pending());
    drop(remote);
    peers.await;
    assert!(futures::poll!(&mut all).is_pending());
    drop(local);
    all.await;
}

/// A dropped waiter leaves nothing behind, and takes no other waiter's wake-up with it.
#[tokio::test]
async fn dropped_waiter_is_forgotten_and_steals_no_wake() {
    let gate = gate();
    let entry = gate.enter_owned(Role::Local).unwrap();
    let mut first = Box::pin(gate.drained(DrainScope::All));
    let mut second = Box::pin(gate.drained(DrainScope::All));
    assert!(futures::poll!(&mut first).is_pending());
    assert!(futures::poll!(&mut second).is_pending());
    drop(first);
    let waiting = tokio::spawn(second);
    tokio::task::yield_now().await;
    drop(entry);
    waiting.await.unwrap();
    assert!(gate.waiters.lock("test").is_empty());
}

/// Nothing is dropped under a lock: the last waker of a task drops the task's objects, which may be
/// inside this very gate.
#[test]
fn a_forgotten_waiter_is_dropped_with_the_gate_unlocked() {
    struct GuardedWaker {
        _inside: GateGuard,
    }
    impl std::task::Wake for GuardedWaker {
        fn wake(self: Arc<Self>) {}
    }

    let (dropped, forgotten) = std::sync::mpsc::channel();
    // On a thread of its own, so that a deadlock fails the test instead of holding it up.
    std::thread::spawn(move || {
        let gate = gate();
        let guarded = GuardedWaker {
            _inside: gate.enter_owned(Role::Local).unwrap(),
        };
        let waker = Waker::from(Arc::new(guarded));
        let mut drained = gate.drained(DrainScope::All);
        let polled = Pin::new(&mut drained).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        drop(waker);
        drop(drained);
        assert_eq!(gate.close(), Ok(true));
        dropped.send(()).unwrap();
    });
    let waited = forgotten.recv_timeout(std::time::Duration::from_secs(10));
    waited.expect("the gate was locked while the waker was dropped");
}

/// Invariant: a drained gate stays drained while its mark holds, whatever threads try.
#[test]
fn no_user_is_inside_after_close_and_drain_under_contention() {
    for _ in 0..200 {
        let gate = gate();
        let torn_down = Arc::new(AtomicBool::new(false));
        let users: Vec<_> = (0..4)
            .map(|number| {
                let (gate, torn_down) = (Arc::clone(&gate), Arc::clone(&torn_down));
                let role = if number % 2 == 0 {
                    Role::Local
                } else {
                    Role::Remote
                };
                std::thread::spawn(move || {
                    while let Ok(entry) = gate.enter_owned(role) {
                        assert!(!torn_down.load(Ordering::SeqCst), "inside after the end");
                        drop(entry);
                    }
                })
            })
            .collect();
        gate.close().unwrap();
        futures::executor::block_on(gate.drained(DrainScope::All));
        torn_down.store(true, Ordering::SeqCst);
        for user in users {
            user.join().unwrap();
        }
    }
}
