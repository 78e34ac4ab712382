//! Looks at messages that arrived before their receive (`FI_PEEK`, `FI_CLAIM`, `FI_DISCARD`;
//! `fi_tagged(3)`, `fi_msg(3)`), at a connectionless endpoint or at endpoints that share a receive
//! context.

use std::fmt;
use std::future::{IntoFuture, Ready, ready};
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;

use crate::buf::IoBufsMut;
use crate::cq::{Completion, CompletionError, CompletionFlags, SourceName};
use crate::error::{Error, ErrorKind, OperationKind, Result};
use crate::id::{AuthKeyAddr, EndpointId, FabricAddr, UserContext};
use crate::progress::{ClaimId, ReceiveContext, ReceiveSelector};
use crate::proto::{Arrival, MatchCriteria};

use super::common::Common;
use super::kind::RecvClaimedKind;
use super::post::Posting;
use super::sources::SourceNames;
use super::target::{PostTarget, Scope, Selector};
use super::{RdmEndpoint, SharedReceiveContext};

impl RdmEndpoint {
    /// Looks for the first message with this tag that arrived before its receive (`FI_PEEK`): the
    /// one that [`recv_tagged`](Self::recv_tagged) would get. Awaiting it describes the message and
    /// leaves the message where it is; [`Peek`] has other forms.
    #[doc(alias("FI_PEEK", "FI_ENOMSG"))]
    pub fn peek_tagged(&self, tag: u64) -> Peek {
        Peek {
            store: MessageStore::Rdm(self.clone()),
            selector: Selector::any(MatchCriteria::Tagged { tag, ignore: 0 }),
        }
    }

    /// Looks for the first untagged message that arrived before its receive: the one that
    /// [`recv`](Self::recv) would get. Otherwise as [`peek_tagged`](Self::peek_tagged). Use it to
    /// find out the length of a message before you provide a buffer for it.
    pub fn peek(&self) -> Peek {
        Peek {
            store: MessageStore::Rdm(self.clone()),
            selector: Selector::any(MatchCriteria::Message),
        }
    }
}

impl SharedReceiveContext {
    /// Looks for the first message with this tag that arrived before its receive, of any endpoint
    /// that shares the context. Otherwise as [`RdmEndpoint::peek_tagged`].
    pub fn peek_tagged(&self, tag: u64) -> Peek {
        Peek {
            store: MessageStore::Shared(self.clone()),
            selector: Selector::any(MatchCriteria::Tagged { tag, ignore: 0 }),
        }
    }

    /// Looks for the first message that arrived before its receive, of any endpoint that shares the
    /// context: the one that [`recv`](Self::recv) would get. Awaiting it describes the message and
    /// leaves the message where it is; [`Peek`] has other forms.
    pub fn peek(&self) -> Peek {
        Peek {
            store: MessageStore::Shared(self.clone()),
            selector: Selector::any(MatchCriteria::Message),
        }
    }
}

/// The owner of the unexpected messages that a peek looks at.
#[derive(Clone)]
enum MessageStore {
    Rdm(RdmEndpoint),
    Shared(SharedReceiveContext),
}

impl MessageStore {
    fn common(&self) -> &Common {
        match self {
            MessageStore::Rdm(endpoint) => &endpoint.inner.common,
            MessageStore::Shared(context) => &context.inner.common,
        }
    }

    fn names(&self) -> Option<&Arc<SourceNames>> {
        match self {
            MessageStore::Rdm(endpoint) => Some(&endpoint.inner.names),
            MessageStore::Shared(context) => context.inner.names.as_ref(),
        }
    }

    fn receives(&self) -> &ReceiveContext {
        match self {
            MessageStore::Rdm(endpoint) => &endpoint.inner.receives,
            MessageStore::Shared(context) => context.context().receives(),
        }
    }

    /// Resolves a selector for the receives, if the endpoint may receive such messages.
    fn resolve_selector(&self, selector: Selector) -> Result<ReceiveSelector> {
        self.common().caps.check(selector.caps())?;
        match self {
            MessageStore::Rdm(endpoint) => endpoint.inner.resolve_selector(selector),
            MessageStore::Shared(context) => context.inner.resolve_selector(selector),
        }
    }

