//! Proving the authorization key (`auth_key` of `fi_endpoint(3)`), before anything else is said:
//! the acceptor challenges, the initiator answers with its proof, the acceptor gives its own, and
//! then both say a HELLO that is sealed. `docs/extension.md`, section 9, is the specification.
//!
//! Who has a key ends the attempt with everybody who does not prove the same, and says nothing of
//! itself before that but random bytes. A proof that is wrong in any way is refused in one way.
//!
//! ```text
//!   initiator   Idle ── response ──▶ Awaiting ── challenge ──▶ Answered ── proof ──▶ Proven
//!   acceptor    Idle ── accept ──▶ Awaiting ───────────────── answer ─────────────▶ Proven
//!                                     └── wrong ──▶ Refusing, until that is sent
//! ```

use std::fmt;
use std::num::NonZeroU32;

use bytes::Bytes;

use crate::error::{Error, ErrorKind};
use crate::mr::{AuthSecret, Sealed, SessionKey};
use crate::wire::{
    ByteOrder, Capabilities, ControlFrame, ControlKind, HelloDecoder, Introduction, Nonce, Offer,
    Op, PeerData, Proof, ProofDecoded, ProofDecoder, Seal, WireError, transcript,
};

use super::extension::{Extension, Terms};
use super::{Connection, Lifecycle, violation};

/// What a side is told whose proof was wrong, whatever was wrong with it.
const REFUSED: &str = "the peer refused the proof of the key";

/// How far proving has come.
enum Stage {
    /// The connection has not begun.
    Idle,
    /// The peer's first word is awaited.
    Awaiting,
    /// The initiator has given its proof, and awaits the acceptor's.
    Answered(SessionKey),
    /// Both sides have the key.
    Proven(SessionKey),
    /// The peer does not; it is being told so.
    Refusing,
}

/// An endpoint's key, and what became of it on a connection.
pub(super) struct Auth {
    secret: AuthSecret,
    nonce: Nonce,
    /// What both control frames said.
    agreed: Option<Offer>,
    decoder: Option<ProofDecoder>,
    stage: Stage,
}

impl Auth {
    fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Idle | Stage::Proven(_))
    }

    /// The key of the session between these two, if nobody has changed what they offered.
    fn session(&self, acceptor: &Introduction, initiator: &Introduction) -> Option<SessionKey> {
        let agreed = self.agreed?;
        let session = self
            .secret
            .session(&transcript(agreed, acceptor, initiator));
        acceptor.agrees(initiator, agreed).then_some(session)
    }

    /// The key of the session, if the initiator's proof is right.
    fn judge_answer(
        &self,
        ours: &Introduction,
        theirs: &Introduction,
        seal: &Seal,
    ) -> Option<SessionKey> {
        let session = self.session(ours, theirs);
        session.filter(|key| key.is_seal(Sealed::InitiatorProof, &[], seal))
    }
}

/// The acceptor's part of proving up to the initiator's proof, carried out for a connectionless
/// endpoint before the request counts for anything: who the peer says that it is.
pub(crate) struct Challenge {
    auth: Auth,
    ours: Introduction,
    agreed: Offer,
    order: ByteOrder,
}

/// The key of a session, proven by the initiator.
pub(crate) struct ProvenKey {
    session: SessionKey,
    agreed: Offer,
}

/// What a [`Challenge`] has come to.
pub(crate) enum Challenged {
    /// All bytes given were taken; there are more to come.
    Need,
    Proven(ProvenKey),
    /// The proof was wrong. This frame says so, and is the last.
    Refused(Vec<u8>),
}

impl Challenge {
    /// For a request that said `asked`: also the bytes to send, response and challenge. `None`: it
    /// offered no proof. `nonce` is of the system's random source, for this request alone.
    pub(crate) fn new(
        mut terms: Terms,
        secret: AuthSecret,
        nonce: Nonce,
        incarnation: NonZeroU32,
        (asked, order): (&PeerData, ByteOrder),
    ) -> Option<(Self, Vec<u8>)> {
        terms = terms.of_peer();
        terms.capabilities |= Capabilities::AUTH;
        let ours = Introduction::new(Offer::new(terms.capabilities), nonce);
        let agreed = Extension::new(terms).answer(asked.offer())?;
        if !agreed.capabilities().contains(Capabilities::AUTH) {
            return None;
        }
        let response = asked.response(incarnation, Some(agreed)).encode();
        let response = ControlFrame::new(ControlKind::Response, response.into()).ok()?;
        let challenge = Proof::Challenge(ours).encode(order, 0);
        let auth = Auth {
            secret,
            nonce,
            agreed: Some(agreed),
            decoder: Some(ProofDecoder::new(order)),
            stage: Stage::Awaiting,
        };
        let this = Challenge {
            auth,
            ours,
            agreed,
            order,
        };
        Some((this, [response.encode(), challenge].concat()))
    }

