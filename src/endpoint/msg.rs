//! Messages (`fi_msg(3)`): send, receive, inject.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;

use crate::buf::{IoBufs, IoBufsMut, Payload};
use crate::cq::{CompletionFlags, SourceName};
use crate::error::{OperationKind, Result};
use crate::id::{AuthKeyAddr, EndpointId, FabricAddr};
use crate::info::Caps;
use crate::progress::PostOptions;
use crate::proto::MatchCriteria;

use super::common::{Common, check_inject};
use super::defaults::CompletionLevel;
use super::op::{CompletionFields, OpOutput, sealed};
use super::post::{OpBuilder, OpSpec, posting_forms};
use super::target::{PostTarget, Scope, Selector};
use super::{Endpoint, RdmEndpoint};

/// What a receive got.
#[doc(alias("FI_SOURCE", "fi_cq_readfrom"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// Bytes of the message, which are the first of the buffer (or spread over the buffers).
    pub len: usize,
    /// Remote CQ data that came along (`FI_REMOTE_CQ_DATA`).
    pub data: Option<u64>,
    /// The tag it was sent with; `None` of an untagged message.
    pub tag: Option<u64>,
    /// Who sent it (`FI_SOURCE`), if it came to a connectionless endpoint whose address vector has
    /// the sender's address.
    pub source: Option<FabricAddr>,
    /// What the application calls the sender (`FI_AV_USER_ID`), if the address was inserted with a
    /// name of its own.
    pub source_user_id: Option<u64>,
    /// The address at which the sender listens, if it came to a connectionless endpoint: what to
    /// insert into the address vector to answer a sender that is not in it.
    pub source_addr: Option<SocketAddr>,
    /// The endpoint whose connection brought it, if it came to a
    /// [receive context](crate::ep::SharedReceiveContext) that connected endpoints share.
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

impl Endpoint {
    /// Sends a message (`fi_send`, `fi_sendv`, `fi_senddata`): one buffer, or an array or `Vec` of
    /// up to four as one message. `""` is an empty one. Ends when the buffers may be reused, or as
    /// said by [`delivery_complete`](SendMessage::delivery_complete) or the Info's `tx.op_flags`.
    #[doc(alias("fi_send", "fi_sendv", "fi_sendmsg"))]
    pub fn send<B: IoBufs>(&self, buffers: B) -> SendMessage<B> {
        SendMessage::new(
            PostTarget::new(&self.inner, Scope::Connection),
            buffers,
            None,
        )
    }

    /// Receives one message (`fi_recv`, `fi_recvv`) into a buffer, or spread over up to four.
    ///
    /// An empty `Vec<u8>` or `BytesMut` offers its capacity, and comes back with what was received
    /// as its length ([`IoBufMut`](crate::buf::IoBufMut)).
    ///
    /// A message longer than the buffers ends the receive with
    /// [`Truncated`](crate::ErrorKind::Truncated); the buffers hold what fits, and the connection
    /// lives.
    #[doc(alias("fi_recv", "fi_recvv", "fi_recvmsg"))]
    pub fn recv<B: IoBufsMut>(&self, buffers: B) -> Recv<B> {
        Recv::new(PostTarget::new(&self.inner, Scope::Connection), buffers)
    }

    /// Receives one message of at most `max` bytes and of unknown length (`FI_VARIABLE_MSG`): it
    /// gives the message as `Bytes`. A receive that waits holds no memory; a message that meets it
    /// gets memory of its length, and one that came before its receive is given as it lies, without
    /// a copy.
    ///
    /// One that is longer ends the receive with [`Truncated`](crate::ErrorKind::Truncated), which
    /// has its first `max` bytes; so does, without any, one for which the system has no memory.
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
    /// The post ends with [`InvalidArgument`](crate::ErrorKind::InvalidArgument) in a domain with
    /// `FI_MR_LOCAL`, whose messages land in regions.
    #[doc(alias = "FI_VARIABLE_MSG")]
    pub fn recv_any(&self, max: usize) -> Recv<Bytes> {
        Recv::any(PostTarget::new(&self.inner, Scope::Connection), max)
    }

