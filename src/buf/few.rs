//! None, one, or several of something, in order.

/// None, one, or several, in order. One, the usual case, needs no allocation: completions are made
/// where nothing may fail.
#[derive(Debug)]
pub(crate) enum Few<T> {
    None,
    One(T),
    Many(std::vec::IntoIter<T>),
}

impl<T> Few<T> {
    pub(crate) fn take_first(&mut self) -> Option<T> {
        match std::mem::replace(self, Few::None) {
            Few::None => None,
            Few::One(item) => Some(item),
            Few::Many(mut items) => {
                let first = items.next();
                *self = Few::Many(items);
                first
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Few::None => 0,
            Few::One(_) => 1,
            Few::Many(items) => items.len(),
        }
    }
}

impl<T> From<Vec<T>> for Few<T> {
    fn from(mut items: Vec<T>) -> Self {
        match items.len() {
            0 => Few::None,
            1 => items.pop().map_or(Few::None, Few::One),
            _ => Few::Many(items.into_iter()),
        }
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
    }
}
