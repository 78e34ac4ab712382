//! Watching a registration that takes long.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many bytes of a registration are ready; given to it by
/// [`Register::progress`](super::Register::progress).
///
/// It counts up to the region's length, in steps of some mebibytes where pages are faulted in, and
/// in one step where there is no such work. Given to several registrations it counts all of them.
/// Clones look at the same count.
///
/// ```
/// use tokio_fabric::{domain::RegistrationProgress, Fabric, Hints};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let domain = Fabric::open(Hints::new())?.domain().open()?;
/// let progress = RegistrationProgress::new();
/// let region = domain.register(vec![0; 4096]).progress(&progress).await?;
/// assert_eq!(progress.bytes_ready(), region.len());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct RegistrationProgress {
    ready: Arc<AtomicUsize>,
}

impl RegistrationProgress {
    /// At 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes that are ready. A registration that fails or is dropped leaves the count where it was.
    pub fn bytes_ready(&self) -> usize {
        self.ready.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, bytes: usize) {
        self.ready.fetch_add(bytes, Ordering::Relaxed);
    }
}
