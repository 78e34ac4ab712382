//! The arithmetic of atomic operations (`fi_atomic(3)`): pure functions on bytes. The caller makes
//! the change of the memory atomic.

use crate::info::{AtomicOp, AtomicType, CompareOp};
use crate::mr::Access;
use crate::wire::{AtomicCall, AtomicForm, BIG_ENDIAN};

/// The bytes of one number, at the front of the array.
type Bytes = [u8; 8];

/// An operation that a peer may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Atomic {
    operator: Operator,
    datatype: AtomicType,
    size: usize,
    /// The byte order of the peer's numbers differs from that of memory.
    swaps: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Change(AtomicOp),
    Compare(CompareOp),
}

impl Atomic {
    /// Returns the operation that the numbers of a frame name; `None` if it is unknown.
    pub(crate) fn of(call: AtomicCall) -> Option<Self> {
        let [number, ..] = call.numbers.to_le_bytes();
        if call.numbers & !(0xff | BIG_ENDIAN) != 0 {
            return None;
        }
        let datatype = AtomicType::from_number(number)?;
        let (operator, attr) = match call.form {
            AtomicForm::Compare => {
                let op = CompareOp::from_number(call.operation)?;
                (Operator::Compare(op), op.attr(datatype)?)
            }
            form => {
                let op = AtomicOp::from_number(call.operation)?;
                let attr = op.attr(datatype, form == AtomicForm::Fetch)?;
                (Operator::Change(op), attr)
            }
        };
        let is_big = call.numbers & BIG_ENDIAN != 0;
        Some(Atomic {
            operator,
            datatype,
            size: attr.size,
            swaps: is_big != cfg!(target_endian = "big"),
        })
    }

    /// Returns the size of a number in bytes.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// True if the peer sends no operands, since the operation only reads.
    pub(crate) fn only_reads(&self) -> bool {
        self.operator == Operator::Change(AtomicOp::Read)
    }

    /// Returns the rights that the operation needs (`fi_atomic(3)`: a fetch needs remote read
    /// access).
    pub(crate) fn need(&self, form: AtomicForm) -> Access {
        match form {
            AtomicForm::Update => Access::REMOTE_WRITE,
            _ if self.only_reads() => Access::REMOTE_READ,
            AtomicForm::Fetch | AtomicForm::Compare => Access::REMOTE,
        }
    }

    /// Returns the bytes that replace `seen`, a number in memory; `None` leaves the number as it
    /// is. Only the first `size` bytes of `operand` and `compare`, which the peer sent, count.
    pub(crate) fn apply(&self, seen: Bytes, operand: Bytes, compare: Bytes) -> Option<Bytes> {
        let (operand, compare) = (self.swapped(operand), self.swapped(compare));
        match self.datatype {
            AtomicType::Int8 => self.apply_as::<i8>(seen, operand, compare),
            AtomicType::Uint8 => self.apply_as::<u8>(seen, operand, compare),
            AtomicType::Int16 => self.apply_as::<i16>(seen, operand, compare),
            AtomicType::Uint16 => self.apply_as::<u16>(seen, operand, compare),
            AtomicType::Int32 => self.apply_as::<i32>(seen, operand, compare),
            AtomicType::Uint32 => self.apply_as::<u32>(seen, operand, compare),
            AtomicType::Int64 => self.apply_as::<i64>(seen, operand, compare),
            AtomicType::Uint64 => self.apply_as::<u64>(seen, operand, compare),
            AtomicType::Float => self.apply_as::<f32>(seen, operand, compare),
            AtomicType::Double => self.apply_as::<f64>(seen, operand, compare),
            // `Atomic::of` has refused all others.
            _ => None,
        }
    }

    /// Converts a number from the peer's byte order to memory's, or back.
    pub(crate) fn swapped(&self, mut bytes: Bytes) -> Bytes {
        if self.swaps {
            bytes[..self.size].reverse();
        }
        bytes
    }

    fn apply_as<N: Number>(&self, seen: Bytes, operand: Bytes, compare: Bytes) -> Option<Bytes> {
        let (seen, operand) = (N::from_front(seen), N::from_front(operand));
        let new = match self.operator {
            Operator::Change(op) => change(op, seen, operand),
            Operator::Compare(op) => swap(op, seen, operand, N::from_front(compare)),
        };
        new.map(Number::to_front)
    }
}