    /// Returns the target to which the receive of a claimed message is posted.
    fn target(&self, claim: ClaimGuard) -> PostTarget {
        let scope = Scope::Claimed(claim);
        match self {
            MessageStore::Rdm(endpoint) => PostTarget::new(&endpoint.inner, scope),
            MessageStore::Shared(context) => PostTarget::new(&context.inner, scope),
        }
    }

    fn info(&self, arrival: &Arrival) -> MessageInfo {
        let named = self.names().map(|it| it.reported_name(arrival.source));
        let SourceName {
            address,
            fabric,
            user_id,
        } = named.unwrap_or_default();
        let endpoint = match self {
            MessageStore::Rdm(_) => None,
            MessageStore::Shared(_) => Some(arrival.connection.endpoint),
        };
        MessageInfo {
            len: arrival.len,
            tag: arrival.kind.tag(),
            data: arrival.data,
            source: fabric,
            source_user_id: user_id,
            source_addr: address,
            endpoint,
        }
    }

    /// Returns the completion of a peek that found this message, or none.
    fn completion(
        &self,
        context: UserContext,
        flags: CompletionFlags,
        found: Option<&Arrival>,
    ) -> Completion {
        let endpoint = found.map_or(self.common().id, |it| it.connection.endpoint);
        let mut completion = Completion::new(endpoint, context, OperationKind::Receive, flags);
        let Some(arrival) = found else {
            return completion.with_error(CompletionError::new(no_message()));
        };
        completion = completion.with_len(usize::try_from(arrival.len).unwrap_or(usize::MAX));
        if let Some(tag) = arrival.kind.tag() {
            completion = completion.with_tag(tag);
        }
        if let Some(data) = arrival.data {
            completion = completion.with_data(data);
        }
        match self.names().and_then(|it| it.source(arrival.source)) {
            Some(source) => completion.with_source(source),
            None => completion,
        }
    }
}

/// A look at the messages that wait for a receive; see [`RdmEndpoint::peek_tagged`],
/// [`RdmEndpoint::peek`] and [`SharedReceiveContext::peek`].
///
/// It looks once, at the messages that have arrived or been announced so far, and never waits. All
/// forms fail with [`NoMessage`](ErrorKind::NoMessage) (`FI_ENOMSG`) if no message matches.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
/// use tokio_fabric::ErrorKind;
///
/// let (a, b) = Net::loopback().rdm_pair()?;
/// assert_eq!(b.endpoint.peek().now().unwrap_err().kind(), ErrorKind::NoMessage);
/// a.endpoint.send("of some length", a.other).delivery_complete().await?;
/// let info = b.endpoint.peek().now()?;
/// let buffer = vec![0; info.len.min(1 << 20) as usize]; // One that fits, up to a limit.
/// let (_, buffer) = b.endpoint.recv(buffer).await?;
/// assert_eq!(buffer, b"of some length");
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "nothing is looked at until this is awaited or ended"]
pub struct Peek {
    store: MessageStore,
    selector: Selector,
}

impl Peek {
    /// Bits of the tag that are ignored, as for a [receive](super::Posting::ignore).
    pub fn ignore(mut self, mask: u64) -> Self {
        self.selector.ignore(mask);
        self
    }

    /// Looks only at messages from this peer, as a [receive](super::Posting::from) does. Only
    /// for connectionless endpoints; otherwise it fails with
    /// [`NoCapability`](ErrorKind::NoCapability).
    pub fn from(mut self, peer: FabricAddr) -> Self {
        self.selector.source = Some(peer);
        self
    }

    /// Looks only at messages from the peers with this authorization key (`FI_DIRECTED_RECV` with
    /// `FI_AUTH_KEY`; `fi_av(3)`), if peers have keys of their own
    /// ([`AddressVector::insert_auth_key`](crate::AddressVector::insert_auth_key)). Use it instead
    /// of [`from`](Self::from).
    ///
    /// # Errors
    /// As for [`RecvFrom::from`](crate::op::Posting::from); [`ErrorKind::InvalidArgument`] for a
    /// key that the endpoint was not opened with.
    pub fn from_key(mut self, key: AuthKeyAddr) -> Self {
        self.selector.key = Some(key);
        self
    }

