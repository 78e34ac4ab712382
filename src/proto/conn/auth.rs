//! Proves the authorization key (`auth_key` of `fi_endpoint(3)`) before anything else is exchanged:
//! the acceptor challenges, the initiator answers with its proof, the acceptor gives its own proof,
//! and then both send a sealed HELLO. `docs/extension.md`, section 9, is the specification.
//!
//! A side with a key ends the attempt if the peer does not prove the same key, and until then sends
//! nothing of its own but random bytes. The refusal is the same whatever is wrong with a proof.
//!
//! ```text
//!   initiator   Idle ── response ──▶ Awaiting ── challenge ──▶ Answered ── proof ──▶ Proven
//!   acceptor    Idle ── accept ──▶ Awaiting ───────────────── answer ─────────────▶ Proven
//!               Awaiting, Answered ── wrong ──▶ Refusing, until that is sent
//! ```

use std::fmt;
use std::num::NonZeroU32;

use bytes::Bytes;

use crate::edges::{MachineState, check_edge, check_step, state_machine};
use crate::error::{Error, ErrorKind};
use crate::identity::ChannelBinding;
use crate::mr::{AuthSecret, Sealed, SessionKey};
use crate::wire::{
    AuthHello, ByteOrder, Capabilities, ControlFrame, ControlKind, ExtensionOffer, HelloDecoder,
    Nonce, Op, PeerData, Proof, ProofDecoded, ProofDecoder, Seal, WireError, transcript,
};

use super::extension::{Extension, ExtensionParams};
use super::{Connection, Lifecycle, violation};

/// Error of the side whose proof was wrong, whatever was wrong with it.
const REFUSED: &str = "the peer refused the proof of the key";

/// State of the proof on a connection.
enum AuthState {
    /// The connection has not begun.
    Idle,
    /// The peer's first proof frame is awaited.
    Awaiting,
    /// The initiator has given its proof, and awaits the acceptor's.
    Answered(SessionKey),
    /// Both sides have proven the key.
    Proven(SessionKey),
    /// The peer has not proven the key; the refusal is being sent.
    Refusing,
}

state_machine! { AuthState {
    Idle => [Awaiting],
    Awaiting => [Answered, Proven, Refusing],
    Answered => [Proven, Refusing],
    Proven => [],
    Refusing => [],
}}

/// An endpoint's key, and the state of its proof on a connection.
pub(super) struct AuthExchange {
    secret: AuthSecret,
    nonce: Nonce,
    /// Binds the proofs to the connection, if it is a secure one.
    binding: Option<ChannelBinding>,
    /// The offer that both control frames agreed on.
    agreed: Option<ExtensionOffer>,
    decoder: Option<ProofDecoder>,
    /// The acceptor's private data, which is sent only to a peer that has proven the key.
    data: Bytes,
    state: AuthState,
}

impl AuthExchange {
    fn is_over(&self) -> bool {
        matches!(self.state, AuthState::Idle | AuthState::Proven(_))
    }

    fn terms(&self) -> Option<ProofTerms<'_>> {
        Some(ProofTerms {
            secret: &self.secret,
            agreed: self.agreed?,
            binding: self.binding.as_ref(),
        })
    }

    /// Like [`ProofTerms::session`], with this exchange's terms.
    fn session(&self, acceptor: &AuthHello, initiator: &AuthHello) -> Option<SessionKey> {
        self.terms()?.session(acceptor, initiator)
    }

    /// Returns the session's key, if the initiator's proof is right.
    fn judge_answer(
        &self,
        ours: &AuthHello,
        theirs: &AuthHello,
        seal: &Seal,
    ) -> Option<SessionKey> {
        self.terms()?.judge_answer((ours, theirs), seal)
    }
}

/// The terms that a proof covers, in addition to the proof frames of the two sides.
struct ProofTerms<'a> {
    secret: &'a AuthSecret,
    agreed: ExtensionOffer,
    binding: Option<&'a ChannelBinding>,
}

impl ProofTerms<'_> {
    /// Returns the key of the session between these two sides, if their offers were not changed on
    /// the way.
    fn session(&self, acceptor: &AuthHello, initiator: &AuthHello) -> Option<SessionKey> {
        let transcript = transcript(self.agreed, acceptor, initiator);
        let session = self.secret.session(&transcript, self.binding);
        acceptor.agrees(initiator, self.agreed).then_some(session)
    }

    /// Returns the session's key, if the initiator's proof was made with this key.
    fn judge_answer(
        &self,
        (acceptor, initiator): (&AuthHello, &AuthHello),
        seal: &Seal,
    ) -> Option<SessionKey> {
        let session = self.session(acceptor, initiator);
        session.filter(|key| key.is_seal(Sealed::InitiatorProof, &[], seal))
    }
}