    /// Takes what the initiator says, behind which nothing may come before the acceptor's proof.
    pub(crate) fn feed(&mut self, input: &[u8]) -> Result<Challenged, Error> {
        let Some(decoder) = &mut self.auth.decoder else {
            return Err(violation("a proof out of its order"));
        };
        let (proof, consumed) = match decoder.feed(input)? {
            ProofDecoded::Need => return Ok(Challenged::Need),
            ProofDecoded::Proof { proof, consumed } => (proof, consumed),
        };
        self.auth.decoder = None;
        match proof {
            Proof::Answer(theirs, seal) if consumed == input.len() => {
                Ok(match self.auth.judge_answer(&self.ours, &theirs, &seal) {
                    Some(session) => Challenged::Proven(ProvenKey {
                        session,
                        agreed: self.agreed,
                    }),
                    None => Challenged::Refused(Proof::Refused.encode(self.order, 1)),
                })
            }
            Proof::Refused => Err(unproven(REFUSED)),
            _ => Err(violation("a proof out of its order")),
        }
    }
}

impl Extension {
    /// True while a proof of the peer's is awaited, or refused.
    pub(super) fn is_proving(&self) -> bool {
        self.auth.as_ref().is_some_and(|auth| !auth.is_over())
    }

    /// The peer's proof was wrong; nothing it says matters any more.
    pub(super) fn is_refusing(&self) -> bool {
        let refusing = |auth: &Auth| matches!(auth.stage, Stage::Refusing);
        self.auth.as_deref().is_some_and(refusing)
    }

    /// Who has a key goes on only with who said that it has one too.
    pub(super) fn check_key_agreed(&self) -> Result<(), Error> {
        let has_key = self.terms.capabilities.contains(Capabilities::AUTH);
        match (has_key, &self.auth) {
            (false, _) => Ok(()),
            (true, Some(_)) if self.agreed.contains(Capabilities::AUTH) => Ok(()),
            (true, _) => Err(unproven("the peer has no authorization key")),
        }
    }

    /// What will read the peer's HELLO.
    pub(super) fn hello_decoder(&self, order: ByteOrder) -> HelloDecoder {
        match self.auth {
            Some(_) => HelloDecoder::sealed(order),
            None => HelloDecoder::new(order),
        }
    }

    /// What seals a HELLO, of the initiator or of the acceptor; `None` without a key.
    pub(super) fn seal(&self, whose: Sealed, values: &[u8]) -> Option<Seal> {
        match &self.auth.as_ref()?.stage {
            Stage::Proven(session) => Some(session.seal(whose, values)),
            _ => None,
        }
    }

    /// Judges the seal of the peer's HELLO. It is the last thing that is done with the key, which
    /// is forgotten here.
    pub(super) fn take_seal(&mut self, whose: Sealed, decoder: &HelloDecoder) -> Result<(), Error> {
        let Some(auth) = self.auth.take() else {
            return Ok(());
        };
        match (&auth.stage, decoder.values()?) {
            (Stage::Proven(session), (values, Some(seal)))
                if session.is_seal(whose, values, seal) =>
            {
                Ok(())
            }
            _ => Err(unproven("the peer's hello is not sealed by the key")),
        }
    }

    /// What it means that something else came than the peer's HELLO.
    pub(super) fn why_no_hello(&self, error: WireError) -> Error {
        match (error, &self.auth) {
            (WireError::HelloMissing(Op::Proof), Some(_)) => unproven(REFUSED),
            _ => error.into(),
        }
    }

    fn introduction(&self) -> Option<Introduction> {
        let nonce = self.auth.as_ref()?.nonce;
        Some(Introduction::new(self.offer()?, nonce))
    }
}

impl<T> Connection<T> {
    /// The endpoint has this key: only with a peer that proves the same will there be a
    /// connection. `nonce` is of the system's random source, for this attempt alone. Called before
    /// the connection begins, or begins again.
    pub(crate) fn demand_key(&mut self, secret: AuthSecret, nonce: Nonce) {
        debug_assert_eq!(self.lifecycle, Lifecycle::Idle);
        self.extension.terms.capabilities |= Capabilities::AUTH;
        self.extension.auth = Some(Box::new(Auth {
            secret,
            nonce,
            agreed: None,
            decoder: None,
            stage: Stage::Idle,
        }));
    }

