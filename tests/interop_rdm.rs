//! Interoperation with libfabric's connectionless endpoints: the provider `net` of 1.16 and 1.17,
//! whose protocol the provider `tcp` speaks from 1.18 on.

mod common;
#[path = "interop/harness.rs"]
mod harness;
#[path = "interop/pingpong.rs"]
mod pingpong;

use harness::{PATIENCE, PingPong, PingPongKind, fi_pingpong};
use pingpong::{Example, assert_table};
use tokio_fabric::Backend;

/// All sizes, with checks. Fewer round trips than the program's own 10, unless there is time.
fn all_sizes(kind: PingPongKind) -> PingPong {
    let deep = std::env::var("TOKIO_FABRIC_DEEP").is_ok_and(|deep| deep != "0");
    PingPong {
        kind,
        iterations: (!deep).then_some(3),
        ..PingPong::default()
    }
}

/// On both socket backends, one after the other: the large sizes are work for two processors.
fn on_each_backend(play: impl Fn(&str)) {
    let backends = common::backends().into_iter();
    for backend in backends.filter(|backend| *backend != Backend::Loopback) {
        play(&backend.to_string());
    }
}

fn c_is_the_client(kind: PingPongKind) {
    let Some(c) = fi_pingpong().or_left_out("fi_pingpong as the client") else {
        return;
    };
    let options = all_sizes(kind);
    on_each_backend(|backend| {
        let (ours, port) = Example::get().server_with(&options, &["--backend", backend]);
        let client = c.client(&options, ([127, 0, 0, 1], port).into());
        client.finish(PATIENCE).assert_success();
        assert_table(&ours.finish(PATIENCE), &options);
    });
}

fn c_is_the_server(kind: PingPongKind) {
    let Some(c) = fi_pingpong().or_left_out("fi_pingpong as the server") else {
        return;
    };
    let options = all_sizes(kind);
    on_each_backend(|backend| {
        let server = c.server(&options);
        let ours = Example::get().client_with(&options, &["--backend", backend], server.port());
        assert_table(&ours.finish(PATIENCE), &options);
        server.finish(PATIENCE).assert_success();
    });
}

/// fi_pingpong(1): "Activate data integrity checks at the receiver": all its sizes as messages of
/// connectionless endpoints, with the C program as the client of our example.
#[test]
fn messages_of_fi_pingpong_are_served() {
    c_is_the_client(PingPongKind::Rdm);
}

/// fi_pingpong(1): "Activate data integrity checks at the receiver": all its sizes as messages of
/// connectionless endpoints, with our example as the client of the C program.
#[test]
fn fi_pingpong_serves_our_messages() {
    c_is_the_server(PingPongKind::Rdm);
}

/// fi_pingpong(1): "Activate data integrity checks at the receiver": all its sizes as tagged
/// messages, with the C program as the client of our example.
#[test]
fn tagged_messages_of_fi_pingpong_are_served() {
    c_is_the_client(PingPongKind::RdmTagged);
}

/// fi_pingpong(1): "Activate data integrity checks at the receiver": all its sizes as tagged
/// messages, with our example as the client of the C program.
#[test]
fn fi_pingpong_serves_our_tagged_messages() {
    c_is_the_server(PingPongKind::RdmTagged);
}
