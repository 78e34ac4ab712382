//! Progress: the only folder that sees both the protocol and the transport.
//!
//! An [`Engine`] is a domain's, or one of several ([`Shards`]): its transport, its regions, its
//! list of [`Port`]s (connections). One [`driver`] task per engine does all that no caller
//! does: it harvests outcomes from links, feeds them to the protocol, publishes what ended,
//! hands out frames, arms receives and keeps deadlines. Posting calls take the same
//! per-connection lock, change the protocol's state directly, and may send at once (ruling 5);
//! everything else they leave to the driver by waking the port.
//!
//! One turn of a port (`turn.rs`): outcomes → protocol → events → frames out → next receive, until
//! nothing moves or the turn's budget is spent; then the next port.
//!
//! Locks, in the order in which they may be taken: engine's port table → port → receive context →
//! region table → completion queue, event queue, counter, operation cell. The ready list is taken
//! last and alone.
//! Wakers are woken after all of them are released, save that waking a port only touches the ready
//! list.

#![forbid(unsafe_code)]

mod arming;
mod beside;
mod budget;
mod commit;
mod deadlines;
mod dgram;
mod driven;
mod driver;
mod ended;
mod engine;
mod establish;
mod leftovers;
mod listen;
mod liveness;
mod port;
mod posting;
mod publish;
mod rdm;
mod receive_context;
mod report;
mod shards;
mod shutdown;
mod spin;
#[cfg(test)]
mod tests;
mod turn;

pub(crate) use beside::{beside_of, beside_or_task};
pub(crate) use dgram::{DgramConfig, DgramPort, name_of};
pub(crate) use ended::Ends;
pub(crate) use engine::{Engine, EngineConfig};
pub(crate) use listen::{EventHandler, ListenConfig, Listening, accept_ticket};
pub use liveness::Liveness;
pub(crate) use port::{Bindings, CounterSet, Extending, Port, PortSizes, Posted};
pub use rdm::{IdlePolicy, PeerEventKind};
pub(crate) use rdm::{PeerReader, Rdm, RdmBindings, RdmConfig, SourceAddresses};
pub(crate) use receive_context::{Claimed, ReceiveConfig, ReceiveContext, Sought};
pub(crate) use report::{OpCell, Report};
pub(crate) use shards::Shards;

pub(crate) use crate::proto::{DgramSizes, PostOptions, SendOrder};

#[cfg(loom)]
pub(crate) fn models() -> impl Iterator<Item = crate::sync::model::Model> {
    let all = [report::models::MODELS, receive_context::models::MODELS];
    all.into_iter().flatten().copied()
}

/// Frees what this thread keeps of operations that have ended, and of what woke it.
#[cfg(feature = "test-util")]
pub(crate) fn drop_kept() {
    OpCell::drop_kept();
    leftovers::drop_kept();
    crate::transport::drop_kept();
}
