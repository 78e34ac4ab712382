//! Small values that identify things: the user's contexts and the library's own ids.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that the application gives to a call, and that the call's event or completion returns
/// (the `context` argument of libfabric's calls).
///
/// ```
/// use tokio_fabric::UserContext;
/// use tokio_fabric::testing::Net;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let (a, b) = Net::loopback().pair().await?;
/// b.recv(vec![0; 8]).queue(42u64).await?; // Any integer of yours.
/// a.send("one").await?;
/// let completion = b.receive_queue().next().await.expect("it is open");
/// assert_eq!(completion.context, UserContext(42));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UserContext(pub u64);

/// Converts integers of any type, so that a plain `1` is a context too; a negative one becomes its
/// two's complement.
macro_rules! context_from {
    ($($integer:ty)*) => {$(
        impl From<$integer> for UserContext {
            fn from(value: $integer) -> Self {
                UserContext(value as u64)
            }
        }
    )*};
}

// An integer literal whose type nothing else determines is an `i32`.
context_from!(u8 u16 u32 u64 usize i8 i16 i32 i64 isize);

/// Identifies an endpoint; never reused while the process lives.
///
/// Events contain it, and `Endpoint::id` returns it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let (a, b) = Net::loopback().pair().await?;
/// b.recv(vec![0; 8]).queue(1).await?;
/// a.send("hello").await?;
/// let completion = b.receive_queue().next().await.expect("it is open");
/// assert_eq!(completion.endpoint, b.id());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointId(NonZeroU64);

impl EndpointId {
    /// An id that no endpoint has.
    pub(crate) const LAST: EndpointId = EndpointId(NonZeroU64::MAX);

    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let value = NEXT.fetch_add(1, Ordering::Relaxed);
        EndpointId(NonZeroU64::new(value).expect("2^64 endpoints are never opened"))
    }

    /// Returns the id as a number, which is unique too.
    pub(crate) fn number(self) -> u64 {
        self.0.get()
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

/// Identifies an operation posted to an endpoint; the endpoint never reuses it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let (_a, b) = Net::loopback().pair().await?;
/// let id = b.recv(vec![0; 8]).queue(1).await?;
/// assert!(b.cancel(id)); // No message had arrived for it.
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId {
    /// Key of the port that owns the operation; [`OperationId::OWN`] if the endpoint owns it.
    port: u64,
    key: u64,
}

impl OperationId {
    /// No port has this key: there are never that many.
    const OWN: u64 = u64::MAX;

    /// Marks a small message that was copied; `key` is its number.
    const COPIED: u64 = u64::MAX - 1;

    /// Returns the id of a small message of a connected endpoint that was copied when it was
    /// posted.
    pub(crate) fn copied(number: u64) -> Self {
        OperationId {
            port: OperationId::COPIED,
            key: number,
        }
    }

    /// Returns the number of a message that was copied; `None` for other operations.
    pub(crate) fn copied_number(self) -> Option<u64> {
        (self.port == OperationId::COPIED).then_some(self.key)
    }

    /// Returns the id of an operation of a connected endpoint, or of a receive of a connectionless
    /// endpoint.
    pub(crate) fn own(key: u64) -> Self {
        OperationId {
            port: OperationId::OWN,
            key,
        }
    }

    /// Returns the id of an operation that was posted to the port with this key.
    pub(crate) fn of_port(port: u64, key: u64) -> Self {
        debug_assert!(port < OperationId::COPIED);
        OperationId { port, key }
    }

    /// Returns the key of the port that owns the operation; `None` if the endpoint owns it.
    pub(crate) fn port(self) -> Option<u64> {
        Some(self.port).filter(|port| *port < OperationId::COPIED)
    }

    /// Returns the operation's key within its owner.
    pub(crate) fn key(self) -> u64 {
        self.key
    }
}

impl fmt::Debug for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port() {
            None if self.port == OperationId::COPIED => write!(f, "OperationId(copy {})", self.key),
            None => write!(f, "OperationId({})", self.key),
            Some(port) => write!(f, "OperationId({port}, {})", self.key),
        }
    }
}

