//! One buffer for several messages (`FI_MULTI_RECV`; `fi_msg(3)`).

use crate::buf::IoBufMut;
use crate::cq::CompletionFlags;
use crate::error::OperationKind;
use crate::id::{AuthKeyAddr, FabricAddr, UserContext};
use crate::info::Caps;
use crate::progress::PostOptions;
use crate::proto::MatchCriteria;

use super::common::Common;
use super::post::{OpBuilder, OpSpec, queued_forms};
use super::target::{PostTarget, Scope, Selector};
use super::{Queued, RdmEndpoint};

impl RdmEndpoint {
    /// Posts a buffer that receives untagged messages one after another (`FI_MULTI_RECV`), from any
    /// peer or from [one](MultiRecv::from). Give it a context with [`queue`](MultiRecv::queue),
    /// then post it. It cannot be awaited, because it completes more than once.
    ///
    /// Each message is a completion of the receive queue with that context. Its
    /// [`take_buffer`](crate::Completion::take_buffer) returns the message itself: a part of the
    /// buffer that is no longer written to, without a copy. The buffer's memory lives until its
    /// last part is dropped. If the buffer is a [slice of a region](crate::mr::RegionSlice), which
    /// may be device memory, nothing is returned: the message is in the region,
    /// [`offset`](crate::Completion::offset) bytes after the start of the slice.
    ///
    /// The buffer is released when it has fewer than [`min_free`](MultiRecv::min_free) bytes left
    /// and all its messages are complete. A separate completion reports this, with
    /// [`CompletionFlags::MULTI_RECV`](crate::cq::CompletionFlags::MULTI_RECV) and no other flag.
    #[doc(alias = "FI_MULTI_RECV")]
    pub fn multi_recv<B: IoBufMut>(&self, buffer: B) -> MultiRecv<B> {
        let selector = Selector::any(MatchCriteria::Message);
        let target = PostTarget::new(&self.inner, Scope::Receives(selector));
        MultiRecv::new(target, buffer, self.inner.free_min)
    }
}

/// A buffer for several messages that has not been posted yet; see [`RdmEndpoint::multi_recv`] and
/// [`SharedReceiveContext::multi_recv`](crate::ep::SharedReceiveContext::multi_recv).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let (a, b) = Net::loopback().rdm_pair()?;
/// b.endpoint.multi_recv(vec![0; 1 << 16]).queue(1).await?;
/// for text in ["one", "two"] {
///     a.endpoint.send(text, a.other).await?;
///     let mut completion = b.endpoint.receive_queue().next().await.expect("it is open");
///     let message = completion.take_buffer().expect("its part of the buffer");
///     assert_eq!(&message[..], text.as_bytes());
/// }
/// # Ok(()) }
/// ```
#[must_use = "nothing is received until this is posted"]
pub struct MultiRecv<B: IoBufMut> {
    target: PostTarget,
    buffers: B,
    free_min: usize,
}

impl<B: IoBufMut> MultiRecv<B> {
    pub(super) fn new(target: PostTarget, buffers: B, free_min: usize) -> Self {
        MultiRecv {
            target,
            buffers,
            free_min,
        }
    }

    /// The buffer is released when fewer bytes than this are left in it (`FI_OPT_MIN_MULTI_RECV`),
    /// so there is room for at least this much of each message. At least 1. Default: the endpoint's
    /// ([`min_multi_recv`](crate::rdm::RdmEndpointBuilder::min_multi_recv)).
    pub fn min_free(mut self, bytes: usize) -> Self {
        self.free_min = bytes;
        self
    }

    /// Receives messages from this peer only, as a [receive](crate::op::RecvFrom::from) does.
    pub fn from(mut self, peer: FabricAddr) -> Self {
        self.target.select_source(peer);
        self
    }

    /// Receives messages only from the peers with this authorization key (`FI_DIRECTED_RECV` with
    /// `FI_AUTH_KEY`; `fi_av(3)`), if peers have keys of their own
    /// ([`AddressVector::insert_auth_key`](crate::AddressVector::insert_auth_key)). Use it instead
    /// of [`from`](Self::from).
    ///
    /// # Errors
    /// As for [`RecvFrom::from`](crate::op::RecvFrom::from);
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a key that the
    /// endpoint was not opened with.
    pub fn from_key(mut self, key: AuthKeyAddr) -> Self {
        self.target.select_key(key);
        self
    }

    /// Reports to the endpoint's receive queue, with this context.
    pub fn queue(self, context: impl Into<UserContext>) -> Queued<Self> {
        Queued::new(self, context.into())
    }
}

impl<B: IoBufMut> OpBuilder<B> for MultiRecv<B> {
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
        self.target.receive_caps() | Caps::MULTI_RECV
    }

    fn options(&self) -> PostOptions {
        PostOptions::default()
    }

    fn into_parts(self) -> (PostTarget, B, OpSpec) {
        let free_min = self.free_min;
        (self.target, self.buffers, OpSpec::ReceiveMany { free_min })
    }
}

queued_forms!(MultiRecv, IoBufMut);
