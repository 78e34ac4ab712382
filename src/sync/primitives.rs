//! The primitives whose interleavings the models explore (docs/deep.md): the standard library's, or
//! loom's if `cfg(loom)` is set, as the package `models` does. Code that no model runs may use the
//! standard library's directly.

#[cfg(not(loom))]
pub(crate) use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    sync::{Mutex, MutexGuard},
    thread_local,
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

#[cfg(loom)]
pub(crate) use loom::{cell::UnsafeCell, hint::spin_loop};
#[cfg(not(loom))]
pub(crate) use std::hint::spin_loop;

/// A cell with the interface of loom's.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    #[inline]
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    #[inline]
    pub(crate) fn with_mut<R>(&self, change: impl FnOnce(*mut T) -> R) -> R {
        change(self.0.get())
    }
}

/// loom's macro knows no `const` initial values.
#[cfg(loom)]
macro_rules! local {
    ($(#[$meta:meta])* $vis:vis static $name:ident: $type:ty = const $init:block;) => {
        loom::thread_local! { $(#[$meta])* $vis static $name: $type = $init; }
    };
}
#[cfg(loom)]
pub(crate) use local as thread_local;
