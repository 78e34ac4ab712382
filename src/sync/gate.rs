//! The gate of a memory region: who may touch its bytes, and when (`fi_mr(3)`: an access while the
//! region is disabled or refreshed fails; it never waits).
//!
//! Users enter and leave; each holds an [`Entry`] while it may touch the bytes. Six marks shut
//! the gate: *disabled* refuses peers and operations until the region is enabled, *revoked* refuses
//! peers for ever, *quiesced*, *refreshing* and *parked* refuse everyone until they are lifted,
//! *closed* refuses everyone for ever. A mark only refuses newcomers; whoever set it then waits
//! until those inside have left ([`Gate::poll_drained`]).
//!
//! ```text
//!   role     open   disabled   revoked   quiesced, refreshing, parked   closed
//!   Local    yes    copies     yes       no                             no
//!   Remote   yes    no         no        no                             no
//! ```
//!
//! A refresh waits for peers only: a posted receive may stay inside for ever.
//!
//! Marks and counts are one atomic word: entering and leaving cost one step each, and no mark is
//! set between the look at the marks and the count.
//!
//! Invariants: a count rises only while no mark refuses its role, so that once drained of a refused
//! role the gate stays drained of it until the mark is lifted; but for those who touch no byte, and
//! only keep the gate from being over while they look at what is behind it. One quiesce at a time.
//! Closing fails while quiesced, so that a leaked guard makes `Busy` and never a hang. Somebody
//! waits only while `AWAITED` is set, so that who leaves need not look. Wakers are woken with the
//! lock released.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use tokio::task::coop;

use super::{AtomicU64, Lock, Ordering, WaiterKey, Waiters, WakeList};

/// On whose behalf the bytes are touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// An operation of this process: inside from its post to its end.
    Local,
    /// One kernel operation, or one copy, on behalf of a peer: inside only while it lasts.
    Remote,
}

/// Why entry was refused. When several reasons hold, the most lasting one is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GateClosed {
    /// The region has not been enabled yet.
    Disabled,
    /// Peers have lost their access for good.
    Revoked,
    /// The pages behind the region are being looked at.
    Refreshing,
    /// Someone has the bytes for themselves at the moment.
    Quiesced,
    /// Nobody has a handle of the region; a cache keeps it for the next who asks.
    Parked,
    /// The region is being taken apart.
    Closed,
}

/// Which users must have left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drained {
    /// Those on behalf of peers; local ones may stay.
    Remote,
    /// All.
    All,
}

// The word: marks, and above them how many are inside in each role.
const DISABLED: u64 = 1;
const REVOKED: u64 = 1 << 1;
const REFRESHING: u64 = 1 << 2;
const QUIESCED: u64 = 1 << 3;
const PARKED: u64 = 1 << 4;
const CLOSED: u64 = 1 << 5;
/// Somebody waits for those inside to leave.
const AWAITED: u64 = 1 << 6;
/// What was behind the gate has an owner, since it was over.
const CLAIMED: u64 = 1 << 7;

/// More than operations that fit into any memory.
const COUNT_MAX: u64 = (1 << 28) - 1;
const LOCAL_ONE: u64 = 1 << 8;
const REMOTE_ONE: u64 = LOCAL_ONE * (COUNT_MAX + 1);
const LOCAL_COUNT: u64 = COUNT_MAX * LOCAL_ONE;
const REMOTE_COUNT: u64 = COUNT_MAX * REMOTE_ONE;

/// Marks that refuse everyone.
const SHUT: u64 = CLOSED | QUIESCED | PARKED | REFRESHING;

impl Role {
    /// The marks that refuse it.
    fn refused_by(self) -> u64 {
        match self {
            Role::Local => SHUT,
            Role::Remote => SHUT | REVOKED | DISABLED,
        }
    }

    /// One more inside, and all of its count.
    fn one_and_all(self) -> (u64, u64) {
        match self {
            Role::Local => (LOCAL_ONE, LOCAL_COUNT),
            Role::Remote => (REMOTE_ONE, REMOTE_COUNT),
        }
    }
}

impl Drained {
    fn holds(self, word: u64) -> bool {
        word & match self {
            Drained::Remote => REMOTE_COUNT,
            Drained::All => REMOTE_COUNT | LOCAL_COUNT,
        } == 0
    }
}