    /// Describes the message within this call, and leaves it where it is.
    ///
    /// # Errors
    /// [`ErrorKind::NoMessage`] if there is none, [`ErrorKind::InvalidArgument`] for an address
    /// that was removed or belongs to another vector.
    pub fn now(self) -> Result<MessageInfo> {
        let selector = self.store.resolve_selector(self.selector)?;
        let found = self.store.receives().peek(selector);
        let arrival = found.ok_or_else(no_message)?;
        Ok(self.store.info(&arrival))
    }

    /// Claims the message (`FI_PEEK | FI_CLAIM`): only the returned claim can receive it.
    ///
    /// # Errors
    /// As for [`now`](Self::now).
    pub fn claim(self) -> Result<ClaimedMessage> {
        let selector = self.store.resolve_selector(self.selector)?;
        let found = self.store.receives().claim(selector);
        let (claimed, arrival) = found.ok_or_else(no_message)?;
        Ok(ClaimedMessage {
            info: self.store.info(&arrival),
            claim: ClaimGuard {
                store: self.store,
                claimed: Some(claimed),
                is_tagged: arrival.kind.tag().is_some(),
            },
        })
    }

    /// Drops the message (`FI_PEEK | FI_DISCARD`), and returns its description.
    ///
    /// # Errors
    /// As for [`now`](Self::now).
    pub fn discard(self) -> Result<MessageInfo> {
        let selector = self.store.resolve_selector(self.selector)?;
        let found = self.store.receives().discard(selector);
        let arrival = found.ok_or_else(no_message)?;
        Ok(self.store.info(&arrival))
    }

    /// Looks within this call and reports to the endpoint's receive queue, with this context:
    /// either a completion that describes the message, or one with the error
    /// [`ErrorKind::NoMessage`].
    ///
    /// # Errors
    /// [`ErrorKind::Again`] if the queue is full; the messages have not been looked at then.
    /// [`ErrorKind::InvalidArgument`] as for [`now`](Self::now).
    pub fn queue(self, context: impl Into<UserContext>) -> Result<()> {
        let selector = self.store.resolve_selector(self.selector)?;
        let common = self.store.common();
        let full = || Error::new(ErrorKind::Again, "the completion queue is full");
        let slot = common.receive_queue.try_reserve().ok_or_else(full)?;
        let flags = CompletionFlags::RECV | interface(selector.wanted != MatchCriteria::Message);
        let found = self.store.receives().peek(selector);
        let completion = (self.store).completion(context.into(), flags, found.as_ref());
        let mut wakes = crate::sync::WakeList::new();
        slot.fill(completion, &mut wakes);
        Ok(())
    }
}

impl IntoFuture for Peek {
    type Output = Result<MessageInfo>;
    type IntoFuture = Ready<Result<MessageInfo>>;

    /// Looks immediately.
    fn into_future(self) -> Self::IntoFuture {
        ready(self.now())
    }
}

debug_fields!(Peek, self => endpoint: self.store.common().id, selector: self.selector);

/// Returns the completion flag of tagged or of untagged messages.
fn interface(is_tagged: bool) -> CompletionFlags {
    match is_tagged {
        true => CompletionFlags::TAGGED,
        false => CompletionFlags::MSG,
    }
}

fn no_message() -> Error {
    Error::new(ErrorKind::NoMessage, "").with_operation(OperationKind::Receive)
}

