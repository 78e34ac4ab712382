//! Atomic operations of one machine on the memory of another.

mod arithmetic;
mod bounds;

use super::extension::EXTENDED;
use super::pair::{
    PLAIN, Pair, REMOTE, Rng, TestConnection, memory_of, operation, segments, sizes,
};
use super::refusal::{exchange, flush, living_with, refusal_of};
use crate::buf::Payload;
use crate::error::{Error, ErrorKind, OperationKind, Refusal};
use crate::info::{AtomicOp, AtomicType, CompareOp};
use crate::limits::{ATOMIC_SIZE_MAX, READ_REQUESTS_MAX};
use crate::mr::Access;
use crate::proto::{AtomicRequest, ExtensionParams, OFFERED, OpKey, OpKind, Withdrawn};
use crate::wire::{
    AtomicCall, AtomicForm, BIG_ENDIAN, ByteOrder, Capabilities, CloseReason, FrameHeader,
};

const LOCAL_ORDER: u64 = if cfg!(target_endian = "big") {
    BIG_ENDIAN
} else {
    0
};

fn call(form: AtomicForm, operation: u8, datatype: AtomicType) -> AtomicCall {
    AtomicCall {
        form,
        operation,
        numbers: u64::from(datatype.to_number()) | LOCAL_ORDER,
    }
}

fn sum(form: AtomicForm) -> AtomicCall {
    call(form, AtomicOp::Sum.to_number(), AtomicType::Uint64)
}

impl TestConnection {
    /// Posts an atomic operation with these operands; one that fetches has as many bytes for its
    /// results as the segments have.
    fn atomic(
        &mut self,
        token: u64,
        call: AtomicCall,
        sent: &[u8],
        to: &[(u64, u64, u64)],
    ) -> OpKey {
        self.try_atomic(token, call, sent, to)
            .expect("the post is accepted")
    }

    fn try_atomic(
        &mut self,
        token: u64,
        call: AtomicCall,
        sent: &[u8],
        to: &[(u64, u64, u64)],
    ) -> Result<OpKey, Error> {
        let segments = segments(to);
        let operands = Payload::from_vec(sent.to_vec());
        let (operands, payload) = match call.form {
            AtomicForm::Update => (None, operands),
            AtomicForm::Fetch | AtomicForm::Compare => {
                let results = vec![0; segments.total() as usize];
                (Some(operands), Payload::from_vec(results))
            }
        };
        let kind = OpKind::Atomic(Box::new(AtomicRequest {
            call,
            segments,
            operands,
        }));
        self.try_post(token, operation(kind, payload), true)
    }
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes.try_into().expect("eight bytes"))
}

/// docs/extension.md, section 11: the exchange of the page is what the two sides say.
#[cfg(target_endian = "little")]
#[test]
fn the_atomic_exchange_of_the_page_is_what_two_machines_say() {
    let mut pair = living_with(8);
    let region = pair.b.host.region(7, 40u64.to_ne_bytes().to_vec(), REMOTE);
    let whole = [(7, 0, 8)];
    pair.a
        .atomic(1, sum(AtomicForm::Update), &2u64.to_ne_bytes(), &whole);
    pair.a
        .atomic(2, sum(AtomicForm::Fetch), &3u64.to_ne_bytes(), &whole);
    let swap = call(
        AtomicForm::Compare,
        CompareOp::Swap.to_number(),
        AtomicType::Uint64,
    );
    let sent = [0u64, 45].map(u64::to_ne_bytes).concat();
    pair.a.atomic(3, swap, &sent, &whole);
    let short = call(
        AtomicForm::Update,
        AtomicOp::Sum.to_number(),
        AtomicType::Uint32,
    );
    pair.a.atomic(4, short, &1u32.to_ne_bytes(), &[(7, 1, 4)]);
    flush(&mut pair.a, &mut pair.b.wire);
    let said: Vec<u8> = pair.b.wire.iter().copied().collect();
    assert_eq!(said, exchange("atomics", 'a'));
    while pair.b.move_in(usize::MAX) {}
    flush(&mut pair.b, &mut pair.a.wire);
    let said: Vec<u8> = pair.a.wire.iter().copied().collect();
    assert_eq!(said, exchange("atomics", 'b'));
    pair.run();
    assert_eq!(pair.a.end_of(1).0, Ok(8));
    for (token, before) in [(2, 42), (3, 45)] {
        let (ended, bytes) = pair.a.end_of(token);
        assert_eq!((ended, number(&bytes)), (Ok(8), before));
    }
    let end = pair.a.ended.remove(&4).unwrap();
    let error = end.end.result.clone().unwrap_err();
    assert_eq!(error.refusal(), Some(Refusal::Misaligned));
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let mut left = [1; 8];
    region.read_at(0, &mut left).unwrap();
    assert_eq!(number(&left), 0);
}

