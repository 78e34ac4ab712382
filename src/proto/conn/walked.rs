//! The edges of state machines that a test has walked.

use std::cell::RefCell;
use std::collections::BTreeSet;

thread_local! {
    static WALKED: RefCell<BTreeSet<String>> = RefCell::default();
}

/// An edge is walked.
pub(super) fn note(edge: String) {
    WALKED.with_borrow_mut(|walked| walked.insert(edge));
}

/// Those that this thread has walked since it was asked last.
pub(in crate::proto) fn take() -> BTreeSet<String> {
    WALKED.take()
}
