//! What a model is: threads of loom's over the real code, in every order that can differ. It is
//! built only under `cfg(loom)`, and run by the package `models` (docs/deep.md).

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads and what is true whatever their order, in the words of the promise.
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

    /// Explores the orders in which threads are interrupted so often at most; nearly every error
    /// shows with two.
    pub(crate) const fn bounded(self, preemptions_max: usize) -> Self {
        Model {
            preemptions_max: Some(preemptions_max),
            ..self
        }
    }

    /// Runs it and gives the number of orders that were explored. Panics where one breaks the
    /// promise.
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

/// Memory that one thread at a time may touch, as what is behind a gate: a touch that another does
/// not happen before, and that is not after it either, fails the model.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    touches: loom::cell::UnsafeCell<usize>,
}

// SAFETY: loom panics before two threads touch it at a time; that is what it is for.
unsafe impl Sync for Memory {}

impl Memory {
    /// Reads: others may do so at the same time.
    pub(crate) fn read(&self) -> usize {
        // SAFETY: loom has checked that no thread writes.
        self.touches.with(|at| unsafe { *at })
    }

    /// Writes, and gives the number of writes before.
    pub(crate) fn write(&self) -> usize {
        self.touches.with_mut(|at| {
            // SAFETY: loom has checked that no other thread reads or writes.
            let touches = unsafe { &mut *at };
            *touches += 1;
            *touches - 1
        })
    }
}
