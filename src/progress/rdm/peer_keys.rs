//! The authorization key that a peer of the endpoint must prove.

use std::net::SocketAddr;

use crate::error::Result;
use crate::id::PeerAddr;
use crate::mr::AuthSecret;

use super::Rdm;

/// The keys of an endpoint whose peers have keys of their own (`FI_AV_AUTH_KEY`).
pub(crate) trait PeerKeys: Send + Sync {
    /// Returns the keys that the endpoint was opened with.
    fn all(&self) -> &[AuthSecret];

    /// Returns the key that the peer at this address has, if it is listed.
    ///
    /// # Errors
    /// `NotAuthorized` for a key that the endpoint was not opened with.
    fn of(&self, peer: SocketAddr) -> Result<ListedKey>;

    /// Returns the number of one of the endpoint's keys, from 1; 0 for none.
    fn number_of(&self, key: Option<&AuthSecret>) -> u16;
}

/// The key of a peer in the address vector.
pub(crate) enum ListedKey {
    /// The vector does not have the peer.
    NotListed,
    /// The vector has the peer, without a key.
    NoKey,
    Key(AuthSecret),
}

/// The proof that a peer must give when it asks for a connection.
pub(super) enum RequiredKey {
    /// The peer must prove nothing, and must not have a key either.
    NoKey,
    OneOf(Vec<AuthSecret>),
}

impl RequiredKey {
    pub(super) fn is_key(&self) -> bool {
        matches!(self, RequiredKey::OneOf(_))
    }

    /// Returns true if a peer that has proven this key, or none, is admitted.
    pub(super) fn admits(&self, proven: Option<&AuthSecret>) -> bool {
        match (self, proven) {
            (RequiredKey::NoKey, None) => true,
            (RequiredKey::OneOf(keys), Some(proven)) => keys.contains(proven),
            _ => false,
        }
    }
}

impl Rdm {
    /// Returns the key that connections to this peer demand; the peer is dialled or has a port
    /// already.
    pub(super) fn key_to(&self, peer: PeerAddr) -> Result<Option<AuthSecret>> {
        let Some(keys) = &self.config.peer_keys else {
            return Ok(self.config.extension.auth_key.clone());
        };
        Ok(match keys.of(peer.socket)? {
            ListedKey::Key(key) => Some(key),
            ListedKey::NoKey => None,
            // The peer connected by itself; its port has the key that it used.
            ListedKey::NotListed => self.port_of(peer).and_then(|port| port.auth_key().cloned()),
        })
    }

    /// Returns the number of a key, by which peers with different keys are distinguished.
    pub(super) fn key_number(&self, key: Option<&AuthSecret>) -> u16 {
        let keys = self.config.peer_keys.as_ref();
        keys.map_or(0, |keys| keys.number_of(key))
    }

    /// Returns the proof required of a peer that claims to be at this address. `None`: no proof
    /// would suffice.
    pub(super) fn key_required_of(&self, peer: PeerAddr) -> Option<RequiredKey> {
        let one = |key: Option<AuthSecret>| match key {
            Some(key) => RequiredKey::OneOf(vec![key]),
            None => RequiredKey::NoKey,
        };
        let Some(keys) = &self.config.peer_keys else {
            return Some(one(self.config.extension.auth_key.clone()));
        };
        Some(match keys.of(peer.socket).ok()? {
            ListedKey::Key(key) => one(Some(key)),
            ListedKey::NoKey => RequiredKey::NoKey,
            ListedKey::NotListed if keys.all().is_empty() => RequiredKey::NoKey,
            ListedKey::NotListed => RequiredKey::OneOf(keys.all().to_vec()),
        })
    }
}
