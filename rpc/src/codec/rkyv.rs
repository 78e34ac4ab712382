//! rkyv's archives.

use ::rkyv::api::high::{HighDeserializer, HighSerializer, HighValidator};
use ::rkyv::bytecheck::CheckBytes;
use ::rkyv::rancor::Error;
use ::rkyv::ser::allocator::ArenaHandle;
use ::rkyv::util::AlignedVec;
use ::rkyv::{Archive, Deserialize, Serialize};

use super::{BodyBuf, Codec, CodecOf};

/// Archives of [rkyv](https://docs.rs/rkyv) (feature `rkyv`), checked before they are read: of what
/// is its `Archive`, `Serialize` and `Deserialize`. A value is copied out of its archive.
#[derive(Clone, Copy, Debug)]
pub struct Rkyv;

impl Codec for Rkyv {
    const NAME: &'static str = "rkyv";
}

impl<T> CodecOf<T> for Rkyv
where
    T: Archive + for<'a> Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, Error>>,
    T::Archived:
        Deserialize<T, HighDeserializer<Error>> + for<'a> CheckBytes<HighValidator<'a, Error>>,
{
    fn encode(value: &T, body: &mut BodyBuf) -> Result<(), String> {
        let archive = ::rkyv::to_bytes::<Error>(value).map_err(|error| error.to_string())?;
        body.extend_from_slice(&archive);
        Ok(())
    }

    /// In a frame an archive has no alignment, which its types ask for.
    fn decode(body: &[u8]) -> Result<T, String> {
        let mut aligned: AlignedVec = AlignedVec::with_capacity(body.len());
        aligned.extend_from_slice(body);
        ::rkyv::from_bytes::<T, Error>(&aligned).map_err(|error| error.to_string())
    }
}