    /// Both control frames carried an offer, and agree on this: proofs go first, if there is a key,
    /// and the acceptor's private data with them.
    pub(super) fn begin_agreed(&mut self, agreed: Offer, data: Bytes) {
        let Some(auth) = &mut self.extension.auth else {
            return self.begin_extension(data);
        };
        auth.agreed = Some(agreed);
        auth.decoder = Some(ProofDecoder::new(self.order));
        auth.stage = Stage::Awaiting;
        self.extension.data = data;
        if let (Lifecycle::Accepting, Some(ours)) = (self.lifecycle, self.extension.introduction())
        {
            self.push_proof(&Proof::Challenge(ours));
        }
    }

    fn push_proof(&mut self, proof: &Proof) {
        let order = self.order;
        self.tx.push_opening(|id| proof.encode(order, id));
    }

    /// Takes what belongs to the peer's next step.
    pub(super) fn consume_proof(&mut self, input: &[u8]) -> Result<usize, Error> {
        let auth = self.extension.auth.as_mut();
        let Some(decoder) = auth.and_then(|auth| auth.decoder.as_mut()) else {
            return Ok(0);
        };
        let ProofDecoded::Proof { proof, consumed } = decoder.feed(input)? else {
            return Ok(input.len());
        };
        self.take_proof(proof)?;
        Ok(consumed)
    }

    fn take_proof(&mut self, proof: Proof) -> Result<(), Error> {
        let (Some(ours), Some(auth)) = (self.extension.introduction(), &mut self.extension.auth)
        else {
            return Ok(());
        };
        let is_initiator = self.lifecycle == Lifecycle::Connecting;
        match (std::mem::replace(&mut auth.stage, Stage::Refusing), proof) {
            (Stage::Awaiting, Proof::Challenge(theirs)) if is_initiator => {
                if let Some(session) = auth.session(&theirs, &ours) {
                    let seal = session.seal(Sealed::InitiatorProof, &[]);
                    auth.stage = Stage::Answered(session);
                    self.push_proof(&Proof::Answer(ours, seal));
                    return Ok(());
                }
            }
            (Stage::Awaiting, Proof::Answer(theirs, seal)) if !is_initiator => {
                if let Some(session) = auth.judge_answer(&ours, &theirs, &seal) {
                    self.confirm_key(session);
                    return Ok(());
                }
            }
            (Stage::Answered(session), Proof::Confirm(seal, data)) => {
                if session.is_seal(Sealed::AcceptorProof, &data, &seal) {
                    self.key_is_proven(session, data);
                    return Ok(());
                }
            }
            (_, Proof::Refused) => return Err(unproven(REFUSED)),
            _ => return Err(violation("a proof out of its order")),
        }
        self.push_proof(&Proof::Refused);
        Ok(())
    }

    /// The acceptor proves the key in its turn.
    fn confirm_key(&mut self, session: SessionKey) {
        let data = std::mem::take(&mut self.extension.data);
        let seal = session.seal(Sealed::AcceptorProof, &data);
        self.push_proof(&Proof::Confirm(seal, data));
        self.key_is_proven(session, Bytes::new());
    }

    /// The initiator has proven the key to a [`Challenge`], which sent our response.
    pub(super) fn begin_proven(&mut self, proven: ProvenKey) {
        debug_assert_eq!(self.extension.agreed, proven.agreed.capabilities());
        self.tx.skip_opening();
        self.confirm_key(proven.session);
    }

    fn key_is_proven(&mut self, session: SessionKey, data: Bytes) {
        if let Some(auth) = &mut self.extension.auth {
            auth.stage = Stage::Proven(session);
            auth.decoder = None;
        }
        self.begin_extension(data);
    }

    /// Once the peer has been told that its proof is refused, the attempt ends.
    pub(super) fn refusal_sent_if_all(&mut self) {
        if self.extension.is_refusing() && self.tx.is_carried() {
            self.fail(unproven("the peer did not prove the authorization key"));
        }
    }

    /// Whose HELLO goes out, and whose comes in.
    pub(super) fn hello_seals(&self) -> (Sealed, Sealed) {
        match self.lifecycle == Lifecycle::Connecting {
            true => (Sealed::InitiatorHello, Sealed::AcceptorHello),
            false => (Sealed::AcceptorHello, Sealed::InitiatorHello),
        }
    }
}

fn unproven(what: &'static str) -> Error {
    Error::new(ErrorKind::NotAuthorized, what)
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.stage {
            Stage::Idle => "Auth(idle)",
            Stage::Awaiting => "Auth(awaiting)",
            Stage::Answered(_) => "Auth(answered)",
            Stage::Proven(_) => "Auth(proven)",
            Stage::Refusing => "Auth(refusing)",
        })
    }
}
