//! The beginning of a connection: request and response on the stream itself.

use bytes::Bytes;

use crate::error::{Error, ErrorKind};
use crate::proto::event::ConnEvent;
use crate::wire::{
    ByteOrder, CmDecoded, CmDecoder, ControlFrame, ControlKind, ExtensionOffer, NO_DESCRIPTORS,
};

use super::{Connection, Lifecycle};

impl<T> Connection<T> {
    /// Begins to connect: the request goes out first, then its response is awaited.
    pub(crate) fn begin_connect(&mut self, data: &[u8]) {
        self.lifecycle.go(Lifecycle::Connecting);
        self.handshake = Some(Box::new(CmDecoder::new()));
        let offer = self.extension.offer();
        self.tx
            .push_raw(control_frame(ControlKind::Request, data, offer));
    }

    /// Accepts a peer whose request came in this byte order and offered `asked`.
    pub(crate) fn begin_accept(
        &mut self,
        data: &[u8],
        order: ByteOrder,
        asked: Option<ExtensionOffer>,
    ) {
        self.lifecycle.go(Lifecycle::Accepting);
        self.byte_order = order;
        let answer = self.extension.answer(asked);
        if let Err(error) = self.extension.check_key_agreed() {
            return self.fail(error);
        }
        // A side with a key sends its private data only to a peer that has proven the key.
        let (data, later) = match self.extension.auth {
            Some(_) => (&[][..], Bytes::copy_from_slice(data)),
            None => (data, Bytes::new()),
        };
        self.tx
            .push_raw(control_frame(ControlKind::Response, data, answer));
        if let Some(agreed) = answer {
            self.begin_agreed(agreed, later);
        }
    }

    /// Connects the acceptor once its response is sent, and the peer's HELLO, if any, has come.
    pub(super) fn response_sent_if_all(&mut self) {
        let is_all = self.tx.is_batch_sent() && !self.extension.is_opening();
        // An attempt with a fault is given up, even if frames still go out.
        if self.lifecycle != Lifecycle::Accepting || !is_all || self.fault.is_some() {
            return;
        }
        self.connected(Bytes::new());
    }

    /// Marks the connection as up: both sides may send.
    pub(super) fn connected(&mut self, data: Bytes) {
        self.lifecycle.go(Lifecycle::Connected);
        self.open_lanes();
        self.events.push(ConnEvent::Connected { data });
    }

    pub(super) fn consume_handshake(&mut self, input: &[u8]) -> Result<usize, Error> {
        let Some(decoder) = &mut self.handshake else {
            return Ok(0);
        };
        let (frame, order, taken) = match decoder.feed(input)? {
            CmDecoded::Need(_) => return Ok(input.len()),
            CmDecoded::Frame {
                frame,
                order,
                consumed,
            } => (frame, order, consumed),
        };
        match frame.kind() {
            ControlKind::Response => {
                self.handshake = None;
                self.byte_order = order;
                if self.is_connectionless() {
                    match self.peer_accepted(&frame)? {
                        Some(agreed) => self.begin_agreed(agreed, Bytes::new()),
                        None => self.connected(Bytes::new()),
                    }
                    return Ok(taken);
                }
                let agreed = self.extension.take_answer(frame.offer())?;
                self.extension.check_key_agreed()?;
                if let Some(agreed) = agreed {
                    self.begin_agreed(agreed, frame.into_data());
                    return Ok(taken);
                }
                self.connected(frame.into_data());
                Ok(taken)
            }
            ControlKind::Reject => {
                let data = frame.into_data();
                let why = match data == NO_DESCRIPTORS {
                    true => "the peer's process has no descriptors left to accept with",
                    false => "by the peer's application",
                };
                Err(Error::new(ErrorKind::ConnectionRefused, why).with_data(data))
            }
            ControlKind::Request => Err(Error::new(
                ErrorKind::ConnectionRefused,
                "the peer answered with a request",
            )),
        }
    }
}

pub(super) fn control_frame(
    kind: ControlKind,
    data: &[u8],
    offer: Option<ExtensionOffer>,
) -> Vec<u8> {
    let data = Bytes::copy_from_slice(data);
    let frame = ControlFrame::new(kind, data).expect("the caller checked the data's length");
    frame.with_offer(offer).encode()
}
