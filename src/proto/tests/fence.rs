//! FI_FENCE.

use super::pair::{Pair, REMOTE, operation, segments};
use super::receives::{extended, plain, tagged};
use crate::buf::Payload;
use crate::error::ErrorKind;
use crate::proto::{OpKey, OpKind, Operation, PostOptions, Withdrawn};

const FENCED: PostOptions = PostOptions {
    matched: false,
    wait: true,
    fence: true,
    more: false,
    timeout: None,
};

fn fenced(pair: &mut Pair, token: u64, post: Operation<u64>) -> OpKey {
    let posted = pair.a.try_post_with(token, post, FENCED);
    posted.expect("the post is accepted")
}

fn write(bytes: &[u8]) -> Operation<u64> {
    operation(
        OpKind::Write {
            data: None,
            ack: true,
            commit: false,
            segments: segments(&[(7, 0, bytes.len() as u64)]),
        },
        Payload::from_vec(bytes.to_vec()),
    )
}

fn send(bytes: &[u8]) -> Operation<u64> {
    operation(
        OpKind::Send {
            data: None,
            ack: false,
            tag: None,
        },
        Payload::from_vec(bytes.to_vec()),
    )
}

/// fi_endpoint(3), FI_FENCE: the operation is deferred until all that were posted before have
/// completed; here also, nothing overtakes it.
#[test]
fn a_fence_goes_out_after_the_ends_of_all_before_it() {
    let mut pair = Pair::connected();
    pair.b.host.region(7, vec![5; 8], REMOTE);
    pair.a.read(1, 4, &[(7, 0, 4)]);
    fenced(&mut pair, 2, write(b"later"));
    pair.a.send(3, b"behind");
    pair.a.hand_out();
    pair.a.move_out(usize::MAX, &mut pair.b.wire);
    assert_eq!(pair.b.wire.len(), 40, "the read's request alone");
    pair.a.hand_out();
    assert!(pair.a.sending.is_none());
    pair.b.receive(3, 6);
    pair.run();
    assert_eq!(pair.a.order[0], 1);
    assert_eq!(pair.a.end_of(1), (Ok(4), vec![5; 4]));
    assert_eq!(pair.a.end_of(2).0, Ok(5));
    assert_eq!(pair.b.end_of(3), (Ok(6), b"behind".to_vec()));
}

/// A fence waits for an announced message until the peer has taken it; the data of a message before
/// the fence passes.
#[test]
fn a_fence_waits_for_announced_messages() {
    for setup in [plain(), extended()] {
        let mut pair = setup.connected();
        pair.b.host.region(7, vec![0; 8], REMOTE);
        pair.a.post(1, tagged(1, &[1; 5000], None, true));
        fenced(&mut pair, 2, write(b"fenced"));
        pair.a.post(3, tagged(3, b"behind", None, false));
        pair.run();
        assert!(pair.a.order.is_empty());
        pair.b.receive_tagged(1, 1, 5000);
        pair.run();
        let at = |token| pair.a.order.iter().position(|it| *it == token);
        assert_eq!(at(1), Some(0));
        assert!(at(2).is_some() && at(3).is_some());
    }
}

/// An announced message may be fenced itself; then its announcement waits.
#[test]
fn a_fenced_message_is_announced_only_then() {
    let mut pair = extended().connected();
    pair.b.host.region(7, vec![0; 8], REMOTE);
    pair.a.post(1, tagged(1, &[1; 5000], None, false));
    fenced(&mut pair, 2, tagged(2, &[2; 5000], None, false));
    pair.run();
    assert_eq!(pair.b.shared().kept.len(), 1);
    pair.b.receive_tagged(1, 1, 5000);
    pair.run();
    assert_eq!(pair.b.shared().kept.len(), 1);
    pair.b.receive_tagged(2, 2, 5000);
    pair.run();
    assert_eq!(pair.a.order, [1, 2]);
}

