//! The machine against itself: two of them, and a link in the test's hands.

mod acks;
mod answers;
mod atomic;
mod auth;
mod auth_peers;
mod before_connected;
mod close;
mod collected;
mod commit;
mod credit;
mod dgram;
mod ends;
mod extension;
mod fence;
mod hostile;
mod hostile_peers;
mod inbox;
mod injected;
mod liveness;
mod model;
mod pair;
mod paused;
mod receives;
mod refusal;
mod rendezvous;
mod script;
mod shared_connected;
mod shared_model;
mod side;
mod states;
mod withdraw;

pub(crate) use model::depth;
pub(crate) use side::Rng;
