//! The traits of a region's memory (its domain, rights and flags), and the counters and endpoints
//! that are bound to it (`fi_mr_bind` of `fi_mr(3)`).
//!
//! Invariant: once frozen, nothing is bound any more. The list's lock is taken while a connection's
//! lock is held, so no bound object is called or dropped while the list is locked.

use std::fmt;
use std::ops::Range;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::device::SharedHmemOps;
use super::intervals::Intervals;
use crate::id::{DomainId, EndpointId};
use crate::sync::{Attachable, Keep, Lock, WakeList};

/// The properties that a region has from its registration on.
#[derive(Clone, Debug)]
pub(crate) struct RegionTraits {
    /// Access rights, in libfabric's bits, which `mr` interprets.
    pub(crate) rights: u64,
    /// Flags of the registration, in libfabric's bits, which `mr` interprets.
    pub(crate) flags: u64,
    /// The domain it is registered with.
    pub(crate) domain: Option<DomainId>,
    /// Counters may be bound to the region.
    pub(crate) counts_events: bool,
    /// The region was registered without the flag that binding a counter needs (`FI_MR_RMA_EVENT`).
    pub(crate) lacks_event_flag: bool,
    /// Accesses to the region are refused until it is enabled.
    pub(crate) disabled: bool,
    /// Only endpoints that are bound to the region may use it (`FI_MR_ENDPOINT`).
    pub(crate) by_endpoint: bool,
    /// Only pages that a registration or refresh found present may be accessed
    /// (`FI_MR_MMU_NOTIFY`).
    pub(crate) notified_pages: bool,
    /// The functions that copy the region's bytes, if it is device memory.
    pub(crate) hmem: Option<SharedHmemOps>,
}

impl RegionTraits {
    /// The traits of a region with these rights and no other restrictions.
    #[cfg(any(test, loom))]
    pub(crate) fn plain(rights: u64) -> Self {
        RegionTraits {
            rights,
            flags: 0,
            domain: None,
            counts_events: true,
            lacks_event_flag: false,
            disabled: false,
            by_endpoint: false,
            notified_pages: false,
            hmem: None,
        }
    }
}

/// The kind of a bound object.
enum Bound {
    /// Counts accesses that need one of these rights, in libfabric's bits.
    Counter { rights: u64 },
    /// Peers and operations may use the region through this endpoint.
    Endpoint {
        id: EndpointId,
        /// Counts the region among those of the endpoint, where these are limited.
        _counted: Option<Keep>,
    },
}

struct Binding {
    what: Bound,
    name: String,
    object: Weak<dyn Attachable>,
}

#[derive(Default)]
struct Bindings {
    all: Vec<Binding>,
    frozen: bool,
}

pub(crate) struct Attached {
    traits: RegionTraits,
    bindings: Lock<Bindings>,
    /// Set once a counter was bound: an access to a region without one takes no lock.
    any_counter: AtomicBool,
    /// The bytes that are known to have pages; present if `notified_pages` is set.
    backed: Option<Lock<Intervals>>,
}

impl Attached {
    pub(super) fn new(traits: RegionTraits) -> Self {
        let backed = || Lock::new(Intervals::default());
        Attached {
            bindings: Lock::new(Bindings::default()),
            any_counter: AtomicBool::new(false),
            backed: traits.notified_pages.then(backed),
            traits,
        }
    }

    pub(super) fn traits(&self) -> &RegionTraits {
        &self.traits
    }

    pub(super) fn backed(&self) -> Option<&Lock<Intervals>> {
        self.backed.as_ref()
    }

    /// Binds a counter. Returns false if nothing may be bound any more.
    pub(crate) fn bind_counter(
        &self,
        rights: u64,
        name: String,
        counter: Weak<dyn Attachable>,
    ) -> bool {
        let bound = self.bind(Bound::Counter { rights }, name, counter);
        if bound {
            self.any_counter.store(true, Relaxed);
        }
        bound
    }