/// The acceptor's part of the proof, up to the initiator's answer. A connectionless endpoint
/// carries it out before it trusts anything in a request, such as the peer's identity.
///
/// The endpoint may have several keys (`FI_AV_AUTH_KEY`), and a request does not say which one it
/// will prove. The answer is checked against each key, so that the wire reveals nothing about keys.
pub(crate) struct Challenge {
    secrets: Vec<AuthSecret>,
    ours: AuthHello,
    binding: Option<ChannelBinding>,
    agreed: ExtensionOffer,
    byte_order: ByteOrder,
    /// `None` once the answer has come.
    decoder: Option<ProofDecoder>,
}

/// The key of a session, proven by the initiator.
pub(crate) struct ProvenKey {
    session: SessionKey,
    agreed: ExtensionOffer,
    secret: AuthSecret,
}

impl ProvenKey {
    /// Returns the key that was proven.
    pub(crate) fn secret(&self) -> &AuthSecret {
        &self.secret
    }
}

/// Progress of a [`Challenge`].
pub(crate) enum ChallengeResult {
    /// All bytes given were taken, and more are needed.
    Need,
    Proven(ProvenKey),
    /// The proof was wrong. This frame says so, and is the last one to send.
    Refused(Vec<u8>),
}

impl Challenge {
    /// Creates the challenge for the request `asked`, which has to prove one of these keys, and the
    /// bytes to send: response and challenge. `None`: the request offered no proof. `nonce` comes
    /// from the system's random source, for this request alone; the binding is the connection's.
    pub(crate) fn new(
        mut params: ExtensionParams,
        secrets: Vec<AuthSecret>,
        (nonce, binding): (Nonce, Option<ChannelBinding>),
        incarnation: NonZeroU32,
        (asked, order): (&PeerData, ByteOrder),
    ) -> Option<(Self, Vec<u8>)> {
        params.capabilities |= Capabilities::AUTH;
        let ours = AuthHello::new(ExtensionOffer::new(params.capabilities), nonce);
        let agreed = Extension::new(params).answer(asked.offer())?;
        if !agreed.capabilities().contains(Capabilities::AUTH) {
            return None;
        }
        let mut response = asked.response(incarnation, Some(agreed));
        if !params.capabilities.contains(Capabilities::RENDEZVOUS) {
            response = response.without_announcements();
        }
        let response = ControlFrame::new(ControlKind::Response, response.encode().into()).ok()?;
        let challenge = Proof::Challenge(ours).encode(order, 0);
        let this = Challenge {
            secrets,
            ours,
            binding,
            agreed,
            byte_order: order,
            decoder: Some(ProofDecoder::new(order)),
        };
        Some((this, [response.encode(), challenge].concat()))
    }

    /// Takes bytes of the initiator's answer. The initiator may send nothing after its answer until
    /// it has the acceptor's proof.
    pub(crate) fn feed(&mut self, input: &[u8]) -> Result<ChallengeResult, Error> {
        let Some(decoder) = &mut self.decoder else {
            return Err(violation("a proof out of its order"));
        };
        let (proof, consumed) = match decoder.feed(input)? {
            ProofDecoded::Need => return Ok(ChallengeResult::Need),
            ProofDecoded::Proof { proof, consumed } => (proof, consumed),
        };
        self.decoder = None;
        match proof {
            Proof::Answer(theirs, seal) if consumed == input.len() => {
                Ok(match self.judge(&theirs, &seal) {
                    Some(proven) => ChallengeResult::Proven(proven),
                    None => ChallengeResult::Refused(Proof::Refused.encode(self.byte_order, 1)),
                })
            }
            Proof::Refused => Err(unproven(REFUSED)),
            _ => Err(violation("a proof out of its order")),
        }
    }

