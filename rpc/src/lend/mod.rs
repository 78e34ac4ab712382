//! Memory that a call lends, on the caller's and the handler's side.
//!
//! The caller's side ([`Lend`]) registers the memory for this call alone, under its own key, and
//! voids the key when the call ends. The handler's side ([`Pull`], [`Push`]) reads and writes the
//! memory by RMA, in chunks of the server's memory.

mod body;
mod bulk;
mod depth;
mod lent;
mod push;

pub(crate) use body::{BodyRoom, fetch};
pub(crate) use bulk::{Bulk, ChunkPool};
pub use bulk::{Chunk, Chunks, Pull};
pub use lent::{LendBuf, LendBufMut, LentRead, LentWrite};
pub use push::{BulkSource, Push};

/// Lends memory to a call: [`Lend::read`] for a method's [`Pull`] arguments, [`Lend::write`] for
/// its [`Push`] arguments.
///
/// When the call's future is ready, no peer can access the memory any more, and the caller has the
/// memory back: with the result, or in [`FailedCall`](crate::FailedCall). When the future is
/// dropped, new accesses are refused from then on, and the memory is freed once the system no
/// longer uses it.
///
/// ```
/// use tokio_fabric_rpc::{Cx, Lend, Pull, Push, Result, service, testing};
///
/// #[service]
/// trait Reverse {
///     async fn reverse(&self, cx: &Cx, from: Pull, into: Push) -> Result<()>;
/// }
/// struct Reverser;
/// impl Reverse for Reverser {
///     async fn reverse(&self, _: &Cx, from: Pull, into: Push) -> Result<()> {
///         let mut bytes = from.read(1 << 20).await?; // Refuses more than 1 MiB.
///         bytes.reverse();
///         into.write(bytes).await?;
///         Ok(())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<()> {
/// let (channel, _server) = testing::pair(ReverseServer::new(Reverser)).await?;
/// let client = ReverseClient::over(channel);
/// let lent = (Lend::read("abc"), Lend::write(vec![0; 3]));
/// let ((), (_, reversed)) = client.reverse(lent.0, lent.1).await?;
/// assert_eq!(reversed, b"cba");
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Lend;

impl Lend {
    /// Memory that the handler may read, for a [`Pull`] argument: owned memory (`Vec<u8>`,
    /// `Box<[u8]>`, `BytesMut`, `MappedBuffer`), or bytes that never change (`Bytes`, `Arc<[u8]>`,
    /// `&'static [u8]`, `&'static str`).
    pub fn read<B: LendBuf>(buffer: B) -> LentRead<B> {
        LentRead::new(buffer)
    }

    /// Memory that the handler may write to, for a [`Push`] argument: owned memory (`Vec<u8>`,
    /// `Box<[u8]>`, `BytesMut`, `MappedBuffer`). Its length is lent, not its capacity: use
    /// `vec![0; n]`.
    pub fn write<B: LendBufMut>(buffer: B) -> LentWrite<B> {
        LentWrite::new(buffer)
    }
}
