//! Shared values that are written once, where they stay.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::sync::Arc;

/// An `Arc` of what `make` gives. `Arc::new` makes the value first and moves it when there is room,
/// and what has many small parts takes longer to be moved than to be made.
#[inline(always)]
pub(crate) fn arc<T>(make: impl FnOnce() -> T) -> Arc<T> {
    // Not `new_uninit`, which works the layout out each time.
    let room = Arc::new(MaybeUninit::<T>::uninit());
    let place = Arc::as_ptr(&room).cast_mut();
    // SAFETY: room for a `T` that nobody else knows of, so it may be written, and holds one then.
    // If `make` panics, only the room is freed.
    unsafe {
        place.cast::<T>().write(make());
        room.assume_init()
    }
}
