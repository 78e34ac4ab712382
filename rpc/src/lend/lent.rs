//! One piece of memory that a call lends and gets back.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use tokio_fabric::buf::MappedBuffer;
use tokio_fabric::mr::ReadOnlyRegion;
use tokio_fabric::{Access, Domain, Error, MemoryRegion, RemoteRegion};

use crate::caught::log;

/// Memory that can be lent for reading; [`Lend::read`](super::Lend::read) lists the types. Sealed.
pub trait LendBuf: sealed::Register {}

/// Memory that can be lent for writing; [`Lend::write`](super::Lend::write) lists the types.
/// Sealed.
pub trait LendBufMut: LendBuf {}

pub(super) mod sealed {
    use super::{Access, Domain, Error, Future, Pin, RemoteRegion};

    /// The future that returns a buffer.
    pub type Return<B> = Pin<Box<dyn Future<Output = Result<B, Error>> + Send>>;

    /// The conversion of a buffer to a region, and back.
    pub trait Register: Send + Sized + Unpin + 'static {
        /// The registered region.
        type Region: Send + Unpin + 'static;

        /// Registers the buffer, or returns it with the error.
        fn register(
            self,
            domain: &Domain,
            access: Access,
        ) -> Result<Self::Region, (Error, Option<Self>)>;
        /// Returns the description that the peer needs.
        fn remote(region: &Self::Region) -> RemoteRegion;
        /// Refuses new accesses from now on.
        fn revoke_now(region: &Self::Region);
        /// Voids the key at the first poll; completes when nothing uses the memory.
        fn deregister(region: &Self::Region) -> Return<Self>;
    }
}

use sealed::{Register, Return};

macro_rules! lend {
    ($region:ident, $register:ident: $($buffer:ty),*) => { $(
        impl LendBuf for $buffer {}

        impl Register for $buffer {
            type Region = $region<$buffer>;

            fn register(
                self,
                domain: &Domain,
                access: Access,
            ) -> Result<Self::Region, (Error, Option<Self>)> {
                let registered = domain.$register(self).access(access).now();
                registered.map_err(|failed| failed.into_parts())
            }

            fn remote(region: &Self::Region) -> RemoteRegion {
                region.remote()
            }

            fn revoke_now(region: &Self::Region) {
                region.revoke_now();
            }

            fn deregister(region: &Self::Region) -> Return<Self> {
                Box::pin(region.deregister())
            }
        }
    )* };
}

lend!(MemoryRegion, register: Vec<u8>, Box<[u8]>, BytesMut, MappedBuffer);
lend!(ReadOnlyRegion, register_read_only: Bytes, Arc<[u8]>, &'static [u8], &'static str);

impl LendBufMut for Vec<u8> {}
impl LendBufMut for Box<[u8]> {}
impl LendBufMut for BytesMut {}
impl LendBufMut for MappedBuffer {}

enum State<B: Register> {
    Owned(B),
    Lent(B::Region),
    Returning(Return<B>),
    Gone,
}

/// A piece of memory that is lent with one kind of right.
pub(super) struct LentMemory<B: Register> {
    state: State<B>,
}

impl<B: Register> LentMemory<B> {
    fn lend(&mut self, domain: &Domain, access: Access) -> Result<RemoteRegion, Error> {
        let State::Owned(buffer) = std::mem::replace(&mut self.state, State::Gone) else {
            unreachable!("a piece is lent once");
        };
        match buffer.register(domain, access) {
            Ok(region) => {
                let remote = B::remote(&region);
                self.state = State::Lent(region);
                // The handler gets only the right for which the memory was lent.
                Ok(RemoteRegion { access, ..remote })
            }
            Err((error, buffer)) => {
                self.state = buffer.map_or(State::Gone, State::Owned);
                Err(error)
            }
        }
    }

    /// Takes the memory back. Ready once no peer can access it; `false`: the memory is lost.
    fn poll_return(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        if let State::Lent(region) = &self.state {
            self.state = State::Returning(B::deregister(region));
        }
        if let State::Returning(returning) = &mut self.state {
            self.state = match ready!(returning.as_mut().poll(cx)) {
                Ok(buffer) => State::Owned(buffer),
                Err(error) => {
                    log(|| tracing::error!(%error, "lent memory did not come back"));
                    State::Gone
                }
            };
        }
        Poll::Ready(matches!(self.state, State::Owned(_)))
    }

    fn take(&mut self) -> Option<B> {
        match std::mem::replace(&mut self.state, State::Gone) {
            State::Owned(buffer) => Some(buffer),
            _ => None,
        }
    }
}

/// Revokes access now: the region is deregistered only when its last handle is dropped.
impl<B: Register> Drop for LentMemory<B> {
    fn drop(&mut self) {
        if let State::Lent(region) = &self.state {
            B::revoke_now(region);
        }
    }
}

macro_rules! lent {
    ($(#[$doc:meta])* $name:ident, $bound:ident, $access:expr) => {
        $(#[$doc])*
        #[must_use = "it is lent to a call"]
        pub struct $name<B: $bound>(LentMemory<B>);

        impl<B: $bound> $name<B> {
            pub(super) fn new(buffer: B) -> Self {
                $name(LentMemory {
                    state: State::Owned(buffer),
                })
            }

            pub(crate) fn lend(&mut self, domain: &Domain) -> Result<RemoteRegion, Error> {
                self.0.lend(domain, $access)
            }

            pub(crate) fn poll_return(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
                self.0.poll_return(cx)
            }

            pub(crate) fn take(&mut self) -> Option<B> {
                self.0.take()
            }
        }

        impl<B: $bound> fmt::Debug for $name<B> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let state = match &self.0.state {
                    State::Owned(_) => "owned",
                    State::Lent(_) => "lent",
                    State::Returning(_) => "returning",
                    State::Gone => "given back",
                };
                f.debug_tuple(stringify!($name)).field(&state).finish()
            }
        }
    };
}

macro_rules! shared {
    ($($buffer:ty),*) => { $(
        /// A clone lends the same shared bytes to another call.
        impl Clone for LentRead<$buffer> {
            fn clone(&self) -> Self {
                LentRead(LentMemory {
                    state: match &self.0.state {
                        State::Owned(buffer) => State::Owned(buffer.clone()),
                        _ => State::Gone,
                    },
                })
            }
        }
    )* };
}

shared!(Bytes, Arc<[u8]>, &'static [u8], &'static str);

lent!(
    /// Memory that a handler may read. You get one from [`Lend::read`](super::Lend::read).
    LentRead, LendBuf, Access::REMOTE_READ
);
lent!(
    /// Memory that a handler may write to. You get one from [`Lend::write`](super::Lend::write).
    LentWrite, LendBufMut, Access::REMOTE_WRITE
);