/// The description of a message that waits for a receive.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let (a, b) = Net::loopback().rdm_pair()?;
/// a.endpoint.send_tagged("hello", a.other, 7).delivery_complete().await?;
/// let info = b.endpoint.peek_tagged(7).now()?;
/// assert_eq!((info.len, info.tag, info.source), (5, Some(7), Some(b.other)));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessageInfo {
    /// Its length in bytes.
    pub len: u64,
    /// The tag it was sent with.
    pub tag: Option<u64>,
    /// Remote CQ data that was sent with the message.
    pub data: Option<u64>,
    /// The sender, if the endpoint's address vector contains it.
    pub source: Option<FabricAddr>,
    /// The application's identifier of the sender (`FI_AV_USER_ID`).
    pub source_user_id: Option<u64>,
    /// The address at which the sender listens.
    pub source_addr: Option<SocketAddr>,
    /// The endpoint whose connection brings it, among those that share a
    /// [receive context](SharedReceiveContext).
    pub endpoint: Option<EndpointId>,
}

/// A message that was claimed (`FI_CLAIM`): no other receive can take it, only the one that
/// [`recv`](Self::recv) posts.
///
/// If the claim is dropped, the message returns to its old place among the unexpected messages and
/// can be matched again.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let (a, b) = Net::loopback().rdm_pair()?;
/// a.endpoint.send("hello", a.other).delivery_complete().await?;
/// let claimed = b.endpoint.peek().claim()?;
/// let buffer = vec![0; claimed.info().len.min(1 << 20) as usize];
/// let (received, buffer) = claimed.recv(buffer).await?;
/// assert_eq!(&buffer[..received.len], b"hello");
/// # Ok(()) }
/// ```
#[doc(alias = "FI_CLAIM")]
#[must_use = "a claim that is dropped is given up"]
#[derive(Debug)]
pub struct ClaimedMessage {
    info: MessageInfo,
    claim: ClaimGuard,
}

impl ClaimedMessage {
    /// The description of the message.
    pub fn info(&self) -> &MessageInfo {
        &self.info
    }

    /// Receives the message (`FI_CLAIM`) into one buffer, or up to four. If it is longer than the
    /// buffers, it is truncated, as for other receives.
    pub fn recv<B: IoBufsMut>(self, buffers: B) -> RecvClaimed<B> {
        let store = self.claim.store.clone();
        RecvClaimed::receive(store.target(self.claim), buffers, None)
    }

    /// Receives the message (`FI_CLAIM`) into newly allocated memory, or without a copy if it has
    /// arrived already. It is truncated to `max` bytes.
    pub fn recv_any(self, max: usize) -> RecvClaimed<Bytes> {
        let store = self.claim.store.clone();
        RecvClaimed::receive(store.target(self.claim), Bytes::new(), Some(max))
    }

    /// Drops the message (`FI_CLAIM | FI_DISCARD`).
    pub fn discard(mut self) {
        if let Some(claimed) = self.claim.claimed.take() {
            self.claim.store.receives().discard_claimed(claimed);
        }
    }
}

/// A receive of a claimed message that has not been posted yet; see [`ClaimedMessage::recv`].
///
/// Await it, or post it. If it is dropped before, the claim is dropped.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::testing::Net;
///
/// let (a, b) = Net::loopback().rdm_pair()?;
/// a.endpoint.send("hello", a.other).delivery_complete().await?;
/// let receive = b.endpoint.peek().claim()?.recv(vec![0; 8]).post()?;
/// assert_eq!(receive.await?.0.len, 5);
/// # Ok(()) }
/// ```
pub type RecvClaimed<B> = Posting<B, RecvClaimedKind>;

/// The right to receive a claimed message. If it is dropped unused, the claim is released.
pub(super) struct ClaimGuard {
    store: MessageStore,
    claimed: Option<ClaimId>,
    is_tagged: bool,
}

impl ClaimGuard {
    pub(super) fn is_tagged(&self) -> bool {
        self.is_tagged
    }

    /// Uses the claim.
    pub(super) fn take(mut self) -> ClaimId {
        let claimed = self.claimed.take();
        claimed.expect("a claim is used once, by value")
    }
}

impl Drop for ClaimGuard {
    fn drop(&mut self) {
        if let Some(claimed) = self.claimed.take() {
            self.store.receives().release_claimed(claimed);
        }
    }
}

impl fmt::Debug for ClaimGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim({:?})", self.claimed)
    }
}
