//! Campaigns: short here, long with `TOKIO_FABRIC_DEEP=1` (`docs/deep.md`).

#[path = "../common/mod.rs"]
mod common;
mod guarded;
#[path = "../interop/harness.rs"]
mod harness;
mod kill_matrix;
mod kill_matrix_rdm;
mod ledger;
mod panics;
mod revoke;
mod simulation;
