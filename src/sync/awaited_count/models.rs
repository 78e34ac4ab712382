//! One side advances a count and wakes, the other sleeps for it, in every order.

use loom::sync::{Arc as Shared, Notify};
use loom::thread;

use super::*;
use crate::sync::model::{Memory, Model};

pub(crate) const MODELS: &[Model] = &[
    Model::of("awaited count: who sleeps for it is woken", woken),
    Model::of("awaited count: both sides sleep for each other", in_turns).bounded(3),
];

/// Sleeps until the count is at least `at`.
fn wait_for(count: &AwaitedCount, wakes: &Notify, at: u64) {
    while count.get() < at {
        if count.sleep_until(at) {
            wakes.wait();
        }
    }
}

fn woken() {
    let shared = Shared::new((AwaitedCount::new(), Notify::new(), Memory::default()));
    let other = Shared::clone(&shared);
    let advances = thread::spawn(move || {
        let (count, wakes, memory) = &*other;
        memory.write();
        for to in [1, 2] {
            if count.advance(to) {
                wakes.notify();
            }
        }
    });
    let (count, wakes, memory) = &*shared;
    wait_for(count, wakes, 1);
    memory.read();
    wait_for(count, wakes, 2);
    advances.join().unwrap();
}

/// Models a ring of one place: each item must be read before the next one is written.
fn in_turns() {
    let side = || (AwaitedCount::new(), Notify::new());
    let shared = Shared::new((side(), side()));
    let other = Shared::clone(&shared);
    let reads = thread::spawn(move || {
        let ((written, to_reader), (read, to_writer)) = &*other;
        for at in [1, 2] {
            wait_for(written, to_reader, at);
            if read.advance(at) {
                to_writer.notify();
            }
        }
    });
    let ((written, to_reader), (read, to_writer)) = &*shared;
    for at in [1, 2] {
        wait_for(read, to_writer, at - 1);
        if written.advance(at) {
            to_reader.notify();
        }
    }
    reads.join().unwrap();
}
