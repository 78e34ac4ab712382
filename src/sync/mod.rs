//! The small concurrent parts from which everything else is built: the one lock, wake lists, the
//! bounded ring under every queue, the dependents of an object, the gate that counts the users of a
//! region, the one-shot decision on a connection request, and the progress made by tasks that wait
//! for it.

mod attach;
mod awaited_count;
mod dependents;
mod gate;
mod handover;
mod lock;
mod manual;
#[cfg(loom)]
pub(crate) mod model;
mod notify;
mod primitives;
mod ring;
mod scope;
mod ticket;
mod wake;

pub(crate) use attach::Attachable;
pub(crate) use awaited_count::AwaitedCount;
pub(crate) use dependents::{Dependence, Dependents};
pub(crate) use gate::{Drain, DrainScope, Gate, GateError, GateGuard, HasGate, Role};
#[cfg(feature = "test-util")]
pub(crate) use handover::drop_kept_records;
pub(crate) use handover::{AwaitedRecord, OwnedRecord, Unawaited};
pub(crate) use lock::Lock;
pub(crate) use manual::{
    ManualProgress, NO_TASK, ProgressList, ProgressTask, ProgressWaiter, ReadinessSource,
    await_driving,
};
pub(crate) use notify::Notify;
pub(crate) use primitives::{
    AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, UnsafeCell, spin_loop, thread_local,
};
pub(crate) use ring::{Keep, Reader, Reserve, ReserveMany, Ring, Slot, WeakRing};
pub(crate) use scope::DomainScope;
pub(crate) use ticket::{Ticket, TicketHolder};
pub(crate) use wake::{WaiterKey, Waiters, WakeList};

#[cfg(loom)]
pub(crate) fn models() -> impl Iterator<Item = model::Model> {
    let all = [
        awaited_count::models::MODELS,
        gate::models::MODELS,
        handover::models::MODELS,
        manual::models::MODELS,
        ring::models::MODELS,
        ticket::models::MODELS,
    ];
    all.into_iter().flatten().copied()
}
