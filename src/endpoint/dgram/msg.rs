//! Messages of datagram endpoints (`fi_msg(3)`).

use std::time::Duration;

use super::DgramEndpoint;
use crate::buf::{IoBufs, IoBufsMut, Payload};
use crate::cq::CompletionFlags;
use crate::endpoint::Received;
use crate::endpoint::common::Common;
use crate::endpoint::post::{OpBuilder, OpSpec, posting_forms};
use crate::endpoint::target::{PostTarget, Scope, Selector};
use crate::error::{OperationKind, Result};
use crate::id::FabricAddr;
use crate::info::Caps;
use crate::progress::PostOptions;
use crate::proto::MatchCriteria;
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
        SendDatagram {
            target: PostTarget::new(&self.inner, Scope::Peer(peer)),
            buffers,
            more: false,
            timeout: None,
        }
    }

    /// Receives one message (`fi_recv`, `fi_recvv`) into one buffer or up to four, from any peer or
    /// [from one](RecvDatagram::from).
    ///
    /// If a message is longer than the buffers, the receive fails with
    /// [`Truncated`](crate::ErrorKind::Truncated); the buffers contain the part that fits, and the
    /// rest is lost.
    #[doc(alias("fi_recv", "fi_recvv", "fi_recvmsg"))]
    pub fn recv<B: IoBufsMut>(&self, buffers: B) -> RecvDatagram<B> {
        RecvDatagram {
            target: PostTarget::new(
                &self.inner,
                Scope::Receives(Selector::any(MatchCriteria::Message)),
            ),
            buffers,
            timeout: None,
        }
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
        let spec = OpSpec::Inject {
            tag: None,
            data: None,
        };
        let target = PostTarget::new(&self.inner, Scope::Peer(peer));
        let posted = target.post_injected(Caps::MSG | Caps::SEND, spec, Payload::copied(bytes));
        posted.map_err(wrong)
    }
}

/// A datagram that has not been posted yet; see [`DgramEndpoint::send`].
///
/// Await it, or [`post`](Self::post) it and await it later.
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
#[must_use = "nothing is sent until this is awaited or posted"]
pub struct SendDatagram<B: IoBufs> {
    target: PostTarget,
    buffers: B,
    more: bool,
    timeout: Option<Duration>,
}

impl<B: IoBufs> SendDatagram<B> {
    /// Announces more datagrams: this one may be held back, to be sent with the next ones by one
    /// system call (`FI_MORE`). It is sent at the driver's next turn in any case.
    pub fn more(mut self) -> Self {
        self.more = true;
        self
    }
}

impl<B: IoBufs> OpBuilder<B> for SendDatagram<B> {
    fn operation_kind(&self) -> OperationKind {
        OperationKind::Send
    }

    fn completion_flags(&self) -> CompletionFlags {
        CompletionFlags::MSG
    }

    fn common(&self) -> &Common {
        self.target.common()
    }

    fn caps(&self) -> Caps {
        Caps::MSG | Caps::SEND
    }

    fn options(&self) -> PostOptions {
        PostOptions {
            more: self.more,
            timeout: self.timeout,
            ..PostOptions::default()
        }
    }

    fn into_parts(self) -> (PostTarget, B, OpSpec) {
        let spec = OpSpec::Send {
            tag: None,
            data: None,
            ack: false,
        };
        (self.target, self.buffers, spec)
    }
}

posting_forms!(SendDatagram, IoBufs, usize);

/// A receive that has not been posted yet; see [`DgramEndpoint::recv`].
///
/// Await it, or [`post`](Self::post) it and await it later.
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
#[must_use = "nothing is received until this is awaited or posted"]
pub struct RecvDatagram<B: IoBufsMut> {
    target: PostTarget,
    buffers: B,
    timeout: Option<Duration>,
}

impl<B: IoBufsMut> RecvDatagram<B> {
    /// Receives messages from this peer only (`FI_DIRECTED_RECV`). The domain's Info must offer it,
    /// otherwise the post fails with [`NoCapability`](crate::ErrorKind::NoCapability). Default:
    /// from any peer.
    pub fn from(mut self, peer: FabricAddr) -> Self {
        self.target.select_source(peer);
        self
    }
}

impl<B: IoBufsMut> OpBuilder<B> for RecvDatagram<B> {
    fn operation_kind(&self) -> OperationKind {
        OperationKind::Receive
    }

    fn completion_flags(&self) -> CompletionFlags {
        CompletionFlags::MSG
    }

    fn common(&self) -> &Common {
        self.target.common()
    }

    fn caps(&self) -> Caps {
        self.target.receive_caps()
    }

    fn options(&self) -> PostOptions {
        PostOptions {
            timeout: self.timeout,
            ..PostOptions::default()
        }
    }

    fn into_parts(self) -> (PostTarget, B, OpSpec) {
        (self.target, self.buffers, OpSpec::Receive)
    }
}

posting_forms!(RecvDatagram, IoBufsMut, Received);
