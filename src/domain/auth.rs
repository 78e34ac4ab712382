//! Authorization keys of a domain and of what is opened in it (`auth_key` of `fi_domain(3)`).

use super::Domain;
use crate::error::{Error, ErrorKind, Result};
use crate::info::AuthKey;
use crate::mr::AuthSecret;

impl Domain {
    /// The key of an endpoint or a region to which this one was given: its own, if it has bytes;
    /// else the domain's. `None`: there is none, or the fabric is older than such keys.
    #[inline]
    pub(crate) fn auth_secret(&self, own: Option<&AuthKey>) -> Option<AuthSecret> {
        if !self.counts_auth_keys() {
            return None;
        }
        let own = own.and_then(AuthKey::bytes).map(AuthSecret::of);
        own.or_else(|| self.inner.auth_secret.clone())
    }

    /// Judges a key that an endpoint or a region is given.
    #[inline]
    pub(crate) fn check_auth_key(&self, own: Option<&AuthKey>) -> Result<()> {
        match own {
            Some(key) if key.is_of_address_vector() && self.counts_auth_keys() => Err(no_vector()),
            _ => Ok(()),
        }
    }

    fn counts_auth_keys(&self) -> bool {
        self.inner.info.fabric.api_version.counts_auth_keys()
    }
}

/// The domain's own, when it is opened.
pub(super) fn domain_secret(key: Option<&AuthKey>) -> Result<Option<AuthSecret>> {
    match key {
        Some(key) if key.is_of_address_vector() => Err(no_vector()),
        key => Ok(key.and_then(AuthKey::bytes).map(AuthSecret::of)),
    }
}

fn no_vector() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "auth_key: keys of an address vector are for connectionless endpoints",
    )
}