/// docs/extension.md, section 11: "Operations are done one after the other, in the order of their
/// frames", in whatever pieces they come, among reads and writes; each is counted as what it is.
#[test]
fn operations_of_all_kinds_are_done_and_reported_in_their_order() {
    for seed in 0..200 {
        let rng = &mut Rng(seed);
        let mut pair = Pair::idle_with(sizes(), EXTENDED, EXTENDED);
        pair.handshake(ByteOrder::Native, b"", b"");
        let region = pair.b.host.region(1, vec![0; 64], REMOTE);
        let mut model = [0u64; 8];
        let mut expected = Vec::new();
        for token in 0..30 {
            let at = rng.below(6);
            let to = [(1, 8 * at as u64, 16)];
            let add = [rng.next(), rng.next()];
            let sent = add.map(u64::to_ne_bytes).concat();
            let before = [model[at], model[at + 1]];
            match rng.below(4) {
                0 => drop(pair.a.atomic(token, sum(AtomicForm::Update), &sent, &to)),
                1 => {
                    pair.a.atomic(token, sum(AtomicForm::Fetch), &sent, &to);
                    expected.push((token, before));
                }
                2 => {
                    let only = call(AtomicForm::Fetch, 10, AtomicType::Uint64);
                    pair.a.atomic(token, only, &[], &to);
                    expected.push((token, before));
                    continue;
                }
                _ => {
                    // Two ranges of the region, the second first.
                    let to = [(1, 8 * at as u64 + 8, 8), (1, 8 * at as u64, 8)];
                    let swap = call(AtomicForm::Compare, 12, AtomicType::Uint64);
                    let guess = [before[1], before[0] ^ u64::from(rng.chance(50))];
                    let sent = [add[1], add[0], guess[0], guess[1]]
                        .map(u64::to_ne_bytes)
                        .concat();
                    pair.a.atomic(token, swap, &sent, &to);
                    expected.push((token, [before[1], before[0]]));
                    model[at + 1] = add[1];
                    if guess[1] == before[0] {
                        model[at] = add[0];
                    }
                    continue;
                }
            }
            model[at] = model[at].wrapping_add(add[0]);
            model[at + 1] = model[at + 1].wrapping_add(add[1]);
        }
        pair.run_in_pieces(1 + rng.below(300));
        for (token, before) in &expected {
            let (ended, bytes) = pair.a.end_of(*token);
            assert_eq!(ended, Ok(16), "seed {seed}");
            assert_eq!(bytes, before.map(u64::to_ne_bytes).concat(), "seed {seed}");
        }
        assert_eq!(pair.a.ended.len(), 30 - expected.len());
        assert!(pair.a.ended.values().all(|end| end.end.result.is_ok()));
        let mut bytes = [0; 64];
        region.read_at(0, &mut bytes).unwrap();
        assert_eq!(
            bytes.to_vec(),
            model.map(u64::to_ne_bytes).concat(),
            "seed {seed}"
        );
        let accesses = pair.b.remote_accesses.iter();
        let reads = accesses
            .filter(|it| **it == OperationKind::RemoteRead)
            .count();
        assert_eq!((reads, pair.b.remote_accesses.len()), (expected.len(), 30));
        pair.a.machine.check();
        pair.b.machine.check();
    }
}

/// docs/extension.md, section 11: "The initiator states its own byte order there, whatever the
/// connection's is, and the target converts."
#[test]
fn numbers_of_the_other_byte_order_are_converted() {
    for order in [ByteOrder::Native, ByteOrder::Big] {
        let mut pair = Pair::idle_with(sizes(), EXTENDED, EXTENDED);
        pair.handshake(order, b"", b"");
        let region = pair
            .b
            .host
            .region(1, 0x0102u16.to_ne_bytes().repeat(2), REMOTE);
        let mut theirs = call(AtomicForm::Fetch, 2, AtomicType::Uint16);
        theirs.numbers ^= BIG_ENDIAN;
        let sent = [0x10u16, 0x20]
            .map(|it| it.swap_bytes().to_ne_bytes())
            .concat();
        pair.a.atomic(1, theirs, &sent, &[(1, 0, 4)]);
        pair.run();
        let before = 0x0102u16.swap_bytes().to_ne_bytes().repeat(2);
        assert_eq!(pair.a.end_of(1), (Ok(4), before));
        let mut bytes = [0; 4];
        region.read_at(0, &mut bytes).unwrap();
        assert_eq!(
            bytes.to_vec(),
            [0x0112u16, 0x0122].map(u16::to_ne_bytes).concat()
        );
    }
}