    /// Sends at most 128 bytes and forgets them (`fi_inject`): they are copied, and no completion
    /// is reported. Counters count it.
    ///
    /// It never waits: all that is sent, written and read shares the transmit context, and
    /// operations that await room by `.await` are not overtaken. A program whose small control
    /// messages must pass while it reads as fast as it can either keeps fewer operations under way
    /// than the endpoint's `transmit_size` (a semaphore of that size less what control takes), or
    /// sends control messages over a connection of their own, which its peer's reads cannot hold up
    /// on the wire either.
    ///
    /// # Errors
    /// [`TooLarge`](crate::ErrorKind::TooLarge) for more bytes, [`Again`](crate::ErrorKind::Again)
    /// if the transmit context is full (the message says of what), or
    /// [`NotConnected`](crate::ErrorKind::NotConnected).
    #[doc(alias("fi_inject", "FI_INJECT"))]
    pub fn inject(&self, bytes: &[u8]) -> Result<()> {
        self.inject_message(bytes, None)
    }

    /// As [`inject`](Self::inject), with remote CQ data (`fi_injectdata`).
    ///
    /// # Errors
    /// As there.
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
    /// `Vec` of up to four as one message. `""` is an empty one. Ends when the buffers may be
    /// reused, or as said by [`delivery_complete`](SendMessage::delivery_complete).
    ///
    /// Messages to one peer arrive in the order in which they were posted. The first operation to a
    /// peer makes the connection; what is posted meanwhile goes out when it is up.
    #[doc(alias("fi_send", "fi_sendv", "fi_sendmsg"))]
    pub fn send<B: IoBufs>(&self, buffers: B, peer: FabricAddr) -> SendMessage<B> {
        SendMessage::new(
            PostTarget::new(&self.inner, Scope::Peer(peer)),
            buffers,
            None,
        )
    }

    /// Receives one message (`fi_recv`, `fi_recvv`) from any peer, or from one
    /// ([`from`](RecvFrom::from)), into a buffer, or spread over up to four. Tagged messages are
    /// received by [`recv_tagged`](Self::recv_tagged) only.
    ///
    /// When the connection breaks that brings its message, a receive waits for the next one, in its
    /// place; one for that peer alone ends with the reason.
    ///
    /// An empty `Vec<u8>` or `BytesMut` offers its capacity, and comes back with what was received
    /// as its length ([`IoBufMut`](crate::buf::IoBufMut)).
    ///
    /// A message longer than the buffers ends the receive with
    /// [`Truncated`](crate::ErrorKind::Truncated); the buffers hold what fits, and the connection
    /// lives.
    #[doc(alias("fi_recv", "fi_recvv", "fi_recvmsg"))]
    pub fn recv<B: IoBufsMut>(&self, buffers: B) -> RecvFrom<B> {
        RecvFrom {
            target: self.receive_target(MatchCriteria::Message),
            buffers,
            max: None,
            timeout: None,
        }
    }

    /// Receives one untagged message of at most `max` bytes from any peer, or from
    /// [one](RecvFrom::from), of unknown length (`FI_VARIABLE_MSG`); as
    /// [`Endpoint::recv_any`].
    #[doc(alias = "FI_VARIABLE_MSG")]
    pub fn recv_any(&self, max: usize) -> RecvFrom<Bytes> {
        RecvFrom {
            target: self.receive_target(MatchCriteria::Message),
            buffers: Bytes::new(),
            max: Some(max),
            timeout: None,
        }
    }

    pub(super) fn receive_target(&self, wanted: MatchCriteria) -> PostTarget {
        PostTarget::new(&self.inner, Scope::Receives(Selector::any(wanted)))
    }

    /// Sends at most 128 bytes and forgets them (`fi_inject`): they are copied, and no completion
    /// is reported. Counters count it.
    ///
    /// # Errors
    /// [`TooLarge`](crate::ErrorKind::TooLarge) for more bytes, [`Again`](crate::ErrorKind::Again)
    /// if the peer's transmit context is full,
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for an address that was removed or is
    /// another vector's.
    #[doc(alias = "fi_inject")]
    pub fn inject(&self, bytes: &[u8], peer: FabricAddr) -> Result<()> {
        self.inject_message(bytes, peer, None, None)
    }

    /// As [`inject`](Self::inject), with remote CQ data (`fi_injectdata`).
    ///
    /// # Errors
    /// As there.
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
        let posted = target.post_injected(
            send_caps(tag),
            OpSpec::Inject { tag, data },
            Payload::copied(bytes),
        );
        posted.map_err(|error| error.with_operation(OperationKind::Inject))
    }
}

/// The capabilities that sending a message takes.
#[inline]
fn send_caps(tag: Option<u64>) -> Caps {
    match tag {
        None => Caps::MSG | Caps::SEND,
        Some(_) => Caps::TAGGED | Caps::SEND,
    }
}

/// What a fence takes besides.
#[inline]
pub(super) fn fence_caps(fence: bool) -> Caps {
    match fence {
        true => Caps::FENCE,
        false => Caps::empty(),
    }
}

