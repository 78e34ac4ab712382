//! A list of a cache's registrations in the order of their last use.

/// A collection whose members, found by their places, hold the links of the list.
pub(super) trait Linked {
    fn link(&mut self, place: usize) -> &mut Link;
}

/// A member's neighbours in the list.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Link {
    older: Option<usize>,
    newer: Option<usize>,
}

/// The two ends of the list; its links are in the members.
#[derive(Debug, Default)]
pub(super) struct Recency {
    oldest: Option<usize>,
    newest: Option<usize>,
}

impl Recency {
    pub(super) fn oldest(&self) -> Option<usize> {
        self.oldest
    }

    /// Adds a member that is not in the list, as the newest.
    pub(super) fn push(&mut self, members: &mut impl Linked, place: usize) {
        let older = self.newest.replace(place);
        *members.link(place) = Link { older, newer: None };
        match older {
            Some(older) => members.link(older).newer = Some(place),
            None => self.oldest = Some(place),
        }
    }

    /// Removes a member that is in the list.
    pub(super) fn remove(&mut self, members: &mut impl Linked, place: usize) {
        let link = std::mem::take(members.link(place));
        match link.older {
            Some(older) => members.link(older).newer = link.newer,
            None => self.oldest = link.newer,
        }
        match link.newer {
            Some(newer) => members.link(newer).older = link.older,
            None => self.newest = link.older,
        }
    }

    /// Makes a member that is in the list the newest.
    pub(super) fn touch(&mut self, members: &mut impl Linked, place: usize) {
        if self.newest != Some(place) {
            self.remove(members, place);
            self.push(members, place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Linked for Vec<Link> {
        fn link(&mut self, place: usize) -> &mut Link {
            &mut self[place]
        }
    }

    #[test]
    fn the_oldest_goes_first_whatever_was_taken_out() {
        let (mut recency, mut members) = (Recency::default(), vec![Link::default(); 5]);
        for place in 0..5 {
            recency.push(&mut members, place);
        }
        recency.remove(&mut members, 2);
        recency.touch(&mut members, 0);
        recency.touch(&mut members, 0);
        recency.touch(&mut members, 3);
        recency.remove(&mut members, 4);
        let mut order = Vec::new();
        while let Some(place) = recency.oldest() {
            recency.remove(&mut members, place);
            order.push(place);
        }
        assert_eq!(order, [1, 0, 3]);
    }
}
