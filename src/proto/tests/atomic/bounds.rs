//! Atomic operations at the limits: wrong frames, the largest arrays, numbers that no buffer holds
//! whole, and streams of all of them.

use super::*;

/// docs/extension.md, section 11: what breaks the protocol, and that nothing is changed by it.
#[test]
fn frames_that_are_wrong_in_themselves_end_their_connection() {
    let read = call(AtomicForm::Fetch, 10, AtomicType::Uint64);
    let wrong = [
        (sum(AtomicForm::Update), 12, 12),
        (sum(AtomicForm::Fetch), 8, 0),
        (read, 8, 8),
        (sum(AtomicForm::Update), 4, 4),
    ];
    for (call, len, payload) in wrong {
        let mut pair = living_with(8);
        let region = pair.b.host.region(1, vec![0; 16], REMOTE);
        let header = FrameHeader::Atomic {
            call,
            segments: segments(&[(1, 0, len)]),
            len: payload,
        };
        pair.b.wire.extend(&*header.encode(ByteOrder::Native, 1));
        pair.b.wire.extend(vec![0xff; payload as usize]);
        while pair.b.move_in(usize::MAX) {}
        let fault = pair.b.machine.fault().map(Error::kind);
        assert_eq!(fault, Some(ErrorKind::ProtocolViolation), "{call:?}");
        let mut bytes = [0; 16];
        region.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 16]);
    }
}

/// docs/extension.md, section 7: CLOSE "is the last frame of its direction, except for answers".
#[test]
fn nothing_is_asked_for_behind_the_last_frame() {
    let mut pair = living_with(8);
    pair.b.host.region(1, vec![0; 16], REMOTE);
    for header in [
        FrameHeader::Close {
            reason: CloseReason::Done,
        },
        FrameHeader::Atomic {
            call: sum(AtomicForm::Update),
            segments: segments(&[(1, 0, 8)]),
            len: 8,
        },
    ] {
        pair.b.wire.extend(&*header.encode(ByteOrder::Native, 1));
    }
    while pair.b.move_in(usize::MAX) {}
    let fault = pair.b.machine.fault().map(Error::kind);
    assert_eq!(fault, Some(ErrorKind::ProtocolViolation));
}

/// fi_atomic(3): "an array of values": as many as fit into one operation, on memory of several
/// buffers, none of which a number straddles.
#[test]
fn the_largest_array_goes_over_the_borders_of_buffers() {
    use crate::buf::{RegionMemory, RegionTraits};

    let mut pair = living_with(8);
    let buffers = vec![vec![1u8; 1024].into(), vec![1u8; 8192].into()];
    let memory = RegionMemory::new(buffers, RegionTraits::plain(REMOTE.bits())).expect("joined");
    let inserted = pair.b.host.regions.insert(Some(1), &memory, None);
    inserted.expect("a free key");
    let ones = vec![1; ATOMIC_SIZE_MAX];
    let add = call(
        AtomicForm::Fetch,
        AtomicOp::Sum.to_number(),
        AtomicType::Uint8,
    );
    pair.a.atomic(1, add, &ones, &[(1, 3, 4000), (1, 5000, 96)]);
    let wide = call(
        AtomicForm::Fetch,
        AtomicOp::Sum.to_number(),
        AtomicType::Uint32,
    );
    pair.a
        .atomic(2, wide, &ones, &[(1, 1000, ATOMIC_SIZE_MAX as u64)]);
    pair.run();
    assert_eq!(pair.a.end_of(1), (Ok(ATOMIC_SIZE_MAX), ones));
    let (ended, bytes) = pair.a.end_of(2);
    assert_eq!((ended, bytes[0], bytes[3999]), (Ok(ATOMIC_SIZE_MAX), 2, 1));
    let mut bytes = vec![0; 9216];
    memory.read_at(0, &mut bytes).unwrap();
    assert_eq!((bytes[2], bytes[3], bytes[999], bytes[1000]), (1, 2, 2, 3));
    assert_eq!(
        (bytes[4003], bytes[5000], bytes[5095], bytes[5096]),
        (2, 3, 3, 1)
    );
}

