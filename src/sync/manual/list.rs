//! The progress that reading an object drives.

use std::sync::{Arc, Weak};

use smallvec::SmallVec;

use super::ManualProgress;
use crate::sync::{AtomicUsize, Lock, Ordering};

/// The manual progress that is driven by reading an object: the progress of its domain, and of the
/// domains and listeners that use it.
///
/// Most lists stay empty, and reading an object with an empty list takes no lock of the list.
#[derive(Debug)]
pub(crate) struct ProgressList {
    state: Lock<ListState>,
    /// The number of the last change; 0 while the list is empty.
    version: AtomicUsize,
}

#[derive(Debug, Default)]
struct ListState {
    /// Weak, since a driven task may keep the object alive.
    all: Vec<Weak<ManualProgress>>,
    changes: usize,
}

impl ProgressList {
    pub(crate) fn new() -> Self {
        ProgressList {
            state: Lock::new(ListState::default()),
            version: AtomicUsize::new(0),
        }
    }

    /// Makes readers of the object drive this progress until it ends. If it is new to the list,
    /// `wake` wakes the waiting readers: from now on they drive it too.
    pub(crate) fn add(&self, progress: Option<&Arc<ManualProgress>>, wake: impl FnOnce()) {
        let Some(progress) = progress else {
            return;
        };
        let mut state = self.state.lock("drive more");
        let of = Arc::as_ptr(progress);
        if state.all.iter().any(|it| it.as_ptr() == of) {
            return;
        }
        state.all.push(Arc::downgrade(progress));
        self.forget_gone(&mut state);
        drop(state);
        wake();
    }

    #[inline]
    pub(super) fn version(&self) -> usize {
        self.version.load(Ordering::Acquire)
    }

    pub(super) fn all(&self) -> SmallVec<[Arc<ManualProgress>; 1]> {
        let mut state = self.state.lock("list what to drive");
        let all: SmallVec<_> = state.all.iter().filter_map(Weak::upgrade).collect();
        if all.len() < state.all.len() {
            self.forget_gone(&mut state);
        }
        all
    }

    fn forget_gone(&self, state: &mut ListState) {
        state.all.retain(|it| it.strong_count() > 0);
        state.changes += 1;
        let version = if state.all.is_empty() {
            0
        } else {
            state.changes
        };
        self.version.store(version, Ordering::Release);
    }

    /// Runs one turn of each progress on the list, for a reader that does not wait. Returns false
    /// if there is none.
    #[inline]
    pub(crate) fn turn(&self) -> bool {
        let has_any = self.version() != 0;
        if has_any {
            self.all().iter().for_each(|it| _ = it.turn());
        }
        has_any
    }
}
