//! The machine against itself: two of them, and a link in the test's hands.

mod acks;
mod auth;
mod close;
mod commit;
mod credit;
mod dgram;
mod ends;
mod extension;
mod hostile;
mod liveness;
mod model;
mod pair;
mod refusal;
mod script;
