//! Messages (`fi_msg(3)`): send, receive, inject.

use std::net::SocketAddr;

use bytes::Bytes;

use crate::buf::{IoBufs, IoBufsMut};
use crate::cq::SourceName;
use crate::error::{OperationKind, Result};
use crate::id::{AuthKeyAddr, EndpointId, FabricAddr};
use crate::info::Caps;
use crate::proto::{MatchCriteria, OpKind};

use super::common::check_inject;
use super::defaults::CompletionLevel;
use super::kind::{DirectedKind, KeyedKind, RecvFromKind, RecvKind, SendKind};
use super::op::{CompletionFields, OpOutput, sealed};
use super::post::{Posting, inject};
use super::target::{PostTarget, Scope, Selector};
use super::{Endpoint, RdmEndpoint};

/// The description of a received message.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let (a, b) = Net::loopback().rdm_pair()?;
/// a.endpoint.send_tagged("hello", a.other, 7).imm(1).await?;
/// let (received, buffer) = b.endpoint.recv_tagged(vec![0; 64], 7).await?;
/// assert_eq!(&buffer[..received.len], b"hello");
/// assert_eq!((received.tag, received.data), (Some(7), Some(1)));
/// assert_eq!(received.source, Some(b.other)); // Answer to this address.
/// # Ok(()) }
/// ```
#[doc(alias = "FI_SOURCE")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// The length of the message in bytes. The message is in the first bytes of the buffer (or is
    /// spread over the buffers, in order).
    pub len: usize,
    /// Remote CQ data that was sent with the message (`FI_REMOTE_CQ_DATA`).
    pub data: Option<u64>,
    /// The tag it was sent with; `None` for an untagged message.
    pub tag: Option<u64>,
    /// The sender (`FI_SOURCE`), for a connectionless endpoint whose address vector contains it.
    pub source: Option<FabricAddr>,
    /// The application's identifier of the sender (`FI_AV_USER_ID`), if its address was inserted
    /// with one.
    pub source_user_id: Option<u64>,
    /// The address at which the sender listens, for a connectionless endpoint. Insert it into the
    /// address vector to answer an unknown sender.
    pub source_addr: Option<SocketAddr>,
    /// The endpoint whose connection brought the message, for a
    /// [receive context](crate::ep::SharedReceiveContext) that endpoints share.
    pub endpoint: Option<EndpointId>,
}

#[allow(private_interfaces, reason = "as in the trait")]
impl sealed::FromCompletion for Received {
    fn from_completion(fields: CompletionFields) -> Received {
        let source = fields.source.unwrap_or_default();
        let SourceName {
            address,
            fabric,
            user_id,
        } = source;
        Received {
            len: fields.len,
            data: fields.data,
            tag: fields.tag,
            source: fabric,
            source_user_id: user_id,
            source_addr: address,
            endpoint: fields.endpoint,
        }
    }
}

impl OpOutput for Received {}

impl Received {
    /// Creates the description for a connected endpoint, which has only one peer.
    #[inline]
    pub(super) fn of_connection(len: usize, data: Option<u64>) -> Self {
        Received {
            len,
            data,
            tag: None,
            source: None,
            source_user_id: None,
            source_addr: None,
            endpoint: None,
        }
    }
}

impl Endpoint {
    /// Sends a message (`fi_send`, `fi_sendv`, `fi_senddata`): one buffer, or an array or `Vec` of
    /// up to four as one message. `""` is an empty message. Completes when the buffers may be
    /// reused, unless [`delivery_complete`](Posting::delivery_complete) or the Info's
    /// `tx.op_flags` specify another moment.
    #[doc(alias("fi_send", "fi_sendv", "fi_sendmsg"))]
    pub fn send<B: IoBufs>(&self, buffers: B) -> SendMessage<B> {
        send(
            PostTarget::new(&self.inner, Scope::Connection),
            buffers,
            None,
        )
    }

