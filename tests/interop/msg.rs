//! Interoperation with libfabric's `tcp` provider: `examples/pingpong` with `fi_pingpong`, and our
//! endpoints with a C peer in the scenarios of `tests/interop/README.md`. Each scenario is played
//! with our end as the initiator and as the target, and each of these with either side listening.

mod refused;

use crate::harness::{PATIENCE, PingPong, PingPongKind, fi_pingpong};
use crate::ours::{connections, memory, messages, shared};
use crate::pingpong::{Example, assert_table};
use crate::stage::{initiate, serve, serve_alone};

/// fi_pingpong(1): "Activate data integrity checks at the receiver": all its sizes, with the C
/// program as the client of our example.
#[test]
fn fi_pingpong_is_served_by_our_example() {
    let Some(c) = fi_pingpong().or_left_out("fi_pingpong_is_served_by_our_example") else {
        return;
    };
    let options = PingPong::default();
    let (ours, port) = Example::get().server(&options);
    let client = c.client(&options, ([127, 0, 0, 1], port).into());
    client.finish(PATIENCE).assert_success();
    assert_table(&ours.finish(PATIENCE), &options);
}

/// fi_pingpong(1): "Activate data integrity checks at the receiver": all its sizes, with our
/// example as the client of the C program.
#[test]
fn our_example_is_served_by_fi_pingpong() {
    let Some(c) = fi_pingpong().or_left_out("our_example_is_served_by_fi_pingpong") else {
        return;
    };
    let options = PingPong::default();
    let server = c.server(&options);
    let client = Example::get().client(&options, server.port());
    assert_table(&client.finish(PATIENCE), &options);
    server.finish(PATIENCE).assert_success();
}

/// fi_pingpong(1): "one copy must be launched as the server. Second, another copy is launched with
/// the address of the server": our example with itself.
#[test]
fn our_example_agrees_with_itself() {
    let options = PingPong::default();
    let (server, port) = Example::get().server(&options);
    let client = Example::get().client(&options, port);
    assert_table(&client.finish(PATIENCE), &options);
    assert_table(&server.finish(PATIENCE), &options);
}

/// Datagrams, with checks.
fn datagrams() -> PingPong {
    PingPong {
        kind: PingPongKind::Datagrams,
        ..PingPong::default()
    }
}

/// On epoll, and on the best backend there is.
const BACKENDS: [&[&str]; 2] = [&["--backend", "epoll"], &[]];

/// fi_udp(7): "The provider supports standard unicast datagram transfers": all sizes that
/// fi_pingpong allows, with the C program as the client of our example.
#[test]
fn fi_pingpong_sends_datagrams_to_our_example() {
    let Some(c) = fi_pingpong().or_left_out("fi_pingpong_sends_datagrams_to_our_example") else {
        return;
    };
    let options = datagrams();
    for backend in BACKENDS {
        let (ours, port) = Example::get().server_with(&options, backend);
        let client = c.client(&options, ([127, 0, 0, 1], port).into());
        assert_table(&client.finish(PATIENCE), &options);
        assert_table(&ours.finish(PATIENCE), &options);
    }
}

/// fi_udp(7): "The provider supports standard unicast datagram transfers": all sizes that
/// fi_pingpong allows, with our example as the client of the C program.
#[test]
fn our_example_sends_datagrams_to_fi_pingpong() {
    let Some(c) = fi_pingpong().or_left_out("our_example_sends_datagrams_to_fi_pingpong") else {
        return;
    };
    let options = datagrams();
    for backend in BACKENDS {
        let server = c.server(&options);
        let ours = Example::get().client_with(&options, backend, server.port());
        assert_table(&ours.finish(PATIENCE), &options);
        assert_table(&server.finish(PATIENCE), &options);
    }
}

/// Bad input to the example is one clear line on stderr and a non-zero exit.
#[test]
fn bad_input_to_our_example_is_one_line() {
    let absent = crate::harness::free_port();
    let refused = format!("-P {absent} 127.0.0.1");
    let bad = [
        ("-S some", "-S"),
        ("-S 4294967296", "-S"),
        ("-I 0", "-I"),
        ("-e dgram -p tcp", "udp"),
        ("-e dgram -m tagged", "rdm"),
        ("-m tagged", "rdm"),
        ("-p verbs", "verbs"),
        ("-d nosuchdomain", "nosuchdomain"),
        ("--backend nosuch", "nosuch"),
        ("-P 65536 127.0.0.1", "65536"),
        ("127.0.0.1 127.0.0.2", "127.0.0.2"),
        (&refused, "refused"),
    ];
    for (arguments, about) in bad {
        let arguments = arguments.split(' ').map(str::to_owned).collect();
        let outcome = Example::get().start(arguments).finish(PATIENCE);
        assert!(!outcome.timed_out && !outcome.status.success(), "{outcome}");
        assert!(outcome.status.code().is_some(), "{outcome}");
        assert!(
            outcome.stdout.is_empty() && outcome.stderr.len() == 1,
            "{outcome}"
        );
        assert!(outcome.stderr[0].contains(about), "{outcome}");
    }
}

