//! Watching a registration that takes long.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts how many bytes of a registration are ready.
///
/// Pass it to [`Register::progress`](super::Register::progress).
///
/// The count rises to the region's length: in steps of some mebibytes if pages are faulted in,
/// otherwise in one step. One value may be passed to several registrations and then counts all of
/// them. Clones share the count.
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
    /// A count of 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes that are ready. A registration that fails or is dropped leaves the count as it is.
    pub fn bytes_ready(&self) -> usize {
        self.ready.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, bytes: usize) {
        self.ready.fetch_add(bytes, Ordering::Relaxed);
    }
}
