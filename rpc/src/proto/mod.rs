//! The two machines of a connection, without I/O, clock, lock or waker: calls, frames and "the
//! connection is gone" go in; what is to be sent, and ends of calls, come out.

mod client;
mod flow;
mod server;
#[cfg(test)]
mod tests;

pub use client::{CallKey, CallProgress, ClientMachine, ResponseOutcome};
pub use flow::ItemBody;
pub use server::{Admission, ItemRead, ItemSend, ServerMachine};

/// Time since something that both callers of a machine mean alike.
pub type Time = std::time::Duration;
