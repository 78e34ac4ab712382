//! Messages that are announced before they are sent: the receiver's half.
//!
//! ```text
//!   RTS --no receive yet--> Kept, by the shared receives --a receive---> Awaited
//!    |                        | |                                             ^ | |
//!    +--a receive matches-----|-|---------------CTS---------------------------+ | +--DATA--> lands
//!                             | +-- our CLOSE: it is void                       |
//!                             +-- WITHDRAW: WITHDRAWN answers it                |
//!                                                                               |
//!         the receive is posted again, in its place; WITHDRAWN <-- WITHDRAW ----+
//! ```
//! A receive that is awaiting its data is the connection's. It ends with the message; if the
//! connection ends before, it is posted again, unless it was for this peer alone (`end.rs`).

use std::collections::BTreeMap;

use crate::buf::Payload;
use crate::error::{Error, ErrorKind, Phase};
use crate::proto::Host;
use crate::proto::matching::{Announcement, Arrival, Arrived, ClearToSend, PostedReceive};
use crate::wire::FrameHeader;

use super::rx::{Landing, Rx, Target};
use super::shared::Taken;
use super::{Connection, Lifecycle, violation};

/// A message that the peer has announced.
#[derive(Clone, Copy, Debug)]
struct Announced {
    arrival: Arrival,
    ack: bool,
    /// The receive that awaits its data; `None`: it is kept by the shared receives.
    receive: Option<Taken>,
}

/// What the peer has announced and not sent, by name. At most 254, as there are names.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    named: BTreeMap<u8, Announced>,
}

impl Incoming {
    /// True if a receive awaits its data.
    pub(super) fn awaits_data(&self) -> bool {
        self.named.values().any(|it| it.receive.is_some())
    }

    /// The receives that await their data.
    pub(super) fn awaiting(&self) -> impl Iterator<Item = Taken> + '_ {
        self.named.values().filter_map(|it| it.receive)
    }

    /// Forgets what has no receive.
    pub(super) fn forget_kept(&mut self) {
        self.named.retain(|_, it| it.receive.is_some());
    }
}

impl<T> Connection<T> {
    /// The peer announces a message.
    pub(super) fn handle_rts(
        &mut self,
        header: FrameHeader,
        host: &mut impl Host<T>,
    ) -> Result<(), Error> {
        self.rx = Rx::Header;
        let FrameHeader::Rts {
            index,
            tag,
            data,
            ack,
            len,
        } = header
        else {
            return Ok(());
        };
        if self.incoming.named.contains_key(&index) {
            return Err(violation("two announced messages of one name"));
        }
        if self.ending.is_said() {
            return Ok(()); // Void: its sender ends it when it sees our CLOSE.
        }
        let (Some(arrival), Some(shared)) = (self.arrival(tag, len, data), host.shared()) else {
            return Err(violation("an announcement where nothing is shared"));
        };
        let mut announcement = Announcement { arrival, index };
        let receive = match shared.announced(&mut announcement) {
            Arrived::Receive(receive) => Some(receive),
            Arrived::Store => None,
            Arrived::NoRoom => {
                self.rx = Rx::AwaitReceive { header };
                return Ok(());
            }
        };
        self.receive_credit.arrive(0);
        let announced = Announced {
            arrival: announcement.arrival,
            ack,
            receive: None,
        };
        self.incoming.named.insert(index, announced);
        if let Some(receive) = receive {
            self.await_data(index, receive);
        }
        Ok(())
    }

    /// Asks the peer for each announced message that a receive was matched with since. A receive
    /// whose announcement is gone is put back.
    pub(super) fn answer_announcements(&mut self, host: &mut impl Host<T>) {
        while let Some(shared) = host.shared()
            && let Some(ClearToSend {
                receive,
                announcement: Announcement { arrival, index },
            }) = shared.poll_clear_to_send()
        {
            let kept = self.incoming.named.get(&index);
            // Another of this name may have come, if this one was withdrawn.
            let is_it = |it: &Announced| it.receive.is_none() && it.arrival.order == arrival.order;
            let is_up = self.lifecycle == Lifecycle::Connected && self.fault.is_none();
            if kept.is_some_and(is_it) && is_up && !self.ending.is_said() {
                self.await_data(index, receive);
            } else {
                let gone = Error::new(ErrorKind::PeerClosed, "before it had sent the message");
                shared.put_back(receive, gone);
            }
        }
    }

    fn await_data(&mut self, index: u8, receive: PostedReceive<T>) {
        let (taken, payload) = self.adopt(receive, Phase::AwaitingPeer);
        if let Some(op) = self.ops.get_mut(taken.op) {
            op.payload = Some(payload);
        }
        if let Some(announced) = self.incoming.named.get_mut(&index) {
            announced.receive = Some(taken);
        }
        self.tx
            .push_control(FrameHeader::Cts { index }, Payload::empty());
    }

    /// The peer takes an announcement back. A receive that was matched with it is posted again.
    pub(super) fn handle_withdraw(
        &mut self,
        index: u8,
        host: &mut impl Host<T>,
    ) -> Result<(), Error> {
        match self.incoming.named.remove(&index) {
            None if self.ending.is_said() => {} // It was void.
            None => return Err(violation("a withdrawal of what is not announced")),
            Some(Announced {
                arrival,
                receive: None,
                ..
            }) => {
                if let Some(shared) = host.shared() {
                    shared.withdrawn(&Announcement { arrival, index });
                }
            }
            Some(Announced {
                receive: Some(receive),
                ..
            }) => {
                let op = self.ops.get_mut(receive.op);
                let payload = op.and_then(|op| op.payload.take());
                let gone = Error::new(ErrorKind::NoMessage, "its sender has withdrawn it");
                self.put_back(receive, payload.unwrap_or_else(Payload::empty), gone, host);
            }
        }
        self.tx
            .push_control(FrameHeader::Withdrawn { index }, Payload::empty());
        Ok(())
    }

    /// The bytes of an announced message come.
    pub(super) fn begin_data(&mut self, index: u8, len: u64) -> Result<(), Error> {
        let announced = self.incoming.named.get(&index);
        let Some(&Announced {
            arrival,
            ack,
            receive: Some(taken),
        }) = announced
        else {
            return Err(violation("data that was not asked for"));
        };
        if len != arrival.len {
            return Err(violation("data of another length than announced"));
        }
        self.incoming.named.remove(&index);
        let op = taken.op;
        self.set_landing(Some(taken));
        let payload = self.ops.get_mut(op).and_then(|entry| {
            entry.phase = Phase::Moving;
            entry.payload.take()
        });
        let payload = payload.expect("a receive keeps its buffer until its data comes");
        self.rx = Rx::Payload(Landing {
            target: Target::Receive {
                op,
                data: arrival.data,
                tag: arrival.kind.tag(),
                order: arrival.order,
            },
            capacity: payload.len() as u64,
            payload: Some(payload),
            len,
            done: 0,
            ack,
        });
        Ok(())
    }
}
