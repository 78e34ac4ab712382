//! Frames of streams, and the frame that changes a client's window.

use super::frame::{CREDIT, Flags, ITEM, WINDOW, bare_frame};
use super::{CallId, FrameBuf, Violation};
use crate::limits::HEADER_LEN;

/// The contents of an ITEM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// The next item of the stream, encoded.
    Body(&'a [u8]),
    /// The client's stream has ended.
    Last,
    /// The server's stream has begun, and its first item is not available yet.
    Begun,
}

impl<'a> Item<'a> {
    pub(super) fn decode(flags: u8, body: &'a [u8]) -> Result<Item<'a>, Violation> {
        match (flags, body) {
            (0, body) => Ok(Item::Body(body)),
            (Flags::LAST, []) => Ok(Item::Last),
            (Flags::BEGUN, []) => Ok(Item::Begun),
            _ => Err(Violation(
                "unknown flags of an item, or a body where none is",
            )),
        }
    }
}

/// The part of a stream that the peer may still send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Credit {
    /// Number of items.
    pub items: u32,
    /// Bytes of their bodies.
    pub bytes: u32,
}

/// The limits of a client's open calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Number of calls.
    pub calls: u32,
    /// Bytes of their requests.
    pub bytes: u32,
}

/// Writes the header of an ITEM in front of its body.
pub fn write_item_head(frame: &mut FrameBuf, call: CallId) {
    frame[..HEADER_LEN].copy_from_slice(&bare_frame(ITEM, call));
}

/// Encodes an ITEM without an item: the client's stream has ended.
pub fn encode_last(call: CallId) -> [u8; HEADER_LEN] {
    let mut bytes = bare_frame(ITEM, call);
    bytes[1] = Flags::LAST;
    bytes
}

/// Encodes an ITEM without an item: the server's stream has begun.
pub fn encode_begun(call: CallId) -> [u8; HEADER_LEN] {
    let mut bytes = bare_frame(ITEM, call);
    bytes[1] = Flags::BEGUN;
    bytes
}

pub fn encode_credit(call: CallId, credit: Credit) -> [u8; HEADER_LEN] {
    let mut bytes = bare_frame(CREDIT, call);
    write_numbers(&mut bytes, credit.items, credit.bytes);
    bytes
}

pub fn encode_window(window: Window) -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    bytes[0] = WINDOW;
    write_numbers(&mut bytes, window.calls, window.bytes);
    bytes
}

fn write_numbers(bytes: &mut [u8; HEADER_LEN], first: u32, second: u32) {
    bytes[8..12].copy_from_slice(&first.to_le_bytes());
    bytes[12..16].copy_from_slice(&second.to_le_bytes());
}
