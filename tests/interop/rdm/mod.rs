//! Our end of the connectionless scenarios.

pub mod memory;
pub mod messages;
pub mod session;