/// A fence waits no longer for operations that end without being sent, and a fence that is
/// withdrawn holds nothing up. Operations that wait for room in the context count as posted before.
#[test]
fn withdrawn_operations_and_fences_hold_nothing_up() {
    let mut setup = extended();
    setup.sizes.tx_size = 3;
    let mut pair = setup.connected();
    pair.b.host.region(7, vec![0; 8], REMOTE);
    pair.a.post(1, tagged(1, &[1; 5000], None, false));
    let first = fenced(&mut pair, 2, send(b"a"));
    let second = fenced(&mut pair, 3, send(b"b"));
    fenced(&mut pair, 4, write(b"waits"));
    pair.run();
    assert!(pair.a.order.is_empty());
    assert_eq!(pair.a.machine.cancel(first), Withdrawn::Ended);
    pair.run();
    assert_eq!(pair.a.order, [2], "the message before it is still out");
    assert_eq!(pair.a.machine.expire(second, None), Withdrawn::Ended);
    pair.run();
    assert_eq!(pair.a.order, [2, 3]);
    pair.b.receive_tagged(1, 1, 5000);
    pair.run();
    assert_eq!(pair.a.order, [2, 3, 1, 4]);
    assert_eq!(pair.a.end_of(4).0, Ok(5));
}

/// An operation whose time has passed has ended, though its answer is still awaited.
#[test]
fn a_fence_does_not_wait_for_the_answer_of_what_has_ended() {
    let mut pair = Pair::connected();
    pair.b.host.region(7, vec![0; 8], REMOTE);
    let read = pair.a.read(1, 4, &[(7, 0, 4)]);
    fenced(&mut pair, 2, send(b"x"));
    pair.a.hand_out();
    pair.a.move_out(usize::MAX, &mut pair.b.wire);
    assert_eq!(pair.a.machine.expire(read, None), Withdrawn::Ended);
    pair.a.take_events();
    pair.a.hand_out();
    assert!(pair.a.sending.is_some());
    pair.run();
    assert_eq!(pair.a.end_kind(1), ErrorKind::TimedOut);
    assert_eq!(pair.a.end_of(2).0, Ok(1));
}

/// Early posts keep their fences, whatever becomes of the first attempt.
#[test]
fn an_early_fence_holds() {
    let mut pair = extended().idle();
    pair.b.host.region(7, vec![3; 8], REMOTE);
    pair.a.read(1, 4, &[(7, 0, 4)]);
    fenced(&mut pair, 2, write(b"12345678"));
    pair.a.machine.begin_connect_peer();
    pair.a.machine.reset_attempt();
    pair.handshake_peers(crate::wire::ByteOrder::Native);
    assert_eq!(pair.a.order, [1, 2]);
    assert_eq!(pair.a.end_of(1), (Ok(4), vec![3; 4]));
}

/// Exactly one end: a fenced operation behind an announced message without a receive goes over
/// the next connection with it, and does not hold up the end of this one.
#[test]
fn a_fence_behind_an_announced_message_survives_the_peers_disconnect() {
    for fenced_post in [tagged(2, b"fenced", None, false), write(b"fenced")] {
        let mut pair = extended().connected();
        pair.b.host.region(7, vec![0; 8], REMOTE);
        pair.a.post(1, tagged(1, &[1; 5000], None, false));
        fenced(&mut pair, 2, fenced_post);
        pair.run();
        pair.b.machine.request_close();
        pair.run();
        for side in [&mut pair.a, &mut pair.b] {
            assert!(side.machine.is_close_exchanged(), "without a receive");
            side.machine.handle_end();
            assert!(side.machine.is_closed_in_order());
        }
        assert!(pair.a.order.is_empty());
        pair.b.close();
        pair.a.machine.reset_attempt();
        pair.b = extended().idle().b;
        pair.b.host.region(7, vec![0; 8], REMOTE);
        pair.handshake_peers(crate::wire::ByteOrder::Native);
        pair.b.receive_tagged(1, 1, 5000);
        pair.b.receive_tagged(2, 2, 6);
        pair.run();
        assert_eq!(pair.a.order, [1, 2]);
        assert!(pair.a.end_of(1).0.is_ok() && pair.a.end_of(2).0.is_ok());
    }
}

/// An operation that waits for room in its context when the peer closes ends like those that were
/// queued then.
#[test]
fn what_is_admitted_after_the_peers_close_goes_over_the_next_connection() {
    let mut setup = extended();
    setup.sizes.tx_size = 1;
    let mut pair = setup.connected();
    pair.b.host.region(7, vec![0; 8], REMOTE);
    pair.a.post(1, write(b"first"));
    pair.a.post(2, tagged(2, &[2; 5000], None, false));
    pair.a.hand_out();
    pair.b.machine.request_close();
    pair.b.hand_out();
    pair.b.move_out(usize::MAX, &mut pair.a.wire);
    while pair.a.move_in(usize::MAX) {}
    pair.run();
    assert_eq!(pair.a.order, [1]);
    assert!(pair.a.machine.is_close_exchanged() && pair.a.machine.has_carried_over());
}
