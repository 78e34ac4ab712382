//! Messages that are claimed before a receive takes them (`FI_PEEK | FI_CLAIM`).

use crate::proto::peers::{ConnectionId, SourceId};
use crate::slab::Key;

use super::super::early::{Body, Early};
use super::super::{Announcement, Arrival, EarlyMessage, PostedReceive, Wanted};
use super::SharedMatcher;
use super::waiting::Stall;

/// Names a claimed message.
pub(crate) type ClaimKey = Key;

/// What becomes of the receive of a claimed message.
#[derive(Debug)]
pub(crate) enum Fetched<T> {
    Early(PostedReceive<T>, EarlyMessage),
    Announced(PostedReceive<T>, Announcement),
    /// The message waits in its connection, which takes the receive with it.
    Coming,
}

/// A claimed message.
#[derive(Debug)]
pub(super) struct Claim {
    order: u64,
    pub(super) early: Early,
}

impl<T> SharedMatcher<T> {
    /// The first message that such a receive would take; from now on only this claim gets it
    /// (`FI_PEEK | FI_CLAIM`).
    pub(crate) fn claim(
        &mut self,
        wanted: Wanted,
        source: Option<SourceId>,
    ) -> Option<(ClaimKey, Arrival)> {
        let removed = match self.early.find(wanted, source) {
            Some(at) => self.early.remove(at),
            None => self.waiting.remove(self.waiting.find(wanted, source)?),
        };
        let (order, early) = removed?;
        let arrival = early.arrival;
        if let Body::Waiting(_) = early.body {
            self.stalls.insert(arrival.connection, Stall::Claimed);
            self.wake_for_room(None); // Others may have waited behind it.
        }
        Some((self.claims.insert(Claim { order, early }), arrival))
    }

    /// Gives a claimed message to this receive, which is not posted. The receive comes back if the
    /// message is gone: its connection ended before it was here.
    pub(crate) fn take_claimed(
        &mut self,
        claim: ClaimKey,
        mut receive: PostedReceive<T>,
    ) -> Result<Fetched<T>, PostedReceive<T>> {
        let Some(Claim { early, .. }) = self.claims.remove(claim) else {
            return Err(receive);
        };
        receive.order = self.next_receive();
        let arrival = early.arrival;
        Ok(match early.body {
            Body::Waiting(_) => {
                self.stalls
                    .insert(arrival.connection, Stall::Given(receive));
                self.wakes.push_back(arrival.connection);
                Fetched::Coming
            }
            Body::Here(message) => {
                self.free(&arrival, early.cost);
                Fetched::Early(receive, message)
            }
            Body::Announced(announcement) => {
                self.free(&arrival, early.cost);
                Fetched::Announced(receive, announcement)
            }
        })
    }

    /// Gives a claim up: its message is kept again, in its place, or goes to a receive that was
    /// posted meanwhile.
    pub(crate) fn release(&mut self, claim: ClaimKey) -> Option<Fetched<T>> {
        let Claim { order, early } = self.claims.remove(claim)?;
        let arrival = early.arrival;
        let receive = self.posted.find(&arrival);
        if let Body::Waiting(_) = early.body {
            let key = self.waiting.insert(order, early);
            self.stalls.insert(arrival.connection, Stall::Waiting(key));
            if receive.is_some() {
                self.wake(arrival.connection, receive);
            }
            self.look_again(arrival.connection);
            self.wake_for_room(Some(arrival.source));
            return None;
        }
        let Some(at) = receive else {
            self.early.insert(order, early);
            return None;
        };
        let receive = self.posted.take(at, arrival.len);
        self.free(&arrival, early.cost);
        match early.body {
            Body::Here(message) => Some(Fetched::Early(receive, message)),
            Body::Announced(announcement) => Some(Fetched::Announced(receive, announcement)),
            Body::Waiting(_) => unreachable!("it was put back"),
        }
    }

    /// Forgets the claim of an announcement: it finds nothing.
    pub(super) fn take_claim_of(&mut self, arrival: &Arrival) -> Option<Early> {
        let is_it = |claim: &Claim| {
            let is_announced = matches!(claim.early.body, Body::Announced(_));
            is_announced && claim.early.arrival == *arrival
        };
        let found = self.claims.iter().find(|(_, claim)| is_it(claim));
        let key = found.map(|(key, _)| key)?;
        self.claims.remove(key).map(|claim| claim.early)
    }

    /// What this connection has not sent in full will not come: claims of it find nothing.
    pub(super) fn forget_claims(&mut self, connection: ConnectionId) {
        let of_it = |claim: &Claim| {
            let is_here = matches!(claim.early.body, Body::Here(_));
            claim.early.arrival.connection == connection && !is_here
        };
        let claims = self.claims.iter();
        let forgotten: Vec<Key> = claims
            .filter_map(|(key, claim)| of_it(claim).then_some(key))
            .collect();
        for key in forgotten {
            if let Some(Claim { early, .. }) = self.claims.remove(key)
                && let Body::Announced(_) = early.body
            {
                self.free(&early.arrival, early.cost);
            }
        }
    }
}
