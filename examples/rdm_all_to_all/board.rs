//! The counts of a running process.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_fabric::ErrorKind;

/// What one endpoint of this process has delivered to one peer.
#[derive(Debug)]
pub struct Count {
    /// Index of the endpoint among the endpoints of this process.
    pub from: usize,
    pub to: usize,
    pub done: AtomicU64,
}

/// All counts of this process.
#[derive(Debug, Default)]
pub struct Board {
    pairs: Mutex<Vec<Arc<Count>>>,
    errors: Mutex<BTreeMap<String, u64>>,
    notes: Mutex<Vec<String>>,
    /// Messages and reads whose contents were right.
    pub verified: AtomicU64,
    /// Messages and reads whose contents were wrong.
    pub wrong: AtomicU64,
    /// Messages that arrived after a later message of the same sender, or twice.
    pub misordered: AtomicU64,
    /// Messages that were lost with a connection.
    pub skipped: AtomicU64,
}

impl Board {
    /// Returns the count of a pair, which the first call creates.
    pub fn pair(&self, from: usize, to: usize) -> Arc<Count> {
        let mut pairs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
        let found = pairs
            .iter()
            .find(|count| (count.from, count.to) == (from, to));
        if let Some(found) = found {
            return Arc::clone(found);
        }
        let done = AtomicU64::new(0);
        let count = Arc::new(Count { from, to, done });
        pairs.push(Arc::clone(&count));
        count
    }

    pub fn pairs(&self) -> Vec<Arc<Count>> {
        let pairs = self.pairs.lock().unwrap_or_else(PoisonError::into_inner);
        pairs.clone()
    }

    /// Messages and reads that have arrived at this process, or were delivered from it.
    pub fn arrived(&self) -> u64 {
        let done = self
            .pairs()
            .iter()
            .map(|pair| pair.done.load(Relaxed))
            .sum::<u64>();
        done + self.verified.load(Relaxed)
    }

    pub fn error(&self, kind: ErrorKind) {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        *errors.entry(format!("{kind:?}")).or_default() += 1;
    }

    /// Operations that failed, by the kind of their error.
    pub fn errors(&self) -> BTreeMap<String, u64> {
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        errors.clone()
    }

    /// Keeps a line to show to the user once.
    pub fn note(&self, note: String) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        notes.push(note);
    }

    /// The lines since the last call.
    pub fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
