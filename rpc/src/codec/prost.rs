//! Protocol buffers.

use ::prost::Message;

use super::{BodyBuf, Codec, CodecOf};

/// Messages of [prost](https://docs.rs/prost) (feature `prost`): a method takes one of them,
/// or nothing, and gives one; no message is `()`.
#[derive(Clone, Copy, Debug)]
pub struct Prost;

impl Codec for Prost {
    const NAME: &'static str = "prost";
}

impl<T: Message + Default> CodecOf<T> for Prost {
    fn encode(value: &T, body: &mut BodyBuf) -> Result<(), String> {
        let mut room = body.grow(value.encoded_len());
        value.encode(&mut room).map_err(|error| error.to_string())
    }

    fn decode(body: &[u8]) -> Result<T, String> {
        T::decode(body).map_err(|error| error.to_string())
    }
}
