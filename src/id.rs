//! Small values that name things: the user's contexts and the library's own identifiers.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

/// A value of the user's that comes back with the event or completion it was given for (the
/// `context` argument of libfabric's calls).
///
/// ```
/// use tokio_fabric::UserContext;
/// use tokio_fabric::testing::Net;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let (a, b) = Net::loopback().pair().await?;
/// b.recv(vec![0; 8]).queue(42u64).post()?; // Any integer of yours.
/// a.send("one").await?;
/// let completion = b.receive_queue().next().await.expect("it is open");
/// assert_eq!(completion.context, UserContext(42));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UserContext(pub u64);

/// An integer of any type is a context, so that a plain `1` is one too; of a negative one its two's
/// complement.
macro_rules! context_from {
    ($($integer:ty)*) => {$(
        impl From<$integer> for UserContext {
            fn from(value: $integer) -> Self {
                UserContext(value as u64)
            }
        }
    )*};
}

// A literal that nothing else gives a type is an `i32`.
context_from!(u8 u16 u32 u64 usize i8 i16 i32 i64 isize);

/// Names an endpoint for as long as the process lives; never reused. Events carry it, and
/// `Endpoint::id` returns it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointId(NonZeroU64);

impl EndpointId {
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let value = NEXT.fetch_add(1, Ordering::Relaxed);
        EndpointId(NonZeroU64::new(value).expect("2^64 endpoints are never opened"))
    }

    /// Its number, which is unique too.
    pub(crate) fn number(self) -> u64 {
        self.0.get()
    }

    /// The endpoint of this number; `None` of 0.
    pub(crate) fn of_number(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(EndpointId)
    }

    /// A fraction in [0, 1): those of many endpoints that were opened in a row lie evenly, from
    /// where `seed` says.
    pub(crate) fn spread(self, seed: u64) -> f64 {
        /// 2^64 divided by the golden ratio: its multiples never crowd.
        const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
        let at = self.0.get().wrapping_mul(GOLDEN).wrapping_add(seed);
        (at >> 32) as f64 / (1_u64 << 32) as f64
    }
}

impl fmt::Debug for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EndpointId({})", self.0)
    }
}

/// Names a domain within this process; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DomainId(u64);

impl DomainId {
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        DomainId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Names one posted operation of one endpoint; never reused within it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId {
    /// The port that has it; [`OperationId::OWN`] if the endpoint itself has.
    port: u64,
    key: u64,
}

impl OperationId {
    /// No port has this key: there are never so many.
    const OWN: u64 = u64::MAX;

    /// An operation of a connected endpoint, or a receive of a connectionless one.
    pub(crate) fn own(key: u64) -> Self {
        OperationId {
            port: OperationId::OWN,
            key,
        }
    }

    /// An operation that was posted to the port with this key.
    pub(crate) fn of_port(port: u64, key: u64) -> Self {
        debug_assert_ne!(port, OperationId::OWN);
        OperationId { port, key }
    }

    /// The key of its port, unless the endpoint itself has it.
    pub(crate) fn port(self) -> Option<u64> {
        Some(self.port).filter(|port| *port != OperationId::OWN)
    }

    /// Its key there.
    pub(crate) fn key(self) -> u64 {
        self.key
    }
}

impl fmt::Debug for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port() {
            None => write!(f, "OperationId({})", self.key),
            Some(port) => write!(f, "OperationId({port}, {})", self.key),
        }
    }
}

/// Names an address in an [`AddressVector`](crate::AddressVector) (`fi_addr_t`; `fi_av(3)`).
///
/// It belongs to the vector that gave it, and to the one insertion: once the address is removed, it
/// names nothing, even when its slot in the vector is used again. Another vector does not take it
/// for one of its own, unless half a million were opened in between; a vector with a name draws
/// lots with those odds. Each of the bits that a vector keeps for contexts
/// ([`rx_ctx_bits`](crate::av::AddressVectorBuilder::rx_ctx_bits)) halves that number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FabricAddr(u64);

impl FabricAddr {
    /// Bits of the index; the highest index stays unused, so that no value is all ones, which C
    /// programs know as `FI_ADDR_UNSPEC` and `FI_ADDR_NOTAVAIL`.
    const INDEX_BITS: u32 = 24;
    /// Bits of the generation, which differs for each use of an index.
    const GENERATION_BITS: u32 = 20;

