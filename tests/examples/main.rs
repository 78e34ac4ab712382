//! The examples, run as their users run them: as programs of their own.

#[path = "../common/mod.rs"]
mod common;
mod info;
mod rdm_all_to_all;
mod rpc_bulk;
mod top;
