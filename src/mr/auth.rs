//! Authorization keys (`auth_key` of `fi_mr(3)`, `fi_endpoint(3)` and `fi_domain(3)`): comparing
//! them, and proving possession of one by keyed BLAKE3.
//!
//! The library keeps a digest of the application's key. Both are zeroed when they are dropped. All
//! comparisons take the same time wherever two values differ.

use std::fmt;
use std::sync::Arc;

use zeroize::{Zeroize, Zeroizing};

use crate::id::EndpointId;
use crate::identity::ChannelBinding;

/// The context string of key derivation: no other use of a key's bytes gives the same digest.
const PURPOSE: &str = "tokio-fabric 2026-11-21 authorization key, version 1";

/// The digest of an authorization key.
#[derive(Clone)]
pub(crate) struct AuthSecret(Arc<Zeroizing<[u8; 32]>>);

impl AuthSecret {
    /// Derives the digest from the application's bytes.
    pub(crate) fn of(key: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(PURPOSE);
        hasher.update(key);
        let mut digest = hasher.finalize();
        let secret = AuthSecret(Arc::new(Zeroizing::new(*digest.as_bytes())));
        hasher.zeroize();
        digest.zeroize();
        secret
    }

    /// Derives the key of a session from what its two sides have sent each other. On a secure
    /// connection `binding`, which no other connection has, is part of the derivation, so that the
    /// session's proofs are valid on no other connection.
    pub(crate) fn session(
        &self,
        transcript: &[u8; 80],
        binding: Option<&ChannelBinding>,
    ) -> SessionKey {
        let binding = binding.map_or(&[][..], |binding| binding);
        SessionKey(Zeroizing::new(keyed(&self.0, &[transcript, binding])))
    }
}

impl PartialEq for AuthSecret {
    /// Compares in constant time.
    fn eq(&self, other: &Self) -> bool {
        is_same(&self.0, &other.0)
    }
}

impl Eq for AuthSecret {}

/// The purpose of a proof or a seal, and the side that made it. The hash covers this value, so that
/// neither side can replay the other side's proof, or use a proof for another purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sealed {
    InitiatorProof = 1,
    AcceptorProof = 2,
    InitiatorHello = 3,
    AcceptorHello = 4,
}

/// The key of one session, derived from the authorization key and both sides' random bytes.
pub(crate) struct SessionKey(Zeroizing<[u8; 32]>);

impl SessionKey {
    /// The MAC of these bytes under the session key.
    pub(crate) fn seal(&self, what: Sealed, bytes: &[u8]) -> [u8; 32] {
        keyed(&self.0, &[&[what as u8], bytes])
    }

    /// Verifies a MAC of these bytes, in constant time.
    pub(crate) fn is_seal(&self, what: Sealed, bytes: &[u8], seal: &[u8; 32]) -> bool {
        is_same(&self.seal(what, bytes), seal)
    }
}

fn keyed(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    for part in parts {
        hasher.update(part);
    }
    let hash = hasher.finalize();
    hasher.zeroize();
    hash.into()
}

/// Compares in constant time, which `==` on arrays does not.
fn is_same(one: &[u8; 32], other: &[u8; 32]) -> bool {
    blake3::Hash::from_bytes(*one) == blake3::Hash::from_bytes(*other)
}

/// The endpoint through which a peer accesses a region, and the key that the peer has proven.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessContext<'a> {
    pub(super) endpoint: EndpointId,
    /// The key that both sides of the connection have proven.
    pub(super) key: Option<&'a AuthSecret>,
}

impl<'a> AccessContext<'a> {
    /// Access through a connection of this endpoint on which the peer proved this key.
    pub(crate) fn new(endpoint: EndpointId, key: Option<&'a AuthSecret>) -> Self {
        AccessContext { endpoint, key }
    }

    /// True if the peer may access a region that demands this key; with `None`, any peer may.
    pub(super) fn has(&self, key: Option<&AuthSecret>) -> bool {
        key.is_none() || self.key == key
    }
}

impl From<EndpointId> for AccessContext<'_> {
    fn from(endpoint: EndpointId) -> Self {
        AccessContext::new(endpoint, None)
    }
}

impl fmt::Debug for AuthSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthSecret")
    }
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey")
    }
}