/// Refuses if any of these marks is set.
fn check(word: u64, marks: u64) -> Result<(), GateClosed> {
    let reasons = [
        (CLOSED, GateClosed::Closed),
        (REVOKED, GateClosed::Revoked),
        (QUIESCED, GateClosed::Quiesced),
        (PARKED, GateClosed::Parked),
        (REFRESHING, GateClosed::Refreshing),
        (DISABLED, GateClosed::Disabled),
    ];
    let set = word & marks;
    if set == 0 {
        return Ok(());
    }
    let reason = reasons.iter().find(|(mark, _)| set & mark != 0);
    reason.map_or(Ok(()), |(_, why)| Err(*why))
}

/// What has a gate and is shared by `Arc`: whoever is inside keeps it.
pub(crate) trait Gated: fmt::Debug + Send + Sync + 'static {
    fn gate(&self) -> &Gate;

    /// As [`Gate::inside`], for as long as the entry is kept.
    fn enter(self: &Arc<Self>, role: Role) -> Result<Entry, GateClosed>
    where
        Self: Sized,
    {
        self.gate().admit(role, role.refused_by())?;
        Ok(Entry {
            of: Arc::clone(self) as Arc<dyn Gated>,
            role,
        })
    }

    /// As [`Gated::enter`] in the local role, for an operation and not only a copy: refused also
    /// while the region is disabled.
    fn enter_operation(self: &Arc<Self>) -> Result<Entry, GateClosed>
    where
        Self: Sized,
    {
        self.gate().admit(Role::Local, SHUT | DISABLED)?;
        Ok(Entry {
            of: Arc::clone(self) as Arc<dyn Gated>,
            role: Role::Local,
        })
    }

    /// Refuses everyone from now on, until the result is dropped. Those inside stay.
    fn begin_refresh(self: &Arc<Self>) -> Result<Refreshing, GateClosed>
    where
        Self: Sized,
    {
        self.gate().shut_for_refresh()?;
        Ok(Refreshing {
            of: Arc::clone(self) as Arc<dyn Gated>,
        })
    }

    /// A future of [`Gate::poll_drained`] that withdraws itself when dropped.
    fn drained(self: &Arc<Self>, roles: Drained) -> Draining
    where
        Self: Sized,
    {
        Draining {
            of: Arc::clone(self) as Arc<dyn Gated>,
            roles,
            key: None,
        }
    }
}

/// Admits users to a region's bytes and tells when they have left.
pub(crate) struct Gate {
    word: AtomicU64,
    waiters: Lock<Waiters>,
}

impl Gate {
    /// An open gate with nobody inside.
    pub(crate) fn new() -> Self {
        Self::with(0)
    }

    /// A gate that refuses peers and operations until [`Gate::enable`].
    pub(crate) fn new_disabled() -> Self {
        Self::with(DISABLED)
    }

    #[inline]
    fn with(marks: u64) -> Self {
        Gate {
            word: AtomicU64::new(marks),
            waiters: Lock::new(Waiters::default()),
        }
    }

    fn now(&self) -> u64 {
        self.word.load(Ordering::Acquire)
    }

