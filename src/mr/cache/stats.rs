//! Statistics of a cache.

/// The counts of a [`RegistrationCache`](crate::domain::RegistrationCache) at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Requests that a registration of the cache served.
    pub hits: u64,
    /// Requests that took a registration.
    pub misses: u64,
    /// Idle registrations that were removed to make room for others.
    pub evictions: u64,
    /// Registrations removed because their memory was dropped or unmapped, or by `forget`.
    pub forgotten: u64,
    /// Registrations that were merged into larger ones, or covered by them.
    pub superseded: u64,
    /// Registrations that the cache had no room for; each ends with its last handle.
    pub untracked: u64,
    /// Registrations in the cache now (`FI_MR_CACHE_MAX_COUNT` bounds it).
    pub count: usize,
    /// Their bytes (`FI_MR_CACHE_MAX_SIZE` bounds it).
    pub size: usize,
    /// Those of them that are idle: without a handle, kept for the next request.
    pub idle_count: usize,
    /// Their bytes.
    pub idle_size: usize,
}
