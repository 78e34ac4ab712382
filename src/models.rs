//! What the package `models` runs: every order that threads can take through what they share
//! (docs/deep.md).

#![forbid(unsafe_code)]

use crate::sync::model::Model;
use crate::{mr, progress, sync};

/// All models.
pub fn all() -> impl Iterator<Item = Model> {
    sync::models().chain(mr::models()).chain(progress::models())
}
