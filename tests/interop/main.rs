//! Interoperation with libfabric's providers.

mod auth;
mod bytes;
#[path = "../common/mod.rs"]
mod common;
mod company;
mod controls;
mod harness;
mod msg;
mod ours;
mod pingpong;
mod plain;
mod proxy;
mod rdm;
mod stage;
