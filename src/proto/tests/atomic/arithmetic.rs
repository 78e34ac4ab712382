//! The arithmetic of atomic operations, against the manual page.

use super::call;
use crate::info::{AtomicOp, AtomicType, CompareOp};
use crate::proto::atomic::Atomic;
use crate::wire::{AtomicCall, AtomicForm};

fn front<const N: usize>(bytes: [u8; N]) -> [u8; 8] {
    let mut front = [0; 8];
    front[..N].copy_from_slice(&bytes);
    front
}

const OPS: [AtomicOp; 12] = [
    AtomicOp::Min,
    AtomicOp::Max,
    AtomicOp::Sum,
    AtomicOp::Prod,
    AtomicOp::LogicalOr,
    AtomicOp::LogicalAnd,
    AtomicOp::BitOr,
    AtomicOp::BitAnd,
    AtomicOp::LogicalXor,
    AtomicOp::BitXor,
    AtomicOp::Read,
    AtomicOp::Write,
];
const COMPARES: [CompareOp; 7] = [
    CompareOp::Swap,
    CompareOp::SwapNotEqual,
    CompareOp::SwapLessOrEqual,
    CompareOp::SwapLess,
    CompareOp::SwapGreaterOrEqual,
    CompareOp::SwapGreater,
    CompareOp::SwapMasked,
];

/// Every operation on every pair of these numbers, against what the manual page says.
macro_rules! against_the_page {
    ($number:ty, $datatype:ident, $bits:expr, $values:expr, $plus:expr, $times:expr) => {{
        type Bits = Option<fn($number, $number) -> $number>;
        let bits: [Bits; 4] = $bits;
        let [plus, times]: [fn($number, $number) -> $number; 2] = [$plus, $times];
        let values: Vec<$number> = $values;
        let after = |op: u8, form, seen: $number, operand: $number, compare: $number| {
            let atomic = Atomic::of(call(form, op, AtomicType::$datatype))?;
            assert_eq!(atomic.size(), size_of::<$number>());
            let bytes = [seen, operand, compare].map(|it| front(it.to_ne_bytes()));
            let new = atomic.apply(bytes[0], bytes[1], bytes[2]);
            let new = new.map(|bytes| {
                let own = bytes[..size_of::<$number>()].try_into().unwrap();
                <$number>::from_ne_bytes(own)
            });
            Some(new.unwrap_or(seen))
        };
        // Equal as bytes, so that zeros of both signs differ. The bits of a NaN are the compiler's
        // choice.
        let check = |got: Option<$number>, expected: Option<$number>, what: String| {
            let is_number = |it: &$number| it.partial_cmp(it).is_some();
            let bytes = |it: $number| is_number(&it).then(|| it.to_ne_bytes());
            assert_eq!(got.map(bytes), expected.map(bytes), "{what}");
        };
        let zero = 0 as $number;
        let truth = |is_true: bool| if is_true { 1 as $number } else { zero };
        for a in &values {
            for b in &values {
                let (addr, buf) = (*a, *b);
                for op in OPS {
                    let expected = match op {
                        AtomicOp::Min => Some(if buf < addr { buf } else { addr }),
                        AtomicOp::Max => Some(if buf > addr { buf } else { addr }),
                        AtomicOp::Sum => Some(plus(addr, buf)),
                        AtomicOp::Prod => Some(times(addr, buf)),
                        AtomicOp::LogicalOr => Some(truth(addr != zero || buf != zero)),
                        AtomicOp::LogicalAnd => Some(truth(addr != zero && buf != zero)),
                        AtomicOp::LogicalXor => Some(truth((addr != zero) != (buf != zero))),
                        AtomicOp::BitOr => bits[0].map(|it| it(addr, buf)),
                        AtomicOp::BitAnd => bits[1].map(|it| it(addr, buf)),
                        AtomicOp::BitXor => bits[2].map(|it| it(addr, buf)),
                        AtomicOp::Read => Some(addr),
                        AtomicOp::Write => Some(buf),
                    };
                    let what = format!("{op:?} of {addr:?} and {buf:?}");
                    let fetched = after(op.to_number(), AtomicForm::Fetch, addr, buf, buf);
                    check(fetched, expected, what.clone());
                    let expected = expected.filter(|_| op != AtomicOp::Read);
                    let updated = after(op.to_number(), AtomicForm::Update, addr, buf, buf);
                    check(updated, expected, what);
                }
                for c in &values {
                    let compare = *c;
                    for op in COMPARES {
                        let holds = match op {
                            CompareOp::Swap => compare == addr,
                            CompareOp::SwapNotEqual => compare != addr,
                            CompareOp::SwapLessOrEqual => compare <= addr,
                            CompareOp::SwapLess => compare < addr,
                            CompareOp::SwapGreaterOrEqual => compare >= addr,
                            CompareOp::SwapGreater => compare > addr,
                            CompareOp::SwapMasked => false,
                        };
                        let expected = match (op, bits) {
                            (CompareOp::SwapMasked, [Some(or), Some(and), _, Some(without)]) => {
                                Some(or(and(buf, compare), without(addr, compare)))
                            }
                            (CompareOp::SwapMasked, _) => None,
                            _ => Some(if holds { buf } else { addr }),
                        };
                        let got = after(op.to_number(), AtomicForm::Compare, addr, buf, compare);
                        check(
                            got,
                            expected,
                            format!("{op:?}: {addr:?}, {buf:?}, {compare:?}"),
                        );
                    }
                }
            }
        }
    }};
}

