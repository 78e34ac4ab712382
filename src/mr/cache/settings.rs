//! The bounds of a cache, and the environment variables for them (`fi_mr(3)`, "memory registration
//! cache").

use std::ffi::OsString;

use crate::limits::CACHE_COUNT_DEFAULT;

/// The bounds of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Largest total size in bytes of the regions that the cache tracks.
    pub(crate) size_max: usize,
    /// Largest number of regions that the cache tracks; zero turns caching off.
    pub(crate) count_max: usize,
    /// Regions that overlap or are adjacent become one.
    pub(crate) merges: bool,
    /// The way in which the cache learns that address ranges are unmapped.
    pub(crate) watch: CacheWatch,
}

/// How a cache learns that an [`AddressRange`](crate::buf::AddressRange), whose memory no buffer
/// owns, was unmapped.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::mr::CacheWatch;
/// use tokio_fabric::testing::Net;
///
/// let domain = Net::loopback().peer()?.domain;
/// let cache = domain.cache().watch(CacheWatch::Caller).open()?;
/// assert_eq!(cache.watch(), CacheWatch::Caller);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheWatch {
    /// By `userfaultfd`: when a call unmaps or moves a range or discards its pages (`munmap`,
    /// `mremap`, `madvise`), the cache stops finding registrations of the range before the call
    /// returns, and before the range is mapped anew. Ranges that the kernel does not watch
    /// (mappings of files) are registered and not cached. In a forked child, a cache that the
    /// parent opened finds no registrations, and keeps none.
    ///
    /// A registration whose handle is held does not end then. Its key gives access to whatever is
    /// mapped at the addresses until the handle is dropped, as the caller has promised to allow
    /// ([`AddressRange::new`](crate::buf::AddressRange::new)). So drop the handle before the memory
    /// is unmapped.
    System,
    /// From the caller, by [`RegistrationCache::forget`](crate::domain::RegistrationCache::forget)
    /// before it unmaps the memory.
    Caller,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            size_max: usize::MAX,
            count_max: CACHE_COUNT_DEFAULT,
            merges: false,
            watch: CacheWatch::Caller,
        }
    }
}

impl Settings {
    /// Reads the environment. Also returns a message for each variable whose value is invalid; such
    /// a variable changes nothing.
    pub(crate) fn from_environment() -> (Self, Vec<String>) {
        Self::from_variables(|name| std::env::var_os(name))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> (Self, Vec<String>) {
        let mut settings = Settings::default();
        let mut wrong = Vec::new();
        // An empty variable is how a shell unsets one for a command.
        let set = |name| variable(name).filter(|text| !text.is_empty());
        for (name, value) in [
            ("FI_MR_CACHE_MAX_SIZE", &mut settings.size_max),
            ("FI_MR_CACHE_MAX_COUNT", &mut settings.count_max),
        ] {
            let Some(text) = set(name) else { continue };
            match text.to_str().and_then(|text| text.trim().parse().ok()) {
                Some(number) => *value = number,
                None => wrong.push(format!("{name} is {text:?}: expected a number")),
            }
        }
        const MERGE: &str = "FI_MR_CACHE_MERGE_REGIONS";
        if let Some(text) = set(MERGE) {
            let word = text.to_string_lossy().trim().to_ascii_lowercase();
            match word.as_str() {
                "true" | "yes" | "1" => settings.merges = true,
                "false" | "no" | "0" => {}
                _ => wrong.push(format!(
                    "{MERGE} is {text:?}: expected true, yes, 1, false, no or 0"
                )),
            }
        }
        (settings, wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> (Settings, Vec<String>) {
        Settings::from_variables(|name| {
            let found = variables.iter().find(|(it, _)| *it == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    fn merges(value: &str) -> bool {
        let (settings, wrong) = read(&[("FI_MR_CACHE_MERGE_REGIONS", value)]);
        assert_eq!(wrong, [""; 0]);
        settings.merges
    }

    /// fi_mr(3): "If not set, the cache has no limit on how many bytes may be registered and
    /// cached."
    /// fi_mr(3): "By default, the cache size is unlimited."
    /// fi_mr(3): "If not set, a default limit is chosen."
    /// fi_mr(3): "By default merging regions is disabled."
    #[test]
    fn what_is_not_set_has_its_default() {
        let expected = Settings {
            size_max: usize::MAX,
            count_max: 1024,
            merges: false,
            watch: CacheWatch::Caller,
        };
        assert_eq!(read(&[]), (expected, Vec::new()));
        assert_eq!(read(&[("FI_MR_CACHE_MAX_COUNT", "")]).0, expected);
    }

    /// fi_mr(3): "If this variable is set to true, yes, or 1"
    #[test]
    fn regions_are_merged_for_true_yes_or_1() {
        assert!(
            ["true", "yes", "1", "TRUE", "Yes"]
                .map(merges)
                .iter()
                .all(|it| *it)
        );
        assert!(!["false", "no", "0", "No"].map(merges).iter().any(|it| *it));
    }

    /// fi_mr(3): `FI_MR_CACHE_MAX_SIZE`, `FI_MR_CACHE_MAX_COUNT`: numbers, of bytes and of regions.
    #[test]
    fn numbers_are_taken_as_they_are() {
        let (settings, wrong) = read(&[
            ("FI_MR_CACHE_MAX_SIZE", "1048576"),
            ("FI_MR_CACHE_MAX_COUNT", " 0 "),
        ]);
        assert_eq!((settings.size_max, settings.count_max), (1 << 20, 0));
        assert_eq!(wrong, [""; 0]);
    }

    /// An invalid value changes nothing, and is reported by name.
    #[test]
    fn invalid_values_are_reported_and_change_nothing() {
        let (settings, wrong) = read(&[
            ("FI_MR_CACHE_MAX_SIZE", "1M"),
            ("FI_MR_CACHE_MAX_COUNT", "-1"),
            ("FI_MR_CACHE_MERGE_REGIONS", "perhaps"),
        ]);
        assert_eq!(settings, Settings::default());
        assert_eq!(wrong.len(), 3);
        for (message, name) in wrong.iter().zip(["SIZE", "COUNT", "MERGE_REGIONS"]) {
            assert!(message.contains(name), "{message}");
        }
    }
}
