//! Keeping the pages of regions in memory (`mlock`), within `RLIMIT_MEMLOCK`.
//!
//! For the system a page is locked or not; it does not count the requests. So this module records
//! the pages that all regions of the process have pinned, and unlocks a page when the last region
//! with a byte of it has gone. Pages that a program locks by itself are not known here.

use std::fmt;
use std::io;
use std::ops::Range;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::mm::{mlock, munlock};
use rustix::process::{Resource, getrlimit};

use super::pages::{pages_of, without};
use super::range;
use super::span::Span;
use crate::error::{Error, ErrorKind, Result};

/// The pages that all regions of the process have pinned.
static PINNED: Mutex<Vec<Range<usize>>> = Mutex::new(Vec::new());

fn pinned() -> MutexGuard<'static, Vec<Range<usize>>> {
    PINNED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pages of some ranges, to be pinned part by part, and unpinned together by the drop.
///
/// Its owner keeps the memory allocated, and drops this before it gives the memory away or frees
/// it.
pub(super) struct Pins {
    ranges: Vec<Range<usize>>,
}

impl Pins {
    pub(super) fn new(ranges: impl Iterator<Item = Range<usize>>) -> Self {
        let ranges: Vec<_> = ranges.map(|range| pages_of(&range)).collect();
        pinned().extend(ranges.iter().cloned());
        Pins { ranges }
    }

    /// Brings the pages of a part into memory and keeps them there. Blocks for as long as that
    /// takes.
    pub(super) fn pin(&self, part: Span) -> Result<()> {
        let pages = pages_of(&part.addresses());
        let start = ptr::without_provenance_mut(pages.start);
        loop {
            // SAFETY: locking changes neither a byte nor a right of any page, whatever the range.
            match unsafe { mlock(start, pages.len()) } {
                Ok(()) => return Ok(()),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(refusal(error, part, &pages)),
            }
        }
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let mut all = pinned();
        for range in &self.ranges {
            let own = all.iter().position(|it| it == range);
            all.swap_remove(own.expect("it was entered when it was made"));
        }
        for range in &self.ranges {
            for part in without(range, &all) {
                let start = ptr::without_provenance_mut(part.start);
                // SAFETY: unlocking changes neither a byte nor a right of any page. Pages that are
                // not there any more are an error that changes nothing.
                let _ = unsafe { munlock(start, part.len()) };
            }
        }
    }
}

/// Returns the error of a failed `mlock`. The kernel answers ENOMEM also for pages without access
/// rights: it has locked and counts those nevertheless, and the limit is not the reason.
fn refusal(error: Errno, part: Span, pages: &Range<usize>) -> Error {
    let is_there = || range::populate(part, false).is_ok() && are_mapped(pages);
    if error == Errno::NOMEM && !is_there() {
        let error = io::Error::from_raw_os_error(libc::EFAULT);
        return Error::from_io(&error, "pinning the pages of a region");
    }
    let limit = getrlimit(Resource::Memlock).current.unwrap_or(u64::MAX);
    let (len, taken) = (pages.len(), locked_bytes());
    if error == Errno::PERM || error == Errno::NOMEM && taken.saturating_add(len as u64) > limit {
        let message = format!(
            "pinning {len} bytes: RLIMIT_MEMLOCK allows this process {limit}, of which {taken} are \
             taken"
        );
        return Error::new(ErrorKind::LimitReached, message);
    }
    Error::from_io(&error.into(), "pinning the pages of a region")
}

/// Returns whether all of these pages are mapped.
fn are_mapped(pages: &Range<usize>) -> bool {
    let mut present = vec![0u8; pages.len().div_ceil(rustix::param::page_size())];
    let start = ptr::without_provenance_mut(pages.start);
    // SAFETY: the kernel only looks, and writes a byte per page into the vector, which has them.
    unsafe { libc::mincore(start, pages.len(), present.as_mut_ptr()) == 0 }
}

/// Returns the bytes that the system counts against the limit now.
fn locked_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("VmLck:"));
    let number = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    number.unwrap_or(0) << 10
}

impl fmt::Debug for Pins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pins({} ranges)", self.ranges.len())
    }
}
