//! Interoperation with libfabric's connectionless endpoints: the provider `net` of 1.16 and 1.17,
//! whose protocol the provider `tcp` speaks from 1.18 on.

mod lives;
mod memory;
mod messages;
mod rxm;
mod session;
mod watched;

use crate::common::on_sockets_at_once;
use crate::harness::{PATIENCE, PingPong, PingPongKind, fi_pingpong, free_port};
use crate::pingpong::{Example, assert_table};
use session::{Role, Session, play, rdm_peer, start_c_at};
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
    let backends = crate::common::backends().into_iter();
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

/// Over IPv6 (`-6`) the C program meets a connectionless endpoint of ours too.
#[test]
fn fi_pingpong_is_served_over_ipv6() {
    let Some(c) = fi_pingpong().or_left_out("fi_pingpong over IPv6") else {
        return;
    };
    let options = PingPong {
        kind: PingPongKind::Rdm,
        size: "64".into(),
        ..PingPong::default()
    };
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return crate::common::left_out("fi_pingpong over IPv6, which this machine has not");
    }
    let (ours, port) = Example::get().server_with(&options, &["-6"]);
    let client = c.client_with(
        &options,
        &["-6"],
        (std::net::Ipv6Addr::LOCALHOST, port).into(),
    );
    client.finish(PATIENCE).assert_success();
    ours.finish(PATIENCE).assert_success();
}

/// Plays a scenario over both socket backends.
fn on_sockets(scenario: &str, role: Role, script: impl AsyncFn(&Session) + Sync) {
    on_sockets_at_once(|net| play(net, scenario, role, &script));
}

/// fi_msg(3): "transfers the set of data buffers referenced by the iov parameter to a remote
/// endpoint as a single message": plain, vectored, injected, with remote CQ data, delivery
/// complete, from nothing to 1 MiB, both ways. We initiate.
#[test]
fn messages_to_c() {
    on_sockets("messages", Role::Initiator, messages::messages);
}

/// fi_msg(3): "transfers the set of data buffers referenced by the iov parameter to a remote
/// endpoint as a single message": plain, vectored, injected, with remote CQ data, delivery
/// complete, from nothing to 1 MiB, both ways. C initiates.
#[test]
fn messages_from_c() {
    on_sockets("messages", Role::Target, messages::messages);
}

/// fi_tagged(3): "The ignore parameter is a bit mask applied to all tagged messages": exact tags,
/// masks, receives of one peer, both ways. We initiate.
#[test]
fn tagged_to_c() {
    on_sockets("tagged", Role::Initiator, messages::tagged);
}

/// fi_tagged(3): "The ignore parameter is a bit mask applied to all tagged messages": exact tags,
/// masks, receives of one peer, both ways. C initiates.
#[test]
fn tagged_from_c() {
    on_sockets("tagged", Role::Target, messages::tagged);
}

/// Tagged messages that come before their receives, more than `net` keeps of one peer: it stops
/// reading, and nothing is lost.
#[test]
fn unexpected_to_c() {
    on_sockets("unexpected", Role::Initiator, messages::unexpected);
}

/// Tagged messages of a C peer that come before their receives, more than the budget of one peer:
/// nothing is lost.
#[test]
fn unexpected_from_c() {
    on_sockets("unexpected", Role::Target, messages::unexpected);
}

/// fi_msg(3): "Posted receives are searched in the order in which they were posted in order to
/// match sends": a thousand messages each way at the same time, every other tagged. We initiate.
#[test]
fn many_to_c() {
    on_sockets("many", Role::Initiator, messages::many);
}

/// fi_msg(3): "Posted receives are searched in the order in which they were posted in order to
/// match sends": a thousand messages each way at the same time, every other tagged. C initiates.
#[test]
fn many_from_c() {
    on_sockets("many", Role::Target, messages::many);
}

/// fi_msg(3): "This flag allows the user to post a single buffer that will receive multiple
/// incoming messages": C's buffers take ours.
#[test]
fn multi_to_c() {
    on_sockets("multi", Role::Initiator, messages::multi);
}

