//! The part of an endpoint's statistics that its connection's machine knows.

use crate::stats::{EndpointStats, ReceiveStats};

use super::credit::SendCredit;
use super::{Connection, Lifecycle};

impl<T> Connection<T> {
    /// Returns the counts of outstanding operations, of waiting messages and of refusals; the owner
    /// adds the remaining statistics.
    pub(crate) fn stats(&self) -> EndpointStats {
        let context = &self.tx_context;
        let receives = self.own().map(|own| ReceiveStats {
            posted: (own.inboxes.places() as usize).saturating_add(own.matcher.posted_len()),
            waiting: own.context.backlog.len(),
            unexpected_messages: own.matcher.unexpected_len(),
            unexpected_bytes: own.matcher.held_bytes(),
        });
        let is_connected = self.lifecycle == Lifecycle::Connected;
        let credit = self.tx.credit.as_ref().filter(|_| is_connected);
        EndpointStats {
            refusals: self.refusals.stats(),
            in_flight: context.used - context.abandoned,
            waiting: context.backlog.len(),
            receives: receives.unwrap_or_default(),
            credit_bytes: credit.map_or(0, SendCredit::left),
            stalls: self.tx.stalls,
            connections: usize::from(is_connected),
            ..EndpointStats::default()
        }
    }
}
