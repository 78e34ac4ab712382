//! Archives of rkyv.

use std::num::NonZeroUsize;

use ::rkyv::api::access_with_context;
use ::rkyv::api::high::{HighDeserializer, HighSerializer, HighValidator};
use ::rkyv::bytecheck::CheckBytes;
use ::rkyv::rancor::Error;
use ::rkyv::ser::allocator::ArenaHandle;
use ::rkyv::util::AlignedVec;
use ::rkyv::validation::Validator;
use ::rkyv::validation::archive::ArchiveValidator;
use ::rkyv::validation::shared::SharedValidator;
use ::rkyv::{Archive, Deserialize, Serialize};

use super::{BodyBuf, Codec, CodecOf};
use crate::limits::NESTING_MAX;

/// Archives of [rkyv](https://docs.rs/rkyv) (feature `rkyv`), for types that implement its
/// `Archive`, `Serialize` and `Deserialize`.
///
/// An archive is validated, then the value is deserialized from it. Values may be nested at most
/// 128 deep. Elements of a type that takes no bytes in an archive (`()`, a struct of such fields or
/// of fields with `Skip`) cannot be counted: a validator gets only the start of a collection's
/// memory and its size in bytes, which is 0 for any number of such elements, and rkyv calls nothing
/// per element. Such a collection has as many elements as the peer claims, up to 2³² - 1, each with
/// its type's size in memory. Do not accept such types from untrusted peers: a bare number claims
/// any number of elements.
///
/// ```
/// use tokio_fabric_rpc::{Cx, Result, Rkyv, service, testing};
///
/// #[derive(Debug, PartialEq, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
/// struct Point {
///     x: i32,
///     y: i32,
/// }
///
/// #[service(codec = Rkyv)]
/// trait Mirror {
///     async fn mirror(&self, cx: &Cx, point: Point) -> Result<Point>;
/// }
///
/// # struct AtDiagonal;
/// # impl Mirror for AtDiagonal {
/// #     async fn mirror(&self, _: &Cx, at: Point) -> Result<Point> {
/// #         Ok(Point { x: at.y, y: at.x })
/// #     }
/// # }
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<()> {
/// # let (channel, _server) = testing::pair(MirrorServer::new(AtDiagonal)).await?;
/// let mirrored = MirrorClient::over(channel).mirror(Point { x: 1, y: 2 }).await?;
/// assert_eq!(mirrored, Point { x: 2, y: 1 });
/// # Ok(()) }
/// ```
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

    /// Copies the bytes first: an archive must be aligned for its types, which a frame is not.
    fn decode(body: &[u8]) -> Result<T, String> {
        let mut aligned: AlignedVec = AlignedVec::with_capacity(body.len());
        aligned.extend_from_slice(body);
        let within = ArchiveValidator::with_max_depth(&aligned, NonZeroUsize::new(NESTING_MAX));
        let mut validator = Validator::new(within, SharedValidator::new());
        let archived = access_with_context::<T::Archived, _, Error>(&aligned, &mut validator);
        let value = archived.and_then(|it| ::rkyv::deserialize::<T, Error>(it));
        value.map_err(|error| error.to_string())
    }
}
