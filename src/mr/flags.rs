//! Flags of registrations and of bindings.

use bitflags::bitflags;

bitflags! {
    /// Purposes of a region beyond its rights (FLAGS of `fi_mr(3)`). The bits have libfabric's
    /// values.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
    /// use tokio_fabric::mr::{MrBind, MrFlags};
    /// use tokio_fabric::testing::Net;
    ///
    /// let domain = Net::loopback().peer()?.domain;
    /// let accesses = domain.counter()?;
    /// let region = domain.register(vec![0u8; 64]).flags(MrFlags::RMA_EVENT).await?;
    /// region.bind_counter(&accesses, MrBind::REMOTE_READ | MrBind::REMOTE_WRITE)?;
    /// assert_eq!(region.flags(), MrFlags::RMA_EVENT);
    /// # Ok(()) }
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct MrFlags: u64 {
        /// Counters that count peers' accesses will be bound to the region (`FI_RMA_EVENT`). In a
        /// domain with [`MrMode::RMA_EVENT`](crate::info::MrMode::RMA_EVENT) the region is disabled
        /// at first, and must be enabled after they are bound.
        const RMA_EVENT = 1 << 56;
        /// The region is persistent memory, a shared mapping of a file, and peers may request that
        /// their writes are persistent when they complete (`FI_RMA_PMEM`).
        #[doc(alias = "FI_RMA_PMEM")]
        const RMA_PMEM = 1 << 49;
    }
}

bitflags! {
    /// The accesses that a counter counts while it is bound to a region (flags of `fi_mr_bind`, see
    /// `fi_mr(3)`).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
    /// use tokio_fabric::mr::MrBind;
    /// use tokio_fabric::testing::{Net, connect};
    ///
    /// let net = Net::loopback();
    /// let (client, server) = (net.peer()?, net.peer()?);
    /// let (endpoint, _server) = connect(&client, &server).await?;
    /// let writes = server.domain.counter()?;
    /// let region = server.domain.register(vec![0u8; 64]).await?;
    /// region.bind_counter(&writes, MrBind::REMOTE_WRITE)?;
    /// endpoint.write("hello", region.remote().slice(..5)?).await?;
    /// assert_eq!(writes.wait_for(1).await?, 1);
    /// # Ok(()) }
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct MrBind: u64 {
        /// Reads by peers, counted when their data has been sent (`FI_REMOTE_READ`).
        const REMOTE_READ = 1 << 12;
        /// Writes by peers, counted when their data is in memory (`FI_REMOTE_WRITE`).
        const REMOTE_WRITE = 1 << 13;
    }
}
