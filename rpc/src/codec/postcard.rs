//! The default: postcard, a compact format whose bytes are specified.

use ::postcard::ser_flavors::Flavor;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{BodyBuf, Codec, CodecOf};

/// The default codec: [postcard](https://docs.rs/postcard), for types that implement serde's
/// `Serialize` and `DeserializeOwned`.
///
/// It is compact, and its format is specified.
///
/// Recursive types (lists, trees) are decoded by recursion, to a depth that the peer determines. If
/// you do not trust your peers, do not use such types, or limit the depth in your own
/// `Deserialize`.
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

    /// serde limits how much is allocated for a length in the bytes.
    fn decode(body: &[u8]) -> Result<T, String> {
        match ::postcard::take_from_bytes(body) {
            Ok((value, [])) => Ok(value),
            Ok((_, rest)) => Err(format!("{} bytes too many", rest.len())),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Appends to a body.
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
