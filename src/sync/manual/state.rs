//! The state shared by tasks that drive and tasks that wait.

use std::task::Waker;

use super::{TaskSlot, Turn};
use crate::edges::{check_edge, state_machine};

/// The phases of a progress: whether work is due, and whether a thread drives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ProgressPhase {
    /// No work is due.
    #[default]
    Parked,
    /// Work is due, and the first waiter, if there is one, has been asked.
    Woken,
    /// A thread drives.
    Driving,
    /// A thread drives, and more work has come.
    DrivingWoken,
}

state_machine! { ProgressPhase {
    Parked => [Woken, Driving],
    Woken => [Driving],
    Driving => [DrivingWoken, Parked, Woken],
    DrivingWoken => [Driving, Woken],
}}

#[derive(Default)]
pub(super) struct ProgressState {
    pub(super) phase: ProgressPhase,
    pub(super) waiters: WaiterList,
    /// True while the alarm is set: while work is due and several tasks wait.
    pub(super) has_alarm: bool,
    /// True if a turn has begun since the alarm was set.
    pub(super) has_driven: bool,
    /// True if, since the last turn, a waiter that may have been asked was dropped, or an asked
    /// waiter has not answered.
    pub(super) asked_in_vain: bool,
    /// The driven tasks. While a thread drives, that thread has them, and this list has the tasks
    /// that were added since.
    pub(super) tasks: Vec<TaskSlot>,
    /// True once the progress has ended.
    pub(super) ended: bool,
}

impl ProgressState {
    pub(super) fn go(&mut self, to: ProgressPhase) {
        check_edge(&self.phase, &to);
        self.phase = to;
    }

    /// Begins a turn: a thread begins to drive.
    pub(super) fn begin(&mut self) -> Turn {
        self.go(ProgressPhase::Driving);
        self.has_driven = true;
        self.asked_in_vain = false;
        Turn {
            tasks: std::mem::take(&mut self.tasks),
            has_driven: false,
            is_alone: self.waiters.len() == 0,
        }
    }

    /// Returns the waiter to ask first. After the end there is none.
    pub(super) fn first(&mut self) -> Option<AskedWaiter> {
        if self.ended {
            return None;
        }
        let waker = self.waiters.first()?.clone();
        let sets_alarm = !self.has_alarm && self.waiters.len() > 1;
        if sets_alarm {
            self.has_alarm = true;
            self.has_driven = false;
        }
        Some(AskedWaiter { waker, sets_alarm })
    }
}

/// The waiters, in the order in which they were last polled.
#[derive(Default)]
pub(super) struct WaiterList {
    /// Wakers, sorted by place. A waiter that goes away leaves its place empty; the last place is
    /// never empty, and at most half of them are.
    pub(super) places: Vec<(u64, Option<Waker>)>,
    len: usize,
    next_place: u64,
}

impl WaiterList {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the waiter that was polled last, which is asked first.
    pub(super) fn first(&self) -> Option<&Waker> {
        self.places.last()?.1.as_ref()
    }

    /// Returns the other waiters, in the order in which they were last polled.
    pub(super) fn all_but_first(&self) -> impl Iterator<Item = &Waker> {
        let others = self.places.len().saturating_sub(1);
        self.places[..others].iter().filter_map(|it| it.1.as_ref())
    }

    fn find(&self, place: u64) -> Option<usize> {
        match self.places.last() {
            Some((last, _)) if *last == place => Some(self.places.len() - 1),
            _ => self.places.binary_search_by_key(&place, |it| it.0).ok(),
        }
    }

    /// Registers a waiter with `waker` as the first to be asked, or removes it if `waker` is
    /// `None`. Returns the waker that this replaces.
    pub(super) fn update(
        &mut self,
        place: &mut Option<u64>,
        waker: Option<&Waker>,
    ) -> Option<Waker> {
        match waker {
            Some(waker) => self.put_first(place, waker),
            None => self.remove(place),
        }
    }

    /// Moves a waiter to the end, which makes it the first to be asked. Returns the waker that this
    /// replaces.
    pub(super) fn put_first(&mut self, place: &mut Option<u64>, waker: &Waker) -> Option<Waker> {
        // A task that waits for several results keeps their places while it is the first.
        let is_ours = |held: Option<&(u64, Option<Waker>)>| {
            held.and_then(|(_, held)| held.as_ref())
                .is_some_and(|held| held.will_wake(waker))
        };
        let held = place.and_then(|place| self.places.get(self.find(place)?));
        if is_ours(held) && is_ours(self.places.last()) {
            return None;
        }
        let stale = self.remove(place);
        self.places.push((self.next_place, Some(waker.clone())));
        self.len += 1;
        *place = Some(self.next_place);
        self.next_place += 1;
        stale
    }

    /// Removes all waiters; returns their wakers.
    pub(super) fn take_all(&mut self) -> Vec<Waker> {
        self.len = 0;
        let all = std::mem::take(&mut self.places);
        all.into_iter().filter_map(|it| it.1).collect()
    }

    /// Removes a waiter; returns its waker.
    pub(super) fn remove(&mut self, place: &mut Option<u64>) -> Option<Waker> {
        let at = self.find(place.take()?)?;
        let waker = self.places[at].1.take()?;
        self.len -= 1;
        let is_empty = |it: &mut (u64, Option<Waker>)| it.1.is_none();
        while self.places.pop_if(is_empty).is_some() {}
        if self.places.len() > 2 * self.len {
            self.places.retain(|it| it.1.is_some());
        }
        Some(waker)
    }
}

/// A waiter that must be asked.
pub(super) struct AskedWaiter {
    pub(super) waker: Waker,
    /// True if there are other waiters, and no alarm is set yet to ask them if this one does not
    /// answer.
    pub(super) sets_alarm: bool,
}
