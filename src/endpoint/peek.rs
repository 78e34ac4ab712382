//! Looking at messages that came before their receive (`FI_PEEK`, `FI_CLAIM`, `FI_DISCARD`;
//! `fi_tagged(3)`, `fi_msg(3)`): of a connectionless endpoint, or of connected endpoints that share
//! a receive context.

use std::fmt;
use std::future::{IntoFuture, Ready, ready};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;

use crate::buf::{IoBufs, IoBufsMut};
use crate::cq::{Completion, CompletionError, CompletionFlags, SourceName};
use crate::error::{Error, ErrorKind, OperationKind, Result};
use crate::id::{AuthKeyAddr, EndpointId, FabricAddr, UserContext};
use crate::info::Caps;
use crate::progress::{ClaimId, PostOptions, ReceiveContext, ReceiveSelector};
use crate::proto::{Arrival, MatchCriteria};

use super::common::Common;
use super::post::{OpBuilder, OpSpec, posting_forms, receive_spec};
use super::target::{PostTarget, Scope, Selector};
use super::{RdmEndpoint, SharedReceiveContext};

impl RdmEndpoint {
    /// Looks for the first message with this tag that came before its receive (`FI_PEEK`): the one
    /// that [`recv_tagged`](Self::recv_tagged) would get. Awaited, it describes the message and
    /// leaves it where it is; see [`Peek`] for the rest.
    #[doc(alias("FI_PEEK", "FI_ENOMSG"))]
    pub fn peek_tagged(&self, tag: u64) -> Peek {
        Peek {
            store: MessageStore::Rdm(self.clone()),
            selector: Selector::any(MatchCriteria::Tagged { tag, ignore: 0 }),
        }
    }

    /// Looks for the first untagged message that came before its receive: the one that
    /// [`recv`](Self::recv) would get. All else is as of [`peek_tagged`](Self::peek_tagged): so a
    /// message of unknown length can be looked at before there is a buffer for it.
    pub fn peek(&self) -> Peek {
        Peek {
            store: MessageStore::Rdm(self.clone()),
            selector: Selector::any(MatchCriteria::Message),
        }
    }
}

impl SharedReceiveContext {
    /// Looks for the first message that came before its receive, of any endpoint that shares the
    /// context: the one that [`recv`](Self::recv) would get. Awaited, it describes the message and
    /// leaves it where it is; see [`Peek`] for the rest.
    pub fn peek(&self) -> Peek {
        Peek {
            store: MessageStore::Shared(self.clone()),
            selector: Selector::any(MatchCriteria::Message),
        }
    }
}

/// Where messages wait for receives that can be looked at.
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

    fn receives(&self) -> &ReceiveContext {
        match self {
            MessageStore::Rdm(endpoint) => &endpoint.inner.receives,
            MessageStore::Shared(context) => context.context().receives(),
        }
    }

    /// What a selector means to the receives, if the endpoint may receive such messages.
    fn resolve_selector(&self, selector: Selector) -> Result<ReceiveSelector> {
        self.common().caps.check(selector.caps())?;
        match self {
            MessageStore::Rdm(endpoint) => endpoint.inner.resolve_selector(selector),
            MessageStore::Shared(context) => context.inner.resolve_selector(selector),
        }
    }

    /// Where the receive of a claimed message is posted.
    fn target(&self, claim: ClaimGuard) -> PostTarget {
        let scope = Scope::Claimed(claim);
        match self {
            MessageStore::Rdm(endpoint) => PostTarget::new(&endpoint.inner, scope),
            MessageStore::Shared(context) => PostTarget::new(&context.inner, scope),
        }
    }

    fn info(&self, arrival: &Arrival) -> MessageInfo {
        let (source, endpoint) = match self {
            MessageStore::Rdm(it) => (it.inner.source_name(arrival.source.0), None),
            MessageStore::Shared(_) => {
                let endpoint = EndpointId::of_number(arrival.connection.0);
                (SourceName::default(), endpoint)
            }
        };
        let SourceName {
            address,
            fabric,
            user_id,
        } = source;
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

    /// The completion of a look that found nothing, or this message.
    fn completion(
        &self,
        context: UserContext,
        flags: CompletionFlags,
        found: Option<&Arrival>,
    ) -> Completion {
        let of_connection = match self {
            MessageStore::Rdm(_) => None,
            MessageStore::Shared(_) => found.and_then(|it| EndpointId::of_number(it.connection.0)),
        };
        let endpoint = of_connection.unwrap_or(self.common().id);
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
        let source = match self {
            MessageStore::Rdm(endpoint) => endpoint.source(arrival.source),
            MessageStore::Shared(_) => None,
        };
        match source {
            Some(source) => completion.with_source(source),
            None => completion,
        }
    }
}

