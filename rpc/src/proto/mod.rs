//! The two protocol machines of a connection, without I/O, clock, lock or waker. Their inputs are
//! calls, frames and the end of the connection; their outputs are frames to send and ends of calls.

mod client;
mod flow;
mod server;
#[cfg(test)]
mod tests;

pub use client::{CallKey, CallProgress, ClientMachine, ResponseOutcome};
pub use flow::ItemBody;
pub use server::{Admission, ItemRead, ItemSend, ServerMachine};

/// A point in time. The callers of a machine pass the current time.
pub type Time = std::time::Instant;
