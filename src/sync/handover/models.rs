//! The end of a record and the side that awaits it, in every order of ending, waiting, dropping and
//! accepting.

use std::future::poll_fn;
use std::sync::Arc;

use loom::future::block_on;
use loom::thread;

use super::*;
use crate::sync::model::{Memory, Model};

pub(crate) const MODELS: &[Model] = &[
    Model::of("record: the end wakes who polled last", ended),
    Model::of(
        "record: the end of an abandoned one is with one of the two",
        abandoned,
    ),
    Model::of("record: a detached one is its owner's", detached),
    Model::of(
        "record: who awaits its acceptance hears of it, or of its end",
        accepted,
    )
    .bounded(3),
    Model::of("record: who awaits it looks again when asked", asked),
    Model::of("record: one that its owner drops is freed", dropped),
];

/// Memory that one side at a time touches, and that counts touches.
fn record() -> (OwnedRecord<Memory>, AwaitedRecord<Memory>) {
    OwnedRecord::awaited(Memory::default())
}

/// Works on the record, and ends it.
fn end(held: OwnedRecord<Memory>) -> Option<Unawaited> {
    held.write();
    let ended = held.hand_over(&mut WakeList::new());
    ended.err().map(|(held, why)| {
        held.write();
        why
    })
}

/// Waits for the end, and reads the record.
fn read(awaited: &mut AwaitedRecord<Memory>) -> usize {
    block_on(poll_fn(|cx| {
        awaited
            .poll(cx.waker(), &mut None)
            .map(|record| record.read())
    }))
}

fn ended() {
    let (held, mut awaited) = record();
    let ends = thread::spawn(move || end(held));
    // Polled by another task, before the future is moved to this one.
    let early = awaited.poll(Waker::noop(), &mut None).is_ready();
    let _ = early;
    assert_eq!(read(&mut awaited), 1);
    assert_eq!(ends.join().unwrap(), None);
}

fn abandoned() {
    let (held, mut awaited) = record();
    let ends = thread::spawn(move || end(held));
    let _ = awaited.poll(Waker::noop(), &mut None).is_ready();
    let mine = awaited.abandon().map(|held| held.read());
    match ends.join().unwrap() {
        None => assert_eq!(mine, Some(1)),
        Some(why) => assert_eq!((why, mine), (Unawaited::Abandoned, None)),
    }
}

fn detached() {
    let (held, awaited) = record();
    let ends = thread::spawn(move || end(held));
    let mine = awaited.detach().map(|held| held.read());
    match ends.join().unwrap() {
        None => assert_eq!(mine, Some(1)),
        Some(why) => assert_eq!((why, mine), (Unawaited::Detached, None)),
    }
}

fn accepted() {
    let mut held = OwnedRecord::new(Memory::default());
    let mut awaited = held.await_acceptance();
    let is_accepted = thread::spawn(move || {
        held.accept(&mut WakeList::new());
        end(held)
    });
    block_on(poll_fn(|cx| {
        let accepted = awaited.poll_accepted(cx.waker(), &mut None);
        accepted.map(|accepted| assert!(accepted.is_ok()))
    }));
    assert_eq!(is_accepted.join().unwrap(), Some(Unawaited::Detached));

    let (held, mut awaited) = record();
    let ends = thread::spawn(move || end(held));
    let was_accepted = block_on(poll_fn(|cx| {
        let accepted = awaited.poll_accepted(cx.waker(), &mut None);
        accepted.map(|accepted| accepted.map_err(|record| record.read()))
    }));
    assert_eq!(was_accepted, Err(1));
    assert_eq!(ends.join().unwrap(), None);
}

/// loom counts the handles of the record's contents: it fails if one is lost, or dropped twice.
fn dropped() {
    let (held, mut awaited) = OwnedRecord::awaited(loom::sync::Arc::new(()));
    let drops = thread::spawn(move || drop(held));
    let _ = awaited.poll(Waker::noop(), &mut None).is_ready();
    drop(awaited);
    drops.join().unwrap();
}

fn asked() {
    let (held, mut awaited) = record();
    let changed = Arc::new(AtomicUsize::new(0));
    let changes = {
        let changed = Arc::clone(&changed);
        thread::spawn(move || {
            changed.store(1, Ordering::Release);
            held.wake(&mut WakeList::new());
            held
        })
    };
    block_on(poll_fn(|cx| {
        assert!(awaited.poll(cx.waker(), &mut None).is_pending());
        match changed.load(Ordering::Acquire) {
            0 => Poll::Pending,
            _ => Poll::Ready(()),
        }
    }));
    drop(changes.join().unwrap());
}
