//! One buffer for several messages (`FI_MULTI_RECV`; `fi_msg(3)`).

use crate::buf::{IoBufMut, IoBufs};
use crate::proto::MatchCriteria;

use super::RdmEndpoint;
use super::kind::MultiRecvKind;
use super::post::Posting;
use super::target::{PostTarget, Scope, Selector};

impl RdmEndpoint {
    /// Posts a buffer that receives untagged messages one after another (`FI_MULTI_RECV`), from any
    /// peer or from [one](Posting::from). Give it a context with [`queue`](Posting::queue),
    /// then post it. It cannot be awaited, because it completes more than once.
    ///
    /// Each message is a completion of the receive queue with that context. Its
    /// [`take_buffer`](crate::Completion::take_buffer) returns the message itself: a part of the
    /// buffer that is no longer written to, without a copy. The buffer's memory lives until its
    /// last part is dropped. If the buffer is a [slice of a region](crate::mr::RegionSlice), which
    /// may be device memory, nothing is returned: the message is in the region,
    /// [`offset`](crate::Completion::offset) bytes after the start of the slice.
    ///
    /// The buffer is released when it has fewer than [`min_free`](Posting::min_free) bytes left
    /// and all its messages are complete. A separate completion reports this, with
    /// [`CompletionFlags::MULTI_RECV`](crate::cq::CompletionFlags::MULTI_RECV) and no other flag.
    #[doc(alias = "FI_MULTI_RECV")]
    pub fn multi_recv<B: IoBufMut>(&self, buffer: B) -> MultiRecv<B> {
        let selector = Selector::any(MatchCriteria::Message);
        let target = PostTarget::new(&self.inner, Scope::Receives(selector));
        MultiRecv::receive(target, buffer, None).min_free(self.inner.free_min)
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
pub type MultiRecv<B> = Posting<B, MultiRecvKind>;

impl<B: IoBufs> MultiRecv<B> {
    /// The buffer is released when fewer bytes than this are left in it (`FI_OPT_MIN_MULTI_RECV`),
    /// so there is room for at least this much of each message. At least 1. Default: the endpoint's
    /// ([`min_multi_recv`](crate::rdm::RdmEndpointBuilder::min_multi_recv)).
    pub fn min_free(mut self, bytes: usize) -> Self {
        self.target.select(|it| it.free_min = Some(bytes));
        self
    }
}
