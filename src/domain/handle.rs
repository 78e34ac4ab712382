//! The two kinds of region that a registration can give.

use crate::buf::{IoBuf, RegionContents};
use crate::eq::Event;
use crate::id::UserContext;
use crate::mr::{
    Access, FreshRegion, KEY_NOT_AVAILABLE, MemoryRegion, NewRegion, NotMade, ReadOnlyRegion,
};

/// A region's handle: [`MemoryRegion`] or [`ReadOnlyRegion`]. Sealed.
pub trait RegionHandle: Clone + Send + Sized + 'static {
    /// All the rights that such a region can grant.
    #[doc(hidden)]
    const ACCESS_MAX: Access;

    /// Its bytes may be written to.
    #[doc(hidden)]
    const IS_WRITABLE: bool;

    #[doc(hidden)]
    #[allow(private_interfaces, reason = "the trait is sealed by this")]
    fn create(parts: NewRegion) -> Result<Self, NotMade>;

    /// What tells of its registration.
    #[doc(hidden)]
    fn told(&self, context: UserContext) -> Event;

    #[doc(hidden)]
    fn region_key(&self) -> u64;
}

/// What a job makes: a region's handle, or what a cache makes its own of. Of the latter no event
/// tells.
pub(super) trait Made: Send + Sized + 'static {
    fn make(parts: NewRegion) -> Result<Self, NotMade>;
    fn event(&self, context: UserContext) -> Option<Event>;
    fn key_made(&self) -> u64;
}

impl<R: RegionHandle> Made for R {
    #[inline]
    fn make(parts: NewRegion) -> Result<Self, NotMade> {
        R::create(parts)
    }

    fn event(&self, context: UserContext) -> Option<Event> {
        Some(self.told(context))
    }

    fn key_made(&self) -> u64 {
        self.region_key()
    }
}

impl Made for FreshRegion {
    #[inline]
    fn make(parts: NewRegion) -> Result<Self, NotMade> {
        FreshRegion::create(parts)
    }

    fn event(&self, _context: UserContext) -> Option<Event> {
        None
    }

    fn key_made(&self) -> u64 {
        KEY_NOT_AVAILABLE
    }
}

impl<B: RegionContents> RegionHandle for MemoryRegion<B> {
    const ACCESS_MAX: Access = Access::all();
    const IS_WRITABLE: bool = true;

    #[inline]
    #[allow(private_interfaces, reason = "as in the trait")]
    fn create(parts: NewRegion) -> Result<Self, NotMade> {
        Self::create(parts)
    }

    fn told(&self, context: UserContext) -> Event {
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

    #[inline]
    #[allow(private_interfaces, reason = "as in the trait")]
    fn create(parts: NewRegion) -> Result<Self, NotMade> {
        Self::create(parts)
    }

    fn told(&self, context: UserContext) -> Event {
        Event::MrReadOnlyComplete {
            context,
            region: self.erase(),
        }
    }

    fn region_key(&self) -> u64 {
        self.key()
    }
}
