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

/// A message that the peer has announced and not sent.
#[derive(Clone, Copy, Debug)]
struct IncomingMessage {
    arrival: Arrival,
    ack: bool,
    /// The receive that awaits its data; `None`: it is kept by the shared receives.
    receive: Option<Taken>,
}

/// How far the message of a name has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proto) enum IncomingState {
    /// The name is free.
    Free,
    /// The shared receives keep its announcement.
    Kept,
    /// A receive awaits its data.
    Awaited,
}

impl IncomingState {
    /// Every legal edge; all others are bugs of ours.
    pub(in crate::proto) const EDGES: [(IncomingState, IncomingState); 5] = {
        use IncomingState::*;
        [
            (Free, Kept),
            (Free, Awaited),
            (Kept, Awaited),
            (Kept, Free),
            (Awaited, Free),
        ]
    };

    fn of(message: Option<&IncomingMessage>) -> Self {
        match message {
            None => IncomingState::Free,
            Some(IncomingMessage { receive: None, .. }) => IncomingState::Kept,
            Some(_) => IncomingState::Awaited,
        }
    }
}

/// What the peer has announced and not sent, by name. At most 254, as there are names.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    named: BTreeMap<u8, IncomingMessage>,
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
        let kept = self.named.iter().filter(|(_, it)| it.receive.is_none());
        let kept: Vec<u8> = kept.map(|(index, _)| *index).collect();
        for index in kept {
            self.go(index, None);
        }
    }

    /// Forgets all: the connection ends, or the attempt is given up.
    pub(super) fn clear(&mut self) {
        while let Some((&index, _)) = self.named.first_key_value() {
            self.go(index, None);
        }
    }

    /// Moves the message of this name along a legal edge; `None`: its name is free again. Gives
    /// what was there.
    fn go(&mut self, index: u8, to: Option<IncomingMessage>) -> Option<IncomingMessage> {
        let next = IncomingState::of(to.as_ref());
        let before = match to {
            Some(message) => self.named.insert(index, message),
            None => self.named.remove(&index),
        };
        let edge = (IncomingState::of(before.as_ref()), next);
        debug_assert!(IncomingState::EDGES.contains(&edge), "no edge {edge:?}");
        #[cfg(test)]
        super::walked::note(format!("{:?} -> {:?}", edge.0, edge.1));
        before
    }
}

impl<T> Connection<T> {
    /// True if a receive awaits the data of an announced message.
    pub(super) fn awaits_data(&self) -> bool {
        self.binding().is_some_and(|it| it.incoming.awaits_data())
    }

    /// The message that the peer has announced by this name.
    fn incoming(&self, index: u8) -> Option<IncomingMessage> {
        self.binding()?.incoming.named.get(&index).copied()
    }

    fn incoming_goes(&mut self, index: u8, to: Option<IncomingMessage>) {
        if let Some(binding) = self.binding_mut() {
            binding.incoming.go(index, to);
        }
    }

    /// The peer announces a message.
    pub(super) fn handle_rts(
        &mut self,
        header: FrameHeader,
        host: &mut impl Host<T>,
    ) -> Result<(), Error> {
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
        if self.incoming(index).is_some() {
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
                self.rx.go(Rx::AwaitReceive { header });
                return Ok(());
            }
        };
        self.receive_credit.arrive(0);
        let message = IncomingMessage {
            arrival: announcement.arrival,
            ack,
            receive: None,
        };
        match receive {
            Some(receive) => self.await_data(index, message, receive),
            None => self.incoming_goes(index, Some(message)),
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
            let kept = self.incoming(index);
            // Another of this name may have come, if this one was withdrawn.
            let kept = kept.filter(|it| it.receive.is_none() && it.arrival.order == arrival.order);
            let is_up = self.lifecycle == Lifecycle::Connected && self.fault.is_none();
            match kept.filter(|_| is_up && !self.ending.is_said()) {
                Some(message) => self.await_data(index, message, receive),
                None => {
                    let gone = Error::new(ErrorKind::PeerClosed, "before it had sent the message");
                    shared.put_back(receive, gone);
                }
            }
        }
    }

    /// A receive takes a message that was announced: asks the peer for it.
    fn await_data(&mut self, index: u8, message: IncomingMessage, receive: PostedReceive<T>) {
        let (taken, payload) = self.adopt(receive, Phase::AwaitingPeer);
        if let Some(op) = self.ops.get_mut(taken.op) {
            op.payload = Some(payload);
        }
        let message = IncomingMessage {
            receive: Some(taken),
            ..message
        };
        self.incoming_goes(index, Some(message));
        self.tx
            .push_control(FrameHeader::Cts { index }, Payload::empty());
    }

    /// The peer takes an announcement back. A receive that was matched with it is posted again.
    pub(super) fn handle_withdraw(
        &mut self,
        index: u8,
        host: &mut impl Host<T>,
    ) -> Result<(), Error> {
        let message = self.incoming(index);
        if message.is_some() {
            self.incoming_goes(index, None);
        }
        match message {
            None if self.ending.is_said() => {} // It was void.
            None => return Err(violation("a withdrawal of what is not announced")),
            Some(IncomingMessage {
                arrival,
                receive: None,
                ..
            }) => {
                if let Some(shared) = host.shared() {
                    shared.withdrawn(&Announcement { arrival, index });
                }
            }
            Some(IncomingMessage {
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
        let announced = self.incoming(index);
        let Some(IncomingMessage {
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
        self.incoming_goes(index, None);
        let op = taken.op;
        self.set_landing(Some(taken));
        let payload = self.ops.get_mut(op).and_then(|entry| {
            entry.phase = Phase::Moving;
            entry.payload.take()
        });
        let payload = payload.expect("a receive keeps its buffer until its data comes");
        self.rx.go(Rx::Payload(Landing {
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
        }));
        Ok(())
    }
}