/// A message to be sent; see [`Endpoint::send`], [`RdmEndpoint::send`] and
/// [`RdmEndpoint::send_tagged`]. Await it, or [`post`](Self::post) it.
///
/// ```
/// use tokio_fabric::testing::Net;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let (a, b) = Net::loopback().pair().await?;
/// let receive = b.recv(vec![0; 8]).post()?;
/// a.send("now").imm(7).delivery_complete().await?; // The peer has it, with a number.
/// assert_eq!(receive.await?.0.data, Some(7));
/// # Ok(()) }
/// ```
#[must_use = "nothing is sent until this is awaited or posted"]
pub struct SendMessage<B: IoBufs> {
    target: PostTarget,
    buffers: B,
    tag: Option<u64>,
    data: Option<u64>,
    /// `None`: the endpoint's default.
    level: Option<CompletionLevel>,
    more: bool,
    fence: bool,
    matched: bool,
    timeout: Option<Duration>,
}

impl<B: IoBufs> SendMessage<B> {
    pub(super) fn new(target: PostTarget, buffers: B, tag: Option<u64>) -> Self {
        SendMessage {
            target,
            buffers,
            tag,
            data: None,
            level: None,
            more: false,
            fence: false,
            matched: false,
            timeout: None,
        }
    }

    /// Sends 64 bits of remote CQ data along (`FI_REMOTE_CQ_DATA`).
    #[doc(alias("fi_senddata", "FI_REMOTE_CQ_DATA"))]
    pub fn imm(mut self, data: u64) -> Self {
        self.data = Some(data);
        self
    }

    /// Ends when the buffers may be used again (`FI_INJECT_COMPLETE`), which is the default unless
    /// the Info's `tx.op_flags` say otherwise.
    #[doc(alias = "FI_INJECT_COMPLETE")]
    pub fn inject_complete(mut self) -> Self {
        self.level = Some(CompletionLevel::Injected);
        self
    }

    /// Ends only when the message no longer depends on the network and this side
    /// (`FI_TRANSMIT_COMPLETE`), which over TCP is when the peer has acknowledged it: as
    /// [`delivery_complete`](Self::delivery_complete).
    #[doc(alias = "FI_TRANSMIT_COMPLETE")]
    pub fn transmit_complete(self) -> Self {
        self.delivery_complete()
    }

    /// Ends only when the message is in the peer's memory (`FI_DELIVERY_COMPLETE`): as much of it
    /// as the receive has room for. What there is no room for is an error of the receive
    /// ([`Truncated`](crate::ErrorKind::Truncated)), and none here.
    #[doc(alias = "FI_DELIVERY_COMPLETE")]
    pub fn delivery_complete(mut self) -> Self {
        self.level = Some(CompletionLevel::Acknowledged);
        self
    }

    /// Ends only when the peer has matched the message with a receive, or has discarded it
    /// (`FI_MATCH_COMPLETE` of `fi_tagged(3)`; here of messages without a tag too). It is
    /// announced, whatever its length, and goes out when it is asked for.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the peer takes no announcements
    /// of such a message: a connected endpoint without a
    /// [shared receive context](crate::ep::SharedReceiveContext), a C program for messages without
    /// a tag.
    #[doc(alias = "FI_MATCH_COMPLETE")]
    pub fn match_complete(mut self) -> Self {
        self.matched = true;
        self
    }

    /// More is to come: hold it back, to be gathered with the next posts (`FI_MORE`). It goes out
    /// at the driver's next turn in any case.
    #[doc(alias = "FI_MORE")]
    pub fn more(mut self) -> Self {
        self.more = true;
        self
    }

    /// Goes out only when all that was posted to the same peer before has ended, and before
    /// anything that is posted later (`FI_FENCE`).
    #[doc(alias = "FI_FENCE")]
    pub fn fence(mut self) -> Self {
        self.fence = true;
        self
    }
}

impl<B: IoBufs> OpBuilder<B> for SendMessage<B> {
    fn operation_kind(&self) -> OperationKind {
        OperationKind::Send
    }

    fn completion_flags(&self) -> CompletionFlags {
        match self.tag {
            None => CompletionFlags::MSG,
            Some(_) => CompletionFlags::TAGGED,
        }
    }

    fn common(&self) -> &Common {
        self.target.common()
    }

    #[inline]
    fn caps(&self) -> Caps {
        send_caps(self.tag) | fence_caps(self.fence)
    }

