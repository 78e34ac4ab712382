//! Connections of TLS 1.3: who is refused and in which words, what is on the wire, what a stranger
//! between the peers can do to them.

mod calls;
mod certificates;
#[path = "../common/mod.rs"]
mod common;
mod crowd;
mod cut;
mod hostile;
mod keys;
mod refused;
mod relay;
mod sessions;
mod wire;
