//! Progress: the only folder that sees both the protocol and the transport.
//!
//! An [`Engine`] is a domain's, or one of several ([`Shards`]): its transport, its regions, its
//! list of [`Port`]s (connections). One [`driver`] task per engine does all that no caller
//! does: it harvests outcomes from links, feeds them to the protocol, publishes what ended,
//! hands out frames, arms receives and keeps deadlines. Posting calls take the same
//! per-connection lock, change the protocol's state directly, and may send at once (ruling 5);
//! everything else they leave to the driver by waking the port.
//!
//! One turn of a port (`turn.rs`): outcomes → protocol → frames out → next receive → completions,
//! until nothing moves or the turn's budget is spent; then the next port.
//!
//! The order of locks stands in ARCHITECTURE.md, section 3. Wakers are woken after all of them are
//! released, save that waking a port only touches the ready list.

#![forbid(unsafe_code)]

mod arming;
mod aside;
mod attempt;
mod blocking;
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
    DgramSizes, InboxId, InboxMessage, LongMessages, PostOptions, SendOrder, truncated,
};

#[cfg(loom)]
pub(crate) fn models() -> impl Iterator<Item = crate::sync::model::Model> {
    let all = [sent::models::MODELS, receive_context::models::MODELS];
    all.into_iter().flatten().copied()
}

/// Frees what this thread keeps of operations that have ended, and of what woke it.
#[cfg(feature = "test-util")]
pub(crate) fn drop_kept() {
    crate::sync::drop_kept_records();
    deferred::drop_kept();
    crate::buf::Stage::drop_kept();
}