    /// Binds an endpoint. Returns false if nothing may be bound any more.
    pub(crate) fn bind_endpoint(
        &self,
        id: EndpointId,
        endpoint: Weak<dyn Attachable>,
        counted: Option<Keep>,
    ) -> bool {
        let what = Bound::Endpoint {
            id,
            _counted: counted,
        };
        self.bind(what, format!("{id:?}"), endpoint)
    }

    fn bind(&self, what: Bound, name: String, object: Weak<dyn Attachable>) -> bool {
        let mut bindings = self.bindings.lock("bind to a region");
        if !bindings.frozen {
            bindings.all.push(Binding { what, name, object });
        }
        !bindings.frozen
    }

    /// Freezes the bindings: nothing is bound from now on. Returns whether an endpoint is bound.
    pub(crate) fn freeze(&self) -> bool {
        let mut bindings = self.bindings.lock("end the bindings of a region");
        bindings.frozen = true;
        bindings.has_endpoint()
    }

    /// Returns whether an endpoint is bound.
    pub(crate) fn has_endpoint(&self) -> bool {
        self.bindings.lock("look for an endpoint").has_endpoint()
    }

    /// Returns the names of bound objects that are still open, for a Busy error; `None`: none is
    /// open.
    pub(crate) fn open_names(&self) -> Option<String> {
        // An endpoint is asked, and perhaps dropped, without the list's lock: its connection takes
        // that lock while it holds its own.
        let bound: Vec<_> = {
            let bindings = self.bindings.lock("name those bound to a region");
            let owned = |it: &Binding| Some((it.object.upgrade()?, it.name.clone()));
            bindings.all.iter().filter_map(owned).collect()
        };
        let open = bound.into_iter().filter(|(object, _)| object.is_open());
        let names: Vec<_> = open.map(|(_, name)| name).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }

    /// Returns whether any counter was bound.
    pub(crate) fn has_counter(&self) -> bool {
        self.any_counter.load(Relaxed)
    }

    /// Returns whether the region may be used through this endpoint.
    pub(crate) fn admits(&self, endpoint: EndpointId) -> bool {
        !self.traits.by_endpoint
            || (self.bindings.lock("look for an endpoint").all)
                .iter()
                .any(|it| matches!(it.what, Bound::Endpoint { id, .. } if id == endpoint))
    }

    /// Returns the only endpoints through which the region may be used; `None`: all.
    #[inline]
    pub(crate) fn endpoints(&self) -> Option<Box<[EndpointId]>> {
        self.traits.by_endpoint.then(|| {
            let bindings = self.bindings.lock("list the endpoints of a region");
            let endpoint = |it: &Binding| match it.what {
                Bound::Endpoint { id, .. } => Some(id),
                Bound::Counter { .. } => None,
            };
            bindings.all.iter().filter_map(endpoint).collect()
        })
    }

    /// Counts a peer's access in the counters that are bound for this right.
    pub(crate) fn count(&self, right: u64, wakes: &mut WakeList) {
        if !self.has_counter() {
            return;
        }
        // No counter is called, and none dropped, while the list is locked.
        let counters: Vec<_> = {
            let bindings = self.bindings.lock("count an access");
            let counts =
                |it: &&Binding| matches!(it.what, Bound::Counter { rights } if rights & right != 0);
            let bound = bindings.all.iter().filter(counts);
            bound.filter_map(|it| it.object.upgrade()).collect()
        };
        for counter in counters {
            counter.count(wakes);
        }
    }

    /// Returns whether pages are known to be behind all of a range.
    pub(crate) fn is_backed(&self, range: Range<usize>) -> bool {
        (self.backed.as_ref()).is_none_or(|it| it.lock("look for pages").contains(range))
    }
}

impl Bindings {
    fn has_endpoint(&self) -> bool {
        let is_endpoint = |it: &Binding| matches!(it.what, Bound::Endpoint { .. });
        self.all.iter().any(is_endpoint)
    }
}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.traits, f)
    }
}