    /// Receives one message (`fi_recv`, `fi_recvv`) into one buffer, or up to four.
    ///
    /// An empty `Vec<u8>` or `BytesMut` offers its capacity, and is returned with the message as
    /// its contents ([`IoBufMut`](crate::buf::IoBufMut)).
    ///
    /// If a message is longer than the buffers, the receive fails with
    /// [`Truncated`](crate::ErrorKind::Truncated); the buffers contain the part that fits, and the
    /// connection stays open.
    #[doc(alias("fi_recv", "fi_recvv", "fi_recvmsg"))]
    pub fn recv<B: IoBufsMut>(&self, buffers: B) -> Recv<B> {
        let target = PostTarget::new(&self.inner, Scope::Connection);
        Recv::receive(target, buffers, None)
    }

    /// Receives one message of at most `max` bytes whose length is unknown (`FI_VARIABLE_MSG`), and
    /// returns it as `Bytes`. A waiting receive uses no memory: a buffer of the message's length is
    /// allocated when the message arrives, and a message that arrived before its receive is
    /// returned without a copy.
    ///
    /// If a message is longer, the receive fails with [`Truncated`](crate::ErrorKind::Truncated)
    /// and returns its first `max` bytes. If the system has no memory for the message, the receive
    /// fails with the same error and returns no bytes.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
    /// # let (a, b) = tokio_fabric::testing::Net::loopback().pair().await?;
    /// a.send("of some length").await?;
    /// let (received, bytes) = b.recv_any(1 << 20).await?;
    /// assert_eq!((received.len, &bytes[..]), (14, &b"of some length"[..]));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Posting fails with [`InvalidArgument`](crate::ErrorKind::InvalidArgument) in a domain with
    /// `FI_MR_LOCAL`, where messages must be received into regions.
    #[doc(alias = "FI_VARIABLE_MSG")]
    pub fn recv_any(&self, max: usize) -> Recv<Bytes> {
        let target = PostTarget::new(&self.inner, Scope::Connection);
        Recv::receive(target, Bytes::new(), Some(max))
    }

    /// Copies and sends at most 128 bytes without a completion (`fi_inject`). Counters count it.
    ///
    /// It never waits. All sends, writes and reads share the transmit context, and an injected
    /// message does not overtake operations that wait for room with `.await`. If small control
    /// messages must get through while a program reads as fast as it can, either keep fewer
    /// operations outstanding than the endpoint's `transmit_size` (with a semaphore that leaves
    /// room for the control messages), or send the control messages over a connection of their own,
    /// where the peer's reads cannot delay them on the wire either.
    ///
    /// # Errors
    /// [`TooLarge`](crate::ErrorKind::TooLarge) for more bytes, [`Again`](crate::ErrorKind::Again)
    /// if the transmit context is full (the message states what it is full of), and the errors of
    /// [`post`](Posting::post) for an endpoint that is not connected.
    #[doc(alias("fi_inject", "FI_INJECT"))]
    pub fn inject(&self, bytes: &[u8]) -> Result<()> {
        self.inject_message(bytes, None)
    }

    /// As [`inject`](Self::inject), with remote CQ data (`fi_injectdata`).
    ///
    /// # Errors
    /// As for [`inject`](Self::inject).
    #[doc(alias = "fi_injectdata")]
    pub fn inject_data(&self, bytes: &[u8], data: u64) -> Result<()> {
        self.inject_message(bytes, Some(data))
    }

    fn inject_message(&self, bytes: &[u8], data: Option<u64>) -> Result<()> {
        let capable = self.inner.common.caps.check(Caps::MSG | Caps::SEND);
        capable.map_err(|error| error.with_operation(OperationKind::Inject))?;
        check_inject(bytes)?;
        self.inner.port.inject(bytes, data)
    }
}

impl RdmEndpoint {
    /// Sends a message to a peer (`fi_send`, `fi_sendv`, `fi_senddata`): one buffer, or an array or
    /// `Vec` of up to four as one message. `""` is an empty message. Completes when the buffers may
    /// be reused, unless [`delivery_complete`](Posting::delivery_complete) or the Info's
    /// `tx.op_flags` specify another moment.
    ///
    /// Messages to one peer arrive in the order in which they were posted. The first operation to a
    /// peer opens the connection; operations posted meanwhile are sent when it is established.
    #[doc(alias("fi_send", "fi_sendv", "fi_sendmsg"))]
    pub fn send<B: IoBufs>(&self, buffers: B, peer: FabricAddr) -> SendMessage<B> {
        send(
            PostTarget::new(&self.inner, Scope::Peer(peer)),
            buffers,
            None,
        )
    }

