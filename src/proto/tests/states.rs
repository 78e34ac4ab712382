//! Every edge of the state machines of receiving is walked.

use std::io;
use std::sync::Arc;

use super::pair::{Pair, REMOTE, TINY, operation, segments};
use super::receives::{Setup, announced, extended, plain};
use crate::buf::{
    DeviceBuffer, HmemIface, HmemIov, HmemOps, Payload, RegionMemory, RegionTraits, RegionUse,
    SharedHmemOps,
};
use crate::edges::EdgeCoverage;
use crate::limits::READ_REQUESTS_MAX;
use crate::proto::{LongMessages, MatchCriteria, OpKind};
use crate::wire::{ByteOrder, FrameHeader};

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
    with_a_part_of_a_message(pair)
}

fn with_a_part_of_a_message(mut pair: Pair) -> Reached {
    pair.a.send(1, &[1; 100]);
    pair.a.hand_out();
    pair.a.move_out(60, &mut pair.b.wire);
    while pair.b.move_in(usize::MAX) {}
    Reached {
        pair,
        go_on: Pair::run,
    }
}

/// A part of a message has come that takes a receive only as a whole.
fn collecting() -> Reached {
    let setup = Setup {
        long_messages: LongMessages::Refused { max: 100 },
        ..plain()
    };
    let mut pair = setup.connected();
    pair.b.receive_any(1, MatchCriteria::Message, 100);
    with_a_part_of_a_message(pair)
}

/// A message has come, for which there is no receive and no room in the store.
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

/// A request has come from a peer that takes none of the answers to those before it.
fn await_room() -> Reached {
    let mut pair = Pair::connected();
    pair.b.host.region(5, vec![0; 1], REMOTE);
    let segments = segments(&[(5, 0, 1)]);
    let request = FrameHeader::ReadRequest { segments }.encode(ByteOrder::Native, 0);
    for _ in 0..READ_REQUESTS_MAX + 2 {
        pair.b.wire.extend(request.iter());
    }
    while pair.b.move_in(usize::MAX) {}
    let go_on = |pair: &mut Pair| {
        let mut nowhere = Default::default();
        while pair.b.is_paused() {
            pair.b.hand_out();
            pair.b.move_out(usize::MAX, &mut nowhere);
            pair.b.nudge();
        }
    };
    Reached { pair, go_on }
}

/// A write is placed whose completion data finds no free slot.
fn await_report() -> Reached {
    let mut pair = Pair::connected();
    pair.b.host.region(5, vec![0; 8], REMOTE);
    pair.b.host.slots = 0;
    pair.a.write_with(1, &[1; 8], Some(3), true, &[(5, 0, 8)]);
    pair.run();
    let go_on = |pair: &mut Pair| {
        pair.b.host.slots = 1;
        pair.run();
    };
    Reached { pair, go_on }
}

/// A write is placed that is to be persistent.
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
    let coverage = EdgeCoverage::begin("ReceiveState");
    let all = [
        header,
        payload,
        collecting,
        await_receive,
        await_room,
        await_report,
        await_commit,
    ];
    for reach in all {
        let Reached { mut pair, go_on } = reach();
        go_on(&mut pair);
        assert!(!pair.b.is_paused());
        reach().pair.b.cut();
    }
    coverage.expect_all();
}

/// An announced message is stored and withdrawn, stored and asked for, or asked for at once.
#[test]
fn every_edge_of_an_announced_message_is_walked_by_its_receiver() {
    let setup = extended();
    let (mut stored, mut matched) = (setup.connected(), setup.connected());
    let coverage = EdgeCoverage::begin("IncomingState");
    let key = stored.a.send_tagged(1, 1, &[1; 5000]);
    stored.run();
    stored.a.machine.cancel(key);
    stored.run();
    stored.a.send_tagged(2, 2, &[2; 5000]);
    stored.run();
    stored.b.receive_tagged(2, 2, 5000);
    stored.run();
    assert_eq!(stored.b.end_of(2), (Ok(5000), vec![2; 5000]));
    matched.b.receive_tagged(3, 3, 5000);
    matched.a.send_tagged(3, 3, &[3; 5000]);
    matched.run();
    assert_eq!(matched.b.end_of(3), (Ok(5000), vec![3; 5000]));
    coverage.expect_all();
}

/// A device that copies nothing.
struct Broken;

impl HmemOps for Broken {
    fn copy_to_host(&self, _: &mut [u8], _: &HmemIov<'_>, _: u64) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(libc::EIO))
    }

    fn copy_from_host(&self, _: &HmemIov<'_>, _: u64, _: &[u8]) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(libc::EIO))
    }
}

/// `len` bytes of a device that copies nothing.
fn unreadable(len: usize) -> Payload {
    let traits = RegionTraits {
        hmem: Some(SharedHmemOps(Arc::new(Broken))),
        ..RegionTraits::plain(0)
    };
    let buffer = DeviceBuffer::new(HmemIface::Other(0), 0, 1 << 20, len);
    let memory = RegionMemory::new(vec![buffer.into()], traits).unwrap();
    Payload::from_region_uses(vec![RegionUse::local(memory, 0, len).unwrap()])
}

/// The peer of an announced message asks for it, before or after it was given up, or never does;
/// or a clear-to-send crosses its withdrawal.
#[test]
fn every_edge_of_an_announced_message_is_walked_by_its_sender() {
    let coverage = EdgeCoverage::begin("OutgoingMessage");
    let announce = |setup: Setup| {
        let mut pair = setup.connected();
        let key = pair.a.send_tagged(1, 1, &[1; 5000]);
        pair.run();
        (pair, key)
    };
    let take = |pair: &mut Pair| {
        pair.b.receive_tagged(1, 1, 5000);
        pair.run();
        assert_eq!(pair.b.end_of(1), (Ok(5000), vec![1; 5000]));
    };
    // Asked for, or withdrawn, or the connection ends.
    take(&mut announce(extended()).0);
    let (mut withdrawn, key) = announce(extended());
    withdrawn.a.machine.cancel(key);
    withdrawn.run();
    announce(extended()).0.a.cut();
    // A peer that takes no withdrawals still gets it.
    let without = || Setup {
        long_messages: announced(100),
        ..plain()
    };
    let (mut given_up, key) = announce(without());
    given_up.a.machine.expire(key, None);
    take(&mut given_up);
    let (mut given_up, key) = announce(without());
    given_up.a.machine.expire(key, None);
    given_up.a.cut();
    // Its memory fails when it is asked for.
    let mut failed = extended().connected();
    let kind = OpKind::Send {
        data: None,
        ack: false,
        tag: Some(1),
    };
    failed.a.post(2, operation(kind, unreadable(5000)));
    failed.run();
    failed.b.receive_tagged(2, 1, 5000);
    failed.run();
    assert_eq!(failed.a.end_of_error(2).os_error(), Some(libc::EIO));
    assert!(failed.b.ended.is_empty());
    // The clear-to-send is on its way when the message is withdrawn.
    let (mut crossed, key) = announce(extended());
    crossed.b.receive_tagged(1, 1, 5000);
    crossed.b.hand_out();
    crossed.a.machine.cancel(key);
    crossed.run();
    coverage.expect_all();
}
