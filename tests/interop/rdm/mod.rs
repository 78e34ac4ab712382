//! Our end of the connectionless scenarios.

pub mod lives;
pub mod memory;
pub mod messages;
pub mod rxm;
pub mod session;
pub mod watched;
