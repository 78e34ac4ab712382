//! What atomic operations are given, and what they give: numbers by value, or in regions.

use std::marker::PhantomData;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::buf::{Convert, IoBuf, IoBufMut, LocalUse, Memory, OwnedBuffer, Refused};
use crate::info::AtomicType;
use crate::mr::RegionSlice;

/// A number that peers' memory can be changed by atomically: `u8` to `u64`, `i8` to `i64`, `f32`,
/// `f64`. Sealed.
pub trait AtomicValue: sealed::Value + FromBytes + IntoBytes + Immutable {
    /// libfabric's name of the type.
    const TYPE: AtomicType;
}

/// The operands of an atomic operation: one [`AtomicValue`], an array or `Vec` of them, or
/// [`NumbersOf`] a region. The operation works on as many numbers as there are. Sealed.
pub trait Operands: sealed::IntoOperands {
    /// What they are.
    type Value: AtomicValue;
    /// What an operation that fetches gives: as many numbers, in the same form; of a region's in a
    /// `Vec`.
    type Results: AtomicResults;
}

/// What an atomic operation gives when it is awaited. Sealed.
pub trait AtomicResults: sealed::FromMemory {}

pub(super) mod sealed {
    /// Seals [`AtomicValue`](super::AtomicValue).
    pub trait Value: Copy + Send + 'static {}

    /// Seals [`Operands`](super::Operands).
    pub trait IntoOperands {
        #[doc(hidden)]
        fn into_memory(self) -> super::AtomicMemory;
    }

    /// Seals [`AtomicResults`](super::AtomicResults).
    pub trait FromMemory: Sized {
        #[doc(hidden)]
        fn from_memory(memory: super::AtomicMemory) -> Self;
    }
}

/// The numbers of type `T` in a range of a region, as operands: see [`RegionSlice::numbers_of`].
pub struct NumbersOf<T> {
    slice: RegionSlice,
    value: PhantomData<fn() -> T>,
}

debug_fields!([T: AtomicValue] NumbersOf<T>, self => datatype: T::TYPE, slice: self.slice);

impl RegionSlice {
    /// The numbers of this type that the slice holds, as operands of an atomic operation. They need
    /// not be aligned here; there must be a whole number of them. Takes
    /// [`Access::WRITE`](crate::Access::WRITE) when it is posted.
    pub fn numbers_of<T: AtomicValue>(self) -> NumbersOf<T> {
        NumbersOf {
            slice: self,
            value: PhantomData,
        }
    }
}

/// The memory of an atomic operation: numbers of its own, or a range of a region. It shows only
/// where an operation that reports to a queue was not accepted.
#[derive(Debug)]
pub struct AtomicMemory(Kind);

#[derive(Debug)]
enum Kind {
    Own(Vec<u8>),
    Region(RegionSlice),
}

impl AtomicMemory {
    pub(super) fn of(bytes: &[u8]) -> Self {
        AtomicMemory(Kind::Own(bytes.to_vec()))
    }

    pub(super) fn zeros(len: usize) -> Self {
        AtomicMemory(Kind::Own(vec![0; len]))
    }

    pub(super) fn region(slice: RegionSlice) -> Self {
        AtomicMemory(Kind::Region(slice))
    }

    /// Length in bytes.
    pub(super) fn len(&self) -> usize {
        match &self.0 {
            Kind::Own(bytes) => bytes.len(),
            Kind::Region(slice) => slice.len(),
        }
    }

    /// The bytes, if they are its own.
    pub(super) fn own(&self) -> Option<&[u8]> {
        match &self.0 {
            Kind::Own(bytes) => Some(bytes),
            Kind::Region(_) => None,
        }
    }

    /// The numbers that were put into it.
    fn numbers<T: AtomicValue>(&self) -> Vec<T> {
        let size = size_of::<T>();
        let own = self.own().unwrap_or_default().chunks_exact(size);
        own.map(|bytes| T::read_from_bytes(bytes).expect("as many bytes as a number has"))
            .collect()
    }
}

impl Convert for AtomicMemory {
    fn into_owned_buffer(self) -> Result<OwnedBuffer, Refused<Self>> {
        match self.0 {
            Kind::Own(bytes) => bytes.into_owned_buffer().map_err(again(Kind::Own)),
            Kind::Region(slice) => slice.into_owned_buffer().map_err(again(Kind::Region)),
        }
    }

