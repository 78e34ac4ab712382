//! The frames of a connection and what is said when it is made (docs/rpc-wire.md). Checked in full
//! before a field is seen; encoded from values that cannot be wrong.

mod frame;
mod hello;
mod metadata;
#[cfg(test)]
mod tests;

pub use frame::{
    CallId, Frame, FrameBuf, FrameHead, LentRegions, Request, Response, Violation, empty_frame,
    encode_cancel, encode_goaway, encode_status, insert_prefix, method_id, write_request_head,
    write_response_head,
};
pub use hello::{CodecName, Hello, Rejection};
pub use metadata::Metadata;

/// The code of a response whose body is the method's own error.
pub const TYPED_ERROR: u32 = 0x7fff_ffff;
