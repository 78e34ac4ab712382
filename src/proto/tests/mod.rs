//! The machine against itself: two of them, and a link in the test's hands.

mod close;
mod credit;
mod ends;
mod extension;
mod hostile;
mod liveness;
mod model;
mod pair;
mod refusal;
mod script;