    fn into_memory(self, usage: LocalUse) -> Result<Memory, Refused<Self>> {
        match self.0 {
            Kind::Own(bytes) => bytes.into_memory(usage).map_err(again(Kind::Own)),
            Kind::Region(slice) => slice.into_memory(usage).map_err(again(Kind::Region)),
        }
    }

    fn from_owned_buffer(owned: OwnedBuffer) -> Result<Self, OwnedBuffer> {
        Vec::from_owned_buffer(owned).map(|bytes| AtomicMemory(Kind::Own(bytes)))
    }

    fn from_memory(memory: Memory) -> Result<Self, Memory> {
        match RegionSlice::from_memory(memory) {
            Ok(slice) => Ok(AtomicMemory(Kind::Region(slice))),
            Err(owned) => Vec::from_memory(owned).map(|bytes| AtomicMemory(Kind::Own(bytes))),
        }
    }

    fn buffer_len(&self) -> usize {
        self.len()
    }

    fn is_buffer_registered(&self) -> bool {
        matches!(self.0, Kind::Region(_))
    }
}

/// The refusal of what it is made of, as its own.
fn again<B>(kind: fn(B) -> Kind) -> impl FnOnce(Refused<B>) -> Refused<AtomicMemory> {
    move |(error, back)| (error, AtomicMemory(kind(back)))
}

impl IoBuf for AtomicMemory {}
impl IoBufMut for AtomicMemory {}

impl AtomicResults for () {}
impl sealed::FromMemory for () {
    fn from_memory(_memory: AtomicMemory) {}
}

/// Of an operation whose results went into a region: the slice, back.
impl AtomicResults for RegionSlice {}
impl sealed::FromMemory for RegionSlice {
    fn from_memory(memory: AtomicMemory) -> Self {
        match memory.0 {
            Kind::Region(slice) => slice,
            Kind::Own(_) => unreachable!("an operation gives back the memory it was given"),
        }
    }
}

impl<T: AtomicValue> AtomicResults for Vec<T> {}
impl<T: AtomicValue> sealed::FromMemory for Vec<T> {
    fn from_memory(memory: AtomicMemory) -> Self {
        memory.numbers()
    }
}

impl<T: AtomicValue, const N: usize> AtomicResults for [T; N] {}
impl<T: AtomicValue, const N: usize> sealed::FromMemory for [T; N] {
    fn from_memory(memory: AtomicMemory) -> Self {
        match memory.numbers().try_into() {
            Ok(numbers) => numbers,
            Err(_) => unreachable!("there are as many results as operands"),
        }
    }
}

impl<T: AtomicValue> Operands for Vec<T> {
    type Value = T;
    type Results = Vec<T>;
}
impl<T: AtomicValue> sealed::IntoOperands for Vec<T> {
    fn into_memory(self) -> AtomicMemory {
        AtomicMemory::of(self.as_bytes())
    }
}

impl<T: AtomicValue, const N: usize> Operands for [T; N] {
    type Value = T;
    type Results = [T; N];
}
impl<T: AtomicValue, const N: usize> sealed::IntoOperands for [T; N] {
    fn into_memory(self) -> AtomicMemory {
        AtomicMemory::of(self.as_bytes())
    }
}

impl<T: AtomicValue> Operands for NumbersOf<T> {
    type Value = T;
    type Results = Vec<T>;
}
impl<T: AtomicValue> sealed::IntoOperands for NumbersOf<T> {
    fn into_memory(self) -> AtomicMemory {
        AtomicMemory::region(self.slice)
    }
}

macro_rules! values {
    ($($number:ty: $datatype:ident;)*) => {$(
        impl AtomicValue for $number {
            const TYPE: AtomicType = AtomicType::$datatype;
        }
        impl sealed::Value for $number {}

        impl Operands for $number {
            type Value = $number;
            type Results = $number;
        }
        impl sealed::IntoOperands for $number {
            fn into_memory(self) -> AtomicMemory {
                AtomicMemory::of(self.as_bytes())
            }
        }

        impl AtomicResults for $number {}
        impl sealed::FromMemory for $number {
            fn from_memory(memory: AtomicMemory) -> Self {
                let [number] = sealed::FromMemory::from_memory(memory);
                number
            }
        }
    )*};
}

values! {
    i8: Int8;
    u8: Uint8;
    i16: Int16;
    u16: Uint16;
    i32: Int32;
    u32: Uint32;
    i64: Int64;
    u64: Uint64;
    f32: Float;
    f64: Double;
}
