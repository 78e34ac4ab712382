//! Memory regions: registration, access, keys, the registration cache.

mod access;
mod bindings;
mod cache;
mod cache_allocators;
mod cache_environment;
mod cache_ranges;
mod closing;
#[path = "../common/mod.rs"]
mod common;
mod hmem;
mod multi_recv;
mod persistence;
mod pinning;
mod ranges;
mod raw_keys;
mod refresh;
mod region_results;
mod register;
mod register_scale;
mod registration_stall;
mod shared_windows;