/// A look at the messages that wait for a receive; see [`RdmEndpoint::peek_tagged`],
/// [`RdmEndpoint::peek`] and [`SharedReceiveContext::peek`].
///
/// It looks once, at what is there in that moment, and never waits. All forms say
/// [`NoMessage`](ErrorKind::NoMessage) (`FI_ENOMSG`) if nothing matches.
#[derive(Clone)]
#[must_use = "nothing is looked at until this is awaited or ended"]
pub struct Peek {
    store: MessageStore,
    selector: Selector,
}

impl Peek {
    /// Bits of the tag that do not matter, as of a [receive](super::RecvTagged::ignore).
    pub fn ignore(mut self, mask: u64) -> Self {
        self.selector.ignore(mask);
        self
    }

    /// Looks at messages of this peer only, as a [receive](super::RecvTagged::from): of a
    /// connectionless endpoint. Of connected endpoints it ends as
    /// [`BadFlags`](ErrorKind::BadFlags).
    pub fn from(mut self, peer: FabricAddr) -> Self {
        self.selector.source = Some(peer);
        self
    }

    /// Looks at messages of the peers of this authorization key only (`FI_DIRECTED_RECV` with
    /// `FI_AUTH_KEY`; `fi_av(3)`), where peers have keys of their own
    /// ([`AddressVector::insert_auth_key`](crate::AddressVector::insert_auth_key)). Instead of
    /// [`from`](Self::from).
    ///
    /// # Errors
    /// As of [`RecvFrom::from`](crate::op::RecvFrom::from);
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a key that the
    /// endpoint was not opened with.
    pub fn from_key(mut self, key: AuthKeyAddr) -> Self {
        self.selector.key = Some(key);
        self
    }

    /// Describes the message within this call, and leaves it where it is.
    ///
    /// # Errors
    /// [`ErrorKind::NoMessage`] if there is none, [`ErrorKind::InvalidArgument`] for an address
    /// that was removed or is another vector's.
    pub fn now(self) -> Result<MessageInfo> {
        let selector = self.store.resolve_selector(self.selector)?;
        let found = self.store.receives().peek(selector);
        let arrival = found.ok_or_else(no_message)?;
        Ok(self.store.info(&arrival))
    }

    /// Claims the message (`FI_PEEK | FI_CLAIM`): only who has the claim can receive it.
    ///
    /// # Errors
    /// As of [`now`](Self::now).
    pub fn claim(self) -> Result<ClaimedMessage> {
        let selector = self.store.resolve_selector(self.selector)?;
        let found = self.store.receives().claim(selector);
        let (claimed, arrival) = found.ok_or_else(no_message)?;
        Ok(ClaimedMessage {
            info: self.store.info(&arrival),
            claim: ClaimGuard {
                store: self.store,
                claimed: Some(claimed),
            },
        })
    }

    /// Drops the message (`FI_PEEK | FI_DISCARD`), and says what it was.
    ///
    /// # Errors
    /// As of [`now`](Self::now).
    pub fn discard(self) -> Result<MessageInfo> {
        let selector = self.store.resolve_selector(self.selector)?;
        let found = self.store.receives().discard(selector);
        let arrival = found.ok_or_else(no_message)?;
        Ok(self.store.info(&arrival))
    }

    /// Looks within this call and reports to the endpoint's receive queue, with this context: a
    /// completion that describes the message, or one that says [`ErrorKind::NoMessage`].
    ///
    /// # Errors
    /// [`ErrorKind::Again`] if the queue is full; nothing was looked at then.
    /// [`ErrorKind::InvalidArgument`] as of [`now`](Self::now).
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

    /// Looks at once.
    fn into_future(self) -> Self::IntoFuture {
        ready(self.now())
    }
}

debug_fields!(Peek, self => endpoint: self.store.common().id, selector: self.selector);

