//! The ends of a connection's awaited copied messages, for their futures. Such a message is copied
//! when it is posted (`proto/conn/tx/injected.rs`). Messages end in the order of their numbers, so
//! one number says which have ended.
//!
//! ```text
//!   the port, as it publishes                   a future of number n
//!   1. failures enter the list                  1. a flag says that there are any: look there
//!   2. the mark moves                           2. n is below the mark: it has ended
//!   3. wakers below it leave the list           3. register, then look at 2 again, under the lock
//! ```
//! A failure is in the list before the mark passes its number, so that no future takes the failure
//! for a success. Both sides take step 3 under the list's lock: either the future sees the mark, or
//! the port sees the future's waker.

use std::task::{Poll, Waker};

use crate::error::{Error, Result};
use crate::proto::UnsentMessages;
use crate::sync::{AtomicU64, Lock, NO_TASK, Ordering, WakeList};

/// The ends of a connection's copied messages.
#[derive(Debug)]
pub(crate) struct SentMark {
    /// All messages with smaller numbers have ended. The highest bit is set if any have failed.
    mark: AtomicU64,
    /// Allocated for the first message that is awaited, or that fails.
    list: Lock<Option<Box<SentList>>>,
}

/// Bit of [`SentMark::mark`]: some messages have failed.
const HAS_UNSENT: u64 = 1 << 63;

#[derive(Debug, Default)]
struct SentList {
    unsent: Vec<UnsentMessages>,
    /// Wakers, sorted by the numbers of their messages.
    waiting: Vec<(u64, Waker)>,
}

impl Default for SentMark {
    fn default() -> Self {
        SentMark {
            mark: AtomicU64::new(0),
            list: Lock::new(None),
        }
    }
}

impl SentMark {
    /// Records that messages with numbers below `before` have ended, and that `unsent` ended
    /// without having been sent. Called under the port's lock.
    pub(super) fn advance(&self, before: u64, unsent: Vec<UnsentMessages>, wakes: &mut WakeList) {
        let mut list = self.list.lock("advance the mark");
        if list.is_none() && unsent.is_empty() {
            return self.mark.store(before, Ordering::Release);
        }
        let list = list.get_or_insert_default();
        list.unsent.extend(unsent);
        let SentList { unsent, waiting } = &mut **list;
        let flag = match unsent.is_empty() {
            true => 0,
            false => HAS_UNSENT,
        };
        self.mark.store(before | flag, Ordering::Release);
        // Cancelled messages end while earlier ones are still outstanding.
        let ends =
            |number: u64| number < before || unsent.iter().any(|it| it.numbers.contains(&number));
        if flag == 0 {
            let ended = waiting.partition_point(|(number, _)| *number < before);
            (waiting.drain(..ended)).for_each(|(_, waker)| wakes.push(waker));
        } else {
            let ended = waiting.extract_if(.., |(number, _)| ends(*number));
            ended.for_each(|(_, waker)| wakes.push(waker));
        }
    }

    /// Returns the result of the message with this number, if it has ended.
    #[inline]
    fn ended(&self, number: u64) -> Poll<Result<()>> {
        let mark = self.mark.load(Ordering::Acquire);
        if mark & HAS_UNSENT != 0 {
            return self.ended_or_failed(number);
        }
        match number < mark {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }

    #[cold]
    fn ended_or_failed(&self, number: u64) -> Poll<Result<()>> {
        let mut list = self.list.lock("look for a failure");
        let mark = self.mark.load(Ordering::Acquire);
        list.get_or_insert_default().ended(number, mark)
    }

    pub(crate) fn has_ended(&self, number: u64) -> bool {
        self.ended(number).is_ready()
    }

    /// Ready once the message of this number has ended.
    #[inline]
    pub(crate) fn poll(&self, number: u64, waker: &Waker) -> Poll<Result<()>> {
        match self.ended(number) {
            Poll::Pending => self.poll_waiting(number, waker),
            ended => ended,
        }
    }

    fn poll_waiting(&self, number: u64, waker: &Waker) -> Poll<Result<()>> {
        let stale; // Declared before the guard, and so dropped after it.
        let mut locked = self.list.lock("wait for the mark");
        let list = locked.get_or_insert_default();
        let ended = list.ended(number, self.mark.load(Ordering::Acquire));
        stale = match ended.is_ready() || waker.will_wake(NO_TASK) {
            true => list.forget(number),
            false => list.register(number, waker),
        };
        drop(locked);
        drop(stale);
        ended
    }

    /// Forgets the message of this number, whose future is dropped. Returns its waker, to be
    /// dropped with nothing locked.
    #[must_use = "it is dropped with nothing locked"]
    pub(super) fn forget(&self, number: u64) -> Option<Waker> {
        let mut list = self.list.lock("forget a message");
        let list = list.as_mut()?;
        let only = number..number + 1;
        list.unsent.retain(|it| it.numbers != only);
        list.forget(number)
    }
}

impl SentList {
    fn ended(&self, number: u64, mark: u64) -> Poll<Result<()>> {
        let failed = self.unsent.iter().find(|it| it.numbers.contains(&number));
        match failed {
            Some(failed) => Poll::Ready(Err(Error::clone(&failed.error))),
            None if number < mark & !HAS_UNSENT => Poll::Ready(Ok(())),
            None => Poll::Pending,
        }
    }

