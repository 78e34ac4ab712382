//! The frames of a connection, and the messages that establish it (docs/rpc-wire.md). Frames are
//! checked in full before any field is used, and encoded from values that cannot be invalid.

use std::time::Duration;

mod batch;
mod bodies;
mod buf;
mod frame;
mod hello;
mod metadata;
mod stream;
#[cfg(test)]
mod tests;
mod trace;

pub use batch::{BatchBuf, each_frame};
pub use bodies::Bodies;
pub use buf::FrameBuf;
pub use frame::{
    CallId, Frame, FrameHead, LentRegions, Prefix, Request, Response, Streams, Violation,
    empty_frame, encode_cancel, encode_goaway, encode_status, encode_taken, frame_of,
    insert_prefix, method_id, reference_frame, response_head, write_reference_head,
    write_request_head,
};
pub use hello::{CodecName, Hello, Rejection, key_name};
pub use metadata::Metadata;
pub use stream::{
    Credit, Item, Window, encode_begun, encode_credit, encode_last, encode_window, write_item_head,
};

pub(crate) use trace::TRACE_STATE;
pub use trace::TraceContext;

/// Converts a time to microseconds in 32 bits, at most 71 minutes. Only the client keeps a longer
/// deadline.
pub fn micros(time: Duration) -> u32 {
    let micros = time.as_secs().saturating_mul(1_000_000);
    u32::try_from(micros.saturating_add(time.subsec_micros().into())).unwrap_or(u32::MAX)
}

/// Converts the time left to the budget of a request, in microseconds. 0: no limit. A budget of
/// more than 71 minutes does not fit into the frame and is 0 too; the client then cancels the call
/// at its deadline.
pub fn budget_us(left: Duration) -> u32 {
    match micros(left) {
        u32::MAX => 0,
        budget => budget.max(1),
    }
}

/// The code of a response whose body is the method's own error.
pub const TYPED_ERROR: u32 = 0x7fff_ffff;