    /// Receives one message (`fi_recv`, `fi_recvv`) from any peer, or from one
    /// ([`from`](Posting::from)), into one buffer, or up to four. Only
    /// [`recv_tagged`](Self::recv_tagged) receives tagged messages.
    ///
    /// If the connection is lost while a message is being received, the receive waits for another
    /// message, in its old place; a receive that is restricted to that peer fails with the cause.
    ///
    /// An empty `Vec<u8>` or `BytesMut` offers its capacity, and is returned with the message as
    /// its contents ([`IoBufMut`](crate::buf::IoBufMut)).
    ///
    /// If a message is longer than the buffers, the receive fails with
    /// [`Truncated`](crate::ErrorKind::Truncated); the buffers contain the part that fits, and the
    /// connection stays open.
    #[doc(alias("fi_recv", "fi_recvv", "fi_recvmsg"))]
    pub fn recv<B: IoBufsMut>(&self, buffers: B) -> RecvFrom<B> {
        RecvFrom::receive(self.receive_target(MatchCriteria::Message), buffers, None)
    }

    /// Receives one untagged message of at most `max` bytes whose length is unknown
    /// (`FI_VARIABLE_MSG`), from any peer, or from [one](Posting::from), as [`Endpoint::recv_any`]
    /// does.
    #[doc(alias = "FI_VARIABLE_MSG")]
    pub fn recv_any(&self, max: usize) -> RecvFrom<Bytes> {
        let target = self.receive_target(MatchCriteria::Message);
        RecvFrom::receive(target, Bytes::new(), Some(max))
    }

    pub(super) fn receive_target(&self, wanted: MatchCriteria) -> PostTarget {
        PostTarget::new(&self.inner, Scope::Receives(Selector::any(wanted)))
    }

    /// Copies and sends at most 128 bytes without a completion (`fi_inject`). Counters count it.
    ///
    /// # Errors
    /// [`TooLarge`](crate::ErrorKind::TooLarge) for more bytes, [`Again`](crate::ErrorKind::Again)
    /// if the peer's transmit context is full,
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for an address that was removed or
    /// belongs to another vector.
    #[doc(alias = "fi_inject")]
    pub fn inject(&self, bytes: &[u8], peer: FabricAddr) -> Result<()> {
        self.inject_message(bytes, peer, None, None)
    }

    /// As [`inject`](Self::inject), with remote CQ data (`fi_injectdata`).
    ///
    /// # Errors
    /// As for [`inject`](Self::inject).
    pub fn inject_data(&self, bytes: &[u8], peer: FabricAddr, data: u64) -> Result<()> {
        self.inject_message(bytes, peer, None, Some(data))
    }

    pub(super) fn inject_message(
        &self,
        bytes: &[u8],
        peer: FabricAddr,
        tag: Option<u64>,
        data: Option<u64>,
    ) -> Result<()> {
        check_inject(bytes)?;
        let target = PostTarget::new(&self.inner, Scope::Peer(peer));
        let posted = inject(target, OpKind::Inject { tag, data }, bytes);
        posted.map_err(|error| error.with_operation(OperationKind::Inject))
    }
}

/// Describes a message that completes at the endpoint's default level for messages.
pub(super) fn send<B: IoBufs>(target: PostTarget, buffers: B, tag: Option<u64>) -> SendMessage<B> {
    let ack = target.common().defaults.sends != CompletionLevel::Injected;
    let data = None;
    SendMessage::new(target, buffers, Ok(OpKind::Send { data, ack, tag }))
}

/// A message that has not been posted yet; see [`Endpoint::send`], [`RdmEndpoint::send`] and
/// [`RdmEndpoint::send_tagged`].
///
/// Await it, or [`post`](crate::op::Posting::post) it and await it later.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let (a, b) = Net::loopback().pair().await?;
/// let receive = b.recv(vec![0; 8]).post()?;
/// a.send("now").imm(7).delivery_complete().await?; // The peer has it, with a number.
/// assert_eq!(receive.await?.0.data, Some(7));
/// # Ok(()) }
/// ```
pub type SendMessage<B> = Posting<B, SendKind>;

