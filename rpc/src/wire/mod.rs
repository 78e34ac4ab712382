//! The frames of a connection and what is said when it is made (docs/rpc-wire.md). Checked in full
//! before a field is seen; encoded from values that cannot be wrong.

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
pub use hello::{CodecName, Hello, Rejection};
pub use metadata::Metadata;
pub use stream::{
    Credit, Item, Window, encode_begun, encode_credit, encode_last, encode_window, write_item_head,
};

pub use trace::TraceContext;

/// Microseconds on the wire, in 32 bits: 71 minutes at most. A longer deadline is kept by the
/// client alone.
pub fn micros(time: Duration) -> u32 {
    let micros = time.as_secs().saturating_mul(1_000_000);
    u32::try_from(micros.saturating_add(time.subsec_micros().into())).unwrap_or(u32::MAX)
}

/// The budget of a request, in microseconds. 0 is none: so is one of more than 71 minutes, which
/// the frame has no room for, and at whose end the client cancels the call.
pub fn budget_us(left: Duration) -> u32 {
    match micros(left) {
        u32::MAX => 0,
        budget => budget.max(1),
    }
}

/// The code of a response whose body is the method's own error.
pub const TYPED_ERROR: u32 = 0x7fff_ffff;