fn change<N: Number>(op: AtomicOp, seen: N, operand: N) -> Option<N> {
    let truth = |is_true| Some(if is_true { N::ONE } else { N::ZERO });
    let (was, is) = (seen != N::ZERO, operand != N::ZERO);
    match op {
        AtomicOp::Min => (operand < seen).then_some(operand),
        AtomicOp::Max => (operand > seen).then_some(operand),
        AtomicOp::Sum => Some(seen.plus(operand)),
        AtomicOp::Prod => Some(seen.times(operand)),
        AtomicOp::LogicalOr => truth(was || is),
        AtomicOp::LogicalAnd => truth(was && is),
        AtomicOp::LogicalXor => truth(was != is),
        AtomicOp::BitOr => Some(seen.with_bits(operand, |a, b| a | b)),
        AtomicOp::BitAnd => Some(seen.with_bits(operand, |a, b| a & b)),
        AtomicOp::BitXor => Some(seen.with_bits(operand, |a, b| a ^ b)),
        AtomicOp::Read => None,
        AtomicOp::Write => Some(operand),
    }
}

fn swap<N: Number>(op: CompareOp, seen: N, operand: N, compare: N) -> Option<N> {
    let holds = match op {
        CompareOp::Swap => compare == seen,
        CompareOp::SwapNotEqual => compare != seen,
        CompareOp::SwapLessOrEqual => compare <= seen,
        CompareOp::SwapLess => compare < seen,
        CompareOp::SwapGreaterOrEqual => compare >= seen,
        CompareOp::SwapGreater => compare > seen,
        CompareOp::SwapMasked => {
            let given = operand.with_bits(compare, |new, mask| new & mask);
            let kept = seen.with_bits(compare, |old, mask| old & !mask);
            return Some(given.with_bits(kept, |a, b| a | b));
        }
    };
    holds.then_some(operand)
}

/// A type of number that atomic operations compute with.
trait Number: Copy + PartialOrd {
    const ZERO: Self;
    const ONE: Self;

    fn from_front(bytes: Bytes) -> Self;
    fn to_front(self) -> Bytes;
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;

    /// Combines the bits of two numbers. [`Atomic::of`] admits only types that the operation
    /// supports.
    fn with_bits(self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        let [ours, theirs] = [self, other].map(|it| u64::from_ne_bytes(it.to_front()));
        Self::from_front(combine(ours, theirs).to_ne_bytes())
    }
}

macro_rules! numbers {
    ($($number:ty: $zero:expr, $one:expr, $plus:expr, $times:expr;)*) => {$(
        impl Number for $number {
            const ZERO: Self = $zero;
            const ONE: Self = $one;

            fn from_front(bytes: Bytes) -> Self {
                let mut own = [0; size_of::<Self>()];
                own.copy_from_slice(&bytes[..size_of::<Self>()]);
                Self::from_ne_bytes(own)
            }

            fn to_front(self) -> Bytes {
                let mut bytes = [0; 8];
                bytes[..size_of::<Self>()].copy_from_slice(&self.to_ne_bytes());
                bytes
            }

            fn plus(self, other: Self) -> Self {
                $plus(self, other)
            }

            fn times(self, other: Self) -> Self {
                $times(self, other)
            }
        }
    )*};
}

numbers! {
    u8: 0, 1, u8::wrapping_add, u8::wrapping_mul;
    u16: 0, 1, u16::wrapping_add, u16::wrapping_mul;
    u32: 0, 1, u32::wrapping_add, u32::wrapping_mul;
    u64: 0, 1, u64::wrapping_add, u64::wrapping_mul;
    i8: 0, 1, i8::wrapping_add, i8::wrapping_mul;
    i16: 0, 1, i16::wrapping_add, i16::wrapping_mul;
    i32: 0, 1, i32::wrapping_add, i32::wrapping_mul;
    i64: 0, 1, i64::wrapping_add, i64::wrapping_mul;
    f32: 0.0, 1.0, std::ops::Add::add, std::ops::Mul::mul;
    f64: 0.0, 1.0, std::ops::Add::add, std::ops::Mul::mul;
}
