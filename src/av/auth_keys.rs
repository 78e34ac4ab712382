//! The authorization keys of an address vector (`fi_av_insert_auth_key`; `fi_av(3)`), where the
//! domain has `FI_AV_AUTH_KEY`.
//!
//! Invariant: the key that an address names is in the vector, since a key is not removed before its
//! addresses. Locks: the lock of the addresses may be taken while this lock is held, never the
//! other way round.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use super::{AddressVector, closed};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{AuthKeyAddr, FabricAddr};
use crate::info::AuthKey;
use crate::sync::{Dependence, Dependents, Lock, MutexGuard};

pub(super) struct AuthKeys {
    keys: Lock<BTreeMap<AuthKeyAddr, KeyEntry>>,
}

struct KeyEntry {
    key: AuthKey,
    /// The endpoints that were opened with the key.
    endpoints: Dependents,
}

/// A guard that keeps all keys from being removed.
pub(super) struct HeldKeys<'a> {
    _keys: MutexGuard<'a, BTreeMap<AuthKeyAddr, KeyEntry>>,
}

/// A key that an endpoint was opened with.
pub(crate) struct EnabledKey {
    pub(crate) addr: AuthKeyAddr,
    pub(crate) key: AuthKey,
    /// Keeps the key from being removed before the endpoint has ended.
    pub(crate) dependence: Dependence,
}

impl AuthKeys {
    pub(super) fn new() -> Self {
        AuthKeys {
            keys: Lock::new(BTreeMap::new()),
        }
    }

    /// Returns the name of this key, and inserts the key first if the vector does not have it.
    fn insert(&self, key: AuthKey) -> AuthKeyAddr {
        let mut keys = self.keys.lock("insert an authorization key");
        let known = keys.iter().find(|(_, entry)| entry.key == key);
        if let Some((addr, _)) = known {
            return *addr;
        }
        let addr = AuthKeyAddr::next();
        let endpoints = Dependents::new();
        keys.insert(addr, KeyEntry { key, endpoints });
        addr
    }

    fn get(&self, addr: AuthKeyAddr) -> Option<AuthKey> {
        let keys = self.keys.lock("look an authorization key up");
        keys.get(&addr).map(|entry| entry.key.clone())
    }

    /// Keeps this key from being removed until the guard is dropped; `None` if the vector does not
    /// have the key.
    pub(super) fn hold(&self, addr: AuthKeyAddr) -> Option<HeldKeys<'_>> {
        let keys = self.keys.lock("hold an authorization key");
        keys.contains_key(&addr).then_some(HeldKeys { _keys: keys })
    }
}

impl AddressVector {
    /// Inserts an authorization key (`fi_av_insert_auth_key`) in a domain that was opened with
    /// [`AuthKey::of_address_vector`]. Only peers that prove the key can use the addresses that
    /// were [inserted with it](super::Insert::auth_key). Inserting a key again returns the same
    /// name.
    ///
    /// An endpoint has the keys that were in the vector when it was opened, and not those inserted
    /// later.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an empty key; [`ErrorKind::Unsupported`] in a domain that
    /// was opened without this kind of keys, and for a vector that processes share, because its
    /// file must not contain keys; [`ErrorKind::BadState`] if the vector is closed.
    pub fn insert_auth_key(&self, key: AuthKey) -> Result<AuthKeyAddr> {
        self.inner.check_open()?;
        if key.bytes().is_none() {
            let message = "auth_key: a key of an address vector has bytes";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        Ok(self.auth_keys()?.insert(key))
    }

    /// The authorization key with this name (`fi_av_lookup_auth_key`).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it was removed, or belongs to another vector.
    pub fn auth_key(&self, addr: AuthKeyAddr) -> Result<AuthKey> {
        let key = self.auth_keys()?.get(addr);
        key.ok_or_else(|| unknown_key(addr))
    }

    /// The name of the authorization key that an address was inserted with, if any
    /// (`fi_av_lookup_auth_key`).
    ///
    /// # Errors
    /// The errors of [`lookup`](Self::lookup).
    pub fn lookup_auth_key(&self, addr: FabricAddr) -> Result<Option<AuthKeyAddr>> {
        self.inner.check_open()?;
        let entry = self.inner.entry(addr)?;
        Ok(entry.ok_or_else(|| super::unknown(addr))?.auth_key)
    }

    /// Removes an authorization key (`fi_av_remove` with `FI_AUTH_KEY`).
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while an endpoint that was opened with the key is open, or an address
    /// that was inserted with it is in the vector; [`ErrorKind::InvalidArgument`] if the key is not
    /// in the vector.
    pub fn remove_auth_key(&self, addr: AuthKeyAddr) -> Result<()> {
        let mut keys = self.auth_keys()?.keys.lock("remove an authorization key");
        let entry = keys.get(&addr).ok_or_else(|| unknown_key(addr))?;
        let of_key = self.inner.store.count_of_key(addr);
        if of_key > 0 {
            let message = format!("{of_key} addresses in the vector were inserted with the key");
            return Err(Error::new(ErrorKind::Busy, message));
        }
        let closed = entry.endpoints.close();
        closed.map_err(|names| Error::new(ErrorKind::Busy, format!("the key is {names}")))?;
        let removed = keys.remove(&addr);
        drop(keys);
        drop(removed);
        Ok(())
    }

    /// Returns all keys, for an endpoint of this name that is opened now.
    pub(crate) fn enable_auth_keys(&self, name: &Arc<str>) -> Result<Vec<EnabledKey>> {
        let keys = self.auth_keys()?.keys.lock("enable authorization keys");
        let enabled = keys.iter().map(|(addr, entry)| {
            Ok(EnabledKey {
                addr: *addr,
                key: entry.key.clone(),
                dependence: entry
                    .endpoints
                    .depend(Arc::clone(name))
                    .ok_or_else(closed)?,
            })
        });
        enabled.collect()
    }

    /// Returns the key that the peer at this address was inserted with: `Some(None)` if it was
    /// inserted without a key, `None` if the peer is not in the vector.
    pub(crate) fn auth_key_at(&self, address: SocketAddr) -> Option<Option<AuthKeyAddr>> {
        let found = self.inner.store.find(address);
        let found = found.unwrap_or_else(super::unreadable);
        found.map(|(_, entry)| entry.auth_key)
    }

    fn auth_keys(&self) -> Result<&AuthKeys> {
        let message = "authorization keys are in vectors without a name, of domains opened with \
                       AuthKey::of_address_vector()";
        let missing = || Error::new(ErrorKind::Unsupported, message);
        self.inner.auth_keys.as_ref().ok_or_else(missing)
    }
}

pub(super) fn unknown_key(addr: AuthKeyAddr) -> Error {
    let message = format!("{addr:?} is no authorization key of the address vector");
    Error::new(ErrorKind::InvalidArgument, message)
}
