//! None, one, or several of something, in order.

use std::ops::Deref;

/// None, one, or several, in order. One, the usual case, needs no allocation: completions are made
/// where nothing may fail.
#[derive(Debug)]
pub enum Few<T> {
    None,
    One(T),
    Many(Vec<T>),
}

impl<T> Few<T> {
    #[inline]
    pub(crate) fn into_vec(self) -> Vec<T> {
        match self {
            Few::None => Vec::new(),
            Few::One(one) => vec![one],
            Few::Many(many) => many,
        }
    }

    /// The one, if there is exactly one.
    #[inline]
    pub(crate) fn into_one(self) -> Option<T> {
        match self {
            Few::One(one) => Some(one),
            Few::Many(mut many) if many.len() == 1 => many.pop(),
            Few::None | Few::Many(_) => None,
        }
    }

    /// Takes the first out; of what an operation has, which is few indeed.
    pub(crate) fn take_first(&mut self) -> Option<T> {
        match self {
            Few::Many(many) if many.is_empty() => None,
            Few::Many(many) => Some(many.remove(0)),
            Few::None | Few::One(_) => std::mem::replace(self, Few::None).into_one(),
        }
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match self {
            Few::None => &[],
            Few::One(one) => std::slice::from_ref(one),
            Few::Many(many) => many,
        }
    }
}

impl<T> From<Vec<T>> for Few<T> {
    #[inline]
    fn from(many: Vec<T>) -> Self {
        Few::Many(many)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "Same types back, exact same order": a vectored operation's buffers come as they were given.
    #[test]
    fn buffers_come_back_in_the_order_given() {
        for count in 0..5 {
            let mut few = Few::from((0..count).collect::<Vec<_>>());
            for expected in 0..count {
                assert_eq!(few.len(), count - expected);
                assert_eq!(few.take_first(), Some(expected));
            }
            assert_eq!((few.len(), few.take_first()), (0, None));
        }
        let mut one = Few::One(7);
        assert_eq!(
            (one.len(), one.take_first(), one.take_first()),
            (1, Some(7), None)
        );
    }
}
