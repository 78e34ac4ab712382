//! Opening a domain.

use std::sync::{Arc, Mutex};

use crate::error::Result;
use crate::id::{Context, DomainId};
use crate::info::{Info, MrMode};
use crate::mr::{KeyPolicy, MappedKeys, MrAddressing, MrTable, RawKeys};
use crate::progress::{Engine, EngineConfig};
use crate::sync::{Dependence, Dependents, Keep, Lock, LockKind};
use crate::transport::{self, TransportOptions};

use super::{Binding, Domain, Inner, expected_regions};

/// Opens a domain (`fi_domain`, `fi_domain(3)`); made by `Fabric::domain`.
#[must_use = "a builder opens nothing until `open`"]
#[derive(Debug)]
pub struct DomainBuilder {
    info: Info,
    source_chosen: bool,
    transport: TransportOptions,
    context: Option<Context>,
    fabric: Keep,
    dependence: Option<Dependence>,
}

impl DomainBuilder {
    pub(crate) fn new(
        info: Info,
        source_chosen: bool,
        transport: TransportOptions,
        fabric: Keep,
        dependence: Option<Dependence>,
    ) -> Self {
        DomainBuilder {
            info,
            source_chosen,
            transport,
            context: None,
            fabric,
            dependence,
        }
    }

    /// The value that comes back with events of the domain itself. Default: none.
    pub fn context(mut self, context: impl Into<Context>) -> Self {
        self.context = Some(context.into());
        self
    }

    /// Other attributes than the fabric's first choice, for instance another of `discover`'s
    /// answers. Connections then leave from its source address.
    pub fn info(mut self, info: Info) -> Self {
        self.info = info;
        self.source_chosen = true;
        self
    }

    /// Opens the domain and spawns its progress task on the current Tokio runtime.
    ///
    /// # Errors
    /// [`ErrorKind::NoRuntime`](crate::ErrorKind::NoRuntime) outside of a runtime, or in one
    /// without what the backend needs (I/O for sockets, time for loopback).
    pub fn open(self) -> Result<Domain> {
        let selection = transport::open(&self.transport)?;
        tracing::debug!(
            domain = %self.info.domain.name,
            backend = %selection.transport.backend(),
            reason = %selection.reason,
            "domain opens"
        );
        let mr_mode = self.info.domain.mr_mode.in_force();
        let addressing = if mr_mode.contains(MrMode::VIRT_ADDR) {
            MrAddressing::Virtual
        } else {
            MrAddressing::Offset
        };
        let keys = if mr_mode.contains(MrMode::PROV_KEY) {
            KeyPolicy::Provider
        } else {
            KeyPolicy::Application {
                key_size: self.info.domain.mr_key_size,
            }
        };
        let lock_kind = LockKind::Mutex;
        let raw = mr_mode.contains(MrMode::RAW);
        let table = MrTable::new(addressing, keys, RawKeys::new(raw)?)
            .expecting(expected_regions(&self.info));
        let regions = Arc::new(Lock::new(lock_kind, table));
        let engine = Engine::start(EngineConfig {
            transport: selection.transport,
            regions: Arc::clone(&regions),
            lock_kind,
            runtime: selection.runtime.clone(),
        })?;
        Ok(Domain {
            inner: Arc::new(Inner {
                source: self.info.source.filter(|_| self.source_chosen),
                info: self.info,
                engine,
                regions,
                runtime: selection.runtime,
                binding: Mutex::new(Binding::default()),
                dependents: Dependents::new(),
                context: self.context,
                mr_mode,
                id: DomainId::next(),
                mapped: MappedKeys::new(raw),
                jobs: Arc::new(tokio::sync::Semaphore::new(super::job::JOBS_AT_ONCE)),
                _fabric: self.fabric,
                _fabric_dependence: self.dependence,
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::{Fabric, Hints};

    /// fi_domain(3): "Doing so may allow the provider to optimize any memory registration cache or
    /// lookup tables."
    #[tokio::test]
    async fn tables_are_made_for_the_regions_that_were_announced() {
        let capacity = |hints| {
            let domain = Fabric::open(hints).unwrap().domain().open().unwrap();
            let cache = domain.cache().max_count(usize::MAX).open().unwrap();
            let regions = domain.inner.regions.lock("test").capacity();
            (regions, cache.capacity())
        };
        let (regions, cached) = capacity(Hints::new().mr_cnt(100_000));
        assert!(
            regions >= 100_000 && cached >= 100_000,
            "{regions}, {cached}"
        );
        // What every domain may have is made when it is needed.
        assert_eq!(capacity(Hints::new()), (0, 0));
        // An exaggeration costs no more than a large program.
        let (regions, _) = capacity(Hints::new().mr_cnt(1 << 40));
        assert!(regions < 4 << 20);
    }
}
