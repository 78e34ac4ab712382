//! Flags of registrations and of bindings.

use bitflags::bitflags;

bitflags! {
    /// What a region is registered for, beyond its rights (FLAGS of `fi_mr(3)`). The bits have
    /// libfabric's values.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct MrFlags: u64 {
        /// Counters will be bound to it, which count peers' accesses (`FI_RMA_EVENT`). In a domain
        /// with [`MrMode::RMA_EVENT`](crate::info::MrMode::RMA_EVENT) it is made disabled, and must
        /// be enabled after they are bound.
        const RMA_EVENT = 1 << 56;
        /// It is persistent memory, a shared mapping of a file, and writes may be asked to be
        /// persistent when they end (`FI_RMA_PMEM`).
        #[doc(alias = "FI_RMA_PMEM")]
        const RMA_PMEM = 1 << 49;
    }
}

bitflags! {
    /// Which accesses a counter that is bound to a region counts (flags of `fi_mr_bind`, see
    /// `fi_mr(3)`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct MrBind: u64 {
        /// Reads by peers, as their data has left (`FI_REMOTE_READ`).
        const REMOTE_READ = 1 << 12;
        /// Writes by peers, as they have landed (`FI_REMOTE_WRITE`).
        const REMOTE_WRITE = 1 << 13;
    }
}
