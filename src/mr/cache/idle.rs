//! The registrations that nobody uses, in the order in which they were last used.

/// What a list of this kind links: the members' places.
pub(super) trait Linked {
    fn link(&mut self, place: usize) -> &mut Link;
}

/// A member's place in the list.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Link {
    is_in: bool,
    older: Option<usize>,
    newer: Option<usize>,
}

impl Link {
    pub(super) fn is_in(&self) -> bool {
        self.is_in
    }
}

/// The two ends of the list; its links are in the members.
#[derive(Debug, Default)]
pub(super) struct Idle {
    oldest: Option<usize>,
    newest: Option<usize>,
}

impl Idle {
    pub(super) fn oldest(&self) -> Option<usize> {
        self.oldest
    }

    /// Puts one at the newest end that is not in the list.
    pub(super) fn push(&mut self, members: &mut impl Linked, place: usize) {
        let older = self.newest.replace(place);
        *members.link(place) = Link {
            is_in: true,
            older,
            newer: None,
        };
        match older {
            Some(older) => members.link(older).newer = Some(place),
            None => self.oldest = Some(place),
        }
    }

    /// Takes one out; says whether it was in.
    pub(super) fn remove(&mut self, members: &mut impl Linked, place: usize) -> bool {
        let link = std::mem::take(members.link(place));
        if !link.is_in {
            return false;
        }
        match link.older {
            Some(older) => members.link(older).newer = link.newer,
            None => self.oldest = link.newer,
        }
        match link.newer {
            Some(newer) => members.link(newer).older = link.older,
            None => self.newest = link.older,
        }
        true
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
        let (mut idle, mut members) = (Idle::default(), vec![Link::default(); 5]);
        for place in 0..5 {
            idle.push(&mut members, place);
        }
        assert!(idle.remove(&mut members, 2));
        assert!(!idle.remove(&mut members, 2));
        assert!(idle.remove(&mut members, 0));
        idle.push(&mut members, 0);
        assert!(idle.remove(&mut members, 4));
        let mut order = Vec::new();
        while let Some(place) = idle.oldest() {
            assert!(idle.remove(&mut members, place));
            order.push(place);
        }
        assert_eq!(order, [1, 3, 0]);
    }
}
