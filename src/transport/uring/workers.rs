//! Whether so many connections are at work for a while that it is worth moving their receives into
//! the ring: a move costs some system calls.
//!
//! Drives that brought bytes are counted in epochs, and so are the connections that had any in one:
//! on a runtime of several threads a drive may see few of many.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// Those at work; told by links, on whichever thread.
#[derive(Default)]
pub(super) struct Workers {
    epoch: AtomicU32,
    /// Connections at work in this epoch.
    count: AtomicUsize,
    /// Some have been since the last drive.
    any: AtomicBool,
    /// There are many.
    many: AtomicBool,
}

/// The time of [`Workers`], which the driver keeps.
#[derive(Default)]
pub(super) struct Epoch {
    drives: u8,
    patience: u8,
}

/// Drives of an epoch.
const EPOCH: u8 = 32;
/// Connections at work within an epoch that are many, and those that are few.
const MANY: usize = 12;
const FEW: usize = 6;
/// More than the ring has buffers for: their bytes would have to be copied out of the way. Measured
/// on loopback: 1,024 connections cost a fifth more in the ring than in the reactor, 9,900 two
/// fifths.
const TOO_MANY: usize = LINKS_MAX + LINKS_MAX / 4;
/// Links that come into the ring of a runtime.
pub(super) const LINKS_MAX: usize = 256;
/// Epochs in a row with few, after which there are not many any more.
const EPOCHS_OF_PATIENCE: u8 = 2;

impl Workers {
    /// Bytes of a connection have come that was at work in epoch `last` before.
    pub(super) fn is_at_work(&self, last: &mut u32) {
        let epoch = self.epoch.load(Ordering::Relaxed);
        if *last != epoch {
            *last = epoch;
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        self.any.store(true, Ordering::Relaxed);
    }

    /// True while there are many.
    pub(super) fn are_many(&self) -> bool {
        self.many.load(Ordering::Relaxed)
    }

    /// A drive begins.
    pub(super) fn count_drive(&self, epoch: &mut Epoch) {
        if !self.any.swap(false, Ordering::Relaxed) {
            return;
        }
        epoch.drives += 1;
        if epoch.drives < EPOCH {
            return;
        }
        epoch.drives = 0;
        self.epoch.fetch_add(1, Ordering::Relaxed);
        match self.count.swap(0, Ordering::Relaxed) {
            MANY..TOO_MANY => epoch.patience = EPOCHS_OF_PATIENCE,
            ..FEW | TOO_MANY.. => epoch.patience = epoch.patience.saturating_sub(1),
            _ => {}
        }
        self.many.store(epoch.patience > 0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An epoch in which so many links are at work, seen by drives in equal parts.
    fn pass(workers: &Workers, time: &mut Epoch, links: &mut [u32]) {
        let part = links.len().div_ceil(usize::from(EPOCH));
        for at in 0..usize::from(EPOCH) {
            let parts = links.len().div_ceil(part);
            for link in links.chunks_mut(part).nth(at % parts).into_iter().flatten() {
                workers.is_at_work(link);
            }
            workers.count_drive(time);
        }
    }

    /// Few for a while are no reason to move back, nor are drives that brought nothing.
    #[test]
    fn many_are_told_from_few_in_time() {
        let (workers, mut time) = (Workers::default(), Epoch::default());
        let mut links = [u32::MAX; MANY];
        pass(&workers, &mut time, &mut links[1..]);
        assert!(!workers.are_many());
        pass(&workers, &mut time, &mut links);
        assert!(workers.are_many());
        for _ in 0..1000 {
            workers.count_drive(&mut time);
        }
        pass(&workers, &mut time, &mut links[..1]);
        assert!(workers.are_many());
        for _ in 1..EPOCHS_OF_PATIENCE {
            pass(&workers, &mut time, &mut links[..1]);
        }
        assert!(!workers.are_many());
    }

    /// Those for whom the ring has no room are better off elsewhere, all of them.
    #[test]
    fn there_may_be_too_many() {
        let (workers, mut time) = (Workers::default(), Epoch::default());
        let mut links = vec![u32::MAX; TOO_MANY];
        pass(&workers, &mut time, &mut links);
        assert!(!workers.are_many());
        pass(&workers, &mut time, &mut links[1..]);
        assert!(workers.are_many());
    }
}
