//! Who sent a message.

use std::net::SocketAddr;

use crate::id::FabricAddr;

/// A sender, as far as it is known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SourceName {
    pub(crate) address: Option<SocketAddr>,
    /// Its name in the endpoint's address vector.
    pub(crate) fabric: Option<FabricAddr>,
    /// What the application calls it.
    pub(crate) user_id: Option<u64>,
}
