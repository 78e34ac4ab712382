//! Atomic operations (`fi_atomic(3)`): the operations, the types of their numbers, and how many
//! numbers one operation can have.

use crate::limits::ATOMIC_SIZE_MAX;

/// A type of number for atomic operations (`enum fi_datatype`).
///
/// [`Domain::atomic_attr`](crate::Domain::atomic_attr) and the related methods report which types
/// are offered, and with which operations.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::info::{AtomicOp, AtomicType};
/// use tokio_fabric::testing::Net;
///
/// let domain = Net::loopback().peer()?.domain;
/// assert!(domain.atomic_attr(AtomicType::Double, AtomicOp::Sum).is_ok());
/// assert!(domain.atomic_attr(AtomicType::Double, AtomicOp::BitOr).is_err());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AtomicType {
    /// `i8` (`FI_INT8`).
    Int8,
    /// `u8` (`FI_UINT8`).
    Uint8,
    /// `i16` (`FI_INT16`).
    Int16,
    /// `u16` (`FI_UINT16`).
    Uint16,
    /// `i32` (`FI_INT32`).
    Int32,
    /// `u32` (`FI_UINT32`).
    Uint32,
    /// `i64` (`FI_INT64`).
    Int64,
    /// `u64` (`FI_UINT64`).
    Uint64,
    /// `f32` (`FI_FLOAT`).
    Float,
    /// `f64` (`FI_DOUBLE`).
    Double,
    /// Two `f32` (`FI_FLOAT_COMPLEX`). Not offered.
    FloatComplex,
    /// Two `f64` (`FI_DOUBLE_COMPLEX`). Not offered.
    DoubleComplex,
    /// C's `long double` (`FI_LONG_DOUBLE`). Not offered.
    LongDouble,
    /// Two C `long double` (`FI_LONG_DOUBLE_COMPLEX`). Not offered.
    LongDoubleComplex,
    /// `i128` (`FI_INT128`). Not offered.
    Int128,
    /// `u128` (`FI_UINT128`). Not offered.
    Uint128,
}

/// The effect of an atomic operation on a number (`enum fi_op`).
///
/// `target` is the number in the peer's memory, `operand` the one that was passed.
///
/// Integers wrap around. Logical operations treat 0 as false and everything else as true, and store
/// 0 or 1. NaN is neither smaller nor larger than any number, nor equal to it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::info::AtomicOp;
/// use tokio_fabric::testing::{Net, connect};
///
/// let net = Net::loopback();
/// let (client, server) = (net.peer()?, net.peer()?);
/// let (endpoint, _server) = connect(&client, &server).await?;
/// let region = server.domain.register(vec![0b0101u8]).await?;
/// endpoint.atomic(AtomicOp::BitXor, 0b0011u8, region.remote()).await?;
/// assert_eq!(region.deregister().await?, [0b0110]);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AtomicOp {
    /// The operand, if it is smaller (`FI_MIN`).
    Min,
    /// The operand, if it is larger (`FI_MAX`).
    Max,
    /// `target + operand` (`FI_SUM`).
    Sum,
    /// `target * operand` (`FI_PROD`).
    Prod,
    /// Whether at least one of the two is not 0 (`FI_LOR`).
    LogicalOr,
    /// Whether neither is 0 (`FI_LAND`).
    LogicalAnd,
    /// `target | operand` (`FI_BOR`). Integers only.
    BitOr,
    /// `target & operand` (`FI_BAND`). Integers only.
    BitAnd,
    /// Whether exactly one of the two is 0 (`FI_LXOR`).
    LogicalXor,
    /// `target ^ operand` (`FI_BXOR`). Integers only.
    BitXor,
    /// `target`, which is only returned (`FI_ATOMIC_READ`). Only with
    /// [`fetch_atomic`](crate::Endpoint::fetch_atomic).
    Read,
    /// The operand (`FI_ATOMIC_WRITE`).
    Write,
}

/// The comparison by which an atomic operation decides whether to replace a number by the operand
/// (`enum fi_op`, those of `fi_compare_atomic(3)`).
///
/// NaN compares as described at [`AtomicOp`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::info::CompareOp;
/// use tokio_fabric::testing::{Net, connect};
///
/// let net = Net::loopback();
/// let (client, server) = (net.peer()?, net.peer()?);
/// let (endpoint, _server) = connect(&client, &server).await?;
/// let region = server.domain.register(vec![5u8]).await?;
/// let before = endpoint.compare_atomic(CompareOp::Swap, 5u8, 9u8, region.remote()).await?;
/// assert_eq!((before, region.deregister().await?), (5, vec![9]));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CompareOp {
    /// `compare == target` (`FI_CSWAP`).
    Swap,
    /// `compare != target` (`FI_CSWAP_NE`).
    SwapNotEqual,
    /// `compare <= target` (`FI_CSWAP_LE`).
    SwapLessOrEqual,
    /// `compare < target` (`FI_CSWAP_LT`).
    SwapLess,
    /// `compare >= target` (`FI_CSWAP_GE`).
    SwapGreaterOrEqual,
    /// `compare > target` (`FI_CSWAP_GT`).
    SwapGreater,
    /// The bits of the operand where `compare` has a 1, and the bits of the target elsewhere
    /// (`FI_MSWAP`). Integers only.
    SwapMasked,
}

