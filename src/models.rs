//! What the package `models` runs: every order that threads can take through what they share
//! (docs/deep.md).

#![forbid(unsafe_code)]

use crate::sync;
use crate::sync::model::Model;

/// All models.
pub fn all() -> impl Iterator<Item = Model> {
    sync::models()
}
