//! The models that the package `models` runs: they explore every order in which threads can access
//! the state that they share (docs/deep.md).

#![forbid(unsafe_code)]

use crate::sync::model::Model;
use crate::{mr, progress, sync};

/// All models.
pub fn all() -> impl Iterator<Item = Model> {
    sync::models().chain(mr::models()).chain(progress::models())
}
