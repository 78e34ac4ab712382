//! The two kinds of region that a registration can give.

use crate::buf::{IoBuf, RegionContents};
use crate::eq::Event;
use crate::id::UserContext;
use crate::mr::{Access, MemoryRegion, PreparedRegion, ReadOnlyRegion, RegisterError};

/// The handle of a region: a [`MemoryRegion`] or a [`ReadOnlyRegion`].
///
/// A [`Register`](super::Register) returns one of them. Sealed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::domain::{Register, RegionHandle, RegisterBufs};
/// use tokio_fabric::{Fabric, Hints, Result};
///
/// /// Registers memory of either kind.
/// async fn register<B: RegisterBufs, R: RegionHandle>(what: Register<B, R>) -> Result<R> {
///     Ok(what.lazily().await?)
/// }
///
/// let domain = Fabric::open(Hints::new())?.domain().open()?;
/// assert_eq!(register(domain.register(vec![0u8; 64])).await?.len(), 64);
/// assert_eq!(register(domain.register_read_only("constant")).await?.len(), 8);
/// # Ok(()) }
/// ```
pub trait RegionHandle: Clone + Send + Sized + 'static {
    /// All the rights that such a region can grant.
    #[doc(hidden)]
    const ACCESS_MAX: Access;

    /// Its bytes may be written to.
    #[doc(hidden)]
    const IS_WRITABLE: bool;

    #[doc(hidden)]
    #[allow(private_interfaces, reason = "the trait is sealed by this")]
    fn create(parts: PreparedRegion) -> Result<Self, Box<RegisterError>>;

    /// The event that reports its registration.
    #[doc(hidden)]
    fn complete_event(&self, context: UserContext) -> Event;

    #[doc(hidden)]
    fn region_key(&self) -> u64;
}

impl<B: RegionContents> RegionHandle for MemoryRegion<B> {
    const ACCESS_MAX: Access = Access::all();
    const IS_WRITABLE: bool = true;

    #[allow(private_interfaces, reason = "as in the trait")]
    fn create(parts: PreparedRegion) -> Result<Self, Box<RegisterError>> {
        Self::create(parts)
    }

    fn complete_event(&self, context: UserContext) -> Event {
        Event::MrComplete {
            context,
            region: self.erase(),
        }
    }

    fn region_key(&self) -> u64 {
        self.key()
    }
}

impl<B: IoBuf> RegionHandle for ReadOnlyRegion<B> {
    const ACCESS_MAX: Access = Access::READ_ONLY;
    const IS_WRITABLE: bool = false;

    #[allow(private_interfaces, reason = "as in the trait")]
    fn create(parts: PreparedRegion) -> Result<Self, Box<RegisterError>> {
        Self::create(parts)
    }

    fn complete_event(&self, context: UserContext) -> Event {
        Event::MrReadOnlyComplete {
            context,
            region: self.erase(),
        }
    }

    fn region_key(&self) -> u64 {
        self.key()
    }
}
