//! Rendezvous, the receiver's half: announced messages whose payload has not come.
//!
//! ```text
//!          RTS, no receive matches            a receive is matched: CTS
//!   Free ───────────────────────▶ Announced ─────────────────────────▶ Requested
//!    │                              │                                   ▲    │
//!    └──RTS, a receive matches: CTS─┼───────────────────────────────────┘    │
//!                                   ▼                                        ▼
//!                                  Free: WITHDRAW (WITHDRAWN answers it), our CLOSE, the end
//!                                        of the connection; Requested also by DATA
//! ```
//! A requested message has a receive. If the message is withdrawn or the connection ends, the
//! receive is requeued, in its order, unless the connection ends and it was directed at this peer.

use std::collections::BTreeMap;

use crate::buf::Payload;
use crate::edges::{check_edge, state_machine};
use crate::error::{Error, ErrorKind};
use crate::proto::Host;
use crate::proto::matching::{Announcement, Arrival, ArrivalOutcome, ClearToSend};
use crate::proto::op::OpKey;
use crate::wire::FrameHeader;

use super::receive_state::{PayloadInProgress, PayloadTarget, ReceiveState};
use super::{Connection, Lifecycle, violation};

/// A message that the peer has announced, and whose payload has not come.
#[derive(Clone, Copy, Debug)]
struct IncomingMessage {
    arrival: Arrival,
    ack: bool,
    /// The receive that awaits the payload; `None`: the shared receives store the announcement.
    receive: Option<OpKey>,
}

/// The state of the message with one rendezvous index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proto) enum IncomingState {
    /// The index names no message.
    Free,
    /// The shared receives store the announcement.
    Announced,
    /// The peer was asked for the payload, and a receive awaits it.
    Requested,
}

state_machine! { IncomingState {
    Free => [Announced, Requested],
    Announced => [Requested, Free],
    Requested => [Free],
}}

impl IncomingState {
    fn of(message: Option<&IncomingMessage>) -> Self {
        match message {
            None => IncomingState::Free,
            Some(IncomingMessage { receive: None, .. }) => IncomingState::Announced,
            Some(_) => IncomingState::Requested,
        }
    }
}

/// The announced messages of the peer, by index. At most 254, the number of indices.
#[derive(Debug, Default)]
pub(super) struct IncomingAnnouncements {
    messages: BTreeMap<u8, IncomingMessage>,
}

impl IncomingAnnouncements {
    /// True if a receive awaits the payload of one of the messages.
    pub(super) fn awaits_data(&self) -> bool {
        self.messages.values().any(|it| it.receive.is_some())
    }

    /// Returns the receives that await the payload of an announced message.
    pub(super) fn awaiting(&self) -> impl Iterator<Item = OpKey> + '_ {
        self.messages.values().filter_map(|it| it.receive)
    }

    /// Removes the messages without a receive.
    pub(super) fn forget_announced(&mut self) {
        let stored = self.messages.iter().filter(|(_, it)| it.receive.is_none());
        let stored: Vec<u8> = stored.map(|(index, _)| *index).collect();
        for index in stored {
            self.go(index, None);
        }
    }

    /// Removes all messages: the connection ends, or the attempt is given up.
    pub(super) fn clear(&mut self) {
        while let Some((&index, _)) = self.messages.first_key_value() {
            self.go(index, None);
        }
    }

    /// Moves the message with this index along a legal edge; `None`: the index becomes free.
    /// Returns the former message.
    fn go(&mut self, index: u8, to: Option<IncomingMessage>) -> Option<IncomingMessage> {
        let next = IncomingState::of(to.as_ref());
        let before = match to {
            Some(message) => self.messages.insert(index, message),
            None => self.messages.remove(&index),
        };
        check_edge(&IncomingState::of(before.as_ref()), &next);
        before
    }
}

impl<T> Connection<T> {
    /// True if a receive awaits the payload of an announced message.
    pub(super) fn awaits_data(&self) -> bool {
        self.binding().is_some_and(|it| it.incoming.awaits_data())
    }

    /// Returns the announced message with this index.
    fn incoming(&self, index: u8) -> Option<IncomingMessage> {
        self.binding()?.incoming.messages.get(&index).copied()
    }

    fn move_incoming(&mut self, index: u8, to: Option<IncomingMessage>) {
        if let Some(binding) = self.binding_mut() {
            binding.incoming.go(index, to);
        }
    }

