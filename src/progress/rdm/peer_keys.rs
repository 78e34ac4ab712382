//! Which authorization key a peer of the endpoint has to prove.

use std::net::SocketAddr;

use crate::error::Result;
use crate::id::PeerAddr;
use crate::mr::AuthSecret;

use super::Rdm;

/// The keys of an endpoint whose peers have keys of their own (`FI_AV_AUTH_KEY`).
pub(crate) trait PeerKeys: Send + Sync {
    /// Those that the endpoint was opened with.
    fn all(&self) -> &[AuthSecret];

    /// The key of the peer at this address, and whether it has one.
    ///
    /// # Errors
    /// `NotAuthorized` for a key that the endpoint was not opened with.
    fn of(&self, peer: SocketAddr) -> Result<ListedKey>;

    /// The number of one of the endpoint's keys, from 1; 0 of none.
    fn number_of(&self, key: Option<&AuthSecret>) -> u16;
}

/// What the address vector says of the key of a peer.
pub(crate) enum ListedKey {
    /// The peer is not in it.
    NotListed,
    /// It is, without a key.
    NoKey,
    Key(AuthSecret),
}

/// What a peer that asks for a connection has to prove.
pub(super) enum RequiredKey {
    /// Nothing, and it may not have a key either.
    NoKey,
    OneOf(Vec<AuthSecret>),
}

impl RequiredKey {
    pub(super) fn is_key(&self) -> bool {
        matches!(self, RequiredKey::OneOf(_))
    }

    /// Whether it admits a peer that has proven this, or nothing.
    pub(super) fn admits(&self, proven: Option<&AuthSecret>) -> bool {
        match (self, proven) {
            (RequiredKey::NoKey, None) => true,
            (RequiredKey::OneOf(keys), Some(proven)) => keys.contains(proven),
            _ => false,
        }
    }
}

impl Rdm {
    /// The key that connections to this peer demand, which is dialled or has a port already.
    pub(super) fn key_to(&self, peer: PeerAddr) -> Result<Option<AuthSecret>> {
        let Some(keys) = &self.config.peer_keys else {
            return Ok(self.config.extension.auth_key.clone());
        };
        Ok(match keys.of(peer.socket)? {
            ListedKey::Key(key) => Some(key),
            ListedKey::NoKey => None,
            // It came by itself; its connection says by which key.
            ListedKey::NotListed => self.port_of(peer).and_then(|port| port.auth_key().cloned()),
        })
    }

    /// The number of a key, by which peers of different keys are distinguished.
    pub(super) fn key_number(&self, key: Option<&AuthSecret>) -> u16 {
        let keys = self.config.peer_keys.as_ref();
        keys.map_or(0, |keys| keys.number_of(key))
    }

    /// What a peer has to prove that says it is at this address. `None`: nothing would do.
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
