//! Models: loom's threads run the real code in every order that can make a difference. Built only
//! under `cfg(loom)`, and run by the package `models` (docs/deep.md).

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads, and the text of a promise that holds in every order of their steps.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// `module: promise`.
    pub name: &'static str,
    threads: fn(),
    preemptions_max: Option<usize>,
}

impl Model {
    /// Explores every order.
    pub(crate) const fn of(name: &'static str, threads: fn()) -> Self {
        Model {
            name,
            threads,
            preemptions_max: None,
        }
    }

    /// Explores the orders with at most this many preemptions; nearly every error shows with two.
    pub(crate) const fn bounded(self, preemptions_max: usize) -> Self {
        Model {
            preemptions_max: Some(preemptions_max),
            ..self
        }
    }

    /// Runs the model and returns the number of orders that were explored. Panics if an order
    /// breaks the promise.
    pub fn run(self) -> usize {
        let executions = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&executions);
        let mut explorer = loom::model::Builder::new();
        explorer.preemption_bound = explorer.preemption_bound.or(self.preemptions_max);
        explorer.check(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            (self.threads)();
        });
        executions.load(Ordering::Relaxed)
    }
}

/// Memory that one thread at a time may touch, like the memory behind a gate: two touches of which
/// neither happens before the other fail the model.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    touches: loom::cell::UnsafeCell<usize>,
}

// SAFETY: loom panics before two threads touch the memory at a time; this type exists to detect
// that.
unsafe impl Sync for Memory {}

impl Memory {
    /// Reads: others may do so at the same time.
    pub(crate) fn read(&self) -> usize {
        // SAFETY: loom has checked that no thread writes.
        self.touches.with(|at| unsafe { *at })
    }

    /// Writes, and returns the number of earlier writes.
    pub(crate) fn write(&self) -> usize {
        self.touches.with_mut(|at| {
            // SAFETY: loom has checked that no other thread reads or writes.
            let touches = unsafe { &mut *at };
            *touches += 1;
            *touches - 1
        })
    }
}
