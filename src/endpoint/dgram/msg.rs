//! Messages of datagram endpoints (`fi_msg(3)`).

use super::DgramEndpoint;
use crate::buf::{IoBufs, IoBufsMut};
use crate::endpoint::kind::{DatagramKind, RecvDatagramKind};
use crate::endpoint::post::{self, Posting};
use crate::endpoint::target::{PostTarget, Scope, Selector};
use crate::error::{OperationKind, Result};
use crate::id::FabricAddr;
use crate::proto::{MatchCriteria, OpKind};
use crate::transport::too_long;

impl DgramEndpoint {
    /// Sends a message (`fi_send`, `fi_sendv`) to a peer or a multicast group: one buffer, or up to
    /// four as one datagram. Completes when the datagram has been passed to the kernel, or could
    /// not be; whether it arrives is unknown.
    ///
    /// An error concerns this datagram only: [`TooLarge`](crate::ErrorKind::TooLarge) for more than
    /// [`max_message_size`](Self::max_message_size) bytes,
    /// [`Unreachable`](crate::ErrorKind::Unreachable) without a route,
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for a peer that is not in the address
    /// vector or has another IP version. It is not an error if the peer does not listen.
    #[doc(alias("fi_send", "fi_sendv", "fi_sendmsg"))]
    pub fn send<B: IoBufs>(&self, buffers: B, peer: FabricAddr) -> SendDatagram<B> {
        let operation = OpKind::Send {
            data: None,
            ack: false,
            tag: None,
        };
        let target = PostTarget::new(&self.inner, Scope::Peer(peer));
        SendDatagram::new(target, buffers, Ok(operation))
    }

    /// Receives one message (`fi_recv`, `fi_recvv`) into one buffer or up to four, from any peer or
    /// [from one](Posting::from).
    ///
    /// If a message is longer than the buffers, the receive fails with
    /// [`Truncated`](crate::ErrorKind::Truncated); the buffers contain the part that fits, and the
    /// rest is lost.
    #[doc(alias("fi_recv", "fi_recvv", "fi_recvmsg"))]
    pub fn recv<B: IoBufsMut>(&self, buffers: B) -> RecvDatagram<B> {
        let scope = Scope::Receives(Selector::any(MatchCriteria::Message));
        RecvDatagram::receive(PostTarget::new(&self.inner, scope), buffers, None)
    }

    /// Copies and sends a message of at most `inject_size` bytes (`fi_inject`), which for datagrams
    /// is the largest message. It has no completion; counters count it.
    ///
    /// # Errors
    /// [`TooLarge`](crate::ErrorKind::TooLarge) for more bytes, [`Again`](crate::ErrorKind::Again)
    /// if the transmit context is full, and as for [`send`](Self::send).
    pub fn inject(&self, bytes: &[u8], peer: FabricAddr) -> Result<()> {
        let wrong = |error: crate::Error| error.with_operation(OperationKind::Inject);
        if bytes.len() > self.inner.inject_size {
            return Err(wrong(too_long(bytes.len(), self.inner.inject_size)));
        }
        let operation = OpKind::Inject {
            data: None,
            tag: None,
        };
        let target = PostTarget::new(&self.inner, Scope::Peer(peer));
        post::inject(target, operation, bytes).map_err(wrong)
    }
}

/// A datagram that has not been posted yet; see [`DgramEndpoint::send`].
///
/// Await it, or [`post`](crate::op::Posting::post) it and await it later.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{EndpointType, Fabric, Hints};
///
/// let hints = Hints::new().endpoint(EndpointType::Dgram).interface("lo");
/// let domain = Fabric::open(hints)?.domain().open()?;
/// let peers = domain.address_vector().open()?;
/// let builder = domain.dgram_endpoint().address_vector(&peers);
/// let endpoint = builder.bind(([127, 0, 0, 1], 0).into()).open()?;
/// let itself = peers.insert(endpoint.local_addr()).now()?;
/// let first = endpoint.send("one", itself).more().post()?; // One system call sends both.
/// let second = endpoint.send("two", itself).post()?;
/// tokio::try_join!(first, second)?;
/// # Ok(()) }
/// ```
pub type SendDatagram<B> = Posting<B, DatagramKind>;

/// A receive that has not been posted yet; see [`DgramEndpoint::recv`].
///
/// Await it, or [`post`](crate::op::Posting::post) it and await it later.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::{EndpointType, Fabric, Hints};
///
/// let hints = Hints::new().endpoint(EndpointType::Dgram).interface("lo");
/// let domain = Fabric::open(hints)?.domain().open()?;
/// let peers = domain.address_vector().open()?;
/// let builder = domain.dgram_endpoint().address_vector(&peers);
/// let endpoint = builder.bind(([127, 0, 0, 1], 0).into()).open()?;
/// let itself = peers.insert(endpoint.local_addr()).now()?;
/// let receive = endpoint.recv([vec![0; 4], vec![0; 4]]).post()?; // Two buffers, one datagram.
/// endpoint.send("heads or", itself).await?;
/// let (received, [first, second]) = receive.await?;
/// assert_eq!((received.len, first, second), (8, b"head".to_vec(), b"s or".to_vec()));
/// # Ok(()) }
/// ```
pub type RecvDatagram<B> = Posting<B, RecvDatagramKind>;
