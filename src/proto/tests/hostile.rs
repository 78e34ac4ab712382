//! Peers that mean no good: whatever bytes come, the machine ends in a fault or goes on in order,
//! and takes no memory on the peer's word alone.

use super::model::depth;
use super::pair::{Pair, QUEUED, Rng, TestConnection, segments, sizes};
use crate::error::ErrorKind;
use crate::limits::READ_REQUESTS_MAX;
use crate::mr::Access;
use crate::proto::Sizes;
use crate::wire::{ByteOrder, FrameHeader};

const BUDGET: usize = 2000;

/// A connected machine with some of everything under way.
fn victim(rng: &mut Rng) -> TestConnection {
    let mut pair = Pair::with(Sizes {
        unexpected_bytes: BUDGET,
        ..sizes()
    });
    pair.b
        .host
        .region(1, vec![0; 4096], Access::REMOTE_READ | Access::REMOTE_WRITE);
    pair.b.host.region(2, vec![0; 64], Access::REMOTE_READ);
    pair.b.host.slots = 20;
    for token in 0..rng.below(5) as u64 {
        pair.b.receive(token, rng.below(200));
        pair.b.send_acked(10 + token, b"acked");
        pair.b.read(20 + token, 16, &[(9, 0, 16)]);
        if rng.chance(50) {
            pair.b.send((30 + token) | QUEUED, b"queued");
        }
    }
    if rng.chance(70) {
        pair.b.hand_out();
        pair.b.move_out(usize::MAX, &mut pair.a.wire);
    }
    pair.b
}

/// A frame that a peer might send, with its payload.
fn some_frame(rng: &mut Rng) -> Vec<u8> {
    let len = rng.below(100) as u64;
    let data = rng.chance(50).then(|| rng.next());
    let key = 1 + rng.below(3) as u64;
    let header = match rng.below(10) {
        0..4 => FrameHeader::Message {
            data,
            ack: rng.chance(50),
            len,
        },
        4 => FrameHeader::Ack,
        5 => FrameHeader::ReadRequest {
            segments: segments(&[(key, 0, len), (1, 5, 9)]),
        },
        6 | 7 => FrameHeader::ReadResponse {
            len: if rng.chance(90) { 16 } else { len },
        },
        _ => FrameHeader::Write {
            data,
            ack: true,
            commit: false,
            segments: segments(&[(1, 7, len)]),
        },
    };
    let mut bytes = header.encode(ByteOrder::Native, rng.next() as u8).to_vec();
    bytes.extend(rng.bytes(usize::try_from(header.payload_len()).expect("short")));
    bytes
}

fn stream(rng: &mut Rng) -> Vec<u8> {
    if rng.chance(10) {
        return rng.bytes(500);
    }
    let mut bytes: Vec<u8> = (0..1 + rng.below(20))
        .flat_map(|_| some_frame(rng))
        .collect();
    for _ in 0..rng.below(4) {
        let at = rng.below(bytes.len());
        match rng.below(4) {
            0 => bytes[at] = rng.next() as u8,
            1 => bytes[at] ^= 1 << rng.below(8),
            2 => bytes.truncate(at + 1),
            _ => drop(bytes.remove(at)),
        }
        if bytes.is_empty() {
            bytes.push(0);
        }
    }
    bytes
}

/// Random and damaged streams end in a fault or keep the machine's order, and never more than the
/// budget is kept.
#[test]
fn no_stream_breaks_the_machine() {
    let (mut faults, mut fine) = (0, 0);
    for seed in 0..10_000 * depth() {
        println!("seed {seed}");
        let rng = &mut Rng(seed);
        let mut victim = victim(rng);
        victim.wire.extend(stream(rng));
        victim.finished = rng.chance(50);
        // After the end what the socket held bounds what is kept: here, ten kilobytes of frames.
        let budget = if victim.finished {
            BUDGET + 100_000
        } else {
            BUDGET
        };
        for _ in 0..60 {
            victim.nudge();
            victim.move_in(1 + rng.below(300));
            victim.machine.check();
            assert!(
                victim.machine.unexpected_bytes() <= budget,
                "more is kept than may be"
            );
            if rng.chance(20) {
                victim.hand_out();
                victim.move_out(rng.below(400), &mut Default::default());
            }
            victim.watch();
        }
        match victim.machine.fault().map(|error| error.kind()) {
            None => fine += 1,
            Some(kind) => {
                faults += 1;
                assert!(
                    matches!(
                        kind,
                        ErrorKind::ProtocolViolation
                            | ErrorKind::AccessDenied
                            | ErrorKind::PeerClosed
                    ),
                    "{kind:?}"
                );
            }
        }
        victim.cut();
        assert!(victim.machine.lifecycle().is_closed());
    }
    assert!(
        faults > 1000 && fine > 1000,
        "both kinds of streams were tried: {faults}, {fine}"
    );
}