    fn place(&self, number: u64) -> std::result::Result<usize, usize> {
        (self.waiting).binary_search_by_key(&number, |(number, _)| *number)
    }

    /// Registers a waker; returns the one it replaces.
    fn register(&mut self, number: u64, waker: &Waker) -> Option<Waker> {
        match self.place(number) {
            Ok(at) if self.waiting[at].1.will_wake(waker) => None,
            Ok(at) => Some(std::mem::replace(&mut self.waiting[at].1, waker.clone())),
            Err(at) => {
                self.waiting.insert(at, (number, waker.clone()));
                None
            }
        }
    }

    fn forget(&mut self, number: u64) -> Option<Waker> {
        let at = self.place(number).ok()?;
        Some(self.waiting.remove(at).1)
    }
}

#[cfg(loom)]
pub(super) mod models;
#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn advance(mark: &SentMark, before: u64, unsent: Vec<UnsentMessages>) {
        mark.advance(before, unsent, &mut WakeList::new());
    }

    fn unsent(numbers: std::ops::Range<u64>, kind: ErrorKind) -> UnsentMessages {
        UnsentMessages {
            numbers,
            error: Error::new(kind, ""),
        }
    }

    fn kind_of(mark: &SentMark, number: u64) -> Poll<Option<ErrorKind>> {
        let ended = mark.poll(number, Waker::noop());
        ended.map(|ended| ended.err().map(|error| error.kind()))
    }

    /// Each message has one end: one that failed for one reason does not fail again for the next,
    /// nor succeed when the mark passes it.
    #[test]
    fn the_first_end_of_a_copied_message_counts() {
        let mark = SentMark::default();
        assert!(kind_of(&mark, 0).is_pending());
        advance(&mark, 2, Vec::new());
        assert_eq!(kind_of(&mark, 1), Poll::Ready(None));
        advance(&mark, 2, vec![unsent(3..4, ErrorKind::Canceled)]);
        assert!(kind_of(&mark, 2).is_pending());
        assert_eq!(kind_of(&mark, 3), Poll::Ready(Some(ErrorKind::Canceled)));
        let lost = vec![
            unsent(5..9, ErrorKind::NoReceive),
            unsent(4..9, ErrorKind::ConnectionReset),
        ];
        advance(&mark, 9, lost);
        let ends = (0..9).map(|number| match kind_of(&mark, number) {
            Poll::Ready(end) => end,
            Poll::Pending => panic!("{number} has not ended"),
        });
        use ErrorKind::{Canceled, ConnectionReset, NoReceive};
        let failed = [
            Canceled,
            ConnectionReset,
            NoReceive,
            NoReceive,
            NoReceive,
            NoReceive,
        ];
        let expected = [None; 3].into_iter().chain(failed.map(Some));
        assert!(ends.eq(expected));
    }

    /// A future that is dropped leaves neither its waker nor its own failure behind.
    #[test]
    fn a_dropped_future_of_a_copied_message_leaves_nothing() {
        let mark = SentMark::default();
        assert!(kind_of(&mark, 0).is_pending());
        assert!(mark.forget(0).is_some());
        advance(&mark, 0, vec![unsent(1..2, ErrorKind::Canceled)]);
        assert!(mark.forget(1).is_none());
        let list = mark.list.lock("test");
        let is_empty = |list: &SentList| list.waiting.is_empty() && list.unsent.is_empty();
        assert!(list.as_ref().is_some_and(|list| is_empty(list)));
    }
}
