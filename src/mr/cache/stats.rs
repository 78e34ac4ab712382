//! What a cache has done, and what it keeps.

/// The counts of a [`RegistrationCache`](crate::domain::RegistrationCache) at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Requests that a registration of the cache served.
    pub hits: u64,
    /// Requests that took a registration.
    pub misses: u64,
    /// Unused registrations that made room for others.
    pub evictions: u64,
    /// Registrations given up because their memory went away, or its owner said so.
    pub forgotten: u64,
    /// Registrations that were merged into larger ones, or covered by them.
    pub superseded: u64,
    /// Registrations that the cache had no room for; they end with their last handle.
    pub untracked: u64,
    /// Registrations kept track of now (`FI_MR_CACHE_MAX_COUNT` bounds it).
    pub count: usize,
    /// Their bytes (`FI_MR_CACHE_MAX_SIZE` bounds it).
    pub size: usize,
    /// Those of them that nobody uses, kept for the next request.
    pub idle_count: usize,
    /// Their bytes.
    pub idle_size: usize,
}