    /// Handles the peer's announcement of a message.
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
            return Err(violation("two announced messages of one index"));
        }
        if self.close.is_sent() {
            return Ok(()); // Void: the peer ends the message when it processes our CLOSE.
        }
        let Some(shared) = host.shared() else {
            return Err(violation("an announcement where nothing is shared"));
        };
        let arrival = self.arrival(tag, len, data);
        let mut announcement = Announcement { arrival, index };
        let receive = match shared.begin_announcement(&mut announcement) {
            ArrivalOutcome::Matched(receive) => Some(receive),
            ArrivalOutcome::Store => None,
            ArrivalOutcome::Stalled => {
                self.rx.go(ReceiveState::AwaitReceive { header });
                return Ok(());
            }
        };
        self.receive_credit.count_message(0);
        let message = IncomingMessage {
            arrival: announcement.arrival,
            ack,
            receive: None,
        };
        match receive {
            Some(receive) => self.request_data(index, message, receive),
            None => self.move_incoming(index, Some(message)),
        }
        Ok(())
    }

    /// Asks the peer for each announced message that has been matched with a receive since the last
    /// call. A receive whose announcement is void is requeued.
    pub(super) fn answer_announcements(&mut self, host: &mut impl Host<T>) {
        while let Some(shared) = host.shared()
            && let Some(ClearToSend {
                receive,
                announcement: Announcement { arrival, index },
            }) = shared.poll_clear_to_send()
        {
            let message = self.incoming(index);
            // If the announcement was withdrawn, its index may name another message now.
            let is_it =
                |it: &IncomingMessage| it.receive.is_none() && it.arrival.order == arrival.order;
            let message = message.filter(is_it);
            let is_up = self.lifecycle == Lifecycle::Connected && self.fault.is_none();
            // After its CLOSE the peer sends no announced message.
            let may_ask = is_up && !self.close.is_sent() && !self.close.is_received();
            match message.filter(|_| may_ask) {
                Some(message) => self.request_data(index, message, receive),
                None => {
                    let gone = Error::new(ErrorKind::PeerClosed, "before it had sent the message");
                    shared.requeue_receive(receive, None, gone);
                }
            }
        }
    }

    /// Notes the receive that was matched with an announced message, and queues the CTS.
    fn request_data(&mut self, index: u8, message: IncomingMessage, receive: OpKey) {
        let message = IncomingMessage {
            receive: Some(receive),
            ..message
        };
        self.move_incoming(index, Some(message));
        self.tx
            .push_control(FrameHeader::Cts { index }, Payload::empty());
    }

    /// Handles the peer's withdrawal of an announcement. A receive that was matched with it is
    /// requeued.
    pub(super) fn handle_withdraw(
        &mut self,
        index: u8,
        host: &mut impl Host<T>,
    ) -> Result<(), Error> {
        let message = self.incoming(index);
        if message.is_some() {
            self.move_incoming(index, None);
        }
        match message {
            None if self.close.is_sent() => {} // Our CLOSE had voided the message.
            None => return Err(violation("a withdrawal of what is not announced")),
            Some(IncomingMessage {
                arrival,
                receive: None,
                ..
            }) => {
                if let Some(shared) = host.shared() {
                    shared.withdraw_announcement(&Announcement { arrival, index });
                }
            }
            Some(IncomingMessage {
                receive: Some(receive),
                ..
            }) => {
                let gone = Error::new(ErrorKind::NoMessage, "its sender has withdrawn it");
                if let Some(shared) = host.shared() {
                    shared.requeue_receive(receive, None, gone);
                }
            }
        }
        self.tx
            .push_control(FrameHeader::Withdrawn { index }, Payload::empty());
        Ok(())
    }

    /// Begins to receive the payload of an announced message.
    pub(super) fn begin_data(
        &mut self,
        index: u8,
        len: u64,
        host: &mut impl Host<T>,
    ) -> Result<(), Error> {
        let announced = self.incoming(index);
        let (
            Some(IncomingMessage {
                arrival,
                ack,
                receive: Some(receive),
            }),
            Some(shared),
        ) = (announced, host.shared())
        else {
            return Err(violation("data that was not asked for"));
        };
        if len != arrival.len {
            return Err(violation("data of another length than announced"));
        }
        self.move_incoming(index, None);
        let mut payload = shared.take_buffer(receive);
        self.rx.go(ReceiveState::Payload(PayloadInProgress {
            target: PayloadTarget::Receive {
                receive,
                arrival,
                failed: None,
            },
            capacity: payload.room_for(len) as u64,
            payload: Some(payload),
            len,
            done: 0,
            ack,
        }));
        Ok(())
    }
}