/// The limits of one call of an atomic operation (`struct fi_atomic_attr`).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::info::{AtomicOp, AtomicType};
/// use tokio_fabric::testing::Net;
///
/// let domain = Net::loopback().peer()?.domain;
/// let attr = domain.atomic_attr(AtomicType::Uint64, AtomicOp::Sum)?;
/// assert_eq!((attr.count, attr.size), (512, 8));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct AtomicAttr {
    /// Elements per call, at most.
    pub count: usize,
    /// Size of an element, in bytes.
    pub size: usize,
}

impl AtomicType {
    const ALL: [AtomicType; 16] = [
        AtomicType::Int8,
        AtomicType::Uint8,
        AtomicType::Int16,
        AtomicType::Uint16,
        AtomicType::Int32,
        AtomicType::Uint32,
        AtomicType::Int64,
        AtomicType::Uint64,
        AtomicType::Float,
        AtomicType::Double,
        AtomicType::FloatComplex,
        AtomicType::DoubleComplex,
        AtomicType::LongDouble,
        AtomicType::LongDoubleComplex,
        AtomicType::Int128,
        AtomicType::Uint128,
    ];

    /// libfabric's number of the type (`enum fi_datatype`).
    pub fn to_number(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Returns the size in bytes of a number; `None` if the type is not offered.
    pub(crate) fn size(self) -> Option<usize> {
        Some(match self {
            AtomicType::Int8 | AtomicType::Uint8 => 1,
            AtomicType::Int16 | AtomicType::Uint16 => 2,
            AtomicType::Int32 | AtomicType::Uint32 | AtomicType::Float => 4,
            AtomicType::Int64 | AtomicType::Uint64 | AtomicType::Double => 8,
            _ => return None,
        })
    }

    fn is_integer(self) -> bool {
        !matches!(self, AtomicType::Float | AtomicType::Double)
    }

    /// Returns the limits for this type; `None` if it is not offered. Operations on `bits` are
    /// offered for integers only.
    fn attr(self, bits: bool) -> Option<AtomicAttr> {
        let size = self.size().filter(|_| self.is_integer() || !bits)?;
        Some(AtomicAttr {
            count: ATOMIC_SIZE_MAX / size,
            size,
        })
    }
}

impl AtomicOp {
    const ALL: [AtomicOp; 12] = [
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

    /// libfabric's number of the operation (`enum fi_op`).
    pub fn to_number(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Returns the limits of the operation on this type, with `fi_fetch_atomic` or with
    /// `fi_atomic`; `None` if it is not offered.
    pub(crate) fn attr(self, datatype: AtomicType, fetches: bool) -> Option<AtomicAttr> {
        let bits = matches!(self, AtomicOp::BitOr | AtomicOp::BitAnd | AtomicOp::BitXor);
        let reads = self == AtomicOp::Read;
        datatype.attr(bits).filter(|_| fetches || !reads)
    }
}

impl CompareOp {
    const ALL: [CompareOp; 7] = [
        CompareOp::Swap,
        CompareOp::SwapNotEqual,
        CompareOp::SwapLessOrEqual,
        CompareOp::SwapLess,
        CompareOp::SwapGreaterOrEqual,
        CompareOp::SwapGreater,
        CompareOp::SwapMasked,
    ];
    /// Number of the first comparison: comparisons follow all of [`AtomicOp`].
    const FIRST: u8 = AtomicOp::ALL.len() as u8;

    /// libfabric's number of the operation (`enum fi_op`).
    pub fn to_number(self) -> u8 {
        Self::FIRST + self as u8
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        let at = number.checked_sub(Self::FIRST)?;
        Self::ALL.get(usize::from(at)).copied()
    }

    /// Returns the limits of the comparison on this type; `None` if it is not offered.
    pub(crate) fn attr(self, datatype: AtomicType) -> Option<AtomicAttr> {
        datatype.attr(self == CompareOp::SwapMasked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers are libfabric's (`rdma/fi_domain.h`).
    #[test]
    fn numbers_are_those_of_libfabric() {
        for (at, datatype) in AtomicType::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(datatype.to_number()), at);
            assert_eq!(AtomicType::from_number(at as u8), Some(datatype));
        }
        for (at, op) in AtomicOp::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(op.to_number()), at);
            assert_eq!(AtomicOp::from_number(at as u8), Some(op));
            assert_eq!(CompareOp::from_number(at as u8), None);
        }
        for (at, op) in CompareOp::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(op.to_number()), 12 + at);
            assert_eq!(CompareOp::from_number(op.to_number()), Some(op));
            assert_eq!(AtomicOp::from_number(op.to_number()), None);
        }
        let known = [
            (AtomicOp::Sum.to_number(), 2),
            (AtomicOp::BitXor.to_number(), 9),
            (AtomicOp::Write.to_number(), 11),
            (CompareOp::SwapMasked.to_number(), 18),
            (AtomicType::Double.to_number(), 9),
            (AtomicType::Int128.to_number(), 14),
        ];
        assert!(
            known.iter().all(|(ours, theirs)| ours == theirs),
            "{known:?}"
        );
        assert_eq!(
            (AtomicType::from_number(16), CompareOp::from_number(19)),
            (None, None)
        );
    }
}
