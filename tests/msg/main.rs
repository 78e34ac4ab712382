//! Connected endpoints: connection management, messages, remote access, atomic operations, and
//! how operations and connections end.

mod any_length;
mod api_contract;
mod atomics;
mod auth;
mod cancel;
mod capabilities;
mod close;
mod cm;
#[path = "../common/mod.rs"]
mod common;
mod cooperation;
mod counters;
mod credit;
mod deadlines;
mod eq;
mod extension;
mod max_message_size;
mod moved;
mod op_flags;
mod refusal;
mod rma;
mod send_recv;
mod shared_receives;
