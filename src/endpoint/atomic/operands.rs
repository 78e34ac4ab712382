//! Operands and results of atomic operations: numbers by value, or in regions.

use std::marker::PhantomData;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::buf::{Convert, IoBuf, IoBufMut, LocalUse, Memory, OwnedBuffer, Refused};
use crate::info::AtomicType;
use crate::mr::RegionSlice;

/// A type of number that atomic operations support: `u8` to `u64`, `i8` to `i64`, `f32`, `f64`.
/// Sealed.
///
/// ```
/// use tokio_fabric::info::AtomicType;
/// use tokio_fabric::op::AtomicValue;
///
/// assert_eq!(u64::TYPE, AtomicType::Uint64);
/// assert_eq!(f32::TYPE, AtomicType::Float);
/// ```
pub trait AtomicValue: sealed::Value + FromBytes + IntoBytes + Immutable {
    /// libfabric's name of the type.
    const TYPE: AtomicType;
}

/// The operands of an atomic operation: one [`AtomicValue`], an array or `Vec` of them, or the
/// [`NumbersOf`] a region.
///
/// The operation works on as many numbers as there are operands. Sealed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::info::AtomicOp;
/// use tokio_fabric::op::Operands;
/// use tokio_fabric::testing::{Net, connect};
/// use tokio_fabric::{Endpoint, RemoteRegion, Result};
///
/// async fn add<O: Operands>(to: &Endpoint, numbers: O, at: RemoteRegion) -> Result<O::Results> {
///     to.fetch_atomic(AtomicOp::Sum, numbers, at).await
/// }
///
/// let net = Net::loopback();
/// let (client, server) = (net.peer()?, net.peer()?);
/// let (endpoint, _server) = connect(&client, &server).await?;
/// let region = server.domain.register(vec![5u8, 6]).await?;
/// assert_eq!(add(&endpoint, [1u8, 2], region.remote()).await?, [5, 6]);
/// assert_eq!(add(&endpoint, 1u8, region.remote().slice(..1)?).await?, 6);
/// # Ok(()) }
/// ```
pub trait Operands: sealed::IntoOperands {
    /// The type of the numbers.
    type Value: AtomicValue;
    /// The result of an operation that fetches: as many numbers as there are operands, in the same
    /// form; for a region's numbers, a `Vec`.
    type Results: AtomicResults;
}

/// The result of an awaited atomic operation: nothing, or the previous values in the form of its
/// [`Operands`]. Sealed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::info::AtomicOp;
/// use tokio_fabric::op::{AtomicResults, FetchAtomic};
/// use tokio_fabric::testing::{Net, connect};
///
/// /// Works for one number and for several.
/// async fn fetch<R: AtomicResults>(what: FetchAtomic<R>) -> tokio_fabric::Result<R> {
///     what.await
/// }
///
/// let net = Net::loopback();
/// let (client, server) = (net.peer()?, net.peer()?);
/// let (endpoint, _server) = connect(&client, &server).await?;
/// let region = server.domain.register(vec![5u8, 6]).await?;
/// let both = endpoint.fetch_atomic(AtomicOp::Read, vec![0u8; 2], region.remote());
/// assert_eq!(fetch(both).await?, [5, 6]);
/// # Ok(()) }
/// ```
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

/// The numbers of type `T` in a range of a region, as operands. You get them from
/// [`RegionSlice::numbers_of`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::info::AtomicOp;
/// use tokio_fabric::testing::{Net, connect};
///
/// let net = Net::loopback();
/// let (client, server) = (net.peer()?, net.peer()?);
/// let (endpoint, _server) = connect(&client, &server).await?;
/// let (from, to) = (client.domain.register(vec![1u8, 2]), server.domain.register(vec![5u8, 6]));
/// let (from, to) = (from.await?, to.await?);
/// endpoint.atomic(AtomicOp::Sum, from.slice(..)?.numbers_of::<u8>(), to.remote()).await?;
/// assert_eq!(to.deregister().await?, [6, 8]);
/// # Ok(()) }
/// ```
pub struct NumbersOf<T> {
    slice: RegionSlice,
    value: PhantomData<fn() -> T>,
}

debug_fields!([T: AtomicValue] NumbersOf<T>, self => datatype: T::TYPE, slice: self.slice);

impl RegionSlice {
    /// The numbers of this type that the slice contains, as operands of an atomic operation. They
    /// need not be aligned; the slice must contain a whole number of them. Posting needs
    /// [`Access::WRITE`](crate::Access::WRITE).
    pub fn numbers_of<T: AtomicValue>(self) -> NumbersOf<T> {
        NumbersOf {
            slice: self,
            value: PhantomData,
        }
    }
}

/// The memory of an atomic operation: numbers of its own, or a range of a region.
///
/// You only see it in the error of an operation that reports to a queue and was not accepted.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::info::AtomicOp;
/// use tokio_fabric::op::AtomicMemory;
/// use tokio_fabric::testing::Net;
/// use tokio_fabric::{ErrorKind, Failed, RemoteRegion};
///
/// let endpoint = Net::loopback().peer()?.domain.endpoint().open()?;
/// let nowhere = RemoteRegion::new(0, 8, 1);
/// let failed: Failed<AtomicMemory> =
///     endpoint.atomic(AtomicOp::Sum, 1u64, nowhere).queue(1).post().unwrap_err();
/// assert_eq!(failed.kind(), ErrorKind::BadState); // The endpoint has no queue.
/// # Ok(()) }
/// ```
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

    /// Returns the bytes, unless they are in a region.
    pub(super) fn own(&self) -> Option<&[u8]> {
        match &self.0 {
            Kind::Own(bytes) => Some(bytes),
            Kind::Region(_) => None,
        }
    }

    /// Returns the numbers that this memory holds by value; none for a region.
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

/// Turns the refusal of the buffer inside into a refusal of the `AtomicMemory`.
fn again<B>(kind: fn(B) -> Kind) -> impl FnOnce(Refused<B>) -> Refused<AtomicMemory> {
    move |(error, back)| (error, AtomicMemory(kind(back)))
}

impl IoBuf for AtomicMemory {}
impl IoBufMut for AtomicMemory {}

impl AtomicResults for () {}
impl sealed::FromMemory for () {
    fn from_memory(_memory: AtomicMemory) {}
}

/// Results that went into a region: the operation returns the slice.
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
