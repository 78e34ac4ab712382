//! The dependents of an object, so that closing it can answer `Busy` and name them (ruling 22;
//! `fi_close` of `fi_eq(3)`: "The EQ must not be bound to any other objects prior to being closed,
//! otherwise the call will return -FI_EBUSY").
//!
//! Invariant: a closed list has no dependent, and never gets one.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use super::{Lock, Notify};
use crate::limits::DEPENDENT_NAMES_MAX;

#[derive(Debug, Default)]
struct State {
    next: u64,
    closed: bool,
    /// Names in the order of insertion; a map, since any of many dependents may leave. A name is
    /// shared by all lists that have it.
    names: BTreeMap<u64, Arc<str>>,
}

impl State {
    fn names(&self) -> Option<String> {
        if self.names.is_empty() {
            return None;
        }
        let shown = self.names.iter().take(DEPENDENT_NAMES_MAX);
        let shown: Vec<&str> = shown.map(|(_, name)| &**name).collect();
        let shown = shown.join(", ");
        let mut text = match self.names.len() {
            1 => format!("still used by {shown}"),
            count => format!("still used by {count} objects: {shown}"),
        };
        if let Some(more @ 1..) = self.names.len().checked_sub(DEPENDENT_NAMES_MAX) {
            write!(text, " and {more} more").expect("writing to a string cannot fail");
        }
        Some(text)
    }
}

/// The dependents of one object, which owns this list. Clones refer to the same list.
#[derive(Clone, Debug)]
pub(crate) struct Dependents(Arc<DependentList>);

#[derive(Debug)]
struct DependentList {
    state: Lock<State>,
    /// Notified whenever the last dependent leaves.
    released: Arc<Notify>,
}

impl Dependents {
    /// Makes an open list without dependents.
    pub(crate) fn new() -> Self {
        Dependents(Arc::new(DependentList {
            state: Lock::new(State::default()),
            released: Arc::default(),
        }))
    }

    /// Adds a dependent, until the returned value is dropped; `None` once the object is closed.
    pub(crate) fn depend(&self, name: impl Into<Arc<str>>) -> Option<Dependence> {
        let name = name.into();
        let mut state = self.0.state.lock("add a dependent");
        if state.closed {
            return None;
        }
        let number = state.next;
        state.next += 1;
        state.names.insert(number, name);
        Some(Dependence {
            of: self.clone(),
            number,
        })
    }

    /// Closes the list for good if it is empty, else returns the names as text for a message.
    /// Closing a closed list is no error.
    pub(crate) fn close(&self) -> Result<(), String> {
        let mut state = self.0.state.lock("close for dependents");
        if let Some(names) = state.names() {
            return Err(names);
        }
        state.closed = true;
        Ok(())
    }

    /// Returns the number of dependents whose names begin with `name`.
    pub(crate) fn count(&self, name: &str) -> usize {
        let state = self.0.state.lock("count dependents");
        let names = state.names.values();
        names.filter(|it| it.starts_with(name)).count()
    }

    /// Returns the names of the dependents as text for a message; `None` if there are none.
    pub(crate) fn names(&self) -> Option<String> {
        self.0.state.lock("name the dependents").names()
    }

    /// Returns the notification that the last dependent has left.
    pub(crate) fn released(&self) -> &Arc<Notify> {
        &self.0.released
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.state.lock("ask whether closed").closed
    }
}

/// Keeps an object from being closed for as long as it lives.
#[derive(Debug)]
#[must_use = "the dependence ends when this is dropped"]
pub(crate) struct Dependence {
    of: Dependents,
    number: u64,
}

impl Drop for Dependence {
    fn drop(&mut self) {
        let mut state = self.of.0.state.lock("remove a dependent");
        state.names.remove(&self.number);
        let is_last = state.names.is_empty();
        drop(state);
        if is_last {
            self.of.0.released.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ruling 22: "Closing an object that others depend on fails with Busy and their names."
    #[test]
    fn close_names_those_who_depend_and_succeeds_once_they_are_gone() {
        let dependents = Dependents::new();
        let domain = dependents.depend("domain 1").unwrap();
        let endpoint = dependents.depend(format!("endpoint {}", 7)).unwrap();
        assert_eq!(
            dependents.close().unwrap_err(),
            "still used by 2 objects: domain 1, endpoint 7"
        );
        drop(domain);
        assert_eq!(dependents.close().unwrap_err(), "still used by endpoint 7");
        drop(endpoint);
        assert!(!dependents.is_closed());
        assert_eq!(dependents.close(), Ok(()));
        assert_eq!(dependents.close(), Ok(()));
        assert!(dependents.is_closed());
        assert!(dependents.depend("late").is_none());
    }

    /// A refused close stays readable however many depend on the object.
    #[test]
    fn close_counts_the_names_it_does_not_show() {
        let dependents = Dependents::new();
        let _many: Vec<_> = (0..20).map(|n| dependents.depend(format!("{n}"))).collect();
        let message = dependents.close().unwrap_err();
        assert_eq!(
            message,
            "still used by 20 objects: 0, 1, 2, 3, 4, 5, 6, 7 and 12 more"
        );
    }
}
