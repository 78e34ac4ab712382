//! The regions behind the parts of a payload.

use std::ptr;
use std::sync::Arc;

use super::access_error::AccessError;
use super::memory::{Memory, RegionUse};
use super::payload::Payload;
use super::region::RegionMemory;
use crate::error::Error;
use crate::sync::WakeList;

impl Payload {
    /// The regions that the payload's parts belong to.
    pub(crate) fn regions(&self) -> impl Iterator<Item = &RegionMemory> {
        self.parts().iter().filter_map(|part| match part {
            Memory::Region(region) => Some(&**region.memory()),
            Memory::Owned(_) => None,
        })
    }

    /// Makes the bytes that a peer has written to these regions persistent. Blocks for as long as
    /// the device takes.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        let _leases =
            (self.lease()).map_err(|it| AccessError::from(it).error("it was made persistent"))?;
        for part in self.parts() {
            if let Memory::Region(region) = part {
                let flushed = region.memory().flush(region.offset(), region.len());
                flushed.map_err(|error| Error::from_io(&error, "making a write persistent"))?;
            }
        }
        Ok(())
    }

    /// Checks that the memory of its regions can be read: [`RegionUse::probe`].
    pub(crate) fn probe(&self) -> Result<(), AccessError> {
        self.parts().iter().try_for_each(|it| match it {
            Memory::Region(region) => region.probe(false),
            Memory::Owned(_) => Ok(()),
        })
    }

    /// Returns empty ranges of the regions that have a counter, so that a later access can be
    /// counted.
    pub(crate) fn counting_regions(&self) -> Payload {
        let counting = |part: &Memory| match part {
            Memory::Region(it) if it.memory().attached().has_counter() => {
                Some(RegionUse::remote(Arc::clone(it.memory()), 0, 0))
            }
            _ => None,
        };
        let parts = self.parts().iter();
        Payload::from_region_uses(parts.filter_map(counting).collect())
    }

    /// Counts a peer's access that needed this right in the counters of each region, once per
    /// region.
    pub(crate) fn count_access(&self, right: u64, wakes: &mut WakeList) {
        for (at, memory) in self.regions().enumerate() {
            let seen = self.regions().take(at).any(|it| ptr::eq(it, memory));
            if !seen {
                memory.attached().count(right, wakes);
            }
        }
    }
}
