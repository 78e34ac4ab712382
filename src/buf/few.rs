//! One or several, where one is the usual case and takes no allocation.

use std::ops::Deref;

#[derive(Debug)]
pub(crate) enum Few<T> {
    One([T; 1]),
    Many(Vec<T>),
}

impl<T> Few<T> {
    #[inline]
    pub(crate) fn one(value: T) -> Self {
        Few::One([value])
    }

    /// None of something; it takes no allocation either.
    pub(crate) fn none() -> Self {
        Few::Many(Vec::new())
    }

    #[inline]
    pub(crate) fn into_vec(self) -> Vec<T> {
        match self {
            Few::One(one) => one.into(),
            Few::Many(many) => many,
        }
    }

    /// The one, if there is exactly one.
    #[inline]
    pub(crate) fn into_one(self) -> Option<T> {
        match self {
            Few::One([one]) => Some(one),
            Few::Many(mut many) if many.len() == 1 => many.pop(),
            Few::Many(_) => None,
        }
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match self {
            Few::One(one) => one,
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