    /// Changes the word to what `to` makes of it, or refuses. Gives the word before.
    #[inline]
    fn change(&self, to: impl Fn(u64) -> Result<u64, GateClosed>) -> Result<u64, GateClosed> {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let next = to(word)?;
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            match self
                .word
                .compare_exchange_weak(word, next, order.0, order.1)
            {
                Ok(before) => return Ok(before),
                Err(now) => word = now,
            }
        }
    }

    fn set(&self, mark: u64) {
        self.word.fetch_or(mark, Ordering::AcqRel);
    }

    fn lift(&self, mark: u64) -> u64 {
        self.word.fetch_and(!mark, Ordering::AcqRel)
    }

    /// Lifts the mark that [`Gate::new_disabled`] set.
    pub(crate) fn enable(&self) {
        self.lift(DISABLED);
    }

    fn shut_for_refresh(&self) -> Result<(), GateClosed> {
        self.exclude(REFRESHING)
    }

    /// Sets a mark that one at a time may set.
    fn exclude(&self, mark: u64) -> Result<(), GateClosed> {
        self.change(|word| check(word, CLOSED | QUIESCED | REFRESHING).map(|()| word | mark))?;
        Ok(())
    }

    /// Lets one user in, who is inside until the result is dropped. Refuses at once and never
    /// waits.
    pub(crate) fn inside(&self, role: Role) -> Result<Inside<'_>, GateClosed> {
        self.admit(role, role.refused_by())?;
        Ok(Inside { gate: self, role })
    }

    fn admit(&self, role: Role, refused_by: u64) -> Result<(), GateClosed> {
        let (one, all) = role.one_and_all();
        self.change(|word| {
            check(word, refused_by)?;
            // One more would count as one of the other role.
            assert!(word & all != all, "a gate counts all that are inside");
            Ok(word + one)
        })?;
        Ok(())
    }

    /// Tells whether this role would be admitted now, without entering.
    pub(crate) fn is_open(&self, role: Role) -> Result<(), GateClosed> {
        check(self.now(), role.refused_by())
    }

    /// Refuses peers from now on, for ever. Those inside stay until they leave.
    pub(crate) fn revoke(&self) {
        self.set(REVOKED);
    }

    /// Refuses everyone from now on, until [`Gate::end_quiesce`]. Those inside stay until they
    /// leave.
    pub(crate) fn begin_quiesce(&self) -> Result<(), GateClosed> {
        self.exclude(QUIESCED)
    }

    /// Lifts the exclusion. To be called once by whom `begin_quiesce` said yes to.
    pub(crate) fn end_quiesce(&self) {
        let before = self.lift(QUIESCED);
        debug_assert!(
            before & QUIESCED != 0,
            "only the holder of the exclusion lifts it"
        );
    }

    /// Refuses everyone while it is parked. Those inside stay until they leave.
    pub(crate) fn park(&self, parked: bool) {
        if parked {
            self.set(PARKED);
        } else {
            self.lift(PARKED);
        }
    }

    /// Refuses everyone from now on, for ever, and says whether everyone has left. `Err(Quiesced)`
    /// while someone holds the exclusion, and then nothing has changed. Closing what is closed is
    /// no error.
    #[inline]
    pub(crate) fn close(&self) -> Result<bool, GateClosed> {
        let before = self.change(|word| check(word, QUIESCED).map(|()| word | CLOSED))?;
        Ok(Drained::All.holds(before))
    }

    /// True if nobody is inside in these roles. For who has shut the gate to them, that is how it
    /// stays.
    pub(crate) fn is_drained(&self, roles: Drained) -> bool {
        roles.holds(self.now())
    }

    /// True once it is closed and everyone has left: then nobody is ever inside again.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        let word = self.now();
        word & CLOSED != 0 && Drained::All.holds(word)
    }

    /// True for the first who asks once it [is over](Gate::is_over): what is behind the gate is
    /// that caller's alone, for ever.
    #[inline]
    pub(crate) fn claim(&self) -> bool {
        self.is_over() && self.word.fetch_or(CLAIMED, Ordering::AcqRel) & CLAIMED == 0
    }

    /// As [`Gate::inside`], for who only keeps the gate from being over meanwhile.
    pub(crate) fn inside_unless_closed(&self) -> Result<Inside<'_>, GateClosed> {
        self.admit(Role::Local, CLOSED)?;
        Ok(Inside {
            gate: self,
            role: Role::Local,
        })
    }

    /// Ready once these users have left. `key` names the waiter from poll to poll; who stops
    /// polling before `Ready` gives it to [`Gate::forget`].
    pub(crate) fn poll_drained(
        &self,
        roles: Drained,
        key: &mut Option<WaiterKey>,
        waker: &Waker,
    ) -> Poll<()> {
        let _stale; // Declared before the guard, so a replaced waker is dropped after it.
        let mut waiters = self.waiters.lock("wait for a gate to drain");
        // Who leaves after this step sees the mark, and then waits for the lock to take the wakers;
        // who has left before it is not in the count any more. So no departure is missed.
        let word = self.word.fetch_or(AWAITED, Ordering::AcqRel);
        if roles.holds(word) {
            _stale = waiters.remove(key);
            return Poll::Ready(());
        }
        _stale = waiters.register(key, waker);
        Poll::Pending
    }

    /// Withdraws a waiter of [`Gate::poll_drained`].
    pub(crate) fn forget(&self, key: &mut Option<WaiterKey>) {
        if key.is_some() {
            let mut waiters = self.waiters.lock("stop waiting for a gate");
            let stale = waiters.remove(key);
            drop(waiters);
            drop(stale);
        }
    }

    fn leave(&self, role: Role) {
        let (one, all) = role.one_and_all();
        let before = self.word.fetch_sub(one, Ordering::AcqRel);
        debug_assert!(
            before & all != 0,
            "each entry was counted once and leaves once"
        );
        if before & all == one && before & AWAITED != 0 {
            self.wake_all();
        }
    }

    #[cold]
    fn wake_all(&self) {
        let mut wakes = WakeList::new();
        let mut waiters = self.waiters.lock("leave a gate");
        self.lift(AWAITED);
        waiters.take_all(&mut wakes);
        drop(waiters);
        drop(wakes);
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.now();
        let is_set = |mark| word & mark != 0;
        f.debug_struct("Gate")
            .field("local", &((word & LOCAL_COUNT) / LOCAL_ONE))
            .field("remote", &(word / REMOTE_ONE))
            .field("disabled", &is_set(DISABLED))
            .field("revoked", &is_set(REVOKED))
            .field("refreshing", &is_set(REFRESHING))
            .field("quiesced", &is_set(QUIESCED))
            .field("parked", &is_set(PARKED))
            .field("closed", &is_set(CLOSED))
            .finish()
    }
}

