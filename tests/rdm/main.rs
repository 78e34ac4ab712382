//! Connectionless endpoints: address vectors, datagrams, reliable messages, tagged messages.

mod addresses;
mod any_length;
mod auth;
mod auth_keys;
mod av;
mod av_events;
mod av_shared;
mod binding;
mod capabilities;
#[path = "../common/mod.rs"]
mod common;
mod contexts;
mod dgram;
mod dgram_multicast;
mod endpoint;
mod flood;
mod match_complete;
mod multi_recv;
mod peers;
mod rendezvous;
mod rma;
mod shared_receives;
mod tagged;
mod tagged_regions;
