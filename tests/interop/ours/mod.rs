//! Our end of the scenarios of README.md, over sockets.

pub mod connections;
pub mod memory;
pub mod messages;
pub mod refused;
pub mod session;
pub mod shared;
