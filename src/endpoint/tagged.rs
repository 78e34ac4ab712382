//! Tagged messages (`fi_tagged(3)`): sent with a tag, received by it.

use std::time::Duration;

use bytes::Bytes;

use crate::buf::{IoBufs, IoBufsMut};
use crate::error::Result;
use crate::id::{AuthKeyAddr, FabricAddr};
use crate::proto::MatchCriteria;

use super::RdmEndpoint;
use super::msg::{SendMessage, receive_builder};
use super::target::{PostTarget, Scope};

impl RdmEndpoint {
    /// Sends a message with a tag (`fi_tsend`, `fi_tsendv`, `fi_tsenddata`), to be received by
    /// [`recv_tagged`](Self::recv_tagged). All else is as of [`send`](Self::send).
    #[doc(alias("fi_tsend", "fi_tsendv", "fi_tsendmsg", "fi_tsenddata"))]
    pub fn send_tagged<B: IoBufs>(&self, buffers: B, peer: FabricAddr, tag: u64) -> SendMessage<B> {
        SendMessage::new(
            PostTarget::new(&self.inner, Scope::Peer(peer)),
            buffers,
            Some(tag),
        )
    }

    /// Receives one message with this tag (`fi_trecv`, `fi_trecvv`), or with one that differs only
    /// in the bits that are [ignored](RecvTagged::ignore); from any peer, or from one
    /// ([`from`](RecvTagged::from)).
    ///
    /// A message goes to the receive that was posted first of those that match it. One that is
    /// longer than the buffers ends the receive with [`Truncated`](crate::ErrorKind::Truncated);
    /// the buffers hold what fits, and the connection lives.
    #[doc(alias("fi_trecv", "fi_trecvv", "fi_trecvmsg"))]
    pub fn recv_tagged<B: IoBufsMut>(&self, buffers: B, tag: u64) -> RecvTagged<B> {
        RecvTagged {
            target: self.receive_target(MatchCriteria::Tagged { tag, ignore: 0 }),
            buffers,
            max: None,
            timeout: None,
        }
    }

    /// Receives one message with this tag of at most `max` bytes, whose length is unknown
    /// (`FI_VARIABLE_MSG`); as [`recv_tagged`](Self::recv_tagged), and as
    /// [`Endpoint::recv_any`](crate::Endpoint::recv_any).
    pub fn recv_any_tagged(&self, tag: u64, max: usize) -> RecvTagged<Bytes> {
        RecvTagged {
            target: self.receive_target(MatchCriteria::Tagged { tag, ignore: 0 }),
            buffers: Bytes::new(),
            max: Some(max),
            timeout: None,
        }
    }

    /// Sends at most 128 bytes with a tag and forgets them (`fi_tinject`).
    ///
    /// # Errors
    /// As of [`inject`](Self::inject).
    #[doc(alias("fi_tinject", "fi_tinjectdata"))]
    pub fn inject_tagged(&self, bytes: &[u8], peer: FabricAddr, tag: u64) -> Result<()> {
        self.inject_message(bytes, peer, Some(tag), None)
    }

    /// As [`inject_tagged`](Self::inject_tagged), with remote CQ data (`fi_tinjectdata`).
    ///
    /// # Errors
    /// As there.
    pub fn inject_tagged_data(
        &self,
        bytes: &[u8],
        peer: FabricAddr,
        tag: u64,
        data: u64,
    ) -> Result<()> {
        self.inject_message(bytes, peer, Some(tag), Some(data))
    }
}

/// A receive of a tagged message to be posted; see [`RdmEndpoint::recv_tagged`].
#[must_use = "nothing is received until this is awaited or posted"]
pub struct RecvTagged<B: IoBufs> {
    target: PostTarget,
    buffers: B,
    /// As of [`Recv`](super::Recv).
    max: Option<usize>,
    timeout: Option<Duration>,
}

impl<B: IoBufs> RecvTagged<B> {
    /// Bits of the tag that do not matter: a message matches if its tag and the receive's agree in
    /// all others (`ignore`). Default 0; `u64::MAX` takes any tagged message.
    pub fn ignore(mut self, mask: u64) -> Self {
        self.target.select_mask(mask);
        self
    }

    /// Takes a message of this peer only (`src_addr`, `FI_DIRECTED_RECV`). Default: of any
    /// (`FI_ADDR_UNSPEC`).
    ///
    /// # Errors
    /// As of [`RecvFrom::from`](crate::op::RecvFrom::from).
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

receive_builder!(RecvTagged, TAGGED);