/// One user inside a gate; dropping it leaves, and wakes those who waited for that.
#[derive(Debug)]
#[must_use = "dropping the entry leaves the gate"]
pub(crate) struct Entry {
    of: Arc<dyn Gated>,
    role: Role,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.of.gate().leave(self.role);
    }
}

/// As [`Entry`], for somebody who keeps the gate meanwhile.
#[derive(Debug)]
#[must_use = "dropping it leaves the gate"]
pub(crate) struct Inside<'a> {
    gate: &'a Gate,
    role: Role,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.gate.leave(self.role);
    }
}

/// Keeps a gate shut for a refresh, until dropped; made by [`Gated::begin_refresh`].
#[derive(Debug)]
#[must_use = "dropping it ends the refresh"]
pub(crate) struct Refreshing {
    of: Arc<dyn Gated>,
}

impl Drop for Refreshing {
    fn drop(&mut self) {
        self.of.gate().lift(REFRESHING);
    }
}

/// Waits for users to leave; made by [`Gated::drained`]. May be dropped at any time.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Draining {
    of: Arc<dyn Gated>,
    roles: Drained,
    key: Option<WaiterKey>,
}

impl Future for Draining {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let budget = ready!(coop::poll_proceed(cx));
        let this = self.get_mut();
        let gate = this.of.gate();
        ready!(gate.poll_drained(this.roles, &mut this.key, cx.waker()));
        budget.made_progress();
        Poll::Ready(())
    }
}

impl Drop for Draining {
    fn drop(&mut self) {
        self.of.gate().forget(&mut self.key);
    }
}

