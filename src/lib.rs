//! libfabric's model for Tokio.
mod buf;
mod cntr;
mod cq;
mod eq;
mod error;
mod id;
mod info;
mod limits;
mod mr;
mod sync;
mod transport;
mod wire;