/// docs/extension.md, section 11: "All segments are checked first, so a refused operation has
/// changed nothing", for each reason and each kind, among good ones.
#[test]
fn each_reason_refuses_all_of_an_operation_and_nothing_else() {
    for most in [5, 1000, usize::MAX] {
        let mut pair = living_with(100);
        let region = pair.b.host.region(1, vec![0; 64], REMOTE);
        pair.b.host.region(2, vec![5; 64], Access::REMOTE_READ);
        pair.b.host.region(3, vec![5; 64], Access::REMOTE_WRITE);
        let revoked = pair.b.host.region(4, vec![5; 64], REMOTE);
        revoked.gate().revoke();
        let held = pair.b.host.region(5, vec![5; 64], REMOTE);
        held.gate().begin_quiesce().unwrap();
        let swap = call(AtomicForm::Compare, 12, AtomicType::Uint64);
        let reads = call(AtomicForm::Fetch, 10, AtomicType::Uint64);
        let (update, fetch) = (sum(AtomicForm::Update), sum(AtomicForm::Fetch));
        let mut cases = Vec::new();
        for it in [update, fetch, swap, reads] {
            cases.push((it, (99, 0, 8), Refusal::UnknownKey));
            cases.push((it, (1, 64, 8), Refusal::OutOfBounds));
            cases.push((it, (1, u64::MAX - 7, 8), Refusal::OutOfBounds));
            cases.push((it, (4, 0, 8), Refusal::Revoked));
            cases.push((it, (5, 0, 8), Refusal::Held));
            cases.push((it, (1, 4, 8), Refusal::Misaligned));
            let unknown = AtomicCall {
                numbers: 14,
                operation: if it == reads { 2 } else { it.operation },
                ..it
            };
            cases.push((unknown, (1, 0, 8), Refusal::Unsupported));
        }
        for (it, key) in [
            (update, 2),
            (fetch, 2),
            (fetch, 3),
            (swap, 2),
            (swap, 3),
            (reads, 3),
        ] {
            cases.push((it, (key, 0, 8), Refusal::AccessDenied));
        }
        let one = 1u64.to_ne_bytes();
        let mut token = 0;
        for (it, to, _) in &cases {
            token += 2;
            let arrays = match it.form {
                _ if it.operation == 10 => 0,
                AtomicForm::Compare => 4,
                _ => 2,
            };
            pair.a
                .atomic(token, *it, &one.repeat(arrays), &[(1, 0, 8), *to]);
            pair.a.atomic(token + 1, fetch, &one, &[(1, 8, 8)]);
        }
        pair.run_in_pieces(most);
        for (at, (it, to, reason)) in cases.iter().enumerate() {
            let end = pair.a.ended.remove(&(2 * at as u64 + 2)).unwrap();
            let error = end.end.result.clone().unwrap_err();
            assert_eq!(error.refusal(), Some(*reason), "{it:?} {to:?}");
            let (ended, bytes) = pair.a.end_of(2 * at as u64 + 3);
            assert_eq!((ended, number(&bytes)), (Ok(8), at as u64));
        }
        let mut bytes = [0; 16];
        region.read_at(0, &mut bytes).unwrap();
        assert_eq!(number(&bytes[..8]), 0, "the good segment of a refused one");
        assert!(pair.a.machine.fault().is_none() && pair.b.machine.fault().is_none());
    }
}

/// docs/extension.md, section 4, for atomic operations: by default the initiator ends the
/// connection, after the refused operation has ended with its reason.
#[test]
fn by_default_a_refused_atomic_ends_the_connection_after_itself() {
    for form in [AtomicForm::Update, AtomicForm::Fetch] {
        let mut pair = living_with(0);
        pair.a.atomic(1, sum(form), &[0; 8], &[(9, 0, 8)]);
        pair.a.atomic(2, sum(form), &[0; 8], &[(9, 0, 8)]);
        pair.run();
        assert_eq!(refusal_of(&mut pair.a, 1), Some(Refusal::UnknownKey));
        assert_eq!(
            pair.a.machine.fault().map(Error::kind),
            Some(ErrorKind::Canceled)
        );
        pair.a.close();
        assert_eq!(pair.a.order, [1, 2]);
        assert_eq!(pair.a.end_kind(2), ErrorKind::Canceled);
    }
}

/// docs/extension.md: "After `n` refusals for reasons 1 to 3 within a minute the target closes it":
/// a peer that guesses keys by atomic operations has no more guesses than one that writes and
/// reads.
#[test]
fn guesses_by_atomic_operations_are_counted() {
    for form in [AtomicForm::Update, AtomicForm::Fetch] {
        let mut pair = living_with(3);
        for token in 0..10 {
            pair.a.atomic(token, sum(form), &[0; 8], &[(9, 0, 8)]);
        }
        pair.run();
        assert_eq!(pair.a.ended.len(), 3, "{form:?}");
        assert!(pair.b.machine.is_ending_for_cause());
    }
}

