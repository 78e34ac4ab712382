//! Opening a registration cache.

use std::sync::Once;

use crate::buf::can_watch;
use crate::error::{Error, ErrorKind, Result};
use crate::info::MrMode;
use crate::mr::{CacheSettings, CacheShared, CacheWatch};

use super::RegistrationCache;
use crate::domain::Domain;

impl Domain {
    /// Starts building a registration cache of this domain (`fi_mr(3)`, "memory registration
    /// cache"). A domain has none by default, and may have several.
    #[doc(alias(
        "FI_MR_CACHE_MAX_SIZE",
        "FI_MR_CACHE_MAX_COUNT",
        "FI_MR_CACHE_MERGE_REGIONS"
    ))]
    pub fn cache(&self) -> RegistrationCacheBuilder {
        RegistrationCacheBuilder {
            domain: self.clone(),
            size_max: None,
            count_max: None,
            merges: None,
            watch: None,
        }
    }
}

/// Opens a [`RegistrationCache`].
///
/// You get one from [`Domain::cache`]. Settings that are not given here are taken from the
/// environment.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{Fabric, Hints};
///
/// let domain = Fabric::open(Hints::new())?.domain().open()?;
/// let cache = domain.cache().max_size(64 << 20).max_count(1000).merge_regions(true).open()?;
/// assert_eq!((cache.max_count(), cache.merges_regions()), (1000, true));
/// # Ok(()) }
/// ```
#[must_use = "a builder opens nothing until `open`"]
#[derive(Debug)]
pub struct RegistrationCacheBuilder {
    domain: Domain,
    size_max: Option<usize>,
    count_max: Option<usize>,
    merges: Option<bool>,
    watch: Option<CacheWatch>,
}

impl RegistrationCacheBuilder {
    /// The largest total size in bytes of the regions that the cache tracks
    /// (`FI_MR_CACHE_MAX_SIZE`). Default: no limit. A region that is larger, or that would fit only
    /// if regions in use were removed, is registered without being tracked, and ends with its last
    /// handle.
    pub fn max_size(mut self, bytes: usize) -> Self {
        self.size_max = Some(bytes);
        self
    }

    /// The largest number of regions that the cache tracks, whatever their size
    /// (`FI_MR_CACHE_MAX_COUNT`). Default:
    /// [`limits::CACHE_COUNT_DEFAULT`](crate::limits::CACHE_COUNT_DEFAULT). Zero turns caching off:
    /// every request makes a new registration.
    pub fn max_count(mut self, regions: usize) -> Self {
        self.count_max = Some(regions);
        self
    }

    /// Whether ranges that overlap or are adjacent are registered as one region
    /// (`FI_MR_CACHE_MERGE_REGIONS`). Default: no. With merging, one key gives peers access to all
    /// merged ranges.
    pub fn merge_regions(mut self, merge: bool) -> Self {
        self.merges = Some(merge);
        self
    }

    /// How the cache learns that address ranges are unmapped. Default: from the system if possible,
    /// otherwise from the caller; [`RegistrationCache::watch`] returns the choice. Has no effect on
    /// owned memory.
    pub fn watch(mut self, watch: CacheWatch) -> Self {
        self.watch = Some(watch);
        self
    }

    /// Opens the cache. Environment variables with invalid values are ignored; the process logs one
    /// warning about them.
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] if the domain is closed; [`ErrorKind::Unsupported`] in a domain with
    /// [`MrMode::ENDPOINT`] or [`MrMode::MMU_NOTIFY`], whose regions are bound or refreshed
    /// individually, and for [`CacheWatch::System`] if `userfaultfd` is not available.
    pub fn open(self) -> Result<RegistrationCache> {
        // A cache by itself does not keep the domain from being closed; its registrations do.
        drop(self.domain.keep("registration cache")?);
        for (mode, what) in [
            (
                MrMode::ENDPOINT,
                "FI_MR_ENDPOINT: a cache cannot bind its regions to endpoints; register without a cache",
            ),
            (
                MrMode::MMU_NOTIFY,
                "FI_MR_MMU_NOTIFY: a cache cannot refresh its regions; register without a cache",
            ),
        ] {
            if self.domain.inner.mr_mode.contains(mode) {
                return Err(Error::new(ErrorKind::Unsupported, what));
            }
        }
        let watch = match (self.watch, can_watch()) {
            (Some(CacheWatch::System), Err(why)) => {
                return Err(Error::new(ErrorKind::Unsupported, why));
            }
            (None, Err(why)) => {
                tracing::debug!(
                    %why,
                    "userfaultfd is not available: the caller must forget address ranges before unmapping them"
                );
                CacheWatch::Caller
            }
            (chosen, _) => chosen.unwrap_or(CacheWatch::System),
        };
        let (mut settings, wrong) = CacheSettings::from_environment();
        static WARNED: Once = Once::new();
        if !wrong.is_empty() {
            let variables = wrong.join("; ");
            WARNED.call_once(|| tracing::warn!(%variables, "registration cache: environment variables with invalid values are ignored"));
        }
        settings.size_max = self.size_max.unwrap_or(settings.size_max);
        settings.count_max = self.count_max.unwrap_or(settings.count_max);
        settings.merges = self.merges.unwrap_or(settings.merges);
        settings.watch = watch;
        let expected = self.domain.expected_regions();
        let shared = CacheShared::new(settings, expected);
        Ok(RegistrationCache {
            domain: self.domain,
            shared,
        })
    }
}
