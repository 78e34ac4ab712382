//! An insertion at work: lookups beside the runtime, the places of its addresses, and how its end
//! is told. In one order: result stored, events readable, wakers woken.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use super::AddressVector;
use super::insert::What;
use super::names::{self, Grid, Node};
use super::table::Reserved;
use crate::eq::{Event, EventError, EventSlot};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{FabricAddr, UserContext};
use crate::sync::{Dependence, WakeList};

/// What was asked for, checked.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) what: What,
    pub(super) user_ids: Option<Vec<u64>>,
    pub(super) context: Option<UserContext>,
}

/// An insertion, shared by its future and those who look names up for it.
pub(super) struct Job {
    vector: AddressVector,
    user_ids: Option<Vec<u64>>,
    /// The context of the events, if there are any.
    told: Option<UserContext>,
    /// Somebody awaits the result; else the events alone carry it.
    awaited: bool,
    state: Mutex<State>,
}

struct State {
    /// Until it ends.
    open: Option<Open>,
    slots: Vec<EventSlot>,
    result: Option<Vec<Result<FabricAddr>>>,
    /// The future is gone.
    abandoned: bool,
    waker: Option<Waker>,
}

/// What is needed until the insertion ends.
struct Open {
    reserved: Reserved,
    grid: Grid,
    /// By node.
    found: Vec<Option<Result<SocketAddr>>>,
    missing: usize,
    /// A vector with insertions under way is not closed.
    _dependence: Dependence,
}

impl Job {
    /// Takes the places of the addresses, and inserts them unless names have to be looked up first.
    /// Fails before any of that, with no event.
    pub(super) fn start(
        vector: AddressVector,
        request: Request,
        slots: Vec<EventSlot>,
        awaited: bool,
    ) -> Result<Arc<Self>> {
        let inner = &vector.inner;
        let dependence = vector.depend("insertion")?;
        let reserved = inner.store.reserve(request.what.len())?;
        let told = request.context.filter(|_| !slots.is_empty());
        let mut state = State {
            open: None,
            slots,
            result: None,
            abandoned: false,
            waker: None,
        };
        let job = |state| {
            Arc::new(Job {
                vector: vector.clone(),
                user_ids: request.user_ids,
                told,
                awaited,
                state: Mutex::new(state),
            })
        };
        match request.what {
            What::Addresses(addresses) => {
                let job = job(state);
                job.end(reserved, addresses);
                Ok(job)
            }
            What::Grid(grid) => {
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
                state.open = Some(Open {
                    reserved,
                    found,
                    missing: names.len(),
                    grid,
                    _dependence: dependence,
                });
                let job = job(state);
                for (at, name) in names {
                    job.look_up(at, name);
                }
                Ok(job)
            }
        }
    }

    fn look_up(self: &Arc<Self>, at: usize, name: String) {
        let lookup = Lookup {
            job: Some(Arc::clone(self)),
            at,
        };
        let inner = &self.vector.inner;
        let (resolver, format) = (inner.resolver.clone(), inner.format);
        (inner.run)(Box::new(move || {
            if lookup.is_wanted() {
                lookup.tell(resolver(&name, &|address| format.takes(address)));
            }
        }));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node was found, or not. The last one ends the insertion.
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

    /// The future goes away: what is not inserted will not be, and what is inserted is taken out
    /// again, unless events have told of it.
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
        if self.told.is_some() {
            return;
        }
        let inserted: Vec<FabricAddr> = result.into_iter().flatten().flatten().collect();
        if !inserted.is_empty()
            && let Err(error) = self.vector.inner.store.remove(&inserted)
        {
            tracing::warn!(%error, "a dropped insertion could not be undone");
        }
    }

    fn end(&self, reserved: Reserved, addresses: Vec<Result<SocketAddr>>) {
        let inner = &self.vector.inner;
        let results = inner.settle(reserved, addresses, self.user_ids.as_deref());
        let mut wakes = WakeList::new();
        let unused;
        let mut undone = None;
        {
            let mut state = self.lock();
            let slots = std::mem::take(&mut state.slots);
            let events = self.told.map(|context| events(context, &results));
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
        // Frees their places, which may wake others.
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

/// An error for each address that failed, then the completion.
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

/// Tells the job of a lookup's end even if the lookup never ran.
struct Lookup {
    job: Option<Arc<Job>>,
    at: usize,
}

impl Lookup {
    fn is_wanted(&self) -> bool {
        self.job
            .as_ref()
            .is_some_and(|job| job.lock().open.is_some())
    }

    fn tell(mut self, found: Result<SocketAddr>) {
        if let Some(job) = self.job.take() {
            job.answer(self.at, found);
        }
    }
}

impl Drop for Lookup {
    fn drop(&mut self) {
        if let Some(job) = self.job.take() {
            let message = "the lookup's runtime is gone";
            job.answer(self.at, Err(Error::new(ErrorKind::DriverGone, message)));
        }
    }
}
