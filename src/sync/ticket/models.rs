//! A verdict and its holder, in every order of deciding, dropping and waiting.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};

use loom::future::block_on;
use loom::sync::Arc as Shared;
use loom::thread;

use super::*;
use crate::sync::model::{Memory, Model};

pub(crate) const MODELS: &[Model] = &[
    Model::of("ticket: a verdict reaches a holder that waits", decided),
    Model::of("ticket: one that is dropped is a verdict too", dropped),
    Model::of(
        "ticket: a verdict is heard, comes back, or goes with its holder, once",
        abandoned,
    ),
];

fn decided() {
    let (ticket, mut holder) = Ticket::pair();
    let decides = thread::spawn(move || ticket.decide(7).unwrap());
    assert_eq!(block_on(poll_fn(|cx| holder.poll_verdict(cx))), Some(7));
    assert_eq!(block_on(poll_fn(|cx| holder.poll_verdict(cx))), None);
    decides.join().unwrap();
}

fn dropped() {
    let (ticket, mut holder) = Ticket::<u8>::pair();
    let drops = thread::spawn(move || drop(ticket));
    assert_eq!(block_on(poll_fn(|cx| holder.poll_verdict(cx))), None);
    drops.join().unwrap();
}

/// A verdict that counts its drops.
struct Counted(Shared<Memory>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.write();
    }
}

fn abandoned() {
    let drops = Shared::new(Memory::default());
    let verdict = Counted(Shared::clone(&drops));
    let (ticket, mut holder) = Ticket::pair();
    let left = Arc::new(AtomicBool::new(false));
    let has_left = Arc::clone(&left);
    let decides = thread::spawn(move || {
        let was_abandoned = has_left.load(Ordering::Relaxed);
        assert!(!was_abandoned || ticket.is_abandoned());
        let decided = ticket.decide(verdict);
        assert!(
            !was_abandoned || decided.is_err(),
            "a holder never comes back"
        );
    });
    let mut cx = Context::from_waker(Waker::noop());
    let polled = holder.poll_verdict(&mut cx);
    assert!(
        !matches!(polled, Poll::Ready(None)),
        "it is not dropped undecided"
    );
    drop(polled);
    drop(holder);
    left.store(true, Ordering::Relaxed);
    decides.join().unwrap();
    assert_eq!(drops.read(), 1);
}
