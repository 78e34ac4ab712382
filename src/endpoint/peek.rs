//! Looking at tagged messages that came before their receive (`FI_PEEK`, `FI_CLAIM`, `FI_DISCARD`;
//! `fi_tagged(3)`).

use std::fmt;
use std::future::{IntoFuture, Ready, ready};
use std::net::SocketAddr;
use std::time::Duration;

use crate::buf::IoBufsMut;
use crate::cq::{Completion, CompletionError, CompletionFlags, SourceName};
use crate::error::{Error, ErrorKind, OperationKind, Result};
use crate::id::{FabricAddr, UserContext};
use crate::info::Caps;
use crate::progress::{ClaimId, PostOptions, ReceiveSelector};
use crate::proto::{Arrival, MatchCriteria};

use super::RdmEndpoint;
use super::common::Common;
use super::post::{OpBuilder, OpSpec, posting_forms};
use super::target::{PostTarget, Scope, Selector};

impl RdmEndpoint {
    /// Looks for the first message with this tag that came before its receive (`FI_PEEK`): the one
    /// that [`recv_tagged`](Self::recv_tagged) would get. Awaited, it describes the message and
    /// leaves it where it is; see [`Peek`] for the rest.
    pub fn peek_tagged(&self, tag: u64) -> Peek {
        Peek {
            endpoint: self.clone(),
            selector: Selector::any(MatchCriteria::Tagged { tag, ignore: 0 }),
        }
    }
}

/// A look at the messages that wait for a receive; see [`RdmEndpoint::peek_tagged`].
///
/// It looks once, at what is there in that moment, and never waits. All forms say
/// [`NoMessage`](ErrorKind::NoMessage) (`FI_ENOMSG`) if nothing matches.
#[derive(Clone)]
#[must_use = "nothing is looked at until this is awaited or ended"]
pub struct Peek {
    endpoint: RdmEndpoint,
    selector: Selector,
}

impl Peek {
    /// Bits of the tag that do not matter, as of a [receive](super::RecvTagged::ignore).
    pub fn ignore(mut self, mask: u64) -> Self {
        self.selector.ignore(mask);
        self
    }

    /// Looks at messages of this peer only, as a [receive](super::RecvTagged::from).
    pub fn from(mut self, peer: FabricAddr) -> Self {
        self.selector.source = Some(peer);
        self
    }

    /// What it means to the receives, if the endpoint may receive such messages.
    fn selector(&self) -> Result<ReceiveSelector> {
        let inner = &self.endpoint.inner;
        inner.common.caps.check(self.selector.caps())?;
        inner.resolve_selector(self.selector)
    }

    /// Describes the message within this call, and leaves it where it is.
    ///
    /// # Errors
    /// [`ErrorKind::NoMessage`] if there is none, [`ErrorKind::InvalidArgument`] for an address
    /// that was removed or is another vector's.
    pub fn now(self) -> Result<MessageInfo> {
        let selector = self.selector()?;
        let found = self.endpoint.inner.receives.peek(selector);
        let arrival = found.ok_or_else(no_message)?;
        Ok(self.endpoint.message_info(&arrival))
    }

    /// Claims the message (`FI_PEEK | FI_CLAIM`): only who has the claim can receive it.
    ///
    /// # Errors
    /// As of [`now`](Self::now).
    pub fn claim(self) -> Result<ClaimedMessage> {
        let selector = self.selector()?;
        let found = self.endpoint.inner.receives.claim(selector);
        let (claimed, arrival) = found.ok_or_else(no_message)?;
        Ok(ClaimedMessage {
            info: self.endpoint.message_info(&arrival),
            claim: ClaimGuard {
                endpoint: self.endpoint,
                claimed: Some(claimed),
            },
        })
    }

    /// Drops the message (`FI_PEEK | FI_DISCARD`), and says what it was.
    ///
    /// # Errors
    /// As of [`now`](Self::now).
    pub fn discard(self) -> Result<MessageInfo> {
        let selector = self.selector()?;
        let found = self.endpoint.inner.receives.discard(selector);
        let arrival = found.ok_or_else(no_message)?;
        Ok(self.endpoint.message_info(&arrival))
    }

