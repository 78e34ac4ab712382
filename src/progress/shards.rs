//! The engines of a domain: one per shard of its progress, each with a driver and a transport of
//! its own. They share the domain's table of regions.
//!
//! An endpoint belongs to one engine for its life, and so do all of its connections: the message
//! path does not deal with other engines. Each engine has an incarnation of its own, since liveness
//! of one driver says nothing about another.

use std::sync::Arc;

use crate::error::Result;
use crate::stats::DriverStats;
use crate::transport::{RingInfo, Transport};

use super::end_report::EndReport;
use super::engine::{Engine, EngineConfig};

/// At least one engine.
#[derive(Debug)]
pub(crate) struct Shards(Vec<Arc<Engine>>);

impl Shards {
    /// Starts an engine for each configuration, of which there is at least one. If one fails to
    /// start, the engines started before it are stopped.
    pub(crate) fn start(configs: impl IntoIterator<Item = EngineConfig>) -> Result<Shards> {
        let mut shards = Shards(Vec::new());
        for config in configs {
            match Engine::start(config) {
                Ok(engine) => shards.0.push(engine),
                Err(error) => {
                    shards.stop();
                    return Err(error);
                }
            }
        }
        debug_assert!(!shards.0.is_empty(), "a domain makes progress");
        Ok(shards)
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn stats(&self) -> Vec<DriverStats> {
        self.0.iter().map(|engine| engine.stats()).collect()
    }

    /// Returns the engine for a new endpoint: the one with the fewest connections and listeners
    /// among those whose driver is alive, the first of several.
    pub(crate) fn least_busy(&self) -> &Arc<Engine> {
        let load = |engine: &&Arc<Engine>| (engine.is_gone(), engine.lock_ports().len());
        let least = self.0.iter().min_by_key(load);
        least.expect("there is at least one")
    }

    /// Returns an engine for each context of a new endpoint: the living ones, those with the fewest
    /// connections and listeners first. They repeat if there are more contexts than engines.
    pub(crate) fn spread(&self, contexts: usize) -> Vec<Arc<Engine>> {
        let mut engines: Vec<_> = self.0.iter().collect();
        engines.sort_by_cached_key(|engine| (engine.is_gone(), engine.lock_ports().len()));
        let living = engines.iter().filter(|engine| !engine.is_gone()).count();
        let engines = engines.into_iter().take(living.max(1)).cycle();
        engines.take(contexts).map(Arc::clone).collect()
    }

    /// Returns any of the transports: all use the same backend.
    pub(crate) fn transport(&self) -> &Arc<dyn Transport> {
        self.0[0].transport()
    }

    /// Returns the ring of each driver, if drivers have rings.
    pub(crate) fn rings(&self) -> Vec<RingInfo> {
        let rings = self.0.iter().map(|engine| engine.transport().ring());
        rings.flatten().collect()
    }

    /// Makes the drivers look for operations on regions that were closed.
    pub(crate) fn nudge_for_regions(&self) {
        self.0.iter().for_each(|engine| engine.nudge_for_regions());
    }

    /// Notes that copies of device memory may block from now on.
    pub(crate) fn set_copies_block(&self) {
        self.0.iter().for_each(|engine| engine.set_copies_block());
    }

    /// Asks the drivers to close everything and end.
    pub(crate) fn stop(&self) {
        self.0.iter().for_each(|engine| engine.stop());
    }

    /// Sets where the end of each driver is reported: one report per driver.
    pub(crate) fn report_ends_by(&self, reports: impl IntoIterator<Item = EndReport>) {
        for (engine, report) in self.0.iter().zip(reports) {
            engine.report_end_by(report);
        }
    }

    /// Waits until all drivers have ended.
    pub(crate) async fn wait_gone(&self) {
        for engine in &self.0 {
            engine.wait_gone().await;
        }
    }
}
