//! Messages (`fi_msg(3)`): send, receive, inject.

use std::net::SocketAddr;
use std::time::Duration;

use crate::buf::{IoBufs, IoBufsMut, Payload};
use crate::error::{OperationKind, Result};
use crate::id::FabricAddr;
use crate::progress::{Manner, Report};
use crate::proto::Post;

use super::Endpoint;
use super::op::{Facts, Told, sealed};
use super::post::{Draft, Shape, check_inject, posting_forms};

/// What a receive got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// Bytes of the message, which are the first of the buffer (or spread over the buffers).
    pub len: usize,
    /// Remote CQ data that came along (`FI_REMOTE_CQ_DATA`).
    pub data: Option<u64>,
    /// Who sent it (`FI_SOURCE`), if it came to a connectionless endpoint whose address vector has
    /// the sender's address.
    pub source: Option<FabricAddr>,
    /// What the application calls the sender (`FI_AV_USER_ID`), if the address was inserted with a
    /// name of its own.
    pub source_user_id: Option<u64>,
    /// The address of the sender, if it came to a connectionless endpoint: what to insert into the
    /// address vector to answer a sender that is not in it.
    pub source_addr: Option<SocketAddr>,
}

#[allow(private_interfaces, reason = "as in the trait")]
impl sealed::FromEnd for Received {
    fn from_end(facts: Facts) -> Received {
        let source = facts.source.unwrap_or_default();
        Received {
            len: facts.len,
            data: facts.data,
            source: source.fabric,
            source_user_id: source.user_id,
            source_addr: source.address,
        }
    }
}

impl Told for Received {}

impl Endpoint {
    /// Sends a message (`fi_send`, `fi_sendv`, `fi_senddata`): one buffer, or up to four as one
    /// message. Ends when the buffers may be reused, or as said by
    /// [`delivery_complete`](Send::delivery_complete).
    pub fn send<B: IoBufs>(&self, buffers: B) -> Send<B> {
        Send {
            endpoint: self.clone(),
            buffers,
            data: None,
            ack: false,
            more: false,
            timeout: None,
        }
    }

    /// Receives one message (`fi_recv`, `fi_recvv`) into a buffer, or spread over up to four.
    ///
    /// A message longer than the buffers ends the receive with
    /// [`Truncated`](crate::ErrorKind::Truncated); the buffers hold what fits, and the connection
    /// lives.
    pub fn recv<B: IoBufsMut>(&self, buffers: B) -> Recv<B> {
        Recv {
            endpoint: self.clone(),
            buffers,
            timeout: None,
        }
    }

    /// Sends at most 128 bytes and forgets them (`fi_inject`): they are copied, and no completion
    /// is reported. Counters count it.
    ///
    /// # Errors
    /// [`TooLarge`](crate::ErrorKind::TooLarge) for more bytes, [`Again`](crate::ErrorKind::Again)
    /// if the transmit context is full, [`NotConnected`](crate::ErrorKind::NotConnected).
    pub fn inject(&self, bytes: &[u8]) -> Result<()> {
        self.inject_message(bytes, None)
    }

    /// As [`inject`](Self::inject), with remote CQ data (`fi_injectdata`).
    pub fn inject_data(&self, bytes: &[u8], data: u64) -> Result<()> {
        self.inject_message(bytes, Some(data))
    }

    fn inject_message(&self, bytes: &[u8], data: Option<u64>) -> Result<()> {
        check_inject(bytes)?;
        let post = Post::Inject {
            payload: Payload::inline(bytes),
            data,
        };
        self.post_injected(post)
    }

    /// Posts what has been copied: its end is told to nobody, and it never waits.
    pub(super) fn post_injected(&self, post: Post) -> Result<()> {
        let posted = self
            .inner
            .port
            .post(post, Report::Nowhere, Manner::default());
        posted.map(drop).map_err(|(error, _)| error)
    }
}

/// A message to be sent; see [`Endpoint::send`]. Await it, or [`post`](Self::post) it.
#[must_use = "nothing is sent until this is awaited or posted"]
pub struct Send<B: IoBufs> {
    endpoint: Endpoint,
    buffers: B,
    data: Option<u64>,
    ack: bool,
    more: bool,
    timeout: Option<Duration>,
}

impl<B: IoBufs> Send<B> {
    /// Sends 64 bits of remote CQ data along (`FI_REMOTE_CQ_DATA`).
    pub fn imm(mut self, data: u64) -> Self {
        self.data = Some(data);
        self
    }

    /// Ends only when the message is in the peer's memory (`FI_DELIVERY_COMPLETE`).
    pub fn delivery_complete(mut self) -> Self {
        self.ack = true;
        self
    }

    /// More is to come: hold it back, to be gathered with the next posts (`FI_MORE`). It goes out
    /// at the driver's next turn in any case.
    pub fn more(mut self) -> Self {
        self.more = true;
        self
    }
}

impl<B: IoBufs> Draft<B> for Send<B> {
    fn operation(&self) -> OperationKind {
        OperationKind::Send
    }

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn more(&self) -> bool {
        self.more
    }

    fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    fn into_parts(self) -> (Endpoint, B, Shape) {
        let Send {
            endpoint,
            buffers,
            data,
            ack,
            ..
        } = self;
        (endpoint, buffers, Shape::Send { data, ack })
    }
}

posting_forms!(Send, IoBufs, usize);

/// A receive to be posted; see [`Endpoint::recv`].
#[must_use = "nothing is received until this is awaited or posted"]
pub struct Recv<B: IoBufsMut> {
    endpoint: Endpoint,
    buffers: B,
    timeout: Option<Duration>,
}

impl<B: IoBufsMut> Draft<B> for Recv<B> {
    fn operation(&self) -> OperationKind {
        OperationKind::Receive
    }

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    fn into_parts(self) -> (Endpoint, B, Shape) {
        (self.endpoint, self.buffers, Shape::Receive)
    }
}

posting_forms!(Recv, IoBufsMut, Received);
