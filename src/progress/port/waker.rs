//! A port's place on the engine's ready list.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Wake;

use crate::error::Result;
use crate::progress::engine::Engine;
use crate::progress::pollable::Pollable;
use crate::progress::ready::ReadyList;
use crate::slab::Key;

/// Puts its port on the ready list, once per turn.
pub(in crate::progress) struct PortWaker {
    ready: Arc<ReadyList>,
    key: OnceLock<Key>,
    is_queued: AtomicBool,
}

impl PortWaker {
    pub(in crate::progress) fn new(engine: &Engine) -> Arc<Self> {
        Arc::new(PortWaker {
            ready: Arc::clone(&engine.ready),
            key: OnceLock::new(),
            is_queued: AtomicBool::new(false),
        })
    }

    /// Enters the port in the engine's table; called once.
    pub(in crate::progress) fn insert_port(
        &self,
        engine: &Engine,
        port: Arc<dyn Pollable>,
    ) -> Result<()> {
        let key = engine.lock_ports().insert(port);
        self.key.set(key).expect("the key is set once, here");
        // The driver may have ended between the caller's check and the insertion, and drains the
        // table no more.
        if engine.is_gone() {
            engine.lock_ports().remove(key);
            return Err(engine.why_gone());
        }
        Ok(())
    }

    /// Returns the port's key in its engine.
    pub(super) fn key(&self) -> Key {
        let key = self.key.get();
        *key.expect("a port that was opened has its key")
    }

    /// Called when the port has its turn: a wake from now on queues the port again.
    pub(in crate::progress) fn mark_dequeued(&self) {
        self.is_queued.store(false, Ordering::Release);
    }

    /// Called when the driver keeps the port in its queue.
    pub(in crate::progress) fn mark_queued(&self) {
        self.is_queued.store(true, Ordering::Release);
    }
}

impl Wake for PortWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let Some(&key) = self.key.get() else { return };
        if self.is_queued.swap(true, Ordering::AcqRel) {
            return;
        }
        self.ready.make_ready(key);
    }
}
