//! One completion: which operation ended, how, and the buffers it gives back.

use std::fmt;
use std::net::SocketAddr;

use super::source::SourceName;
use crate::buf::Buffer;
use crate::error::{Error, OperationKind};
use crate::id::{Context, EndpointId, FabricAddr};

bitflags::bitflags! {
    /// What kind of operation a completion is of, with libfabric's bit values (`fi_cq(3)`,
    /// "Completion Flags").
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CompletionFlags: u64 {
        /// A message operation (`FI_MSG`).
        const MSG = 1 << 1;
        /// An RMA operation (`FI_RMA`).
        const RMA = 1 << 2;
        /// A read this process began (`FI_READ`).
        const READ = 1 << 8;
        /// A write this process began (`FI_WRITE`).
        const WRITE = 1 << 9;
        /// A receive (`FI_RECV`).
        const RECV = 1 << 10;
        /// A send (`FI_SEND`).
        const SEND = 1 << 11;
        /// A write a peer began (`FI_REMOTE_WRITE`).
        const REMOTE_WRITE = 1 << 13;
        /// The peer sent completion data; it is in [`Completion::data`] (`FI_REMOTE_CQ_DATA`).
        const REMOTE_CQ_DATA = 1 << 17;
    }
}

/// The end of one operation, or the announcement of data that came unasked (`fi_cq_tagged_entry`
/// and `fi_cq_err_entry` of `fi_cq(3)` in one).
#[derive(Debug)]
#[non_exhaustive]
pub struct Completion {
    /// The context the operation was posted with; `Context(0)` for what nobody posted, as
    /// `fi_cq(3)` says NULL: a peer's write that carried completion data.
    pub context: Context,
    /// What ended.
    pub operation: OperationKind,
    /// What ended, in libfabric's terms.
    pub flags: CompletionFlags,
    /// Of a receive: the bytes placed in its buffer, also when it was truncated. Of a peer's write:
    /// the bytes written. 0 of what else there is.
    pub len: usize,
    /// What the peer sent along, in host byte order; `Some` exactly if
    /// [`CompletionFlags::REMOTE_CQ_DATA`] is set.
    pub data: Option<u64>,
    /// The tag of a tagged message that was received.
    pub tag: Option<u64>,
    /// The endpoint of the operation.
    pub endpoint: EndpointId,
    /// How it ended.
    pub result: Result<(), CompletionError>,
    source: Option<SourceName>,
    buffers: Few<Buffer>,
}

impl Completion {
    /// Who sent the message that was received (`FI_SOURCE`; `fi_cq_readfrom`), as far as the
    /// endpoint's address vector knew the sender then. `None` otherwise (`FI_ADDR_NOTAVAIL`), and
    /// of whatever is no message received by a connectionless endpoint.
    pub fn source(&self) -> Option<FabricAddr> {
        self.source.and_then(|source| source.fabric)
    }

    /// What the application calls the sender: the identifier that its address was inserted with
    /// (`FI_AV_USER_ID`).
    pub fn source_user_id(&self) -> Option<u64> {
        self.source.and_then(|source| source.user_id)
    }

    /// The sender's address, whether or not the address vector has it: what to insert there to
    /// answer a sender that is not known.
    pub fn source_addr(&self) -> Option<SocketAddr> {
        self.source.and_then(|source| source.address)
    }

    /// A success without length, data or buffers.
    pub(crate) fn new(
        endpoint: EndpointId,
        context: Context,
        operation: OperationKind,
        flags: CompletionFlags,
    ) -> Self {
        debug_assert!(
            !flags.contains(CompletionFlags::REMOTE_CQ_DATA),
            "with_data sets it"
        );
        Completion {
            context,
            operation,
            flags,
            len: 0,
            data: None,
            tag: None,
            endpoint,
            result: Ok(()),
            source: None,
            buffers: Few::None,
        }
    }

    pub(crate) fn with_source(mut self, source: Option<SourceName>) -> Self {
        self.source = source;
        self
    }

    pub(crate) fn with_len(mut self, len: usize) -> Self {
        self.len = len;
        self
    }

    /// Sets the data and the flag that announces it.
    pub(crate) fn with_data(mut self, data: u64) -> Self {
        self.data = Some(data);
        self.flags |= CompletionFlags::REMOTE_CQ_DATA;
        self
    }

    pub(crate) fn with_error(mut self, error: CompletionError) -> Self {
        self.result = Err(error);
        self
    }

    pub(crate) fn with_buffers(mut self, buffers: Vec<Buffer>) -> Self {
        self.buffers = Few::from(buffers);
        self
    }

    /// Takes the operation's buffer; of a vectored operation, the first that was not taken yet, in
    /// the order in which they were given. `None` when there are no more: an operation on region
    /// slices or inlined bytes gives nothing back. Buffers not taken are freed with the completion.
    pub fn take_buffer(&mut self) -> Option<Buffer> {
        self.buffers.take_first()
    }

    /// Takes all buffers that were not taken yet, in the order in which they were given.
    pub fn take_buffers(&mut self) -> Vec<Buffer> {
        std::iter::from_fn(|| self.take_buffer()).collect()
    }

    /// How many buffers are left to take.
    pub fn buffer_count(&self) -> usize {
        self.buffers.len()
    }
}

/// Why an operation failed, and how far it came (`fi_cq_err_entry`).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CompletionError {
    /// The reason: `err` is [`Error::fi_errno`], `err_data` is [`Error::data`].
    pub error: Error,
    /// `olen`: bytes of a message that did not fit its receive buffer and were discarded. 0 of
    /// other failures.
    pub overflow_len: usize,
}

impl CompletionError {
    pub(crate) fn new(error: Error) -> Self {
        CompletionError {
            error,
            overflow_len: 0,
        }
    }

    pub(crate) fn with_overflow_len(mut self, overflow_len: usize) -> Self {
        self.overflow_len = overflow_len;
        self
    }
}

impl From<CompletionError> for Error {
    fn from(failed: CompletionError) -> Self {
        failed.error
    }
}

impl fmt::Display for CompletionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)?;
        if self.overflow_len > 0 {
            write!(f, " ({} bytes did not fit)", self.overflow_len)?;
        }
        Ok(())
    }
}

impl std::error::Error for CompletionError {}

/// None, one, or several, in order. One, the usual case, needs no allocation: completions are made
/// where nothing may fail.
#[derive(Debug)]
enum Few<T> {
    None,
    One(T),
    Many(std::vec::IntoIter<T>),
}

impl<T> Few<T> {
    fn take_first(&mut self) -> Option<T> {
        match std::mem::replace(self, Few::None) {
            Few::None => None,
            Few::One(item) => Some(item),
            Few::Many(mut items) => {
                let first = items.next();
                *self = Few::Many(items);
                first
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Few::None => 0,
            Few::One(_) => 1,
            Few::Many(items) => items.len(),
        }
    }
}

impl<T> From<Vec<T>> for Few<T> {
    fn from(mut items: Vec<T>) -> Self {
        match items.len() {
            0 => Few::None,
            1 => items.pop().map_or(Few::None, Few::One),
            _ => Few::Many(items.into_iter()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "Same types back, exact same order": a vectored operation's buffers come as they were given.
    #[test]
    fn buffers_come_back_in_the_order_given() {
        for count in 0..5 {
            let mut few = Few::from((0..count).collect::<Vec<_>>());
            for expected in 0..count {
                assert_eq!(few.len(), count - expected);
                assert_eq!(few.take_first(), Some(expected));
            }
            assert_eq!((few.len(), few.take_first()), (0, None));
        }
    }
}
