//! Every edge of the state machines of receiving is walked, and no other.

use super::pair::{Pair, REMOTE, TINY};
use super::receives::extended;
use crate::proto::conn::{IncomingState, RxState, walked};

/// A connection whose second side has come into this state, with what lets it go on.
struct Reached {
    pair: Pair,
    go_on: fn(&mut Pair),
}

/// Nothing has come.
fn header() -> Reached {
    Reached {
        pair: Pair::connected(),
        go_on: |_| {},
    }
}

/// A part of a message has come to its receive.
fn payload() -> Reached {
    let mut pair = Pair::connected();
    pair.b.receive(1, 100);
    pair.a.send(1, &[1; 100]);
    pair.a.hand_out();
    pair.a.move_out(60, &mut pair.b.wire);
    while pair.b.move_in(usize::MAX) {}
    Reached {
        pair,
        go_on: Pair::run,
    }
}

/// A message has come, for which there is no receive and no room.
fn await_receive() -> Reached {
    let mut pair = Pair::with(TINY);
    pair.a.send(1, b"message");
    pair.run();
    let go_on = |pair: &mut Pair| {
        pair.b.receive(1, 7);
        pair.run();
    };
    Reached { pair, go_on }
}

/// A write has come whose completion data nobody has room for.
fn await_room() -> Reached {
    let mut pair = Pair::connected();
    pair.b.world.region(5, vec![0; 8], REMOTE);
    pair.b.world.slots = 0;
    pair.a.write_with(1, &[1; 8], Some(3), true, &[(5, 0, 8)]);
    pair.run();
    let go_on = |pair: &mut Pair| {
        pair.b.world.slots = 1;
        pair.run();
    };
    Reached { pair, go_on }
}

/// A write has landed that is to be persistent.
fn await_commit() -> Reached {
    let mut pair = super::commit::pair(false);
    super::commit::commit(&mut pair.a, 1, None);
    pair.run();
    let go_on = |pair: &mut Pair| {
        let memory = pair.b.machine.poll_commit().expect("it has landed");
        pair.b.machine.handle_committed(memory, Ok(()));
    };
    Reached { pair, go_on }
}

/// Each state is reached, left for the next frame, and left by the end of the connection.
#[test]
fn every_edge_of_receiving_is_walked() {
    walked::take();
    for reach in [header, payload, await_receive, await_room, await_commit] {
        let Reached { mut pair, go_on } = reach();
        go_on(&mut pair);
        assert!(!pair.b.is_paused());
        reach().pair.b.cut();
    }
    let drawn = RxState::EDGES.map(|(from, to)| format!("{from:?} -> {to:?}"));
    assert_eq!(walked::take(), drawn.into());
}

/// An announced message is kept and withdrawn, kept and asked for, or asked for at once.
#[test]
fn every_edge_of_an_announced_message_is_walked() {
    let setup = extended();
    let (mut kept, mut matched) = (setup.connected(), setup.connected());
    walked::take();
    let key = kept.a.send_tagged(1, 1, &[1; 5000]);
    kept.run();
    kept.a.machine.cancel(key);
    kept.run();
    kept.a.send_tagged(2, 2, &[2; 5000]);
    kept.run();
    kept.b.receive_tagged(2, 2, 5000);
    kept.run();
    assert_eq!(kept.b.end_of(2), (Ok(5000), vec![2; 5000]));
    matched.b.receive_tagged(3, 3, 5000);
    matched.a.send_tagged(3, 3, &[3; 5000]);
    matched.run();
    assert_eq!(matched.b.end_of(3), (Ok(5000), vec![3; 5000]));
    let of_messages = |edge: &String| edge.contains("Kept") || edge.contains("Awaited");
    let drawn = IncomingState::EDGES.map(|(from, to)| format!("{from:?} -> {to:?}"));
    let walked = walked::take().into_iter().filter(of_messages);
    assert_eq!(walked.collect::<Vec<_>>(), {
        let mut drawn = drawn.to_vec();
        drawn.sort();
        drawn
    });
}
