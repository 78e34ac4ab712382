//! What is held while a gate is entered, refreshed or awaited. Dropping any of it undoes it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::task::coop;

use super::word::{DISABLED, REFRESHING, SHUT};
use super::{DrainScope, Gate, GateError, Role};
use crate::sync::WaiterKey;

/// What has a gate and is shared by `Arc`, which a [`GateGuard`] keeps alive.
pub(crate) trait HasGate: fmt::Debug + Send + Sync + 'static {
    fn gate(&self) -> &Gate;

    /// As [`Gate::enter`], for as long as the guard is kept.
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

    /// As [`HasGate::enter_owned`] in the local role, for an operation and not only a copy: refused
    /// also while the region is disabled.
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

    /// Refuses everyone from now on, until the guard is dropped. Those inside stay.
    fn begin_refresh(self: &Arc<Self>) -> Result<RefreshGuard, GateError>
    where
        Self: Sized,
    {
        self.gate().shut_for_refresh()?;
        Ok(RefreshGuard {
            of: Arc::clone(self) as Arc<dyn HasGate>,
        })
    }

    /// A future of [`Gate::poll_drained`] that cancels its wait when dropped.
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

/// One user inside a gate; dropping it leaves, and the last wakes the waiters.
#[derive(Debug)]
#[must_use = "dropping the guard leaves the gate"]
pub(crate) struct GateGuard {
    of: Arc<dyn HasGate>,
    role: Role,
}

impl GateGuard {
    /// One more user of the same role beside this one, who is inside, so that nothing refuses it.
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

/// As [`GateGuard`], while the gate is borrowed.
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
