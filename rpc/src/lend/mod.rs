//! Memory that a call lends, and what the handler does with it.
//!
//! The caller's end ([`Lend`]) registers the memory for the call alone, under a key of its own, and
//! voids the key when the call ends. The handler's end ([`Pull`], [`Push`]) reads and writes it by
//! RMA, in chunks, out of memory that is the server's.

mod body;
mod bulk;
mod lent;
mod loan;

pub(crate) use body::{BodyRoom, fetch};
pub(crate) use bulk::{Bulk, ChunkPool};
pub use bulk::{BulkSource, Chunk, Chunks, Pull, Push};
pub use lent::{LendBuf, LendBufMut, LentRead, LentWrite};
pub use loan::{FailedCall, LendingCall, LendingFuture, Loan};

/// Lends memory to a call. See [`Lend::read`] and [`Lend::write`].
///
/// When the call's future is ready, no peer reads or writes what was lent, and the caller has it
/// back: beside the result, or in [`FailedCall`]. When the future is dropped, every new access is
/// refused from then on, and the memory is freed as soon as the system does not use it any more.
#[derive(Clone, Copy, Debug)]
pub struct Lend;

impl Lend {
    /// For the handler to read, where its method takes a [`Pull`]: owned memory (`Vec<u8>`,
    /// `Box<[u8]>`, `BytesMut`, `MappedBuffer`), or bytes that never change (`Bytes`, `Arc<[u8]>`,
    /// `&'static [u8]`, `&'static str`).
    pub fn read<B: LendBuf>(buffer: B) -> LentRead<B> {
        LentRead::new(buffer)
    }

    /// For the handler to write to, where its method takes a [`Push`]: owned memory.
    pub fn write<B: LendBufMut>(buffer: B) -> LentWrite<B> {
        LentWrite::new(buffer)
    }
}