/// The other side killed in the middle is one clear line on stderr and a non-zero exit, for either
/// side of the example.
#[test]
fn a_killed_peer_of_our_example_is_one_line() {
    for kill_server in [true, false] {
        let endless = PingPong {
            iterations: Some(u32::MAX),
            size: "64".into(),
            check: false,
            ..PingPong::default()
        };
        let (mut server, port) = Example::get().server(&endless);
        let mut client = Example::get().client(&endless, port);
        // The side channel is taken as soon as the server stops listening.
        while crate::harness::listens(port) {
            std::thread::yield_now();
        }
        let left = if kill_server {
            server.kill();
            client
        } else {
            client.kill();
            server
        };
        let outcome = left.finish(PATIENCE);
        assert_eq!(
            (outcome.timed_out, outcome.status.code()),
            (false, Some(1)),
            "{outcome}"
        );
        assert_eq!(outcome.stderr.len(), 1, "{outcome}");
    }
}

/// The process that goes away in the scenarios `exit` and `killed`; does nothing by itself.
#[test]
#[ignore = "started by the tests that need a process of ours"]
fn our_end_alone() {
    crate::stage::alone();
}

/// fi_cm(3): "User data exchanged as part of the connection process is available as part of the
/// fi_eq_cm_entry structure, for FI_CONNREQ and FI_CONNECTED events". We initiate.
#[test]
fn connect_data_to_c() {
    initiate("data", connections::data);
}

/// fi_cm(3): "User data exchanged as part of the connection process is available as part of the
/// fi_eq_cm_entry structure, for FI_CONNREQ and FI_CONNECTED events". C initiates.
#[test]
fn connect_data_from_c() {
    serve("data", connections::data);
}

/// fi_cm(3): "the buffer referenced by param will be sent as part of the connection request or
/// response": 256 bytes each way. We initiate.
#[test]
fn largest_connect_data_to_c() {
    initiate("data-max", connections::data_max);
}

/// fi_cm(3): "the buffer referenced by param will be sent as part of the connection request or
/// response": 256 bytes each way. C initiates.
#[test]
fn largest_connect_data_from_c() {
    serve("data-max", connections::data_max);
}

/// fi_cm(3): "A rejected or failed connection request will generate an error event." Its `err_data`
/// is what was given to `fi_reject`; the next request of the same pair is accepted. We initiate.
#[test]
fn rejection_to_c() {
    initiate("reject", connections::reject);
}

/// fi_cm(3): "A rejected or failed connection request will generate an error event." Its `err_data`
/// is what was given to `fi_reject`; the next request of the same pair is accepted. C initiates.
#[test]
fn rejection_from_c() {
    serve("reject", connections::reject);
}

/// fi_cm(3): "Outstanding operations posted to the endpoint when fi_shutdown is called will be
/// canceled or discarded", and "An FI_SHUTDOWN event will be generated for an endpoint when the
/// remote peer issues a disconnect using fi_shutdown". We initiate.
#[test]
fn shutdown_to_c() {
    initiate("shutdown", connections::shutdown);
}

/// fi_cm(3): "Outstanding operations posted to the endpoint when fi_shutdown is called will be
/// canceled or discarded", and "An FI_SHUTDOWN event will be generated for an endpoint when the
/// remote peer issues a disconnect using fi_shutdown". C initiates.
#[test]
fn shutdown_from_c() {
    serve("shutdown", connections::shutdown);
}

/// fi_msg(3): "transfers the set of data buffers referenced by the iov parameter to a remote
/// endpoint as a single message", with and without remote CQ data. We initiate.
#[test]
fn vectors_to_c() {
    initiate("vectors", messages::vectors);
}

/// fi_msg(3): "transfers the set of data buffers referenced by the iov parameter to a remote
/// endpoint as a single message", with and without remote CQ data. C initiates.
#[test]
fn vectors_from_c() {
    serve("vectors", messages::vectors);
}

/// fi_msg(3): "The data buffer is available for reuse immediately on return from the call, and no
/// CQ entry will be written if the transfer completes successfully.". We initiate.
#[test]
fn inject_to_c() {
    initiate("inject", messages::inject);
}

/// fi_msg(3): "The data buffer is available for reuse immediately on return from the call, and no
/// CQ entry will be written if the transfer completes successfully.". C initiates.
#[test]
fn inject_from_c() {
    serve("inject", messages::inject);
}

/// fi_msg(3): "Posted receives are searched in the order in which they were posted in order to
/// match sends": a thousand messages each way at the same time. We initiate.
#[test]
fn many_to_c() {
    initiate("many", messages::many);
}

/// fi_msg(3): "Posted receives are searched in the order in which they were posted in order to
/// match sends": a thousand messages each way at the same time. C initiates.
#[test]
fn many_from_c() {
    serve("many", messages::many);
}