    /// Checks an answer against every key, so that the time of the check does not reveal which key
    /// fits.
    fn judge(&self, theirs: &AuthHello, seal: &Seal) -> Option<ProvenKey> {
        let mut proven = None;
        for secret in &self.secrets {
            let terms = ProofTerms {
                secret,
                agreed: self.agreed,
                binding: self.binding.as_ref(),
            };
            let session = terms.judge_answer((&self.ours, theirs), seal);
            proven = proven.or(session.map(|session| ProvenKey {
                session,
                agreed: self.agreed,
                secret: secret.clone(),
            }));
        }
        proven
    }
}

impl Extension {
    /// True while the peer's proof is awaited, or was refused.
    pub(super) fn is_proving(&self) -> bool {
        self.auth.as_ref().is_some_and(|auth| !auth.is_over())
    }

    /// True once the peer's proof was wrong: all further bytes of the peer are ignored.
    pub(super) fn is_refusing(&self) -> bool {
        let refusing = |auth: &AuthExchange| matches!(auth.state, AuthState::Refusing);
        self.auth.as_deref().is_some_and(refusing)
    }

    /// Fails if this side has a key, and the peer did not agree to prove one.
    pub(super) fn check_key_agreed(&self) -> Result<(), Error> {
        let has_key = self.params.capabilities.contains(Capabilities::AUTH);
        match (has_key, &self.auth) {
            (false, _) => Ok(()),
            (true, Some(_)) if self.agreed.contains(Capabilities::AUTH) => Ok(()),
            (true, _) => Err(unproven("the peer has no authorization key")),
        }
    }

    fn auth_state(&self) -> &'static str {
        let auth = self.auth.as_ref();
        auth.map_or(AuthState::Idle.name(), |auth| auth.state.name())
    }

    /// Returns the decoder for the peer's HELLO.
    pub(super) fn hello_decoder(&self, order: ByteOrder) -> HelloDecoder {
        match self.auth {
            Some(_) => HelloDecoder::sealed(order),
            None => HelloDecoder::new(order),
        }
    }

    /// Returns the seal of the initiator's or the acceptor's HELLO; `None` without a key.
    pub(super) fn seal(&self, whose: Sealed, values: &[u8]) -> Option<Seal> {
        match &self.auth.as_ref()?.state {
            AuthState::Proven(session) => Some(session.seal(whose, values)),
            _ => None,
        }
    }

    /// Checks the seal of the peer's HELLO. This is the last use of the key, which is dropped here.
    pub(super) fn take_seal(&mut self, whose: Sealed, decoder: &HelloDecoder) -> Result<(), Error> {
        let Some(auth) = self.auth.take() else {
            return Ok(());
        };
        match (&auth.state, decoder.values()?) {
            (AuthState::Proven(session), (values, Some(seal)))
                if session.is_seal(whose, values, seal) =>
            {
                Ok(())
            }
            _ => Err(unproven("the peer's hello is not sealed by the key")),
        }
    }

    /// Returns the error for a frame that came instead of the peer's HELLO.
    pub(super) fn why_no_hello(&self, error: WireError) -> Error {
        match (error, &self.auth) {
            (WireError::HelloMissing(Op::Proof), Some(_)) => unproven(REFUSED),
            _ => error.into(),
        }
    }

    fn auth_hello(&self) -> Option<AuthHello> {
        let nonce = self.auth.as_ref()?.nonce;
        Some(AuthHello::new(self.offer()?, nonce))
    }
}

impl<T> Connection<T> {
    /// Sets the endpoint's key: only a peer that proves the same key is connected. `nonce` comes
    /// from the system's random source, for this attempt alone. Called before the connection
    /// begins, or begins again.
    pub(crate) fn demand_key(&mut self, secret: AuthSecret, nonce: Nonce) {
        debug_assert_eq!(self.lifecycle, Lifecycle::Idle);
        self.extension.params.capabilities |= Capabilities::AUTH;
        self.extension.auth = Some(Box::new(AuthExchange {
            secret,
            nonce,
            binding: None,
            agreed: None,
            decoder: None,
            data: Bytes::new(),
            state: AuthState::Idle,
        }));
    }

    /// Binds proofs to this secure connection: they hold on it alone. Called before any is made.
    pub(crate) fn bind_proofs(&mut self, binding: ChannelBinding) {
        if let Some(auth) = &mut self.extension.auth {
            auth.binding = Some(binding);
        }
    }