/// Each operation ends once, with its memory, wherever the connection breaks.
#[test]
fn a_lost_connection_ends_each_operation_once_with_its_memory() {
    for cut in 0..400 {
        let mut pair = living_with(8);
        pair.b.host.region(1, vec![0; 64], REMOTE);
        for token in 0..6 {
            let form = [AtomicForm::Update, AtomicForm::Fetch][token as usize % 2];
            pair.a
                .atomic(token, sum(form), &token.to_ne_bytes(), &[(1, 0, 8)]);
        }
        pair.a.hand_out();
        let mut wire = Default::default();
        pair.a.move_out(cut, &mut wire);
        pair.b.wire.extend(wire);
        while pair.b.move_in(7) {}
        pair.b.hand_out();
        pair.b.move_out(cut % 90, &mut pair.a.wire);
        while pair.a.move_in(9) {}
        pair.a.close();
        assert_eq!(pair.a.ended.len(), 6, "cut after {cut}");
        for end in pair.a.ended.values() {
            assert_eq!(
                memory_of(end).len(),
                8,
                "cut after {cut}: {:?}",
                end.end.result
            );
        }
        pair.a.machine.check();
        pair.b.close();
        pair.b.machine.check();
    }
}

/// fi_cancel: an operation that has not gone out ends as Canceled; one that has runs to its end. A
/// time limit ends both, and the answer that comes later is dropped.
#[test]
fn cancelled_and_expired_operations_leave_the_answers_of_others_in_place() {
    for form in [AtomicForm::Update, AtomicForm::Fetch] {
        let mut pair = living_with(8);
        let region = pair.b.host.region(1, vec![0; 8], REMOTE);
        let one = 1u64.to_ne_bytes();
        let keys = [1, 2, 3].map(|token| pair.a.atomic(token, sum(form), &one, &[(1, 0, 8)]));
        assert_eq!(pair.a.machine.cancel(keys[1]), Withdrawn::Ended);
        flush(&mut pair.a, &mut pair.b.wire);
        assert_eq!(pair.a.machine.cancel(keys[0]), Withdrawn::Running);
        assert_eq!(pair.a.machine.expire(keys[0], None), Withdrawn::Ended);
        pair.a.take_events();
        assert_eq!(pair.a.end_of(1).0, Err(ErrorKind::TimedOut));
        let (ended, bytes) = pair.a.end_of(2);
        assert_eq!((ended, bytes.len()), (Err(ErrorKind::Canceled), 8));
        pair.a.atomic(4, sum(AtomicForm::Fetch), &one, &[(1, 0, 8)]);
        pair.run();
        let (ended, bytes) = pair.a.end_of(3);
        assert_eq!(ended, Ok(8));
        if form == AtomicForm::Fetch {
            assert_eq!(number(&bytes), 1);
        }
        let (ended, bytes) = pair.a.end_of(4);
        assert_eq!((ended, number(&bytes)), (Ok(8), 2));
        let mut bytes = [0; 8];
        region.read_at(0, &mut bytes).unwrap();
        assert_eq!(number(&bytes), 3);
        pair.a.machine.check();
        assert_eq!(pair.a.machine.outstanding(), 0);
    }
}

/// With a peer that has not agreed to atomic operations a post of one fails as Unsupported.
#[test]
fn without_agreement_they_are_refused_at_the_post() {
    let without = |one| ExtensionParams {
        capabilities: OFFERED - one,
        ..EXTENDED
    };
    for (a, b) in [
        (EXTENDED, PLAIN),
        (PLAIN, EXTENDED),
        (without(Capabilities::ATOMIC), EXTENDED),
        (EXTENDED, without(Capabilities::ATOMIC)),
        (EXTENDED, without(Capabilities::REFUSAL)),
    ] {
        let mut pair = Pair::idle_with(sizes(), a, b);
        pair.handshake(ByteOrder::Native, b"", b"");
        let refused = pair
            .a
            .try_atomic(1, sum(AtomicForm::Fetch), &[0; 8], &[(1, 0, 8)]);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
        let frame = FrameHeader::Atomic {
            call: sum(AtomicForm::Update),
            segments: segments(&[(1, 0, 8)]),
            len: 8,
        };
        pair.b.wire.extend(&*frame.encode(ByteOrder::Native, 0));
        while pair.b.move_in(usize::MAX) {}
        let fault = pair.b.machine.fault().map(Error::kind);
        assert_eq!(fault, Some(ErrorKind::ProtocolViolation));
    }
}