/// The name of an address in an [`AddressVector`](crate::AddressVector) (`fi_addr_t`; `fi_av(3)`).
///
/// A name belongs to one vector and to one insertion: once the address is removed, the name is
/// invalid, even if its slot in the vector is used again. Another vector rejects the name, unless
/// half a million vectors were opened in between. A vector that is shared by name picks its number
/// at random, and mistakes a foreign address for its own with a probability of one in half a
/// million. Each bit that a vector reserves for contexts
/// ([`rx_ctx_bits`](crate::av::AddressVectorBuilder::rx_ctx_bits)) halves the half million.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{Fabric, Hints};
///
/// let domain = Fabric::open(Hints::new().node("127.0.0.1"))?.domain().open()?;
/// let peers = domain.address_vector().open()?;
/// let address = ([127, 0, 0, 1], 7471).into();
/// let first = peers.insert(address).await?;
/// peers.remove(first)?;
/// let second = peers.insert(address).await?; // In the same slot, with another name.
/// assert_eq!(first.index(), second.index());
/// assert!(peers.lookup(first).is_err() && peers.lookup(second).is_ok());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FabricAddr(u64);

impl FabricAddr {
    /// Bits of the index; the highest index stays unused, so that no value is all ones, which C
    /// programs know as `FI_ADDR_UNSPEC` and `FI_ADDR_NOTAVAIL`.
    const INDEX_BITS: u32 = 24;
    /// Bits of the generation, which differs in each use of an index.
    const GENERATION_BITS: u32 = 20;

    /// Largest number of addresses in one vector.
    pub(crate) const INDEX_COUNT: u32 = (1 << Self::INDEX_BITS) - 1;
    /// Largest number of addresses that use one index, one after the other.
    pub(crate) const GENERATION_COUNT: u32 = 1 << Self::GENERATION_BITS;
    /// Number of vectors that can be distinguished.
    pub(crate) const VECTOR_COUNT: u32 =
        1 << (u64::BITS - Self::INDEX_BITS - Self::GENERATION_BITS);

    /// Returns the bits that all addresses of this process's vector `number` have in common. The
    /// highest `context_bits` of an address are reserved for contexts.
    pub(crate) fn own_vector(number: u32, context_bits: u32) -> u32 {
        (number << 1) & ((Self::VECTOR_COUNT - 1) >> context_bits)
    }

    /// As `own_vector`, for a vector that several processes share.
    pub(crate) fn shared_vector(random: u32) -> u32 {
        (random | 1) & (Self::VECTOR_COUNT - 1)
    }

    /// Returns the name of one of the peer's contexts (`fi_rx_addr`), in a vector with this many
    /// bits for contexts.
    pub(crate) fn with_context(self, context: u16, context_bits: u32) -> Self {
        debug_assert!(u32::from(context) >> context_bits == 0);
        match context_bits {
            0 => self,
            bits => FabricAddr(self.0 | u64::from(context) << (u64::BITS - bits)),
        }
    }

