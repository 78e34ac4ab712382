//! Guards of a gate that is entered or refreshed, and the future that waits until users have left.
//! Dropping any of them undoes its effect.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::task::coop;

use super::word::{DISABLED, REFRESHING, SHUT};
use super::{DrainScope, Gate, GateError, Role};
use crate::sync::WaiterKey;

/// An object with a gate, shared by an `Arc` that a [`GateGuard`] keeps alive.
pub(crate) trait HasGate: fmt::Debug + Send + Sync + 'static {
    fn gate(&self) -> &Gate;

    /// Enters as [`Gate::enter`] does, for as long as the guard is kept.
    fn enter_owned(self: &Arc<Self>, role: Role) -> Result<GateGuard, GateError>
    where
        Self: Sized,
    {
        self.gate().admit(role, role.refused_by())?;
        Ok(GateGuard {
            of: Arc::clone(self) as Arc<dyn HasGate>,
            role,
        })
    }

    /// Enters in the local role, for an operation rather than a copy: also refused while the region
    /// is disabled.
    fn enter_operation(self: &Arc<Self>) -> Result<GateGuard, GateError>
    where
        Self: Sized,
    {
        self.gate().admit(Role::Local, SHUT | DISABLED)?;
        Ok(GateGuard {
            of: Arc::clone(self) as Arc<dyn HasGate>,
            role: Role::Local,
        })
    }

    /// Refuses everyone from now on, until the guard is dropped. Users inside stay.
    fn begin_refresh(self: &Arc<Self>) -> Result<RefreshGuard, GateError>
    where
        Self: Sized,
    {
        self.gate().shut_for_refresh()?;
        Ok(RefreshGuard {
            of: Arc::clone(self) as Arc<dyn HasGate>,
        })
    }

    /// Returns a future of [`Gate::poll_drained`] that cancels its wait when dropped.
    fn drained(self: &Arc<Self>, scope: DrainScope) -> Drain
    where
        Self: Sized,
    {
        Drain {
            of: Arc::clone(self) as Arc<dyn HasGate>,
            scope,
            key: None,
        }
    }
}

/// One user inside a gate. Dropping it leaves; the last user wakes the waiters.
#[derive(Debug)]
#[must_use = "dropping the guard leaves the gate"]
pub(crate) struct GateGuard {
    of: Arc<dyn HasGate>,
    role: Role,
}

impl GateGuard {
    /// Admits another user of the same role. No mark refuses that user, since this one is inside.
    pub(crate) fn another(&self) -> GateGuard {
        let admitted = self.of.gate().admit(self.role, 0);
        debug_assert!(admitted.is_ok(), "no mark was asked for");
        GateGuard {
            of: Arc::clone(&self.of),
            role: self.role,
        }
    }
}

impl Drop for GateGuard {
    fn drop(&mut self) {
        self.of.gate().exit(self.role);
    }
}

/// A [`GateGuard`] that borrows the gate.
#[derive(Debug)]
#[must_use = "dropping the guard leaves the gate"]
pub(crate) struct BorrowedGateGuard<'a> {
    pub(super) gate: &'a Gate,
    pub(super) role: Role,
}

impl Drop for BorrowedGateGuard<'_> {
    fn drop(&mut self) {
        self.gate.exit(self.role);
    }
}

/// Keeps a gate shut for a refresh, until dropped; made by [`HasGate::begin_refresh`].
#[derive(Debug)]
#[must_use = "dropping it ends the refresh"]
pub(crate) struct RefreshGuard {
    of: Arc<dyn HasGate>,
}

impl Drop for RefreshGuard {
    fn drop(&mut self) {
        self.of.gate().clear(REFRESHING);
    }
}

/// Waits for users to leave; made by [`HasGate::drained`]. May be dropped at any time.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Drain {
    of: Arc<dyn HasGate>,
    scope: DrainScope,
    key: Option<WaiterKey>,
}

impl Future for Drain {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let budget = ready!(coop::poll_proceed(cx));
        let this = self.get_mut();
        let gate = this.of.gate();
        ready!(gate.poll_drained(this.scope, &mut this.key, cx.waker()));
        budget.made_progress();
        Poll::Ready(())
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        self.of.gate().cancel_wait(&mut self.key);
    }
}
