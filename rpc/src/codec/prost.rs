//! Protocol buffers.

use ::prost::Message;

use super::{BodyBuf, Codec, CodecOf};

/// Protocol buffers, with [prost](https://docs.rs/prost) (feature `prost`).
///
/// A method takes one message or nothing, and returns a message; `()` is the empty message.
/// Messages may be nested at most 100 deep. Each element of a repeated field takes at least one
/// byte of the body, and as much memory as its type.
///
/// ```
/// use tokio_fabric_rpc::{Cx, Prost, Result, service, testing};
///
/// #[derive(Clone, PartialEq, prost::Message)]
/// struct Point {
///     #[prost(int32, tag = "1")]
///     x: i32,
///     #[prost(int32, tag = "2")]
///     y: i32,
/// }
///
/// #[service(codec = Prost)]
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