/// fi_endpoint(3): "Users post receive buffers directly to a shared receive context, with the
/// buffers usable by any endpoint bound to the shared receive context.": small and large messages
/// of a C peer. C initiates.
#[test]
fn vectors_from_c_to_shared_receives() {
    serve("vectors", shared::vectors);
}

/// fi_msg(3): "This flag allows the user to post a single buffer that will receive multiple
/// incoming messages.": those of a C peer, into buffers of a shared receive context. C initiates.
#[test]
fn many_from_c_to_shared_buffers() {
    serve("many", shared::many);
}

/// fi_msg(3): "This flag allows the user to post a single buffer that will receive multiple
/// incoming messages.": those of a C peer, into buffers of a shared receive context. We initiate.
#[test]
fn many_to_c_with_shared_buffers() {
    initiate("many", shared::many);
}

/// fi_rma(3): "used to transmit data into a remote memory buffer", and "By default, the remote
/// endpoint does not generate an event or notify the user when a memory region has been accessed".
/// We initiate.
#[test]
fn write_to_c() {
    initiate("write", memory::write);
}

/// fi_rma(3): "used to transmit data into a remote memory buffer", and "By default, the remote
/// endpoint does not generate an event or notify the user when a memory region has been accessed".
/// C initiates.
#[test]
fn write_from_c() {
    serve("write", memory::write);
}

/// fi_rma(3): "RMA writes with immediate data will generate a completion entry at the remote
/// endpoint, so that the immediate data may be delivered.". We initiate.
#[test]
fn writedata_to_c() {
    initiate("writedata", memory::writedata);
}

/// fi_rma(3): "RMA writes with immediate data will generate a completion entry at the remote
/// endpoint, so that the immediate data may be delivered.". C initiates.
#[test]
fn writedata_from_c() {
    serve("writedata", memory::writedata);
}

/// fi_rma(3): "used to transfer data from a remote memory region into local data buffer(s)". We
/// initiate.
#[test]
fn read_to_c() {
    initiate("read", memory::read);
}

/// fi_rma(3): "used to transfer data from a remote memory region into local data buffer(s)". C
/// initiates.
#[test]
fn read_from_c() {
    serve("read", memory::read);
}

/// fi_cq(3): "Delivery complete indicates that the message has been processed by the peer.". We
/// initiate.
#[test]
fn delivery_to_c() {
    initiate("delivery", memory::delivery);
}

/// fi_cq(3): "Delivery complete indicates that the message has been processed by the peer.". C
/// initiates.
#[test]
fn delivery_from_c() {
    serve("delivery", memory::delivery);
}

/// fi_cm(3): "An FI_SHUTDOWN event will be generated for an endpoint when the remote peer [...]
/// abruptly closes the endpoint": C exits, and our operations end with errors.
#[test]
fn c_exits() {
    initiate("exit", |session, _| connections::left_behind(session));
}

/// fi_cm(3): "An FI_SHUTDOWN event will be generated for an endpoint when the remote peer [...]
/// abruptly closes the endpoint": C is killed, and our operations end with errors.
#[test]
fn c_is_killed() {
    initiate("killed", |session, _| connections::left_behind(session));
}

/// fi_cm(3): "An FI_SHUTDOWN event will be generated for an endpoint when the remote peer [...]
/// abruptly closes the endpoint": our process exits, and C sees it.
#[test]
fn our_process_exits() {
    serve_alone("exit", "msg::our_end_alone");
}

/// fi_cm(3): "An FI_SHUTDOWN event will be generated for an endpoint when the remote peer [...]
/// abruptly closes the endpoint": our process is killed, and C sees it.
#[test]
fn our_process_is_killed() {
    serve_alone("killed", "msg::our_end_alone");
}

/// fi_endpoint(3): "Only peer endpoints that are programmed to use the same authorization key may
/// communicate.": C that connects to a domain that demands a key is rejected without a word, and
/// the domain goes on.
#[test]
fn c_is_rejected_by_a_domain_that_demands_a_key() {
    crate::auth::c_that_connects();
}

/// fi_endpoint(3): "Only peer endpoints that are programmed to use the same authorization key may
/// communicate.": C that listens gets the request of an endpoint that demands a key, and nothing
/// behind it.
#[test]
fn c_that_listens_is_left_by_an_endpoint_that_demands_a_key() {
    crate::auth::c_that_listens();
}

/// docs/extension.md: "A C peer never sees it: what a C peer receives is libfabric's protocol": C
/// peers next to extended ones at one listener, all at work, and every byte of C's connections
/// read.
#[test]
fn c_works_next_to_extended_peers() {
    crate::company::c_dials(tokio_fabric::Backend::Epoll);
}

/// docs/extension.md: "except for eight bytes of the control frame that C peers send as zero and
/// never read": what a C listener gets from us is an offer there, and libfabric's protocol else.
#[test]
fn c_that_listens_gets_an_offer_and_no_more() {
    crate::company::c_listens();
}

/// The reading of captured bytes would find the extension: between two of its peers it does.
#[test]
fn the_reading_of_captures_finds_the_extension() {
    crate::company::the_reading_finds_the_extension();
}
