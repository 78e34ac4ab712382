//! Access rights, and the checks against them.

use bitflags::bitflags;

use crate::buf::LocalUse;
use crate::error::{Error, ErrorKind, Result};

bitflags! {
    /// The rights of local operations and peers to a region (`fi_mr(3)`, access). The bits have
    /// libfabric's values.
    ///
    /// Rights are enforced one by one: `WRITE` does not include `SEND`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
    /// use tokio_fabric::testing::{Net, connect};
    /// use tokio_fabric::{Access, ErrorKind};
    ///
    /// let net = Net::loopback();
    /// let (a, b) = (net.peer()?, net.peer()?);
    /// let (endpoint, _other) = connect(&a, &b).await?;
    /// let region = a.domain.register(vec![0u8; 64]).access(Access::REMOTE_READ).await?;
    /// let refused = endpoint.send(region.slice(..)?).await.unwrap_err(); // It lacks `SEND`.
    /// assert_eq!(refused.kind(), ErrorKind::AccessDenied);
    /// # Ok(()) }
    /// ```
    #[doc(alias("FI_SEND", "FI_RECV", "FI_READ", "FI_WRITE", "FI_REMOTE_READ", "FI_REMOTE_WRITE"))]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u64 {
        /// Source of outgoing messages (`FI_SEND`).
        const SEND = 1 << 11;
        /// Destination of incoming messages (`FI_RECV`).
        const RECV = 1 << 10;
        /// Destination of an RMA read of this process (`FI_READ`).
        const READ = 1 << 8;
        /// Source of an RMA write of this process (`FI_WRITE`).
        const WRITE = 1 << 9;
        /// Peers may read from it (`FI_REMOTE_READ`).
        const REMOTE_READ = 1 << 12;
        /// Peers may write to it (`FI_REMOTE_WRITE`).
        const REMOTE_WRITE = 1 << 13;
    }
}

impl Access {
    /// All rights of local operations: `SEND | RECV | READ | WRITE`.
    pub const LOCAL: Access = Access::SEND
        .union(Access::RECV)
        .union(Access::READ)
        .union(Access::WRITE);

    /// All rights of peers: `REMOTE_READ | REMOTE_WRITE`.
    pub const REMOTE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

    /// The rights that do not change the memory, which are all that a read-only region can grant:
    /// `SEND | WRITE | REMOTE_READ`.
    pub const READ_ONLY: Access = Access::SEND.union(Access::WRITE).union(Access::REMOTE_READ);

    /// The right that a local use of a registered buffer needs.
    pub(crate) fn needed_for(usage: LocalUse) -> Access {
        match usage {
            LocalUse::Send => Access::SEND,
            LocalUse::Receive => Access::RECV,
            LocalUse::Read => Access::READ,
            LocalUse::Write => Access::WRITE,
        }
    }

    /// Returns true if all rights of `need` have been granted.
    pub(crate) fn permits(self, need: Access) -> bool {
        self.contains(need)
    }

    /// Checks a local use; the error names the missing right.
    pub(crate) fn check(self, usage: LocalUse) -> Result<()> {
        let need = Access::needed_for(usage);
        if self.permits(need) {
            return Ok(());
        }
        let message = match usage {
            LocalUse::Send => "sending from a region takes Access::SEND",
            LocalUse::Receive => "receiving into a region takes Access::RECV",
            LocalUse::Read => "reading from a peer into a region takes Access::READ",
            LocalUse::Write => "writing to a peer from a region takes Access::WRITE",
        };
        Err(Error::new(ErrorKind::AccessDenied, message))
    }
}