/// fi_msg(3): "This flag allows the user to post a single buffer that will receive multiple
/// incoming messages": our buffers take C's.
#[test]
fn multi_from_c() {
    on_sockets("multi", Role::Target, messages::multi);
}

/// fi_rma(3): "used to transmit data into a remote memory buffer", "used to transfer data from a
/// remote memory region into local data buffer(s)": writes, with remote CQ data too, and reads of
/// C's memory.
#[test]
fn rma_to_c() {
    on_sockets("rma", Role::Initiator, memory::rma);
}

/// fi_rma(3): "used to transmit data into a remote memory buffer", "used to transfer data from a
/// remote memory region into local data buffer(s)": C's writes, with remote CQ data too, and reads
/// of our memory.
#[test]
fn rma_from_c() {
    on_sockets("rma", Role::Target, memory::rma);
}

/// docs/extension.md: "A C peer never sees it: what a C peer receives is libfabric's protocol": we
/// dial, and every byte is libfabric's protocol but what is behind the private data's first eight.
#[test]
fn c_that_is_dialled_gets_an_offer_and_no_more() {
    on_sockets_at_once(|net| watched::all(net, Role::Initiator));
}

/// docs/extension.md: "A C peer never sees it: what a C peer receives is libfabric's protocol": C
/// dials, and is answered with eight bytes of private data and libfabric's frames.
#[test]
fn c_that_dials_sees_nothing_of_the_extension() {
    on_sockets_at_once(|net| watched::all(net, Role::Target));
}

/// The reading of captured bytes would find the extension: between two of its peers it does.
#[test]
fn the_reading_of_captures_finds_the_extension() {
    on_sockets_at_once(watched::the_reading_finds_the_extension);
}

/// Both ends send first, at once: one connection, and nothing lost.
#[test]
fn c_and_we_connect_at_once() {
    on_sockets_at_once(lives::tie);
}

/// A C peer that is killed and comes back at its address is found there, or comes by itself.
#[test]
fn c_comes_back_as_another_process() {
    on_sockets_at_once(lives::c_comes_back);
}

/// A C peer that goes on takes our next life for what it is.
#[test]
fn we_come_back_as_another_incarnation() {
    on_sockets_at_once(lives::we_come_back);
}

/// fi_endpoint(3), connectionless endpoints: a connection that we have ended is made anew by the
/// next message, from either side.
#[test]
fn we_disconnect_and_meet_again() {
    on_sockets_at_once(lives::we_disconnect);
}

/// docs/extension.md, section 8: "peers without contexts are reached from context 0, and reach
/// context 0", and another context that tries does not disturb them.
#[test]
fn c_knows_context_0_alone() {
    on_sockets_at_once(lives::c_knows_one_context);
}

/// fi_av(3): a peer that is gone is out of reach: what was posted to it ends, receives stay.
#[test]
fn c_is_killed() {
    on_sockets_at_once(lives::c_dies);
}

/// docs/extension.md: an RXM request "is rejected with the two bytes 01 01", as often as it comes,
/// and peers that speak the protocol are served meanwhile.
#[test]
fn rxm_is_rejected_in_its_own_words() {
    on_sockets_at_once(rxm::is_rejected);
}

/// The control: the C program against itself. When this passes and a test against our endpoints
/// fails, the fault is ours.
#[test]
fn the_c_peer_agrees_with_itself() {
    let Some(program) = rdm_peer().or_left_out("the_c_peer_agrees_with_itself") else {
        return;
    };
    for scenario in ["messages", "tagged", "unexpected", "many", "multi", "rma"] {
        let [one, other] = [free_port(), free_port()];
        let at = |port| ([127, 0, 0, 1], port).into();
        let mut target = start_c_at(program, scenario, Role::Initiator, at(other), Some(one));
        target.wait_for_line("PORT ", PATIENCE);
        let initiator = start_c_at(program, scenario, Role::Target, at(one), Some(other));
        initiator.finish(PATIENCE).assert_ok();
        target.finish(PATIENCE).assert_ok();
    }
}
