//! A stand-in for a domain, in which regions are tested.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::*;
use crate::buf::{OwnedBuffer, RegionMemory, RegionTraits, RegionUse};
use crate::error::{Refusal, Result};
use crate::id::{EndpointId, UserContext};
use crate::random::RandomSource;
use crate::sync::{DomainScope, Lock};

/// The parts of a domain that regions use: a table, a driver to nudge, itself.
pub(super) struct Domain {
    pub(super) table: Lock<MrTable>,
    scope: DomainScope,
    nudges: AtomicUsize,
}

impl Parent for Domain {
    fn table(&self) -> &Lock<MrTable> {
        &self.table
    }

    fn scope(&self) -> &DomainScope {
        &self.scope
    }

    fn nudge(&self) {
        self.nudges.fetch_add(1, Ordering::SeqCst);
    }
}

pub(super) struct TestDomain {
    pub(super) parent: Arc<Domain>,
}

impl Deref for TestDomain {
    type Target = Domain;

    fn deref(&self) -> &Domain {
        &self.parent
    }
}

impl TestDomain {
    pub(super) fn new(addressing: MrAddressing, keys: KeyPolicy) -> TestDomain {
        let table = MrTable::new(
            addressing,
            keys,
            RawKeys::new(false, &RandomSource::default()).unwrap(),
            RandomSource::default(),
        );
        let parent = Arc::new(Domain {
            table: Lock::new(table),
            scope: DomainScope::apart(),
            nudges: AtomicUsize::new(0),
        });
        TestDomain { parent }
    }

    pub(super) fn parts(
        &self,
        memory: Arc<RegionMemory>,
        requested_key: Option<u64>,
    ) -> PreparedRegion {
        PreparedRegion {
            memory,
            requested_key,
            auth_key: None,
            context: Some(UserContext(5)),
            parent: self.parent.clone(),
        }
    }

    pub(super) fn try_region(
        &self,
        buffers: Vec<OwnedBuffer>,
        access: Access,
        key: Option<u64>,
    ) -> Result<MemoryRegion, Box<RegisterError>> {
        <MemoryRegion>::create(
            self.parts(prepare(buffers, RegionTraits::plain(access.bits()))?, key),
        )
    }

    #[track_caller]
    pub(super) fn region(&self, len: usize, access: Access) -> MemoryRegion {
        self.try_region(vec![vec![0; len].into()], access, None)
            .unwrap()
    }

    pub(super) fn resolve(&self, region: RemoteRegion, need: Access) -> Result<RegionUse, Refusal> {
        let mut table = self.table.lock("test");
        let request = AccessRequest {
            key: region.key,
            tag: None,
            addr: region.addr,
            len: region.len,
            need,
            persistent: false,
        };
        table.resolve(&request, EndpointId::next())
    }

    pub(super) fn nudges(&self) -> usize {
        self.nudges.load(Ordering::SeqCst)
    }
}

/// Joins these buffers.
pub(super) fn prepare(
    buffers: Vec<OwnedBuffer>,
    traits: RegionTraits,
) -> Result<Arc<RegionMemory>, Box<RegisterError>> {
    crate::mr::prepare(buffers.into(), traits)
}

pub(super) fn test_domain() -> TestDomain {
    TestDomain::new(MrAddressing::Offset, KeyPolicy::Application { key_size: 8 })
}
