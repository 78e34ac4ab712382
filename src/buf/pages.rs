//! Arithmetic of pages.

use std::ops::Range;

/// Returns the whole pages in which a range has bytes.
pub(super) fn pages_of(range: &Range<usize>) -> Range<usize> {
    let page = rustix::param::page_size();
    let start = range.start - range.start % page;
    // The last page of the address space is never mapped.
    let end = range.end.checked_next_multiple_of(page);
    start..end.unwrap_or(usize::MAX - page + 1).max(start)
}

/// Returns the parts of a range that lie in none of the others.
pub(super) fn without(range: &Range<usize>, others: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut left = vec![range.clone()];
    let overlaps = |other: &&Range<usize>| other.start < range.end && range.start < other.end;
    for other in others.iter().filter(overlaps) {
        let cut = |part: Range<usize>| {
            let before = part.start..part.end.min(other.start);
            let after = part.start.max(other.end)..part.end;
            [before, after].into_iter().filter(|it| !it.is_empty())
        };
        left = left.into_iter().flat_map(cut).collect();
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_others_too_is_left_out() {
        let range = 10..20;
        let same = std::slice::from_ref(&range);
        assert_eq!(without(&range, &[]), same);
        assert_eq!(without(&range, &[0..12, 15..16]), [12..15, 16..20]);
        assert_eq!(without(&range, same), [0..0; 0]);
        assert_eq!(without(&range, &[20..30, 0..10]), same);
    }
}
