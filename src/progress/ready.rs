//! The ready list of the driver: shared by the engine and the wakers of its ports, which may
//! outlive the engine.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use crate::slab::Key;

use super::blocking_turns::TurnOutcome;

#[derive(Default)]
pub(super) struct ReadyList(Mutex<ReadyState>);

#[derive(Default)]
pub(super) struct ReadyState {
    pub(super) ports: VecDeque<Key>,
    /// Ports that asked for heartbeats.
    pub(super) new_heartbeats: VecDeque<Key>,
    /// Blocking turns that have ended.
    pub(super) turned: Vec<(Key, TurnOutcome)>,
    pub(super) driver: Option<Waker>,
}

impl ReadyList {
    pub(super) fn lock(&self) -> MutexGuard<'_, ReadyState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a port on the list and wakes the driver.
    pub(super) fn make_ready(&self, port: Key) {
        self.wake_driver_for(|ready| ready.ports.push_back(port));
    }

    /// Changes the list with `add`, and wakes the driver.
    pub(super) fn wake_driver_for(&self, add: impl FnOnce(&mut ReadyState)) {
        let driver = {
            let mut ready = self.lock();
            add(&mut ready);
            ready.driver.take()
        };
        if let Some(driver) = driver {
            driver.wake();
        }
    }
}
