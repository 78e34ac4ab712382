//! Datagrams that get lost, come twice, or are overtaken.

use std::net::SocketAddr;

use super::{FaultPlan, Faults, SplitMix};
use crate::buf::Payload;
use crate::error::Result;
use crate::transport::udp::{Arrived, DatagramSocket, Departing, Membership, More, Place};

/// What happens to one datagram.
enum Fate {
    Sent,
    Lost,
    Doubled,
    /// It waits until another one has gone before it.
    Held,
}

/// Faults happen to what leaves; what the caller is told is what UDP would tell: nothing of it.
pub(super) struct FaultDatagrams {
    inner: Box<dyn DatagramSocket>,
    number: u64,
    faults: Faults,
    plan: FaultPlan,
    version: u64,
    random: SplitMix,
    held: Option<(SocketAddr, Payload)>,
}

impl FaultDatagrams {
    pub(super) fn new(inner: Box<dyn DatagramSocket>, faults: Faults, number: u64) -> Self {
        let (version, plan) = (faults.version(), faults.plan());
        FaultDatagrams {
            inner,
            number,
            random: SplitMix(plan.seed ^ SplitMix(number).next()),
            faults,
            plan,
            version,
            held: None,
        }
    }

    fn draw(&mut self) -> Fate {
        if self.version != self.faults.version() {
            self.version = self.faults.version();
            self.plan = self.faults.plan();
            self.random = SplitMix(self.plan.seed ^ SplitMix(self.number).next());
        }
        if self.random.chance(self.plan.lose) {
            Fate::Lost
        } else if self.random.chance(self.plan.duplicate) {
            Fate::Doubled
        } else if self.held.is_none() && self.random.chance(self.plan.reorder) {
            Fate::Held
        } else {
            Fate::Sent
        }
    }

    /// Sends without telling how it ended.
    fn send_beside(&mut self, datagram: Departing<'_>) {
        self.inner.send(&[datagram], &mut Vec::new());
    }
}

impl DatagramSocket for FaultDatagrams {
    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    fn send(&mut self, datagrams: &[Departing<'_>], ended: &mut Vec<Result<()>>) {
        for datagram in datagrams {
            match self.draw() {
                Fate::Lost => ended.push(Ok(())),
                Fate::Held => {
                    let mut bytes = vec![0; datagram.payload.len()];
                    let copied = datagram.payload.copy_out(0, &mut bytes);
                    self.held = Some((datagram.to, Payload::from_vec(bytes)));
                    ended.push(copied.map_err(|denied| denied.error("its bytes were sent")));
                    continue;
                }
                fate => {
                    let before = ended.len();
                    self.inner.send(std::slice::from_ref(datagram), ended);
                    if ended.len() == before {
                        return;
                    }
                    if matches!(fate, Fate::Doubled) {
                        self.send_beside(*datagram);
                    }
                }
            }
            if let Some((to, payload)) = self.held.take() {
                self.send_beside(Departing {
                    to,
                    payload: &payload,
                });
            }
        }
    }

    fn receive(&mut self, places: &mut [Place], arrived: &mut Vec<Arrived>) -> More {
        self.inner.receive(places, arrived)
    }

    fn join(&mut self, membership: Membership) -> Result<()> {
        self.inner.join(membership)
    }

    fn send_by(&mut self, membership: Membership) -> Result<()> {
        self.inner.send_by(membership)
    }

    fn leave(&mut self, membership: Membership) -> Result<()> {
        self.inner.leave(membership)
    }

    fn dropped(&self) -> u64 {
        self.inner.dropped()
    }

    fn look(&mut self) {
        self.inner.look();
    }
}
