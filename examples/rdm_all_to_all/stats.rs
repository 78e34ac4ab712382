//! The statistics that `--stats` serves: the domain, each endpoint, and what arrived at each
//! member.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use serde_json::{Value, json};

use crate::party::Party;

/// Returns the present statistics. `start`: when the program started.
pub fn snapshot(party: &Arc<Party>, start: Instant) -> Value {
    let pairs = party.board.pairs();
    let members = party.members();
    let peers = members.iter().map(|member| {
        let to = pairs.iter().filter(|pair| pair.to == member.index);
        let done: u64 = to.map(|pair| pair.done.load(Relaxed)).sum();
        json!({
            "peer": member.announced().address.to_string(),
            "is": format!("{:?}", member.status()).to_lowercase(),
            "done": done,
        })
    });
    let endpoints = party.locals.iter().map(|local| {
        json!({
            "local": local.endpoint.local_addr().to_string(),
            "stats": local.endpoint.stats(),
            "listener": local.endpoint.listener_stats(),
            "queue": local.endpoint.receive_queue().stats(),
        })
    });
    json!({
        "program": "rdm_all_to_all",
        "pid": std::process::id(),
        "seconds": start.elapsed().as_secs_f64(),
        "backend": party.backend().to_string(),
        "domain": party.domain().stats(),
        "shards": party.domain().shard_stats(),
        "endpoints": endpoints.collect::<Vec<_>>(),
        "peers": peers.collect::<Vec<_>>(),
    })
}
