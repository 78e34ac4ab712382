//! The machine against itself.
