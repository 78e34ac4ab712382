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

/// A point in time, which the caller of a machine knows.
pub type Time = std::time::Instant;
