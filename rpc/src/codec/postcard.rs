//! The default codec: postcard, a compact format with a specification.

mod bounded;
mod shape;

use ::postcard::ser_flavors::Flavor;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{BodyBuf, Codec, CodecOf};

/// The default codec: [postcard](https://docs.rs/postcard), for types that implement serde's
/// `Serialize` and `DeserializeOwned`.
///
/// It is compact, and its format is specified. Decoding has limits, since a peer determines how
/// much is decoded: values are nested at most 128 deep; at most 1,024 elements of a body's
/// collections are encoded in no bytes (such as those of a `Vec<()>`); and the elements of all its
/// collections together take at most 32 bytes of memory per byte of the body, plus 1 MiB. A body
/// beyond these limits fails with [`Code::BadRequest`](crate::Code::BadRequest) at a server, and
/// with [`Code::Internal`](crate::Code::Internal) at a client.
#[derive(Clone, Copy, Debug)]
pub struct Postcard;

impl Codec for Postcard {
    const NAME: &'static str = "postcard";
}

impl<T: Serialize + DeserializeOwned> CodecOf<T> for Postcard {
    fn encode(value: &T, body: &mut BodyBuf) -> Result<(), String> {
        let encoded = ::postcard::serialize_with_flavor(value, BodyFlavor(body));
        encoded.map_err(|error| error.to_string())
    }

    fn decode(body: &[u8]) -> Result<T, String> {
        bounded::decode(body)
    }

    fn shape(_: &str) -> String {
        shape::of::<T>()
    }
}

/// A postcard flavor that appends to a body.
struct BodyFlavor<'a>(&'a mut BodyBuf);

impl Flavor for BodyFlavor<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> ::postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> ::postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> ::postcard::Result<()> {
        Ok(())
    }
}