#[cfg(loom)]
pub(super) mod models;
#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    /// fi_mr(3), `fi_close`: buffers go to one caller, when nobody is inside any more, and whoever
    /// looks at what is behind the gate keeps it from being over.
    #[test]
    fn what_is_behind_a_gate_that_is_over_goes_to_one() {
        let gate = Gate::new();
        assert!(!gate.claim(), "open");
        let looking = gate.inside_unless_closed().unwrap();
        assert_eq!(gate.close(), Ok(false));
        assert!(!gate.claim(), "somebody is inside");
        drop(looking);
        assert_eq!(gate.inside_unless_closed().unwrap_err(), GateClosed::Closed);
        let count = thread::scope(|scope| {
            let all: Vec<_> = (0..4).map(|_| scope.spawn(|| gate.claim())).collect();
            let claimed = all.into_iter().map(|it| it.join().unwrap());
            claimed.filter(|claimed| *claimed).count()
        });
        assert_eq!(count, 1);
        assert!(!gate.claim(), "claimed");
    }

    impl Gated for Gate {
        fn gate(&self) -> &Gate {
            self
        }
    }

    fn gate() -> Arc<Gate> {
        Arc::new(Gate::new())
    }

    /// Rule 4: "mark the region refused", after which peers are refused and local use goes on.
    #[test]
    fn revoke_refuses_peers_for_ever_and_leaves_local_use() {
        let gate = gate();
        gate.revoke();
        assert_eq!(gate.enter(Role::Remote).unwrap_err(), GateClosed::Revoked);
        assert!(gate.enter(Role::Local).is_ok());
        gate.begin_quiesce().unwrap();
        gate.end_quiesce();
        assert_eq!(gate.is_open(Role::Remote), Err(GateClosed::Revoked));
    }

    /// Rule 3: "taking it excludes peers, local operations on the region and all clones".
    #[test]
    fn quiesce_excludes_everyone_and_a_second_quiesce_until_it_ends() {
        let gate = gate();
        gate.begin_quiesce().unwrap();
        for role in [Role::Local, Role::Remote] {
            assert_eq!(gate.enter(role).unwrap_err(), GateClosed::Quiesced);
        }
        assert_eq!(gate.begin_quiesce(), Err(GateClosed::Quiesced));
        gate.end_quiesce();
        assert!(gate.enter(Role::Local).is_ok());
        assert!(gate.enter(Role::Remote).is_ok());
    }

    /// What a cache keeps and nobody has is closed to all, until somebody has it again.
    #[test]
    fn parked_refuses_everyone_until_it_is_lifted() {
        let gate = gate();
        let inside = gate.enter(Role::Local).unwrap();
        gate.park(true);
        for role in [Role::Local, Role::Remote] {
            assert_eq!(gate.enter(role).unwrap_err(), GateClosed::Parked);
        }
        drop(inside);
        gate.park(false);
        assert!(gate.enter(Role::Remote).is_ok());
        gate.park(true);
        assert_eq!(gate.close(), Ok(true));
        assert_eq!(gate.is_open(Role::Local), Err(GateClosed::Closed));
    }

    /// Rule 3: "a leaked guard leaves the region excluded, and `deregister` then answers Busy".
    #[test]
    fn close_says_quiesced_while_a_guard_is_out_and_changes_nothing() {
        let gate = gate();
        gate.begin_quiesce().unwrap();
        assert_eq!(gate.close(), Err(GateClosed::Quiesced));
        gate.end_quiesce();
        assert!(gate.is_open(Role::Local).is_ok());
        let inside = gate.inside(Role::Local).unwrap();
        assert_eq!(gate.close(), Ok(false));
        assert!(!gate.is_over());
        drop(inside);
        assert_eq!(gate.close(), Ok(true));
        assert!(gate.is_over());
        assert_eq!(gate.enter(Role::Local).unwrap_err(), GateClosed::Closed);
        assert_eq!(gate.enter(Role::Remote).unwrap_err(), GateClosed::Closed);
        assert_eq!(gate.begin_quiesce(), Err(GateClosed::Closed));
    }

    /// fi_mr(3): regions are "created in a disabled state", and their owner may fill them
    /// meanwhile.
    #[test]
    fn a_disabled_gate_lets_copies_in_and_neither_peers_nor_operations() {
        let gate = Arc::new(Gate::new_disabled());
        assert_eq!(gate.enter(Role::Remote).unwrap_err(), GateClosed::Disabled);
        assert_eq!(gate.enter_operation().unwrap_err(), GateClosed::Disabled);
        assert!(gate.enter(Role::Local).is_ok());
        gate.enable();
        assert!(gate.enter(Role::Remote).is_ok());
        assert!(gate.enter_operation().is_ok());
    }

    /// Ruling 16: "A region being refreshed [..] refuses peers' access", and a receive that is
    /// posted meanwhile stays.
    #[tokio::test]
    async fn a_refresh_refuses_newcomers_and_waits_for_peers_only() {
        let gate = gate();
        let posted = gate.enter_operation().unwrap();
        let peer = gate.enter(Role::Remote).unwrap();
        let refresh = gate.begin_refresh().unwrap();
        for role in [Role::Local, Role::Remote] {
            assert_eq!(gate.enter(role).unwrap_err(), GateClosed::Refreshing);
        }
        assert_eq!(gate.begin_refresh().unwrap_err(), GateClosed::Refreshing);
        assert_eq!(gate.begin_quiesce().unwrap_err(), GateClosed::Refreshing);
        let mut drained = Box::pin(gate.drained(Drained::Remote));
        assert!(futures::poll!(&mut drained).is_pending());
        drop(peer);
        drained.await;
        drop(refresh);
        assert!(gate.enter(Role::Remote).is_ok());
        drop(posted);
        gate.begin_quiesce().unwrap();
        assert_eq!(gate.begin_refresh().unwrap_err(), GateClosed::Quiesced);
    }

    /// Rule 4: "await their own ends": a mark does not throw anyone out, waiting does.
    #[tokio::test]
    async fn drained_waits_for_those_inside_by_role() {
        let gate = gate();
        let local = gate.enter(Role::Local).unwrap();
        let remote = gate.enter(Role::Remote).unwrap();
        gate.revoke();
        let mut peers = Box::pin(gate.drained(Drained::Remote));
        let mut all = Box::pin(gate.drained(Drained::All));
        assert!(futures::poll!(&mut peers).is_pending());
        drop(remote);
        peers.await;
        assert!(futures::poll!(&mut all).is_pending());
        drop(local);
        all.await;
    }

    /// A waiter that goes away leaves nothing behind, and takes no other's wake-up with it.
    #[tokio::test]
    async fn dropped_waiter_is_forgotten_and_steals_no_wake() {
        let gate = gate();
        let entry = gate.enter(Role::Local).unwrap();
        let mut first = Box::pin(gate.drained(Drained::All));
        let mut second = Box::pin(gate.drained(Drained::All));
        assert!(futures::poll!(&mut first).is_pending());
        assert!(futures::poll!(&mut second).is_pending());
        drop(first);
        let waiting = tokio::spawn(second);
        tokio::task::yield_now().await;
        drop(entry);
        waiting.await.unwrap();
        assert!(gate.waiters.lock("test").is_empty());
    }

    /// ARCHITECTURE.md: under a lock "nothing is copied, told or woken", nor dropped: the last
    /// waker of a task drops what the task has, which may be inside this very gate.
    #[test]
    fn a_forgotten_waiter_is_dropped_with_the_gate_unlocked() {
        struct Inmate {
            _inside: Entry,
        }
        impl std::task::Wake for Inmate {
            fn wake(self: Arc<Self>) {}
        }

        let (told, forgotten) = std::sync::mpsc::channel();
        // On a thread of its own, so that a deadlock fails the test instead of holding it up.
        std::thread::spawn(move || {
            let gate = gate();
            let inmate = Inmate {
                _inside: gate.enter(Role::Local).unwrap(),
            };
            let waker = Waker::from(Arc::new(inmate));
            let mut drained = gate.drained(Drained::All);
            let polled = Pin::new(&mut drained).poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
            drop(waker);
            drop(drained);
            assert_eq!(gate.close(), Ok(true));
            told.send(()).unwrap();
        });
        let waited = forgotten.recv_timeout(std::time::Duration::from_secs(10));
        waited.expect("the gate was locked while the waker was dropped");
    }

    /// Invariant: a drained gate stays drained while its mark holds, whatever threads try.
    #[test]
    fn nobody_is_inside_after_close_and_drain_under_contention() {
        for _ in 0..200 {
            let gate = gate();
            let torn_down = Arc::new(AtomicBool::new(false));
            let users: Vec<_> = (0..4)
                .map(|number| {
                    let (gate, torn_down) = (Arc::clone(&gate), Arc::clone(&torn_down));
                    let role = if number % 2 == 0 {
                        Role::Local
                    } else {
                        Role::Remote
                    };
                    std::thread::spawn(move || {
                        while let Ok(entry) = gate.enter(role) {
                            assert!(!torn_down.load(Ordering::SeqCst), "inside after the end");
                            drop(entry);
                        }
                    })
                })
                .collect();
            gate.close().unwrap();
            futures::executor::block_on(gate.drained(Drained::All));
            torn_down.store(true, Ordering::SeqCst);
            for user in users {
                user.join().unwrap();
            }
        }
    }
}