/// A number of a region of several buffers lies within one of them.
#[test]
fn a_number_between_two_buffers_is_refused() {
    use crate::buf::{RegionMemory, RegionTraits};

    let mut pair = living_with(8);
    let buffers = vec![vec![0u8; 12].into(), vec![0u8; 16].into()];
    let memory = RegionMemory::new(buffers, RegionTraits::plain(REMOTE.bits())).expect("joined");
    let inserted = pair.b.host.regions.insert(Some(1), &memory, None);
    inserted.expect("a free key");
    for (token, at, expected) in [
        (1, 0, Ok(8)),
        (2, 8, Err(())),
        (3, 12, Ok(8)),
        (4, 16, Err(())),
    ] {
        pair.a
            .atomic(token, sum(AtomicForm::Fetch), &[1; 8], &[(1, at, 8)]);
        pair.run();
        let end = pair.a.ended.remove(&token).unwrap();
        match &end.end.result {
            Ok(()) => assert_eq!(expected, Ok(memory_of(&end).len())),
            Err(error) => {
                assert_eq!(expected, Err(()), "at {at}");
                assert_eq!(error.refusal(), Some(Refusal::Misaligned));
            }
        }
    }
}

/// Whatever comes, damaged or not, the machine ends in a fault or goes on in order; what it holds
/// is bounded by what an operation may have.
#[test]
fn no_stream_of_atomic_operations_breaks_the_machine() {
    let (mut faults, mut fine) = (0, 0);
    for seed in 0..3_000 {
        println!("seed {seed}");
        let rng = &mut Rng(seed);
        let mut pair = living_with(30);
        pair.b.host.region(1, vec![0; 256], REMOTE);
        pair.b.host.region(2, vec![0; 64], Access::REMOTE_READ);
        let mut bytes = Vec::new();
        for id in 0..rng.below(40) {
            let count = 1 + rng.below(6);
            let arrays = rng.below(3);
            let form = [AtomicForm::Update, AtomicForm::Fetch, AtomicForm::Compare];
            let form = form[if rng.chance(90) { arrays } else { rng.below(3) }];
            let header = FrameHeader::Atomic {
                call: AtomicCall {
                    form,
                    operation: match form {
                        AtomicForm::Update => rng.below(10),
                        AtomicForm::Fetch if arrays == 0 => 10,
                        AtomicForm::Fetch => rng.below(10),
                        AtomicForm::Compare => 12 + rng.below(8),
                    } as u8,
                    numbers: rng.below(10) as u64 | (BIG_ENDIAN * rng.below(2) as u64),
                },
                segments: segments(&[(
                    1 + rng.below(8) as u64 / 3,
                    8 * rng.below(40) as u64,
                    8 * count as u64,
                )]),
                len: match form {
                    AtomicForm::Fetch if arrays == 0 => 0,
                    AtomicForm::Compare => 16 * count as u64,
                    _ => 8 * count as u64,
                },
            };
            bytes.extend(&*header.encode(ByteOrder::Native, id as u8 + 1));
            bytes.extend(rng.bytes(header.payload_len() as usize));
        }
        for _ in 0..rng.below(3) {
            if !bytes.is_empty() && rng.chance(60) {
                let at = rng.below(bytes.len());
                bytes[at] ^= 1 << rng.below(8);
            }
        }
        pair.b.wire.extend(bytes);
        let most = 1 + rng.below(200);
        while pair.b.move_in(most) {
            pair.b.machine.check();
            assert!(pair.b.machine.queued_answers() <= 50);
        }
        match pair.b.machine.fault() {
            Some(error) => {
                assert_eq!(error.kind(), ErrorKind::ProtocolViolation, "seed {seed}");
                faults += 1;
            }
            None => fine += 1,
        }
        pair.b.close();
        pair.b.machine.check();
    }
    assert!(
        faults > 300 && fine > 300,
        "both were tried: {faults}, {fine}"
    );
}

/// SECURITY.md: of a peer that asks for atomic operations and takes no results, no more requests
/// are read than this side keeps results of.
#[test]
fn results_that_the_peer_does_not_take_are_bounded() {
    let mut pair = living_with(0);
    pair.b.host.region(1, vec![0; 8], REMOTE);
    let add = FrameHeader::Atomic {
        call: sum(AtomicForm::Fetch),
        segments: segments(&[(1, 0, 8)]),
        len: 8,
    };
    let add = [&*add.encode(ByteOrder::Native, 1), &1_u64.to_ne_bytes()].concat();
    for _ in 0..READ_REQUESTS_MAX * 2 {
        pair.b.wire.extend(add.iter());
    }
    while pair.b.move_in(1 << 16) {}
    assert!(pair.b.is_paused());
    assert_eq!(pair.b.machine.queued_answers(), READ_REQUESTS_MAX + 1);
}
