//! Authorization keys of a domain and of the objects that are opened in it (`auth_key` of
//! `fi_domain(3)`).

use super::Domain;
use crate::error::{Error, ErrorKind, Result};
use crate::info::{AuthKey, Caps};
use crate::mr::AuthSecret;

impl Domain {
    /// Returns the key of an endpoint or a region that was given the key `own`: `own` if it has
    /// bytes, otherwise the domain's. `None`: there is no key, or the fabric's version is older
    /// than such keys.
    #[inline]
    pub(crate) fn auth_secret(&self, own: Option<&AuthKey>) -> Option<AuthSecret> {
        if !self.counts_auth_keys() {
            return None;
        }
        let own = own.and_then(AuthKey::bytes).map(AuthSecret::of);
        own.or_else(|| self.inner.auth_secret.clone())
    }

    /// Returns whether an endpoint that was given this key uses the keys of its address vector;
    /// fi_domain(3): "all endpoints and memory regions will be configured to use authorization keys
    /// associated with the AV".
    pub(crate) fn has_keys_of_vector(&self, own: Option<&AuthKey>) -> bool {
        self.inner.info.has_keys_of_vectors() && own.and_then(AuthKey::bytes).is_none()
    }

    /// Checks the key of an endpoint that has one key, or none.
    pub(crate) fn check_endpoint_key(&self, own: Option<&AuthKey>) -> Result<()> {
        let is_of_vector = own.is_some_and(AuthKey::is_of_address_vector);
        if is_of_vector && self.counts_auth_keys() || self.has_keys_of_vector(own) {
            let message = "auth_key: keys of an address vector are for connectionless endpoints, \
                           in a domain that was opened with them";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(())
    }

    /// Checks the key that a region is given. In a domain with keys of address vectors, limiting a
    /// region to one of them takes [`Caps::DIRECTED_RECV`] (`fi_domain(3)`); a region without a key
    /// can be reached by every peer that its endpoints are connected to.
    #[inline]
    pub(crate) fn check_region_key(&self, own: Option<&AuthKey>) -> Result<()> {
        match own {
            Some(key) if self.counts_auth_keys() => self.check_given_region_key(key),
            _ => Ok(()),
        }
    }

    #[cold]
    fn check_given_region_key(&self, key: &AuthKey) -> Result<()> {
        let info = &self.inner.info;
        match (info.has_keys_of_vectors(), key.is_of_address_vector()) {
            (false, true) => {
                let message = "auth_key: the domain was opened without keys of address vectors";
                Err(Error::new(ErrorKind::Unsupported, message))
            }
            (true, false) if !info.domain.caps.contains(Caps::DIRECTED_RECV) => {
                let message = "auth_key: with keys of address vectors, only a domain with the \
                               capability DIRECTED_RECV limits regions to one; ask for it in the \
                               Hints: domain(|domain| domain.caps(Caps::DIRECTED_RECV))";
                Err(Error::new(ErrorKind::NoCapability, message))
            }
            _ => Ok(()),
        }
    }

    fn counts_auth_keys(&self) -> bool {
        self.inner.info.fabric.api_version.counts_auth_keys()
    }
}

/// Returns the secret of the key that the domain is opened with; `None` if peers have keys of their
/// own.
pub(super) fn domain_secret(key: Option<&AuthKey>) -> Option<AuthSecret> {
    key.and_then(AuthKey::bytes).map(AuthSecret::of)
}
