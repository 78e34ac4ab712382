//! A link that waits for its bytes in the reactor while few connections are at work, and in the
//! ring while many are: each is cheaper there.
//!
//! The kernel completes a receive in the thread that submitted it, by task work. If that sleeps in
//! the reactor it is woken for that first, and then once more, by the ring's descriptor: half of
//! what waking it costs by itself. With many connections at work that is shared among them, and a
//! multishot receive saves each of them its system call; with one, nothing is shared. Nor can a
//! driver that spins look at a socket whose receive the kernel has.
//!
//! A link moves between two messages only, with a staged receive armed and nothing else submitted
//! (`Submitted::may_move`): into the ring when it has found its socket empty, out of it once the
//! kernel has given that receive back.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::runtime::Handle;

use super::link::{UringLink, make_blocking};
use super::ring::Ring;
use crate::buf::StagePool;
use crate::transport::epoll::EpollLink;
use crate::transport::{KeepAlive, Link, Outcome, RawLink, Receive, Received, SendBatch, Vitals};

/// Where the links of a transport may wait.
pub(super) struct Places {
    pub(super) ring: Arc<Ring>,
    /// Whose reactor it is.
    pub(super) runtime: Handle,
    pub(super) stages: Arc<StagePool>,
}

enum Place {
    Reactor(EpollLink),
    Ring(UringLink),
}

pub(super) struct MovingLink {
    place: Place,
    places: Arc<Places>,
    /// The epoch of the crowd in which it was at work last.
    epoch: u32,
}

impl MovingLink {
    pub(super) fn new(link: EpollLink, places: &Arc<Places>) -> Self {
        MovingLink {
            place: Place::Reactor(link),
            places: Arc::clone(places),
            epoch: 0,
        }
    }

    fn link(&self) -> &dyn Link {
        match &self.place {
            Place::Reactor(link) => link,
            Place::Ring(link) => link,
        }
    }

    fn link_mut(&mut self) -> &mut dyn Link {
        match &mut self.place {
            Place::Reactor(link) => link,
            Place::Ring(link) => link,
        }
    }

    /// Moves into the ring. True if it did: the receive is to be armed there.
    fn enter_ring(&mut self) -> bool {
        let Place::Reactor(link) = &mut self.place else {
            return false;
        };
        let waits = link.socket().is_some_and(|fd| make_blocking(fd).is_ok());
        let Some(handed) = waits.then(|| link.hand_over()).flatten() else {
            return false;
        };
        let stages = Arc::clone(&self.places.stages);
        let link = UringLink::take_over(&self.places.ring, handed, stages);
        self.place = Place::Ring(link);
        true
    }

    /// Moves out of the ring, if nothing of it is there.
    fn leave_ring(&mut self) {
        let Place::Ring(link) = &mut self.place else {
            return;
        };
        let Some(handed) = link.hand_over() else {
            return;
        };
        let Places {
            ring,
            runtime,
            stages,
        } = &*self.places;
        let _runtime = runtime.enter();
        self.place = match EpollLink::take_over(handed, stages) {
            Ok(link) => Place::Reactor(link),
            // The runtime is ending, or the system short of something.
            Err(handed) => Place::Ring(UringLink::take_over(ring, *handed, Arc::clone(stages))),
        };
    }

    /// Takes note of what has come.
    fn note(&mut self, outcome: &Option<Outcome>) {
        let came =
            |received: &Received| matches!(received, Received::Stage(_) | Received::Direct { .. });
        if let Some(Outcome::Received(received)) = outcome
            && came(received)
        {
            self.places.ring.is_at_work(&mut self.epoch);
        }
    }
}

impl Link for MovingLink {
    fn local_addr(&self) -> SocketAddr {
        self.link().local_addr()
    }

    fn peer_addr(&self) -> SocketAddr {
        self.link().peer_addr()
    }

    fn send(&mut self, batch: SendBatch) {
        self.link_mut().send(batch);
    }

    fn cancel_send(&mut self) {
        self.link_mut().cancel_send();
    }

    fn receive(&mut self, receive: Receive) {
        self.link_mut().receive(receive);
    }

    fn cancel_receive(&mut self) {
        self.link_mut().cancel_receive();
    }

    fn watch(&mut self) {
        self.link_mut().watch();
    }

    fn poll_outcome(&mut self) -> Option<Outcome> {
        let gathers = self.places.ring.gathers_receives();
        if !gathers {
            self.leave_ring();
        }
        let outcome = self.link_mut().poll_outcome();
        self.note(&outcome);
        if outcome.is_some() {
            return outcome;
        }
        match &mut self.place {
            Place::Reactor(_) if gathers && self.places.ring.has_room() => {
                let entered = self.enter_ring();
                entered.then(|| self.link_mut().poll_outcome()).flatten()
            }
            Place::Ring(link) if !gathers => {
                link.begin_leaving();
                None
            }
            _ => None,
        }
    }

    fn finish(&mut self) {
        self.link_mut().finish();
    }

    fn reset(&mut self) {
        self.link_mut().reset();
    }

    fn unread(&self) -> usize {
        self.link().unread()
    }

    fn vitals(&self) -> Option<Vitals> {
        self.link().vitals()
    }

    fn keep_alive(&mut self, keep_alive: KeepAlive) -> bool {
        self.link_mut().keep_alive(keep_alive)
    }

    fn take_raw(&mut self) -> Option<RawLink> {
        self.link_mut().take_raw()
    }

    fn look(&mut self) -> Option<Outcome> {
        let outcome = self.link_mut().look();
        self.note(&outcome);
        outcome
    }

    fn shrink(&mut self) {
        self.link_mut().shrink();
    }

    #[cfg(any(test, feature = "test-util"))]
    fn limit(&mut self, sizes: crate::transport::IoSizes) {
        self.link_mut().limit(sizes);
    }
}
