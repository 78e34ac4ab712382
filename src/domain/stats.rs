//! Statistics of a domain: its open objects, and the work of its drivers.

use crate::stats::{DomainStats, DriverStats};

use super::Domain;

impl Domain {
    /// Statistics: open objects, and the work of the drivers.
    pub fn stats(&self) -> DomainStats {
        let mut driver = DriverStats::default();
        self.shard_stats()
            .iter()
            .for_each(|shard| driver.add(shard));
        let [endpoints, completion_queues, counters] = self.inner.counts.open();
        let table = self.inner.regions.lock("domain stats");
        let (registrations, accesses) = table.totals();
        DomainStats {
            driver,
            endpoints,
            completion_queues,
            counters,
            regions: table.len(),
            registrations,
            accesses,
        }
    }

    /// The statistics of each of the domain's drivers; there are
    /// [`progress_shards`](Self::progress_shards) of them.
    pub fn shard_stats(&self) -> Vec<DriverStats> {
        self.inner.shards.stats()
    }
}
