//! The client of a server's connection, and values that the program attaches to a call or to a
//! connection.

use std::any::Any;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_fabric::tls::PeerCertificates;

/// A connection's client, as far as the server knows it.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) certificates: Option<PeerCertificates>,
    /// The name of the authorization key that the client has proven to have.
    pub(crate) key_name: Option<Arc<str>>,
    pub(crate) extensions: Extensions,
}

impl Peer {
    pub(crate) fn new(
        address: SocketAddr,
        certificates: Option<PeerCertificates>,
        key_name: Option<Arc<str>>,
    ) -> Arc<Peer> {
        Arc::new(Peer {
            address,
            certificates,
            key_name,
            extensions: Extensions::default(),
        })
    }
}

/// Values of a program, at most one of each type, for a call
/// ([`Cx::extensions`](crate::Cx::extensions)) or a connection
/// ([`Cx::connection_extensions`](crate::Cx::connection_extensions)).
///
/// [`Authorize`](crate::Authorize) uses them to pass its findings to the handlers.
#[derive(Default)]
pub struct Extensions {
    /// Lets a call without values skip the lock.
    has_any: AtomicBool,
    values: Mutex<Vec<Box<dyn Any + Send + Sync>>>,
}

impl Extensions {
    fn lock(&self) -> MutexGuard<'_, Vec<Box<dyn Any + Send + Sync>>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a value was inserted.
    #[inline]
    pub(crate) fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Acquire)
    }

    /// Adds a value, and returns the previous one of this type.
    pub fn insert<T: Any + Send + Sync>(&self, value: T) -> Option<T> {
        let mut values = self.lock();
        self.has_any.store(true, Ordering::Release);
        match values.iter_mut().find_map(|it| it.downcast_mut::<T>()) {
            Some(place) => Some(std::mem::replace(place, value)),
            None => {
                values.push(Box::new(value));
                None
            }
        }
    }

    /// A clone of the value of this type. Put a value that is expensive to clone into an `Arc`.
    pub fn get<T: Any + Clone + Send + Sync>(&self) -> Option<T> {
        if !self.has_any() {
            return None;
        }
        self.lock().iter().find_map(|it| it.downcast_ref()).cloned()
    }
}

/// Shows the number of values, whose types are not known here.
impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extensions")
            .field("len", &self.lock().len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_hold_one_value_of_each_type() {
        let extensions = Extensions::default();
        assert_eq!(extensions.get::<u32>(), None);
        assert_eq!(extensions.insert(7_u32), None);
        assert_eq!(extensions.insert("a"), None);
        assert_eq!(extensions.insert(8_u32), Some(7));
        assert_eq!(
            (extensions.get::<u32>(), extensions.get::<&str>()),
            (Some(8), Some("a"))
        );
        assert_eq!(extensions.get::<u64>(), None);
    }
}
