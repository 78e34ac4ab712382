//! The authorization keys of an endpoint whose peers have keys of their own (`FI_AV_AUTH_KEY`): the
//! keys that are in its address vector when the endpoint is opened.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::av::{AddressVector, EnabledKey};
use crate::error::{Error, ErrorKind, Result};
use crate::id::AuthKeyAddr;
use crate::mr::AuthSecret;
use crate::progress::{ListedKey, PeerKeys};
use crate::sync::Dependence;

pub(super) struct VectorKeys {
    vector: AddressVector,
    /// The names of the keys, in the order of `secrets`.
    names: Vec<AuthKeyAddr>,
    secrets: Vec<AuthSecret>,
}

impl VectorKeys {
    /// Takes all keys of this vector for the endpoint of this name. The keys stay in the vector
    /// until the returned dependences are dropped.
    ///
    /// # Errors
    /// `LimitReached` if there are more keys than an endpoint may have.
    pub(super) fn enable(
        vector: &AddressVector,
        name: &Arc<str>,
        max: usize,
    ) -> Result<(Self, Vec<Dependence>)> {
        let enabled = vector.enable_auth_keys(name)?;
        if enabled.len() > max {
            let count = enabled.len();
            let message = format!("{count} authorization keys; max_ep_auth_key is {max}");
            return Err(Error::new(ErrorKind::LimitReached, message));
        }
        let mut keys = VectorKeys {
            vector: vector.clone(),
            names: Vec::new(),
            secrets: Vec::new(),
        };
        let mut dependences = Vec::new();
        for EnabledKey {
            addr,
            key,
            dependence,
        } in enabled
        {
            keys.names.push(addr);
            keys.secrets.extend(key.bytes().map(AuthSecret::of));
            dependences.push(dependence);
        }
        Ok((keys, dependences))
    }
}

impl VectorKeys {
    /// Returns the names of the keys; the key with number `n` is at index `n - 1`.
    pub(super) fn names(&self) -> &[AuthKeyAddr] {
        &self.names
    }

    pub(super) fn has_any(&self) -> bool {
        !self.secrets.is_empty()
    }
}

impl PeerKeys for VectorKeys {
    fn all(&self) -> &[AuthSecret] {
        &self.secrets
    }

    fn number_of(&self, key: Option<&AuthSecret>) -> u16 {
        let at = key.and_then(|key| self.secrets.iter().position(|it| it == key));
        // The number of keys is at most `EP_AUTH_KEY_MAX`.
        at.map_or(0, |at| at as u16 + 1)
    }

    fn of(&self, peer: SocketAddr) -> Result<ListedKey> {
        let name = match self.vector.auth_key_at(peer) {
            None => return Ok(ListedKey::NotListed),
            Some(None) => return Ok(ListedKey::NoKey),
            Some(Some(name)) => name,
        };
        let at = self.names.iter().position(|it| *it == name);
        let secret = at.and_then(|at| self.secrets.get(at)).ok_or_else(|| {
            let what = "the authorization key of the peer was inserted into the address vector \
                        after the endpoint was opened";
            Error::new(ErrorKind::NotAuthorized, what).with_peer(peer)
        })?;
        Ok(ListedKey::Key(secret.clone()))
    }
}