    /// Looks within this call and reports to the endpoint's receive queue, with this context: a
    /// completion that describes the message, or one that says [`ErrorKind::NoMessage`].
    ///
    /// # Errors
    /// [`ErrorKind::Again`] if the queue is full; nothing was looked at then.
    /// [`ErrorKind::InvalidArgument`] as of [`now`](Self::now).
    pub fn queue(self, context: impl Into<UserContext>) -> Result<()> {
        let selector = self.selector()?;
        let common = &self.endpoint.inner.common;
        let full = || Error::new(ErrorKind::Again, "the completion queue is full");
        let slot = common.receive_queue.try_reserve().ok_or_else(full)?;
        let flags = CompletionFlags::RECV | CompletionFlags::TAGGED;
        let operation = OperationKind::Receive;
        let completion = Completion::new(common.id, context.into(), operation, flags);
        let completion = match self.endpoint.inner.receives.peek(selector) {
            None => completion.with_error(CompletionError::new(no_message())),
            Some(arrival) => self.endpoint.describe(completion, &arrival),
        };
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

debug_fields!(Peek, self => endpoint: self.endpoint.id(), selector: self.selector);

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
}

impl RdmEndpoint {
    fn message_info(&self, arrival: &Arrival) -> MessageInfo {
        let SourceName {
            address,
            fabric,
            user_id,
        } = self.inner.source_name(arrival.source.0);
        MessageInfo {
            len: arrival.len,
            tag: arrival.kind.tag(),
            data: arrival.data,
            source: fabric,
            source_user_id: user_id,
            source_addr: address,
        }
    }

    fn describe(&self, mut completion: Completion, arrival: &Arrival) -> Completion {
        completion = completion.with_len(usize::try_from(arrival.len).unwrap_or(usize::MAX));
        if let Some(tag) = arrival.kind.tag() {
            completion = completion.with_tag(tag);
        }
        if let Some(data) = arrival.data {
            completion = completion.with_data(data);
        }
        match self.source(arrival.source) {
            Some(source) => completion.with_source(source),
            None => completion,
        }
    }
}

/// A message that was claimed (`FI_CLAIM`): no receive gets it but its own, which
/// [`recv`](Self::recv) posts. Dropped, it gives the claim up, and the message is matched again, in
/// its place among the others.
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
        RecvClaimed {
            target: PostTarget::new(
                &self.claim.endpoint.inner.clone(),
                Scope::Claimed(self.claim),
            ),
            buffers,
            timeout: None,
        }
    }

    /// Drops it (`FI_CLAIM | FI_DISCARD`).
    pub fn discard(mut self) {
        if let Some(claimed) = self.claim.claimed.take() {
            self.claim.endpoint.inner.receives.discard_claimed(claimed);
        }
    }
}

/// A receive of a claimed message to be posted; see [`ClaimedMessage::recv`]. Dropped before that,
/// it gives the claim up.
#[must_use = "nothing is received until this is awaited or posted"]
pub struct RecvClaimed<B: IoBufsMut> {
    target: PostTarget,
    buffers: B,
    timeout: Option<Duration>,
}

impl<B: IoBufsMut> OpBuilder<B> for RecvClaimed<B> {
    fn operation_kind(&self) -> OperationKind {
        OperationKind::Receive
    }

    fn completion_flags(&self) -> CompletionFlags {
        CompletionFlags::TAGGED | CompletionFlags::CLAIM
    }

    fn common(&self) -> &Common {
        self.target.common()
    }

    fn caps(&self) -> Caps {
        self.target.receive_caps()
    }

    fn options(&self) -> PostOptions {
        PostOptions {
            timeout: self.timeout,
            ..PostOptions::default()
        }
    }

    fn into_parts(self) -> (PostTarget, B, OpSpec) {
        (self.target, self.buffers, OpSpec::Receive)
    }
}

posting_forms!(RecvClaimed, IoBufsMut, super::Received);

/// The right to a claimed message, until it is used.
pub(super) struct ClaimGuard {
    endpoint: RdmEndpoint,
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
            self.endpoint.inner.receives.release_claimed(claimed);
        }
    }
}

impl fmt::Debug for ClaimGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim({:?})", self.claimed)
    }
}
