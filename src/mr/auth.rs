//! Authorization keys as they are used (`auth_key` of `fi_mr(3)`, `fi_endpoint(3)` and
//! `fi_domain(3)`): who has the same, and what only they can make of some bytes. BLAKE3, keyed.
//!
//! What is used is a digest of the application's key. Both are zeroed at their end.
//! All comparisons take the same time wherever two values differ.

use std::fmt;
use std::sync::Arc;

use zeroize::{Zeroize, Zeroizing};

use crate::id::EndpointId;

/// So that no other use of a key's bytes can give the same digest.
const PURPOSE: &str = "tokio-fabric 2026-11-21 authorization key, version 1";

/// Thirty-two bytes that stand for an authorization key.
#[derive(Clone)]
pub(crate) struct AuthSecret(Arc<Zeroizing<[u8; 32]>>);

impl AuthSecret {
    /// Of the bytes that an application gave.
    pub(crate) fn of(key: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(PURPOSE);
        hasher.update(key);
        let mut digest = hasher.finalize();
        let secret = AuthSecret(Arc::new(Zeroizing::new(*digest.as_bytes())));
        hasher.zeroize();
        digest.zeroize();
        secret
    }

    /// The key of the session whose two sides have said this to each other.
    pub(crate) fn session(&self, transcript: &[u8]) -> SessionKey {
        SessionKey(Zeroizing::new(keyed(&self.0, &[transcript])))
    }
}

impl PartialEq for AuthSecret {
    /// In constant time.
    fn eq(&self, other: &Self) -> bool {
        is_same(&self.0, &other.0)
    }
}

impl Eq for AuthSecret {}

/// What is proven or sealed, and by whom: so that nothing that one side says can be said by the
/// other, or in another place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sealed {
    InitiatorProof = 1,
    AcceptorProof = 2,
    InitiatorHello = 3,
    AcceptorHello = 4,
}

/// The key of one session: of an authorization key and both sides' random bytes.
pub(crate) struct SessionKey(Zeroizing<[u8; 32]>);

impl SessionKey {
    /// What only who has the key can make of this.
    pub(crate) fn seal(&self, what: Sealed, bytes: &[u8]) -> [u8; 32] {
        keyed(&self.0, &[&[what as u8], bytes])
    }

    /// Whether this is what the key makes of it. In constant time.
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

/// In constant time, which comparing bytes is not.
fn is_same(one: &[u8; 32], other: &[u8; 32]) -> bool {
    blake3::Hash::from_bytes(*one) == blake3::Hash::from_bytes(*other)
}

/// The way by which a peer reaches for a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessContext<'a> {
    pub(super) endpoint: EndpointId,
    /// The key that both sides of the connection have proven.
    pub(super) key: Option<&'a AuthSecret>,
}

impl<'a> AccessContext<'a> {
    /// Access through a connection of this endpoint on which this key was proven.
    pub(crate) fn new(endpoint: EndpointId, key: Option<&'a AuthSecret>) -> Self {
        AccessContext { endpoint, key }
    }

    /// Whether a region of this key may be reached so.
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
