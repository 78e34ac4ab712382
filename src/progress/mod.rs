//! Progress: the only folder that sees both the protocol and the transport.
//!
//! An [`Engine`] belongs to a domain, alone or as one of several ([`Shards`]). It has a transport,
//! the regions, and a list of [`Port`]s (connections). One [`driver`] task per engine does
//! everything that callers do not: it takes outcomes from links, feeds them to the protocol,
//! publishes completed operations, hands frames to links, arms receives and keeps deadlines. A call
//! that posts takes the same per-connection lock, changes the protocol's state directly, and may
//! send at once (ruling 5); it leaves the rest to the driver by waking the port.
//!
//! One turn of a port (`turn.rs`): outcomes → protocol → frames out → next receive → completions,
//! until nothing moves or the turn's budget is spent; then the next port.
//!
//! ARCHITECTURE.md, section 3, gives the order of locks. Wakers are woken after all locks are
//! released; only the waker of a port may be woken earlier, since it touches nothing but the ready
//! list.

#![forbid(unsafe_code)]

mod attempt;
mod blocking;
mod blocking_turns;
mod budget;
mod closed;
mod commit;
mod completing;
mod deadlines;
mod deferred;
mod dgram;
mod driver;
mod end_report;
mod engine;
mod establish;
mod host;
mod inbox;
mod inline_send;
mod link_life;
mod listen;
mod liveness;
mod local;
mod outcomes;
mod pollable;
mod port;
mod posting;
mod publish;
mod rdm;
mod ready;
mod receive_context;
mod report;
mod sent;
mod shards;
mod spin;
#[cfg(test)]
mod tests;
mod turn;

pub(crate) use blocking::{run_blocking_on, run_blocking_or_task};
pub(crate) use closed::CloseWatch;
pub(crate) use dgram::{DgramConfig, DgramPort};
pub(crate) use end_report::EndReport;
pub(crate) use engine::{Engine, EngineConfig};
pub(crate) use listen::{EventHandler, ListenConfig, ListenHandle};
pub use liveness::Liveness;
pub(crate) use local::LocalConfig;
pub(crate) use port::{Bindings, CounterSet, ExtensionConfig, Port, PortSizes, PostedOp};
pub use rdm::{IdlePolicy, PeerEventKind};
pub(crate) use rdm::{
    ListedKey, PeerKeys, PeerReader, Rdm, RdmBindings, RdmConfig, SourceAddresses,
};
pub(crate) use receive_context::{
    ClaimId, ReceiveConfig, ReceiveContext, ReceiveSelector, SharedContext, SharedContextConfig,
};
pub(crate) use report::{AwaitedOp, OpRecord, Report};
pub(crate) use shards::Shards;

pub(crate) use crate::proto::{
    DgramSizes, InboxId, InboxMessage, LongMessages, PostOptions, ReadCount, SendOrder, truncated,
};

#[cfg(loom)]
pub(crate) fn models() -> impl Iterator<Item = crate::sync::model::Model> {
    let all = [sent::models::MODELS, receive_context::models::MODELS];
    all.into_iter().flatten().copied()
}

/// Frees the memory that this thread keeps for reuse: records, lists and staging buffers.
#[cfg(feature = "test-util")]
pub(crate) fn drop_kept() {
    crate::sync::drop_kept_records();
    deferred::drop_kept();
    crate::buf::Stage::drop_kept();
}
