//! Which thread submitted what.
//!
//! The kernel completes an operation in the thread that submitted it. On a runtime of several
//! threads that may be one that sleeps, while another waits in the reactor: then both are woken for
//! each completion, one after the other. A multishot receive would stay so for ever. So each
//! carries the mark of its thread, and one that keeps completing elsewhere than where it is
//! harvested is stopped, to be submitted again by the thread that drives.

use std::ptr;

/// Completions in a row that were harvested by another thread than the one that completed them,
/// after which a receive is submitted again: its two system calls cost about as much as two of
/// them.
pub(super) const STRAYS_MAX: u8 = 8;

/// Names a thread while it lives. One that has ended may pass its mark on: that costs wake-ups
/// only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark(usize);

impl Mark {
    pub(super) fn of_this_thread() -> Self {
        // Cheaper than the standard library's identity, which counts references.
        thread_local! { static PLACE: u8 = const { 0 } }
        Mark(PLACE.with(|place| ptr::from_ref(place).addr()))
    }
}
