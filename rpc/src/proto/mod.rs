//! The two machines of a connection, without I/O, clock, lock or waker: their inputs are calls,
//! frames and the end of the connection; their outputs are frames to be sent and ends of calls.

mod client;
mod flow;
mod server;
#[cfg(test)]
mod tests;

pub use client::{CallKey, CallProgress, ClientMachine, ResponseOutcome};
pub use flow::ItemBody;
pub use server::{Admission, ItemRead, ItemSend, ServerMachine};

/// A point in time; the callers of a machine pass the current one.
pub type Time = std::time::Instant;