    /// Begins the extension that both control frames agreed on. If there is a key, the proofs go
    /// first, and carry the acceptor's private data.
    pub(super) fn begin_agreed(&mut self, agreed: ExtensionOffer, data: Bytes) {
        let Some(auth) = &mut self.extension.auth else {
            return self.begin_extension(data);
        };
        auth.agreed = Some(agreed);
        auth.decoder = Some(ProofDecoder::new(self.byte_order));
        check_edge(&auth.state, &AuthState::Awaiting);
        auth.state = AuthState::Awaiting;
        auth.data = data;
        if let (Lifecycle::Accepting, Some(ours)) = (self.lifecycle, self.extension.auth_hello()) {
            self.push_proof(&Proof::Challenge(ours));
        }
    }

    fn push_proof(&mut self, proof: &Proof) {
        let order = self.byte_order;
        self.tx.push_opening(|id| proof.encode(order, id));
    }

    /// Consumes bytes of the peer's next proof frame; returns how many.
    pub(super) fn consume_proof(&mut self, input: &[u8]) -> Result<usize, Error> {
        let auth = self.extension.auth.as_mut();
        let Some(decoder) = auth.and_then(|auth| auth.decoder.as_mut()) else {
            return Ok(0);
        };
        let ProofDecoded::Proof { proof, consumed } = decoder.feed(input)? else {
            return Ok(input.len());
        };
        let before = self.extension.auth_state();
        let taken = self.take_proof(proof);
        let after = self.extension.auth_state();
        if before != after {
            check_step::<AuthState>(before, after);
        }
        taken.map(|()| consumed)
    }

    fn take_proof(&mut self, proof: Proof) -> Result<(), Error> {
        let (Some(ours), Some(auth)) = (self.extension.auth_hello(), &mut self.extension.auth)
        else {
            return Ok(());
        };
        let is_initiator = self.lifecycle == Lifecycle::Connecting;
        // A proof that is wrong in any way is refused.
        match (
            std::mem::replace(&mut auth.state, AuthState::Refusing),
            proof,
        ) {
            (AuthState::Awaiting, Proof::Challenge(theirs)) if is_initiator => {
                if let Some(session) = auth.session(&theirs, &ours) {
                    let seal = session.seal(Sealed::InitiatorProof, &[]);
                    auth.state = AuthState::Answered(session);
                    self.push_proof(&Proof::Answer(ours, seal));
                    return Ok(());
                }
            }
            (AuthState::Awaiting, Proof::Answer(theirs, seal)) if !is_initiator => {
                if let Some(session) = auth.judge_answer(&ours, &theirs, &seal) {
                    self.confirm_key(session);
                    return Ok(());
                }
            }
            (AuthState::Answered(session), Proof::Confirm(seal, data)) => {
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

    /// Proves the acceptor's key, in answer to the initiator's proof.
    fn confirm_key(&mut self, session: SessionKey) {
        let auth = self.extension.auth.as_mut();
        let data = auth.map_or_else(Bytes::new, |auth| std::mem::take(&mut auth.data));
        let seal = session.seal(Sealed::AcceptorProof, &data);
        self.push_proof(&Proof::Confirm(seal, data));
        self.key_is_proven(session, Bytes::new());
    }

    /// Goes on from a [`Challenge`], which has sent our response and checked the initiator's proof.
    pub(super) fn begin_proven(&mut self, proven: ProvenKey) {
        debug_assert_eq!(self.extension.agreed, proven.agreed.capabilities());
        self.tx.skip_opening();
        self.confirm_key(proven.session);
    }

    fn key_is_proven(&mut self, session: SessionKey, data: Bytes) {
        if let Some(auth) = &mut self.extension.auth {
            auth.state = AuthState::Proven(session);
            auth.decoder = None;
        }
        self.begin_extension(data);
    }

    /// Ends the attempt once the refusal of the peer's proof has gone out.
    pub(super) fn refusal_sent_if_all(&mut self) {
        if self.extension.is_refusing() && self.tx.is_batch_sent() {
            self.fail(unproven("the peer did not prove the authorization key"));
        }
    }

    /// Returns the seals of our HELLO and of the peer's.
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

impl fmt::Debug for AuthExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            AuthState::Idle => "AuthExchange(idle)",
            AuthState::Awaiting => "AuthExchange(awaiting)",
            AuthState::Answered(_) => "AuthExchange(answered)",
            AuthState::Proven(_) => "AuthExchange(proven)",
            AuthState::Refusing => "AuthExchange(refusing)",
        })
    }
}
