//! The open domains of this process, which discovery puts into its results (`fi_domain_attr.domain`
//! of `fi_domain(3)`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::error::{Error, ErrorKind, Result};
use crate::info::{DomainHints, Hints, Info, WeakDomain};

use super::{Domain, Inner};

/// Ends the progress of a domain with manual progress when the guard is dropped.
pub(super) struct ManualProgressGuard {
    pub(super) inner: Arc<Inner>,
}

impl Drop for ManualProgressGuard {
    fn drop(&mut self) {
        self.inner.shards.stop();
        if let Some(progress) = self.inner.scope.progress() {
            progress.end();
        }
    }
}

/// The entry by which a [`WeakDomain`] finds its domain.
pub(super) struct Opened {
    name: String,
    inner: Weak<Inner>,
    hand: Option<Weak<ManualProgressGuard>>,
}

/// Open domains, in the order in which they were opened.
static OPENED: Mutex<Vec<Weak<Opened>>> = Mutex::new(Vec::new());

fn lock_opened() -> MutexGuard<'static, Vec<Weak<Opened>>> {
    OPENED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Opened {
    /// Lists a domain that has just been opened, until it is dropped.
    pub(super) fn list(inner: &Arc<Inner>, hand: Option<&Arc<ManualProgressGuard>>) {
        let opened = Arc::new(Opened {
            name: inner.info.domain.name.clone(),
            inner: Arc::downgrade(inner),
            hand: hand.map(Arc::downgrade),
        });
        let listed = Arc::downgrade(&opened);
        // Set before the domain is listed, since a thread that finds the domain in the list reads
        // this entry.
        let _ = inner.opened.set(opened);
        let mut all = lock_opened();
        all.retain(|it| it.strong_count() > 0);
        all.push(listed);
    }

    fn domain(&self) -> Option<Domain> {
        let inner = self.inner.upgrade()?;
        let hand = self.hand.as_ref().map(Weak::upgrade);
        if inner.dependents.is_closed() || matches!(hand, Some(None)) {
            return None;
        }
        Some(Domain {
            inner,
            _progress_guard: hand.flatten(),
        })
    }
}

impl Domain {
    /// A reference to this domain that does not keep it open, for hints ([`DomainHints::domain`]).
    pub fn downgrade(&self) -> WeakDomain {
        let opened = self.inner.opened.get().map(Arc::clone);
        let opened = opened.expect("set when the domain was opened");
        WeakDomain::new(self.inner.scope.own(), opened)
    }
}

impl WeakDomain {
    /// The domain; `None` once the domain is closed, or its last handle has been dropped, on
    /// whichever thread.
    pub fn upgrade(&self) -> Option<Domain> {
        self.found_by.downcast_ref::<Opened>()?.domain()
    }
}

/// Returns the domain that was opened first among the open domains of this name.
fn first_opened(name: &str) -> Option<WeakDomain> {
    // Dropping a domain takes the list's lock again, so none is dropped while it is locked.
    let named: Vec<_> = {
        let all = lock_opened();
        let all = all.iter().filter_map(Weak::upgrade);
        all.filter(|it| it.name == name).collect()
    };
    let first = named.iter().find_map(|it| it.domain());
    first.map(|domain| domain.downgrade())
}

/// Returns the open domain that the hints name, if they name one. Refuses any other hint about the
/// domain next to it, since the attributes of an open domain cannot change.
pub(crate) fn check_opened(hints: &Hints) -> Result<Option<Domain>> {
    let Some(weak) = &hints.domain.domain else {
        return Ok(None);
    };
    let alone = DomainHints {
        domain: Some(weak.clone()),
        ..DomainHints::default()
    };
    if hints.domain != alone {
        let what = "hint domain.domain: the attributes of a domain that is open are what they are";
        return Err(Error::new(ErrorKind::InvalidArgument, what));
    }
    let gone = || Error::new(ErrorKind::NoMatch, "hint domain.domain: it is closed");
    weak.upgrade().map(Some).ok_or_else(gone)
}

/// Names the open domain of each result; if `only` is given, keeps only the results on its
/// interface and backend, with its attributes.
pub(crate) fn name_opened(infos: &mut Vec<Info>, only: Option<&Domain>) -> Result<()> {
    let Some(only) = only else {
        for info in infos {
            info.domain.domain = first_opened(&info.domain.name);
        }
        return Ok(());
    };
    let opened = only.info();
    infos.retain(|info| info.interface == opened.interface && info.backend == opened.backend);
    if infos.is_empty() {
        let what = format!(
            "hint domain.domain: it is on {}, where the other hints are not met",
            opened.domain.name
        );
        return Err(Error::new(ErrorKind::NoMatch, what));
    }
    for info in infos {
        info.domain = opened.domain.clone();
        info.domain.domain = Some(only.downgrade());
    }
    Ok(())
}
