//! Domains, drivers, backends and the system below: processes, networks, limits, hostile peers.

mod addresses;
#[path = "../common/mod.rs"]
mod common;
mod domain;
mod driver;
mod events;
mod extremes;
mod fork;
mod hostile;
mod liveness;
mod local;
mod manual;
mod opened;
mod overruns;
mod own_thread;
mod paused_ends;
mod peer_death;
mod runtime_ends;
mod shards;
mod slow_link;
mod stats;
mod threading;
mod traffic;
mod unreachable;
mod uring;
