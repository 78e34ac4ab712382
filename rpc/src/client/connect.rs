//! Connects to the first of a target's addresses that answers.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::time::timeout;
use tokio_fabric::eq::EndpointId;

use super::connection::ClientConnection;
use super::target::{DynResolve, Target};
use crate::drive::Hub;
use crate::limits::{CALLS_PER_CONNECTION, CONNECT_ATTEMPT_DELAY, CONNECT_ATTEMPTS_MAX};
use crate::status::{Code, Result, Status};
use crate::wire::{Hello, Rejection};

/// Makes the connections of a channel.
pub(crate) struct Connector {
    /// Reads the messages and events of the connections.
    pub(super) hub: Hub<ClientConnection>,
    pub(super) target: Target,
    pub(super) resolver: Box<dyn DynResolve>,
    /// The time limit of an attempt to connect, and of a lookup of the name.
    pub(super) time_limit: Duration,
    /// The addresses that the last lookup found, which are tried if the next lookup fails.
    pub(super) known: Mutex<Vec<SocketAddr>>,
    /// Number of connections that ended with an error.
    pub(super) losses: Arc<AtomicU64>,
}

impl Connector {
    /// Looks up the target's addresses, in the order in which to try them.
    pub(super) async fn look_up(&self) -> Result<Vec<SocketAddr>> {
        let looking_up = self.target.look_up(&*self.resolver);
        let found = match timeout(self.time_limit, looking_up).await {
            Ok(Ok(found)) if found.is_empty() => Err("it has no address".to_owned()),
            Ok(Ok(found)) => Ok(in_order(&found)),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {:?}", self.time_limit)),
        };
        let found = found.map_err(|why| {
            let what = format!("looking the name up: {why}");
            Status::not_started(Code::Unavailable, what)
                .of_step(format!("connecting to {}", self.target))
        })?;
        self.known().clone_from(&found);
        Ok(found)
    }

    /// Returns the addresses that the last lookup found.
    pub(super) fn known(&self) -> MutexGuard<'_, Vec<SocketAddr>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks the target up, and connects to the first of its addresses that answers.
    pub(super) async fn connect(&self) -> Result<Arc<ClientConnection>> {
        let addresses = match self.look_up().await {
            Ok(addresses) => addresses,
            Err(status) => {
                let known = self.known();
                match known.is_empty() {
                    true => return Err(status),
                    false => known.clone(),
                }
            }
        };
        self.connect_to_any(&addresses).await
    }

    /// Tries the addresses as RFC 8305 says: starts the next attempt when one has failed, or has
    /// remained unanswered for a while; earlier attempts continue.
    pub(super) async fn connect_to_any(
        &self,
        addresses: &[SocketAddr],
    ) -> Result<Arc<ClientConnection>> {
        let mut addresses = addresses.iter();
        let mut attempts = FuturesUnordered::new();
        let mut failed = None;
        loop {
            let mut has_more = false;
            if attempts.len() < CONNECT_ATTEMPTS_MAX
                && let Some(address) = addresses.next()
            {
                attempts.push(self.connect_to(*address));
                has_more = addresses.len() > 0 && attempts.len() < CONNECT_ATTEMPTS_MAX;
            }
            let ended = match has_more {
                true => timeout(CONNECT_ATTEMPT_DELAY, attempts.next()).await,
                false => Ok(attempts.next().await),
            };
            match ended {
                Ok(Some(Ok(connection))) => return Ok(connection),
                Ok(Some(Err(status))) => failed = Some(more_telling(failed, status)),
                Ok(None) => {
                    let none = || Status::not_started(Code::Unavailable, "there is no address");
                    return Err(failed.unwrap_or_else(none));
                }
                Err(_) => {}
            }
        }
    }

    async fn connect_to(&self, address: SocketAddr) -> Result<Arc<ClientConnection>> {
        self.try_connect(address).await.map_err(|status| {
            status.of_step(match self.target.name() {
                Some(name) => format!("connecting to {address} ({name})"),
                None => format!("connecting to {address}"),
            })
        })
    }

    async fn try_connect(&self, address: SocketAddr) -> Result<Arc<ClientConnection>> {
        let endpoint = self.hub.endpoint(CALLS_PER_CONNECTION)?;
        let connection = ClientConnection::new(endpoint.clone(), &self.losses);
        // Inserted first, so that messages that the server sends at once find the connection.
        self.hub.insert(endpoint.id(), &connection);
        let attempt = Attempt(&self.hub, endpoint.id());
        let hello = Hello::default().encode_with_key(self.hub.key_name());
        let connecting = endpoint.connect(address).timeout(self.time_limit);
        let agreed = connecting.data(hello).await;
        let data = agreed
            .map_err(|error| Rejection::decode(error.data()).unwrap_or_else(|| error.into()))?;
        if endpoint.peer_incarnation().is_none() {
            let what = "the peer lacks the library's extension, which calls rest on";
            return Err(Status::not_started(Code::Unavailable, what));
        }
        let server = Hello::decode(&data).map_err(|error| {
            Status::not_started(Code::Unavailable, error.text("server", "client"))
        })?;
        connection.agree(&server);
        std::mem::forget(attempt);
        Ok(connection)
    }
}

/// An attempt to connect, which is removed from the hub if it fails or is given up.
struct Attempt<'a>(&'a Hub<ClientConnection>, EndpointId);

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.0.remove(self.1);
    }
}

/// Returns which of two failures to report: a server's answer is reported rather than the lack of
/// an answer.
fn more_telling(before: Option<Status>, now: Status) -> Status {
    match before {
        Some(before) if before.code() != Code::Unavailable => before,
        _ => now,
    }
}

/// Returns each address once, in the order of RFC 8305: families alternate, beginning with the
/// preferred address's family.
fn in_order(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let mut seen = BTreeSet::new();
    let once = addresses.iter().filter(|it| seen.insert(**it)).copied();
    let (mut ones, mut others) = (Vec::new(), Vec::new());
    let is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    once.for_each(|it| match it.is_ipv6() == is_v6 {
        true => ones.push(it),
        false => others.push(it),
    });
    let (mut ones, mut others) = (ones.into_iter(), others.into_iter());
    let mut ordered = Vec::new();
    while ones.len() + others.len() > 0 {
        ordered.extend(ones.next());
        ordered.extend(others.next());
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_alternate_and_no_address_is_tried_twice() {
        let parse = |text: &str| text.parse::<SocketAddr>().unwrap();
        let given = ["[::1]:1", "[::2]:1", "[::1]:1", "[::3]:1", "1.1.1.1:1"].map(parse);
        let ordered = ["[::1]:1", "1.1.1.1:1", "[::2]:1", "[::3]:1"].map(parse);
        assert_eq!(in_order(&given), ordered);
        assert!(in_order(&[]).is_empty());
    }
}