/// A handshake that is none ends the attempt.
#[test]
fn no_answer_to_a_request_breaks_the_machine() {
    for seed in 0..2000 * depth() {
        let rng = &mut Rng(seed);
        let mut pair = Pair::idle(sizes());
        pair.a.machine.begin_connect(b"");
        let mut answer = rng.bytes(40);
        if rng.chance(80) {
            answer = [
                &[3, 1, 0, 8][..],
                &[0; 20],
                &1_u64.to_ne_bytes(),
                b"answered",
            ]
            .concat();
            let at = rng.below(answer.len());
            answer[at] = rng.next() as u8;
        }
        pair.a.wire.extend(answer);
        pair.a.finished = true;
        for _ in 0..60 {
            pair.a.move_in(1 + rng.below(40));
        }
        assert!(
            pair.a.machine.fault().is_some(),
            "it ended, at least with the stream"
        );
        pair.a.close();
        assert!(matches!(pair.a.events.len(), 1 | 2));
    }
}

/// A length is only a number: no memory is taken for it, whatever the application's budget says.
#[test]
fn an_announced_length_takes_no_memory_by_itself() {
    for unexpected_bytes in [BUDGET, usize::MAX] {
        for len in [1 << 62, (1 << 63) + 5, u64::MAX - 200] {
            let mut pair = Pair::with(Sizes {
                unexpected_bytes,
                ..sizes()
            });
            let header = FrameHeader::Message {
                data: None,
                ack: false,
                len,
            };
            pair.b
                .wire
                .extend(header.encode(ByteOrder::Native, 0).iter());
            pair.run();
            assert!(pair.b.is_paused(), "it waits for a receive");
            assert_eq!(pair.b.machine.unexpected_bytes(), 0);
            pair.b.receive(1, 10);
            pair.b.wire.extend([7; 50]);
            pair.run();
            assert!(
                !pair.b.is_paused(),
                "the receive takes what fits, the rest is dropped"
            );
            pair.b.cut();
            assert_eq!(pair.b.end_of(1).1, [7; 10]);
        }
    }
}

/// Frames that a peer must not send, and the errors for them.
#[test]
fn frames_out_of_place_are_violations() {
    let frames = [
        (FrameHeader::Ack, ErrorKind::ProtocolViolation),
        (
            FrameHeader::ReadResponse { len: 0 },
            ErrorKind::ProtocolViolation,
        ),
        (
            FrameHeader::ReadRequest {
                segments: segments(&[(9, 0, 1)]),
            },
            ErrorKind::AccessDenied,
        ),
        (
            FrameHeader::ReadRequest {
                segments: segments(&[(1, 9, 8)]),
            },
            ErrorKind::AccessDenied,
        ),
        (
            FrameHeader::ReadRequest {
                segments: segments(&[(1, u64::MAX, 8)]),
            },
            ErrorKind::AccessDenied,
        ),
    ];
    for (header, kind) in frames {
        let mut pair = Pair::connected();
        pair.b.host.region(1, vec![0; 16], Access::REMOTE_READ);
        pair.b
            .wire
            .extend(header.encode(ByteOrder::Native, 0).iter());
        pair.run();
        assert_eq!(
            pair.b.machine.fault().map(|error| error.kind()),
            Some(kind),
            "{header:?}"
        );
    }
    // An answer of another length than was asked for.
    let mut pair = Pair::connected();
    pair.b.read(1, 10, &[(1, 0, 10)]);
    pair.b.hand_out();
    pair.b.move_out(usize::MAX, &mut Default::default());
    pair.b.wire.extend(
        FrameHeader::ReadResponse { len: 11 }
            .encode(ByteOrder::Native, 0)
            .iter(),
    );
    pair.run();
    assert_eq!(
        pair.b.machine.fault().map(|error| error.kind()),
        Some(ErrorKind::ProtocolViolation)
    );
    pair.b.cut();
    assert_eq!(pair.b.end_of(1).1, [0; 10], "its memory is back");
}

/// Tiny messages that all want acks, from a peer that takes none: what is queued is bounded.
#[test]
fn a_storm_of_acks_is_bounded() {
    let mut pair = Pair::with(Sizes {
        unexpected_bytes: usize::MAX / 2,
        ..sizes()
    });
    let header = FrameHeader::Message {
        data: None,
        ack: true,
        len: 0,
    };
    let header = header.encode(ByteOrder::Native, 0);
    for _ in 0..READ_REQUESTS_MAX + 100 {
        pair.b.wire.extend(header.iter());
    }
    while pair.b.move_in(1 << 16) {}
    assert!(pair.b.is_paused());
    assert_eq!(pair.b.machine.queued_answers(), READ_REQUESTS_MAX + 1);
}
