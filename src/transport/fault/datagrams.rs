//! Datagrams that are lost, duplicated or overtaken.

use std::net::SocketAddr;

use super::{FaultPlan, Faults, SplitMix};
use crate::buf::Payload;
use crate::error::Result;
use crate::transport::udp::{
    DatagramSocket, Membership, OutgoingDatagram, ReceivedDatagram, RecvBuffer, RecvStatus,
};

/// The fault of one datagram.
enum DatagramFault {
    None,
    Lost,
    Doubled,
    /// The datagram is held back until another one has been sent.
    Held,
}

/// Injects faults into sent datagrams. As with UDP, the caller does not notice them.
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

    fn draw(&mut self) -> DatagramFault {
        if self.version != self.faults.version() {
            self.version = self.faults.version();
            self.plan = self.faults.plan();
            self.random = SplitMix(self.plan.seed ^ SplitMix(self.number).next());
        }
        if self.random.chance(self.plan.lose) {
            DatagramFault::Lost
        } else if self.random.chance(self.plan.duplicate) {
            DatagramFault::Doubled
        } else if self.held.is_none() && self.random.chance(self.plan.reorder) {
            DatagramFault::Held
        } else {
            DatagramFault::None
        }
    }

    /// Sends without reporting the result.
    fn send_unreported(&mut self, datagram: OutgoingDatagram<'_>) {
        self.inner.send(&[datagram], &mut Vec::new());
    }
}

impl DatagramSocket for FaultDatagrams {
    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    fn send(&mut self, datagrams: &[OutgoingDatagram<'_>], ended: &mut Vec<Result<()>>) {
        for datagram in datagrams {
            match self.draw() {
                DatagramFault::Lost => ended.push(Ok(())),
                DatagramFault::Held => {
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
                    if matches!(fate, DatagramFault::Doubled) {
                        self.send_unreported(*datagram);
                    }
                }
            }
            if let Some((to, payload)) = self.held.take() {
                self.send_unreported(OutgoingDatagram {
                    to,
                    payload: &payload,
                });
            }
        }
    }

    fn receive(
        &mut self,
        places: &mut [RecvBuffer],
        arrived: &mut Vec<ReceivedDatagram>,
    ) -> RecvStatus {
        self.inner.receive(places, arrived)
    }

    fn join_group(&mut self, membership: Membership) -> Result<()> {
        self.inner.join_group(membership)
    }

    fn set_multicast_interface(&mut self, membership: Membership) -> Result<()> {
        self.inner.set_multicast_interface(membership)
    }

    fn leave_group(&mut self, membership: Membership) -> Result<()> {
        self.inner.leave_group(membership)
    }

    fn dropped(&self) -> u64 {
        self.inner.dropped()
    }

    fn assume_readable(&mut self) {
        self.inner.assume_readable();
    }
}
