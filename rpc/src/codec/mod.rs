//! Encodes arguments and results with the service's codec, or passes them unchanged if a method
//! takes or returns only `Bytes`.

mod postcard;
#[cfg(feature = "prost")]
mod prost;
#[cfg(feature = "rkyv")]
mod rkyv;

use bytes::Bytes;

use crate::status::{CallError, Code, Result, Status};
use crate::wire::{CodecName, FrameBuf, TYPED_ERROR, empty_frame, frame_of};

pub use self::postcard::Postcard;
#[cfg(feature = "prost")]
pub use self::prost::Prost;
#[cfg(feature = "rkyv")]
pub use self::rkyv::Rkyv;

/// The encoding of arguments and results.
///
/// The default is [`Postcard`]; `#[service(codec = Path)]` selects another one. A codec supports
/// the types for which it implements [`CodecOf`].
///
/// All services of a server use the same codec, which the server announces when a connection is
/// made. A call with another codec fails at the client with [`Code::BadRequest`], before anything
/// is sent. Methods whose arguments and results are only `Bytes` use no codec.
pub trait Codec: 'static {
    /// The codec's name on the wire, at most 8 bytes.
    const NAME: &'static str;
}

/// A codec for values of type `T`.
///
/// A method's only argument is encoded as one value; several arguments are encoded as a tuple.
///
/// This codec encodes only numbers:
///
/// ```
/// use tokio_fabric_rpc::{BodyBuf, Codec, CodecOf, Cx, Result, service, testing};
///
/// struct Numbers;
///
/// impl Codec for Numbers {
///     const NAME: &'static str = "numbers";
/// }
///
/// impl CodecOf<u64> for Numbers {
///     fn encode(value: &u64, body: &mut BodyBuf) -> Result<(), String> {
///         body.extend_from_slice(&value.to_be_bytes());
///         Ok(())
///     }
///     fn decode(body: &[u8]) -> Result<u64, String> {
///         let bytes = body.try_into().map_err(|_| "not eight bytes")?;
///         Ok(u64::from_be_bytes(bytes))
///     }
/// }
///
/// #[service(codec = Numbers)]
/// trait Double {
///     async fn double(&self, cx: &Cx, number: u64) -> Result<u64>;
/// }
///
/// # struct Doubler;
/// # impl Double for Doubler {
/// #     async fn double(&self, _: &Cx, number: u64) -> Result<u64> { Ok(2 * number) }
/// # }
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<()> {
/// # let (channel, _server) = testing::pair(DoubleServer::new(Doubler)).await?;
/// assert_eq!(DoubleClient::over(channel).double(21).await?, 42);
/// # Ok(()) }
/// ```
pub trait CodecOf<T>: Codec {
    /// Appends the encoded value to the body.
    ///
    /// # Errors
    /// The reason why the value cannot be encoded, as text.
    fn encode(value: &T, body: &mut BodyBuf) -> Result<(), String>;

    /// Decodes a value, which must use all the bytes. The bytes come from a peer, and a server
    /// decodes requests on the task that reads the frames of all connections: neither allocate nor
    /// loop for a length that the bytes merely claim, and limit the nesting of values.
    ///
    /// # Errors
    /// The reason, as text; the peer receives it.
    fn decode(body: &[u8]) -> Result<T, String>;

    /// Describes the type's encoding, for the signatures of methods. Types whose values cannot be
    /// decoded as each other have different shapes; interchangeable types can have the same shape.
    /// `spelled` is the type as the service's trait spells it, without spaces and without the paths
    /// of names, such as `Vec<Point>`. The default returns `spelled`, so it ignores the contents of
    /// `Point`.
    fn shape(spelled: &str) -> String {
        spelled.to_owned()
    }
}

/// The body of a request or a response while it is being encoded; see [`CodecOf::encode`].
#[derive(Debug)]
pub struct BodyBuf(FrameBuf);

impl BodyBuf {
    /// Appends a byte.
    pub fn push(&mut self, byte: u8) {
        self.0.push(byte);
    }

    /// Appends bytes.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Appends `len` zeros, and returns them for the caller to overwrite.
    pub fn grow(&mut self, len: usize) -> &mut [u8] {
        let at = self.0.len();
        self.0.resize(at + len, 0);
        &mut self.0[at..]
    }
}

/// A request's frame with its arguments and an empty header.
#[derive(Clone, Debug)]
pub struct Arguments {
    pub(crate) frame: Result<FrameBuf>,
    /// `None`: the arguments use no codec.
    pub(crate) codec: Option<CodecName>,
}

impl Arguments {
    /// Encodes the argument of a method.
    pub fn of<C: CodecOf<T>, T>(arguments: &T) -> Arguments {
        Arguments {
            frame: encode::<C, T>(arguments),
            codec: Some(codec_name::<C>()),
        }
    }

    /// Copies the argument of a method that takes only `Bytes`, or nothing. The response may use a
    /// codec.
    pub fn of_bytes(bytes: &[u8], codec: Option<CodecName>) -> Arguments {
        Arguments {
            frame: Ok(frame_of(bytes)),
            codec,
        }
    }
}

/// Returns the shape of a type that the service's trait spells as `spelled`.
pub fn shape<C: CodecOf<T>, T>(spelled: &str) -> String {
    C::shape(spelled)
}

/// Returns the name of a codec on the wire.
pub const fn codec_name<C: Codec>() -> CodecName {
    const { CodecName::new(C::NAME) }
}

pub(crate) fn encode<C: CodecOf<T>, T>(value: &T) -> Result<FrameBuf> {
    let mut body = BodyBuf(empty_frame());
    match C::encode(value, &mut body) {
        Ok(()) => Ok(body.0),
        Err(why) => {
            let what = format!("it cannot be encoded: {why}");
            Err(Status::not_started(Code::BadRequest, what))
        }
    }
}

/// Decodes the end of a call whose method fails with a [`Status`].
pub fn result<C: CodecOf<T>, T>(code: u32, body: Bytes) -> Result<T> {
    match code {
        0 => C::decode(&body).map_err(undecodable),
        _ => Err(another_type()),
    }
}

/// As `result`, for a method that returns `Bytes`.
pub fn bytes_result(code: u32, body: Bytes) -> Result<Bytes> {
    match code {
        0 => Ok(body),
        _ => Err(another_type()),
    }
}

/// Decodes the end of a call whose method has its own error type.
pub fn typed_result<C, T, E>(code: u32, body: Bytes) -> Result<T, CallError<E>>
where
    C: CodecOf<T> + CodecOf<E>,
{
    match code {
        TYPED_ERROR => Err(application_error::<C, E>(&body)),
        _ => Ok(result::<C, T>(code, body)?),
    }
}

/// As `typed_result`, for a method that returns `Bytes`.
pub fn typed_bytes<C: CodecOf<E>, E>(code: u32, body: Bytes) -> Result<Bytes, CallError<E>> {
    match code {
        TYPED_ERROR => Err(application_error::<C, E>(&body)),
        _ => Ok(bytes_result(code, body)?),
    }
}

pub(crate) fn decode_item<C: CodecOf<T>, T>(body: &[u8]) -> Result<T> {
    C::decode(body).map_err(|why| {
        let what = format!("an item cannot be decoded: {why}");
        Status::new(Code::BadRequest, what)
    })
}

pub(crate) fn application_error<C: CodecOf<E>, E>(body: &[u8]) -> CallError<E> {
    match C::decode(body) {
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

pub(crate) fn another_type() -> Status {
    Status::new(
        Code::Internal,
        "the answer is an error of a type that is not known",
    )
}
