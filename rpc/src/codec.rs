//! Arguments and results as bytes: postcard, or the bytes themselves where a method takes or gives
//! nothing but `Bytes`.

use bytes::Bytes;
use postcard::ser_flavors::Flavor;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::status::{CallError, Code, Result, Status};
use crate::wire::{FrameBuf, TYPED_ERROR, empty_frame};

/// The frame of a request whose header is still empty.
#[derive(Debug)]
pub struct Arguments(pub(crate) Result<FrameBuf>);

impl Arguments {
    /// Of a tuple of arguments.
    pub fn of<T: Serialize>(arguments: &T) -> Arguments {
        Arguments(encode(arguments))
    }

    /// Of a method that takes `Bytes` alone.
    pub fn of_bytes(bytes: &Bytes) -> Arguments {
        Arguments(Ok(frame_of(bytes)))
    }
}

/// Appends to a frame.
struct FrameFlavor(FrameBuf);

impl Flavor for FrameFlavor {
    type Output = FrameBuf;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<FrameBuf> {
        Ok(self.0)
    }
}

pub(crate) fn encode<T: Serialize>(value: &T) -> Result<FrameBuf> {
    let encoded = postcard::serialize_with_flavor(value, FrameFlavor(empty_frame()));
    encoded.map_err(|error| {
        Status::not_started(Code::BadRequest, format!("it cannot be encoded: {error}"))
    })
}

pub(crate) fn frame_of(bytes: &[u8]) -> FrameBuf {
    let mut frame = empty_frame();
    frame.extend_from_slice(bytes);
    frame
}

/// All of the bytes as a value; serde's own caution bounds what is allocated by a length in them.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(format!("{} bytes too many", rest.len())),
        Err(error) => Err(error.to_string()),
    }
}

/// Arguments that are nothing but bytes.
pub fn bytes_from(body: &[u8]) -> Bytes {
    Bytes::copy_from_slice(body)
}

/// The end of a call whose method fails with a [`Status`].
pub fn result<T: DeserializeOwned>(code: u32, body: &[u8]) -> Result<T> {
    value(code, body)
}

/// The same of a method that gives `Bytes`.
pub fn bytes_result(code: u32, body: &[u8]) -> Result<Bytes> {
    match code {
        0 => Ok(bytes_from(body)),
        _ => Err(another_type()),
    }
}

/// The end of a call whose method has an error of its own.
pub fn typed_result<T, E>(code: u32, body: &[u8]) -> Result<T, CallError<E>>
where
    T: DeserializeOwned,
    E: DeserializeOwned,
{
    match code {
        TYPED_ERROR => Err(application_error(body)),
        _ => Ok(value(code, body)?),
    }
}

/// The same of a method that gives `Bytes`.
pub fn typed_bytes<E: DeserializeOwned>(code: u32, body: &[u8]) -> Result<Bytes, CallError<E>> {
    match code {
        TYPED_ERROR => Err(application_error(body)),
        _ => Ok(bytes_result(code, body)?),
    }
}

fn value<T: DeserializeOwned>(code: u32, body: &[u8]) -> Result<T> {
    match code {
        0 => decode(body).map_err(undecodable),
        _ => Err(another_type()),
    }
}

fn application_error<E: DeserializeOwned>(body: &[u8]) -> CallError<E> {
    match decode(body) {
        Ok(error) => CallError::App(error),
        Err(why) => CallError::Rpc(undecodable(why)),
    }
}

fn undecodable(why: String) -> Status {
    Status::new(
        Code::Internal,
        format!("the answer cannot be decoded: {why}"),
    )
}

fn another_type() -> Status {
    Status::new(
        Code::Internal,
        "the answer is an error of a type that is not known",
    )
}