    fn options(&self) -> PostOptions {
        PostOptions {
            more: self.more,
            fence: self.fence,
            matched: self.matched,
            timeout: self.timeout,
            ..PostOptions::default()
        }
    }

    fn into_parts(self) -> (PostTarget, B, OpSpec) {
        let level = self.level.unwrap_or(self.target.common().defaults.sends);
        let spec = OpSpec::Send {
            tag: self.tag,
            data: self.data,
            ack: level != CompletionLevel::Injected,
        };
        (self.target, self.buffers, spec)
    }
}

posting_forms!(SendMessage, IoBufs, usize);

/// A receive to be posted; see [`Endpoint::recv`] and
/// [`SharedReceiveContext::recv`](crate::ep::SharedReceiveContext::recv).
#[must_use = "nothing is received until this is awaited or posted"]
pub struct Recv<B: IoBufs> {
    target: PostTarget,
    buffers: B,
    /// It takes a message of any length up to this, into memory that is allocated then.
    max: Option<usize>,
    timeout: Option<Duration>,
}

impl<B: IoBufsMut> Recv<B> {
    pub(super) fn new(target: PostTarget, buffers: B) -> Self {
        Recv {
            target,
            buffers,
            max: None,
            timeout: None,
        }
    }
}

impl Recv<Bytes> {
    pub(super) fn any(target: PostTarget, max: usize) -> Self {
        Recv {
            target,
            buffers: Bytes::new(),
            max: Some(max),
            timeout: None,
        }
    }
}

/// A receive of a connectionless endpoint to be posted; see [`RdmEndpoint::recv`].
#[must_use = "nothing is received until this is awaited or posted"]
pub struct RecvFrom<B: IoBufs> {
    target: PostTarget,
    buffers: B,
    /// As of [`Recv`].
    max: Option<usize>,
    timeout: Option<Duration>,
}

impl<B: IoBufs> RecvFrom<B> {
    /// Takes a message of this peer only (`src_addr`, `FI_DIRECTED_RECV`). Default: of any
    /// (`FI_ADDR_UNSPEC`). The receive belongs to the endpoint: while nothing has come for it, it
    /// outlives the peer's connection, and a message of the peer's next one fills it. That a peer
    /// has gone, or has restarted, is reported by [`RdmEndpoint::peers`].
    ///
    /// # Errors
    /// The post ends with [`ErrorKind::NoCapability`](crate::ErrorKind::NoCapability) if the
    /// endpoint was opened without [`Caps::DIRECTED_RECV`](crate::Caps::DIRECTED_RECV).
    /// (`fi_msg(3)` has the choice ignored then: it would deliver another peer's message.)
    #[doc(alias = "FI_DIRECTED_RECV")]
    pub fn from(mut self, peer: FabricAddr) -> Self {
        self.target.select_source(peer);
        self
    }

    /// Takes a message of the peers of this authorization key only (`FI_DIRECTED_RECV` with
    /// `FI_AUTH_KEY`; `fi_av(3)`), where peers have keys of their own
    /// ([`AddressVector::insert_auth_key`](crate::AddressVector::insert_auth_key)). Instead of
    /// [`from`](Self::from).
    ///
    /// # Errors
    /// As of [`RecvFrom::from`](crate::op::RecvFrom::from);
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a key that the
    /// endpoint was not opened with.
    pub fn from_key(mut self, key: AuthKeyAddr) -> Self {
        self.target.select_key(key);
        self
    }
}

/// A builder that does nothing but receive.
macro_rules! receive_builder {
    ($builder:ident, $flag:ident) => {
        impl<B: crate::buf::IoBufs> super::post::OpBuilder<B> for $builder<B> {
            fn operation_kind(&self) -> crate::error::OperationKind {
                crate::error::OperationKind::Receive
            }

            fn completion_flags(&self) -> crate::cq::CompletionFlags {
                crate::cq::CompletionFlags::$flag
            }

            fn common(&self) -> &super::common::Common {
                self.target.common()
            }

            #[inline]
            fn caps(&self) -> crate::Caps {
                self.target.receive_caps()
            }

            fn options(&self) -> crate::progress::PostOptions {
                crate::progress::PostOptions {
                    timeout: self.timeout,
                    ..Default::default()
                }
            }

            fn into_parts(self) -> (super::target::PostTarget, B, super::post::OpSpec) {
                let spec = super::post::receive_spec(self.max);
                (self.target, self.buffers, spec)
            }
        }

        super::post::posting_forms!($builder, IoBufs, super::Received);
    };
}
pub(super) use receive_builder;

receive_builder!(Recv, MSG);
receive_builder!(RecvFrom, MSG);
