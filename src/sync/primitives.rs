//! The primitives whose interleavings the models explore (docs/deep.md): the standard library's, or
//! loom's where `cfg(loom)` is set, as the package `models` sets it. Code that no model runs may
//! take the standard library's as they are.

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

/// loom's macro knows no `const` initial values.
#[cfg(loom)]
macro_rules! local {
    ($(#[$meta:meta])* $vis:vis static $name:ident: $type:ty = const $init:block;) => {
        loom::thread_local! { $(#[$meta])* $vis static $name: $type = $init; }
    };
}
#[cfg(loom)]
pub(crate) use local as thread_local;