macro_rules! integers_against_the_page {
    ($($number:ident $datatype:ident;)*) => {$(
        against_the_page!(
            $number,
            $datatype,
            [Some(|a, b| a | b), Some(|a, b| a & b), Some(|a, b| a ^ b), Some(|a, b| a & !b)],
            vec![0, 1, 2, 3, 0x55, $number::MAX / 2, $number::MAX, $number::MIN, $number::MAX - 1],
            |a, b| (a as i128).wrapping_add(b as i128) as $number,
            |a, b| (a as i128).wrapping_mul(b as i128) as $number
        );
    )*};
}

macro_rules! floats_against_the_page {
    ($($number:ident $datatype:ident;)*) => {$(
        against_the_page!(
            $number,
            $datatype,
            [None, None, None, None],
            vec![0.0, -0.0, 1.0, -1.5, 2.25, $number::MAX, $number::MIN_POSITIVE,
                $number::INFINITY, $number::NEG_INFINITY, $number::NAN],
            |a, b| a + b,
            |a, b| a * b
        );
    )*};
}

/// fi_atomic(3): each operation does what the page's line of C does, on each type; where an
/// operation has no meaning there is none.
#[test]
fn every_operation_on_every_type_is_the_pages() {
    integers_against_the_page! {
        u8 Uint8; u16 Uint16; u32 Uint32; u64 Uint64;
        i8 Int8; i16 Int16; i32 Int32; i64 Int64;
    }
    floats_against_the_page! { f32 Float; f64 Double; }
}

/// docs/extension.md, section 11: "Types 0 to 9 are known", and no other bit of the word.
#[test]
fn what_is_not_known_is_no_operation() {
    for numbers in (10..256).chain([0x207, 1 << 9, 1 << 63, u64::MAX]) {
        for (form, operation) in [
            (AtomicForm::Update, 2),
            (AtomicForm::Fetch, 10),
            (AtomicForm::Compare, 12),
        ] {
            let call = AtomicCall {
                form,
                operation,
                numbers,
            };
            assert_eq!(Atomic::of(call), None, "{numbers:#x}");
        }
    }
    for operation in 0..=255 {
        let known = |form| Atomic::of(call(form, operation, AtomicType::Int32)).is_some();
        assert_eq!(known(AtomicForm::Update), operation < 12 && operation != 10);
        assert_eq!(known(AtomicForm::Fetch), operation < 12);
        assert_eq!(known(AtomicForm::Compare), (12..19).contains(&operation));
    }
}
