//! Frames of streams, and the one that moves a client's windows.

use super::frame::{CREDIT, Flags, ITEM, WINDOW, bare_frame};
use super::{CallId, FrameBuf, Violation};
use crate::limits::HEADER_LEN;

/// What an ITEM says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// The next piece of the stream, encoded.
    Body(&'a [u8]),
    /// The client's stream is over.
    Last,
    /// The server's stream has begun, and its first piece is not there yet.
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

/// So much of a stream, or so much more of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Credit {
    /// Items.
    pub items: u32,
    /// Bytes of their bodies.
    pub bytes: u32,
}

/// What a client may have under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Calls.
    pub calls: u32,
    /// Bytes of their requests.
    pub bytes: u32,
}

/// Makes an item of a frame with its body.
pub fn write_item_head(frame: &mut FrameBuf, call: CallId) {
    frame[..HEADER_LEN].copy_from_slice(&bare_frame(ITEM, call));
}

/// ITEM, of no item: the client's stream is over.
pub fn encode_last(call: CallId) -> [u8; HEADER_LEN] {
    let mut bytes = bare_frame(ITEM, call);
    bytes[1] = Flags::LAST;
    bytes
}

/// ITEM, of no item: the server's stream has begun.
pub fn encode_begun(call: CallId) -> [u8; HEADER_LEN] {
    let mut bytes = bare_frame(ITEM, call);
    bytes[1] = Flags::BEGUN;
    bytes
}

/// CREDIT.
pub fn encode_credit(call: CallId, credit: Credit) -> [u8; HEADER_LEN] {
    let mut bytes = bare_frame(CREDIT, call);
    write_numbers(&mut bytes, credit.items, credit.bytes);
    bytes
}

/// WINDOW.
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
