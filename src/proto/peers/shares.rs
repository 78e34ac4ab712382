//! Tables that strangers can fill, shared fairly among the strangers' hosts. Every call costs the
//! logarithm of the number of entries.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

/// A table that strangers may fill. Of two entries, the one with the lower number is the older.
/// When there are too many entries, the oldest entry of the host with the most entries is evicted:
/// a host that adds many entries loses its own, and other hosts lose none.
#[derive(Debug)]
pub(crate) struct HostShares<Id, Host> {
    max: usize,
    len: usize,
    /// The entries of each host, oldest first.
    hosts: HashMap<Host, BTreeSet<Id>>,
    /// The hosts by their number of entries.
    by_count: BTreeSet<(usize, Host)>,
}

impl<Id: Copy + Ord, Host: Copy + Ord + Hash> HostShares<Id, Host> {
    pub(crate) fn new(max: usize) -> Self {
        HostShares {
            max,
            len: 0,
            hosts: HashMap::new(),
            by_count: BTreeSet::new(),
        }
    }

    /// Adds an entry that is not in the table; returns the entry that is evicted for it, if there
    /// are too many now.
    #[must_use]
    pub(crate) fn insert(&mut self, id: Id, host: Host) -> Option<Id> {
        self.add(id, host);
        (self.len > self.max).then(|| self.evict())?
    }

    /// Adds an entry that is not in the table, without a limit.
    pub(crate) fn add(&mut self, id: Id, host: Host) {
        let of_host = self.hosts.entry(host).or_default();
        let before = of_host.len();
        of_host.insert(id);
        self.len += 1;
        self.count_changed(host, before, before + 1);
    }

    /// Removes the oldest entry of the host with the most entries.
    pub(crate) fn evict(&mut self) -> Option<Id> {
        let &(_, host) = self.by_count.last()?;
        let oldest = *self.hosts.get(&host)?.first()?;
        self.remove(oldest, host);
        Some(oldest)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Removes an entry. False: the entry was not in the table.
    pub(crate) fn remove(&mut self, id: Id, host: Host) -> bool {
        let Some(of_host) = self.hosts.get_mut(&host) else {
            return false;
        };
        let was_there = of_host.remove(&id);
        if was_there {
            let after = of_host.len();
            if after == 0 {
                self.hosts.remove(&host);
            }
            self.len -= 1;
            self.count_changed(host, after + 1, after);
        }
        was_there
    }

    fn count_changed(&mut self, host: Host, before: usize, after: usize) {
        self.by_count.remove(&(before, host));
        if after > 0 {
            self.by_count.insert((after, host));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host with many entries loses its own, not those of others.
    #[test]
    fn the_host_with_the_most_entries_loses_its_oldest() {
        let mut shares = HostShares::new(4);
        assert_eq!(shares.insert(1, 'a'), None);
        for id in 2..5 {
            assert_eq!(shares.insert(id, 'b'), None);
        }
        assert_eq!(shares.insert(5, 'b'), Some(2));
        assert_eq!(shares.insert(6, 'c'), Some(3));
        shares.remove(1, 'a');
        shares.remove(1, 'a');
        assert_eq!(shares.insert(7, 'd'), None);
        assert_eq!(shares.len(), 4);
    }
}
