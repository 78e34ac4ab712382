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
    /// Posts a buffer that takes untagged messages one behind the other (`FI_MULTI_RECV`), from any
    /// peer or from [one](MultiRecv::from). Give it a context by [`queue`](MultiRecv::queue), then
    /// post it: there is no form to await, since it reports more than once.
    ///
    /// Each message is a completion of the receive queue with that context. Its
    /// [`take_buffer`](crate::Completion::take_buffer) gives the message itself: a part of the
    /// buffer that is written to no more, without a copy. The buffer's memory lives until the
    /// last part of it is dropped. Of a [slice of a region](crate::mr::RegionSlice), device memory
    /// among them, nothing is given: the message lies in the region, at
    /// [`offset`](crate::Completion::offset) bytes from the slice's start.
    ///
    /// The buffer is released when fewer than [`min_free`](MultiRecv::min_free) bytes are left in
    /// it and all its messages are complete. A completion of its own says so, by
    /// [`CompletionFlags::MULTI_RECV`](crate::cq::CompletionFlags::MULTI_RECV) and no other flag.
    #[doc(alias = "FI_MULTI_RECV")]
    pub fn multi_recv<B: IoBufMut>(&self, buffer: B) -> MultiRecv<B> {
        let selector = Selector::any(MatchCriteria::Message);
        let target = PostTarget::new(&self.inner, Scope::Receives(selector));
        MultiRecv::new(target, buffer, self.inner.free_min)
    }
}

/// A buffer for several messages to be posted; see [`RdmEndpoint::multi_recv`] and
/// [`SharedReceiveContext::multi_recv`](crate::ep::SharedReceiveContext::multi_recv).
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

    /// The buffer is released when fewer bytes are left, at least 1: so much there is for each
    /// message (`FI_OPT_MIN_MULTI_RECV`). Default: the endpoint's
    /// ([`min_multi_recv`](crate::rdm::RdmEndpointBuilder::min_multi_recv)).
    pub fn min_free(mut self, bytes: usize) -> Self {
        self.free_min = bytes;
        self
    }

    /// Takes messages of this peer only, as a [receive](crate::op::RecvFrom::from).
    pub fn from(mut self, peer: FabricAddr) -> Self {
        self.target.select_source(peer);
        self
    }

    /// Takes messages of the peers of this authorization key only (`FI_DIRECTED_RECV` with
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
