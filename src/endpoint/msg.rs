//! Messages (`fi_msg(3)`): send, receive, inject.

use crate::buf::{IoBufs, IoBufsMut, Payload};
use crate::error::{OperationKind, Result};
use crate::progress::Report;
use crate::proto::Post;

use super::Endpoint;
use super::op::{Told, sealed};
use super::post::{Draft, Shape, check_inject, posting_forms};

/// What a receive got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// Bytes of the message, which are the first of the buffer (or spread over the buffers).
    pub len: usize,
    /// Remote CQ data that came along (`FI_REMOTE_CQ_DATA`).
    pub data: Option<u64>,
}

impl sealed::FromEnd for Received {
    fn from_end(len: usize, data: Option<u64>) -> Received {
        Received { len, data }
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
        }
    }

    /// Receives one message (`fi_recv`, `fi_recvv`) into a buffer, or spread over up to four.
    ///
    /// A message longer than the buffers ends the receive with
    /// [`ErrorKind::Truncated`]; the buffers hold what fits, and the connection lives.
    pub fn recv<B: IoBufsMut>(&self, buffers: B) -> Recv<B> {
        Recv {
            endpoint: self.clone(),
            buffers,
        }
    }

    /// Sends at most 128 bytes and forgets them (`fi_inject`): they are copied, and no completion
    /// is reported. Counters count it.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] for more bytes, [`ErrorKind::Again`] if the transmit context is
    /// full, [`ErrorKind::NotConnected`].
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
        self.inner
            .port
            .post(post, Report::Nowhere, false, false)
            .map_err(|(error, _)| error)?;
        Ok(())
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
}

impl<B: IoBufsMut> Draft<B> for Recv<B> {
    fn operation(&self) -> OperationKind {
        OperationKind::Receive
    }

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn into_parts(self) -> (Endpoint, B, Shape) {
        (self.endpoint, self.buffers, Shape::Receive)
    }
}

posting_forms!(Recv, IoBufsMut, Received);
