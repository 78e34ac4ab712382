//! An insertion in progress: lookups on blocking threads, the slots of its addresses, and its
//! completion, which stores the result, writes the events and wakes the wakers, in this order.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use super::AddressVector;
use super::insert::InsertSource;
use super::names::{self, Grid, Node};
use super::table::ReservedSlots;
use crate::eq::{Event, EventError, EventSlot};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{AuthKeyAddr, FabricAddr, UserContext};
use crate::sync::{Dependence, WakeList};

/// The checked description of an insertion.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) what: InsertSource,
    pub(super) user_ids: Option<Vec<u64>>,
    pub(super) auth_key: Option<AuthKeyAddr>,
    pub(super) context: Option<UserContext>,
}

/// An insertion, shared by its future and the lookups of its names.
pub(super) struct InsertionTask {
    vector: AddressVector,
    user_ids: Option<Vec<u64>>,
    auth_key: Option<AuthKeyAddr>,
    /// The context of the events, if there are any.
    event_context: Option<UserContext>,
    /// A future awaits the result; otherwise only the events carry it.
    awaited: bool,
    state: Mutex<InsertionState>,
}

struct InsertionState {
    /// The state of the lookups, until the insertion ends.
    open: Option<PendingLookups>,
    slots: Vec<EventSlot>,
    result: Option<Vec<Result<FabricAddr>>>,
    /// Whether the future was dropped.
    abandoned: bool,
    waker: Option<Waker>,
}

/// State that is needed until the insertion ends.
struct PendingLookups {
    reserved: ReservedSlots,
    grid: Grid,
    /// Results of the lookups, by node.
    found: Vec<Option<Result<SocketAddr>>>,
    missing: usize,
    /// Keeps the vector from being closed while the insertion is in progress.
    _dependence: Dependence,
}

impl InsertionTask {
    /// Reserves the slots of the addresses, and inserts them unless names have to be looked up
    /// first. A failure to start is returned, and no event reports it.
    pub(super) fn start(
        vector: AddressVector,
        request: Request,
        slots: Vec<EventSlot>,
        awaited: bool,
    ) -> Result<Arc<Self>> {
        let inner = &vector.inner;
        let dependence = vector.keep_open("insertion")?;
        let reserved = inner.store.reserve(request.what.len())?;
        let event_context = request.context.filter(|_| !slots.is_empty());
        let mut state = InsertionState {
            open: None,
            slots,
            result: None,
            abandoned: false,
            waker: None,
        };
        let task = |state| {
            Arc::new(InsertionTask {
                vector: vector.clone(),
                user_ids: request.user_ids,
                auth_key: request.auth_key,
                event_context,
                awaited,
                state: Mutex::new(state),
            })
        };
        match request.what {
            InsertSource::Addresses(addresses) => {
                let task = task(state);
                task.end(reserved, addresses);
                Ok(task)
            }
            InsertSource::Grid(grid) => {
                let found = grid.nodes.iter().map(|node| match node {
                    Node::Known(address) => Some(Ok(*address)),
                    Node::Named(_) => None,
                });
                let found: Vec<_> = found.collect();
                let names: Vec<(usize, String)> = (grid.nodes.iter().enumerate())
                    .filter_map(|(at, node)| match node {
                        Node::Known(_) => None,
                        Node::Named(name) => Some((at, name.clone())),
                    })
                    .collect();
                state.open = Some(PendingLookups {
                    reserved,
                    found,
                    missing: names.len(),
                    grid,
                    _dependence: dependence,
                });
                let task = task(state);
                for (at, name) in names {
                    task.look_up(at, name);
                }
                Ok(task)
            }
        }
    }

    fn look_up(self: &Arc<Self>, at: usize, name: String) {
        let lookup = Lookup {
            task: Some(Arc::clone(self)),
            at,
        };
        let inner = &self.vector.inner;
        let (resolver, format) = (inner.resolver.clone(), inner.format);
        (inner.run)(Box::new(move || {
            if lookup.is_wanted() {
                lookup.complete(resolver(&name, &|address| format.prefers(address)));
            }
        }));
    }

