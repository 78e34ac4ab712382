//! The frames of a connection and what is said when it is made (docs/rpc-wire.md). Checked in full
//! before a field is seen; encoded from values that cannot be wrong.

mod frame;
mod hello;
mod metadata;
mod stream;
#[cfg(test)]
mod tests;

pub use frame::{
    CallId, Frame, FrameBuf, FrameHead, LentRegions, Prefix, Request, Response, Streams, Violation,
    empty_frame, encode_cancel, encode_goaway, encode_status, encode_taken, insert_prefix,
    method_id, reference_frame, write_reference_head, write_request_head, write_response_head,
};
pub use hello::{CodecName, Hello, Rejection};
pub use metadata::Metadata;
pub use stream::{
    Credit, Item, Window, encode_begun, encode_credit, encode_last, encode_window, write_item_head,
};

/// The code of a response whose body is the method's own error.
pub const TYPED_ERROR: u32 = 0x7fff_ffff;