impl<B: IoBufs> SendMessage<B> {
    /// Completes only when the peer has matched the message with a receive, or has discarded it
    /// (`FI_MATCH_COMPLETE` of `fi_tagged(3)`; here for messages without a tag too). The message is
    /// announced, whatever its length, and is sent when the peer requests it.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the peer does not accept
    /// announcements of such messages: a connected endpoint without a
    /// [shared receive context](crate::ep::SharedReceiveContext), and a C program for messages
    /// without a tag.
    #[doc(alias = "FI_MATCH_COMPLETE")]
    pub fn match_complete(mut self) -> Self {
        self.options.matched = true;
        self
    }
}

/// A receive that has not been posted yet; see [`Endpoint::recv`] and
/// [`SharedReceiveContext::recv`](crate::ep::SharedReceiveContext::recv).
///
/// Await it, or [`post`](crate::op::Posting::post) it and await it later.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use std::time::Duration;
/// use tokio_fabric::testing::Net;
///
/// let (a, b) = Net::loopback().pair().await?;
/// let receive = b.recv(vec![0; 64]).timeout(Duration::from_secs(10)).post()?;
/// a.send("hello").await?;
/// let (received, buffer) = receive.await?;
/// assert_eq!(&buffer[..received.len], b"hello");
/// # Ok(()) }
/// ```
///
/// # Cancel safety
/// As for [`Op`](crate::op::Op): dropping the future of a receive loses no message.
pub type Recv<B> = Posting<B, RecvKind>;

/// A receive of a connectionless endpoint that has not been posted yet; see [`RdmEndpoint::recv`].
///
/// Await it, or [`post`](crate::op::Posting::post) it and await it later.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let (a, b) = Net::loopback().rdm_pair()?;
/// let receive = b.endpoint.recv(vec![0; 64]).from(b.other).post()?; // From this peer only.
/// a.endpoint.send("hello", a.other).await?;
/// assert_eq!(receive.await?.0.source, Some(b.other));
/// # Ok(()) }
/// ```
///
/// # Cancel safety
/// As for [`Op`](crate::op::Op): dropping the future of a receive loses no message.
pub type RecvFrom<B> = Posting<B, RecvFromKind>;

impl<B: IoBufs, K: DirectedKind> Posting<B, K> {
    /// Receives a message from this peer only (`src_addr`, `FI_DIRECTED_RECV`). Default: from any
    /// (`FI_ADDR_UNSPEC`). The receive belongs to the endpoint, or to the context that
    /// endpoints share: while no message has been matched
    /// to it, it outlives the peer's connection, and a message of the next connection can complete
    /// it. If the peer never connects, it waits indefinitely: set a [`timeout`](Self::timeout), or
    /// use [`RdmEndpoint::peers`] to find out that a peer is gone or has been restarted.
    ///
    /// # Errors
    /// Posting fails with [`ErrorKind::NoCapability`](crate::ErrorKind::NoCapability) if the
    /// endpoint was opened without [`Caps::DIRECTED_RECV`](crate::Caps::DIRECTED_RECV). (According
    /// to `fi_msg(3)` the source would be ignored, and the receive would take another peer's
    /// message.)
    #[doc(alias = "FI_DIRECTED_RECV")]
    pub fn from(mut self, peer: FabricAddr) -> Self {
        self.target.select(|it| it.source = Some(peer));
        self
    }
}

impl<B: IoBufs, K: KeyedKind> Posting<B, K> {
    /// Receives a message only from the peers with this authorization key (`FI_DIRECTED_RECV` with
    /// `FI_AUTH_KEY`; `fi_av(3)`), if peers have keys of their own
    /// ([`AddressVector::insert_auth_key`](crate::AddressVector::insert_auth_key)). Use it instead
    /// of [`from`](Self::from).
    ///
    /// # Errors
    /// As for [`RecvFrom::from`](crate::op::Posting::from);
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a key that the
    /// endpoint was not opened with.
    pub fn from_key(mut self, key: AuthKeyAddr) -> Self {
        self.target.select(|it| it.key = Some(key));
        self
    }
}