    fn lock(&self) -> MutexGuard<'_, InsertionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the result of a lookup. The last one completes the insertion.
    fn answer(&self, at: usize, found: Result<SocketAddr>) {
        let mut state = self.lock();
        let Some(open) = &mut state.open else {
            return;
        };
        let Some(place) = open.found.get_mut(at).filter(|place| place.is_none()) else {
            return;
        };
        *place = Some(found);
        open.missing -= 1;
        if open.missing > 0 {
            return;
        }
        let Some(open) = state.open.take() else {
            return;
        };
        drop(state);
        let ports = &open.grid.ports;
        let addresses = open.found.into_iter().flatten().flat_map(|found| {
            let at_port = |port: &u16| found.clone().map(|node| names::at(node, *port));
            ports.iter().map(at_port).collect::<Vec<_>>()
        });
        let addresses = addresses.collect();
        self.end(open.reserved, addresses);
    }

    /// Handles the drop of the future: addresses that are not inserted yet are never inserted, and
    /// inserted ones are removed again, unless events have reported them.
    pub(super) fn abandon(&self) {
        let mut state = self.lock();
        state.abandoned = true;
        let open = state.open.take();
        let result = state.result.take();
        drop(state);
        if let Some(open) = open {
            let canceled = Error::new(ErrorKind::Canceled, "the insertion was dropped");
            let failed = vec![Err(canceled); open.grid.len()];
            self.end(open.reserved, failed);
        }
        self.undo(result);
    }

    fn undo(&self, result: Option<Vec<Result<FabricAddr>>>) {
        if self.event_context.is_some() {
            return;
        }
        let inserted: Vec<FabricAddr> = result.into_iter().flatten().flatten().collect();
        if !inserted.is_empty()
            && let Err(error) = self.vector.inner.remove(&inserted)
        {
            tracing::warn!(%error, "a dropped insertion could not be undone");
        }
    }

    fn end(&self, reserved: ReservedSlots, addresses: Vec<Result<SocketAddr>>) {
        let inner = &self.vector.inner;
        let ids = self.user_ids.as_deref();
        let results = inner.commit(reserved, addresses, ids, self.auth_key);
        let mut wakes = WakeList::new();
        let unused;
        let mut undone = None;
        {
            let mut state = self.lock();
            let slots = std::mem::take(&mut state.slots);
            let events = self.event_context.map(|context| events(context, &results));
            if state.abandoned {
                undone = Some(results);
            } else if self.awaited {
                state.result = Some(results);
            }
            let mut slots = slots.into_iter();
            for (event, slot) in events.into_iter().flatten().zip(&mut slots) {
                slot.fill(event, &mut wakes);
            }
            unused = slots;
            if let Some(waker) = state.waker.take() {
                wakes.push(waker);
            }
        }
        // Frees the unused event slots, which may wake tasks.
        drop(unused);
        drop(wakes);
        self.undo(undone);
    }

    pub(super) fn poll(&self, waker: &Waker) -> Poll<Vec<Result<FabricAddr>>> {
        let mut state = self.lock();
        match state.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                let stale = state.waker.replace(waker.clone());
                drop(state);
                drop(stale);
                Poll::Pending
            }
        }
    }
}

/// Returns an error event for each address that failed, then the completion event.
fn events(context: UserContext, results: &[Result<FabricAddr>]) -> Vec<Event> {
    let failed = results.iter().enumerate().filter_map(|(index, result)| {
        let error = result.as_ref().err()?.clone();
        let failed = EventError::new(error).with_context(Some(context));
        Some(Event::Error(failed.with_index(index)))
    });
    let mut events: Vec<Event> = failed.collect();
    events.push(Event::AvComplete {
        context,
        count: results.len() - events.len(),
        addresses: results.to_vec(),
    });
    events
}

/// Reports the end of a lookup to its task, even if the lookup never ran.
struct Lookup {
    task: Option<Arc<InsertionTask>>,
    at: usize,
}

impl Lookup {
    fn is_wanted(&self) -> bool {
        self.task
            .as_ref()
            .is_some_and(|task| task.lock().open.is_some())
    }

    fn complete(mut self, found: Result<SocketAddr>) {
        if let Some(task) = self.task.take() {
            task.answer(self.at, found);
        }
    }
}

impl Drop for Lookup {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            let message = "the lookup's runtime is gone";
            task.answer(self.at, Err(Error::new(ErrorKind::DriverGone, message)));
        }
    }
}