    /// Splits an address into the one that the vector returned and the context that was added to
    /// it.
    pub(crate) fn split(self, context_bits: u32) -> (FabricAddr, u16) {
        match context_bits {
            0 => (self, 0),
            bits => {
                let context = self.0 >> (u64::BITS - bits);
                // There are at most `RX_CTX_BITS_MAX` bits.
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

    /// The address's index in the vector. In a vector of type
    /// [`AvType::Table`](crate::info::AvType::Table) this is "an index, with the index for an
    /// inserted address the same as its insertion order into the table".
    pub fn index(self) -> usize {
        (self.0 & ((1 << Self::INDEX_BITS) - 1)) as usize
    }

    pub(crate) fn generation(self) -> u32 {
        (self.0 >> Self::INDEX_BITS) as u32 & (Self::GENERATION_COUNT - 1)
    }

    pub(crate) fn vector(self) -> u32 {
        (self.0 >> (Self::INDEX_BITS + Self::GENERATION_BITS)) as u32
    }

    /// The value as an integer, for compact storage or for another process that shares the vector.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// The value with these bits. The vector that it is used with checks it.
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

/// Returns the canonical form of an address. Addresses enter and leave the library, and name peers,
/// in this form: IPv4 as IPv4, even if given as IPv6 (`::ffff:a.b.c.d`); no flow label; a zone only
/// if addresses of different zones are different addresses.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match (address.ip().to_canonical(), address) {
        (IpAddr::V6(ip), SocketAddr::V6(v6)) => {
            let zone = if needs_zone(ip) { v6.scope_id() } else { 0 };
            SocketAddrV6::new(ip, v6.port(), 0, zone).into()
        }
        (ip, _) => SocketAddr::new(ip, address.port()),
    }
}

/// Returns whether an endpoint at `own` can reach the peer's IP version; an endpoint bound to all
/// IPv6 addresses reaches both versions.
pub(crate) fn reaches(own: SocketAddr, peer: SocketAddr) -> bool {
    own.is_ipv4() == peer.is_ipv4() || own.is_ipv6() && own.ip().is_unspecified()
}

/// Returns whether the address is valid on one link or interface only. The system ignores the zone
/// of any other address.
fn needs_zone(ip: Ipv6Addr) -> bool {
    ip.is_unicast_link_local() || matches!(ip.segments()[0] & 0xff0f, 0xff01 | 0xff02)
}

/// A peer of a connectionless endpoint: the address at which it listens, and the index of its
/// context at that address (`fi_rx_addr`; `fi_av(3)`). An endpoint that is not scalable is context
/// 0 of its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PeerAddr {
    /// In its [canonical] form.
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

/// The name of an authorization key in an [`AddressVector`](crate::AddressVector) (the `fi_addr_t`
/// of `fi_av_insert_auth_key`; `fi_av(3)`).
///
/// The name stands for all peers that prove the key. It is never reused within a process.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::info::AuthKey;
/// use tokio_fabric::{EndpointType, Fabric, Hints};
///
/// let hints = Hints::new().endpoint(EndpointType::Rdm).node("127.0.0.1");
/// let hints = hints.domain(|domain| domain.auth_key(AuthKey::of_address_vector()));
/// let peers = Fabric::open(hints)?.domain().open()?.address_vector().open()?;
/// let key = peers.insert_auth_key(AuthKey::new([7; 32]))?;
/// let peer = peers.insert(([127, 0, 0, 1], 7471).into()).auth_key(key).await?;
/// assert_eq!(peers.lookup_auth_key(peer)?, Some(key));
/// # Ok(()) }
/// ```
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
    use super::*;

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

    /// Each form of an address is one peer. Zones of links differ, and the system reads
    /// no other zone.
    #[test]
    fn an_address_has_one_form() {
        for (given, kept) in [
            ("10.0.0.2:1", "10.0.0.2:1"),
            ("[::ffff:10.0.0.2]:1", "10.0.0.2:1"),
            ("[::1%1]:1", "[::1]:1"),
            ("[2001:db8::1%3]:1", "[2001:db8::1]:1"),
            ("[fe80::1%2]:1", "[fe80::1%2]:1"),
            ("[ff02::1%2]:1", "[ff02::1%2]:1"),
            ("[ff05::1%2]:1", "[ff05::1]:1"),
        ] {
            let given: SocketAddr = given.parse().unwrap();
            assert_eq!(canonical(given), kept.parse().unwrap(), "{given}");
        }
        let ip = "fe80::1".parse().unwrap();
        let flow = SocketAddrV6::new(ip, 3, 99, 2).into();
        assert_eq!(canonical(flow), SocketAddrV6::new(ip, 3, 0, 2).into());
    }
}