/// Of which interface messages are, with a tag or without.
fn interface(is_tagged: bool) -> CompletionFlags {
    match is_tagged {
        true => CompletionFlags::TAGGED,
        false => CompletionFlags::MSG,
    }
}

fn no_message() -> Error {
    Error::new(ErrorKind::NoMessage, "").with_operation(OperationKind::Receive)
}

/// What is known of a message that waits for its receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessageInfo {
    /// Its length in bytes.
    pub len: u64,
    /// The tag it was sent with.
    pub tag: Option<u64>,
    /// Remote CQ data that came along.
    pub data: Option<u64>,
    /// Who sent it, if the endpoint's address vector has the sender's address.
    pub source: Option<FabricAddr>,
    /// What the application calls the sender (`FI_AV_USER_ID`).
    pub source_user_id: Option<u64>,
    /// Where the sender listens.
    pub source_addr: Option<SocketAddr>,
    /// The endpoint whose connection brings it, of those that share a
    /// [receive context](SharedReceiveContext).
    pub endpoint: Option<EndpointId>,
}

/// A message that was claimed (`FI_CLAIM`): no receive gets it but its own, which
/// [`recv`](Self::recv) posts. Dropped, it gives the claim up, and the message is matched again, in
/// its place among the others.
#[doc(alias = "FI_CLAIM")]
#[must_use = "a claim that is dropped is given up"]
#[derive(Debug)]
pub struct ClaimedMessage {
    info: MessageInfo,
    claim: ClaimGuard,
}

impl ClaimedMessage {
    /// What is known of the message.
    pub fn info(&self) -> &MessageInfo {
        &self.info
    }

    /// Receives it (`FI_CLAIM`) into a buffer, or spread over up to four. A message longer than the
    /// buffers is truncated, as of other receives.
    pub fn recv<B: IoBufsMut>(self, buffers: B) -> RecvClaimed<B> {
        let store = self.claim.store.clone();
        RecvClaimed {
            target: store.target(self.claim),
            flags: interface(self.info.tag.is_some()) | CompletionFlags::CLAIM,
            buffers,
            max: None,
            timeout: None,
        }
    }

    /// Receives it (`FI_CLAIM`) into memory of its own, as it lies if it has come already. It is
    /// truncated to `max` bytes.
    pub fn recv_any(self, max: usize) -> RecvClaimed<Bytes> {
        let store = self.claim.store.clone();
        RecvClaimed {
            target: store.target(self.claim),
            flags: interface(self.info.tag.is_some()) | CompletionFlags::CLAIM,
            buffers: Bytes::new(),
            max: Some(max),
            timeout: None,
        }
    }

    /// Drops it (`FI_CLAIM | FI_DISCARD`).
    pub fn discard(mut self) {
        if let Some(claimed) = self.claim.claimed.take() {
            self.claim.store.receives().discard_claimed(claimed);
        }
    }
}

/// A receive of a claimed message to be posted; see [`ClaimedMessage::recv`]. Dropped before that,
/// it gives the claim up.
#[must_use = "nothing is received until this is awaited or posted"]
pub struct RecvClaimed<B: IoBufs> {
    target: PostTarget,
    flags: CompletionFlags,
    buffers: B,
    /// As of [`Recv`](super::Recv).
    max: Option<usize>,
    timeout: Option<Duration>,
}

impl<B: IoBufs> OpBuilder<B> for RecvClaimed<B> {
    fn operation_kind(&self) -> OperationKind {
        OperationKind::Receive
    }

    fn completion_flags(&self) -> CompletionFlags {
        self.flags
    }

    fn common(&self) -> &Common {
        self.target.common()
    }

    fn caps(&self) -> Caps {
        match self.flags.contains(CompletionFlags::TAGGED) {
            true => Caps::TAGGED | Caps::RECV,
            false => Caps::MSG | Caps::RECV,
        }
    }

    fn options(&self) -> PostOptions {
        PostOptions {
            timeout: self.timeout,
            ..PostOptions::default()
        }
    }

    fn into_parts(self) -> (PostTarget, B, OpSpec) {
        (self.target, self.buffers, receive_spec(self.max))
    }
}

posting_forms!(RecvClaimed, IoBufs, super::Received);

/// The right to a claimed message, until it is used.
pub(super) struct ClaimGuard {
    store: MessageStore,
    claimed: Option<ClaimId>,
}

impl ClaimGuard {
    /// Uses it up.
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