    /// Addresses in one vector, at most.
    pub(crate) const INDEX_COUNT: u32 = (1 << Self::INDEX_BITS) - 1;
    /// Addresses that have one index in turn, at most.
    pub(crate) const GENERATION_COUNT: u32 = 1 << Self::GENERATION_BITS;
    /// Vectors with different values.
    pub(crate) const VECTOR_COUNT: u32 =
        1 << (u64::BITS - Self::INDEX_BITS - Self::GENERATION_BITS);

    /// The bits that the values of the n-th vector of this process have in common, of which so
    /// many, the highest, are kept for contexts.
    pub(crate) fn own_vector(number: u32, context_bits: u32) -> u32 {
        (number << 1) & ((Self::VECTOR_COUNT - 1) >> context_bits)
    }

    /// The same of a vector that several processes share.
    pub(crate) fn shared_vector(random: u32) -> u32 {
        (random | 1) & (Self::VECTOR_COUNT - 1)
    }

    /// The same peer, and one of its contexts (`fi_rx_addr`), where so many bits are kept for it.
    pub(crate) fn with_context(self, context: u16, context_bits: u32) -> Self {
        debug_assert!(u32::from(context) >> context_bits == 0);
        match context_bits {
            0 => self,
            bits => FabricAddr(self.0 | u64::from(context) << (u64::BITS - bits)),
        }
    }

    /// What the vector has given, and the context that was added to it.
    pub(crate) fn split(self, context_bits: u32) -> (FabricAddr, u16) {
        match context_bits {
            0 => (self, 0),
            bits => {
                let context = self.0 >> (u64::BITS - bits);
                // The bits are at most `RX_CTX_BITS_MAX`.
                (FabricAddr(self.0 << bits >> bits), context as u16)
            }
        }
    }

    pub(crate) fn new(vector: u32, generation: u32, index: u32) -> Self {
        debug_assert!(index < Self::INDEX_COUNT && generation < Self::GENERATION_COUNT);
        debug_assert!(vector < Self::VECTOR_COUNT);
        let upper = u64::from(vector) << Self::GENERATION_BITS | u64::from(generation);
        FabricAddr(upper << Self::INDEX_BITS | u64::from(index))
    }

    /// The place in the vector: in one of type [`AvType::Table`](crate::info::AvType::Table) "an
    /// index, with the index for an inserted address the same as its insertion order into the
    /// table".
    pub fn index(self) -> usize {
        (self.0 & ((1 << Self::INDEX_BITS) - 1)) as usize
    }

    pub(crate) fn generation(self) -> u32 {
        (self.0 >> Self::INDEX_BITS) as u32 & (Self::GENERATION_COUNT - 1)
    }

    pub(crate) fn vector(self) -> u32 {
        (self.0 >> (Self::INDEX_BITS + Self::GENERATION_BITS)) as u32
    }

    /// The value as one number, to be kept where nothing else fits, or sent to another process that
    /// shares the vector.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// The value of these bits. Nothing is checked here: the vector that gets it does that.
    pub fn from_bits(bits: u64) -> Self {
        FabricAddr(bits)
    }
}

impl fmt::Debug for FabricAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (vector, index) = (self.vector(), self.index());
        write!(f, "FabricAddr({vector}.{index}.{})", self.generation())
    }
}

/// A peer of a connectionless endpoint: where it listens, and which of the contexts there it is
/// (`fi_rx_addr`; `fi_av(3)`). An endpoint that is not scalable is the context 0 of its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PeerAddr {
    pub(crate) socket: SocketAddr,
    pub(crate) context: u16,
}

impl From<SocketAddr> for PeerAddr {
    fn from(socket: SocketAddr) -> Self {
        PeerAddr { socket, context: 0 }
    }
}

impl fmt::Display for PeerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.context {
            0 => self.socket.fmt(f),
            context => write!(f, "{}, context {context}", self.socket),
        }
    }
}

/// Names an authorization key in an [`AddressVector`](crate::AddressVector) (the `fi_addr_t` of
/// `fi_av_insert_auth_key`; `fi_av(3)`): all peers that prove it. Never given out twice within a
/// process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AuthKeyAddr(u64);

impl AuthKeyAddr {
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        AuthKeyAddr(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Debug for AuthKeyAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AuthKeyAddr({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::UserContext;

    /// `.queue(1)` and `.submit(1)` compile, and so does an integer of any type.
    #[test]
    fn any_integer_is_a_context() {
        fn context(context: impl Into<UserContext>) -> u64 {
            context.into().0
        }
        let given = [context(1), context(1_u8), context(1_usize), context(1_i64)];
        assert_eq!(given, [1; 4]);
        assert_eq!((context(-1), context(u64::MAX)), (u64::MAX, u64::MAX));
        assert_eq!(context(UserContext(1)), 1);
    }
}
