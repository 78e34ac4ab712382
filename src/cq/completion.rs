//! One completion: which operation ended, how, and the buffers it gives back.

use std::fmt;
use std::net::SocketAddr;

use smallvec::SmallVec;

use super::source::Source;
use crate::buf::Buffer;
use crate::error::{Error, OperationKind};
use crate::id::{EndpointId, FabricAddr, UserContext};

bitflags::bitflags! {
    /// What kind of operation a completion is of, with libfabric's bit values (`fi_cq(3)`,
    /// "Completion Flags").
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CompletionFlags: u64 {
        /// A message operation (`FI_MSG`).
        const MSG = 1 << 1;
        /// An RMA operation (`FI_RMA`).
        const RMA = 1 << 2;
        /// A tagged message operation (`FI_TAGGED`).
        const TAGGED = 1 << 3;
        /// An atomic operation (`FI_ATOMIC`).
        const ATOMIC = 1 << 4;
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
        /// A buffer for several messages has been consumed and is the library's no more
        /// (`FI_MULTI_RECV`); with [`RECV`](Self::RECV), this message was the last in it.
        const MULTI_RECV = 1 << 16;
        /// The peer sent completion data; it is in [`Completion::data`] (`FI_REMOTE_CQ_DATA`).
        const REMOTE_CQ_DATA = 1 << 17;
        /// A receive of a message that had been claimed (`FI_CLAIM`).
        const CLAIM = 1 << 59;
    }
}

/// The end of one operation, or the announcement of data that came unasked (`fi_cq_tagged_entry`
/// and `fi_cq_err_entry` of `fi_cq(3)` in one).
#[doc(alias("fi_cq_entry", "fi_cq_readfrom", "fi_cq_sreadfrom"))]
#[derive(Debug)]
#[non_exhaustive]
pub struct Completion {
    /// The context the operation was posted with; `UserContext(0)` for what was not posted, as
    /// `fi_cq(3)` says NULL: a peer's write that carried completion data.
    pub context: UserContext,
    /// What ended.
    pub operation: OperationKind,
    /// What ended, in libfabric's terms.
    pub flags: CompletionFlags,
    /// Of a receive: the bytes placed in its buffer, also when it was truncated. Of a peer's write:
    /// the bytes written. 0 of what else there is.
    pub len: usize,
    /// Where the message lies in a buffer for several messages, in bytes from the start of what was
    /// posted (`buf` of `fi_cq_data_entry`). 0 of what else there is.
    pub offset: usize,
    /// What the peer sent along, in host byte order; `Some` exactly if
    /// [`CompletionFlags::REMOTE_CQ_DATA`] is set.
    pub data: Option<u64>,
    /// The tag of a tagged message that was received.
    pub tag: Option<u64>,
    /// The endpoint of the operation.
    pub endpoint: EndpointId,
    /// How it ended.
    pub result: Result<(), CompletionError>,
    source: Option<Source>,
    buffers: SmallVec<[Buffer; 1]>,
}

impl Completion {
    /// Who sent the message that was received (`FI_SOURCE`; `fi_cq_readfrom`), as far as the
    /// endpoint's address vector knows the sender: a reliable sender now, that of a datagram when
    /// it came. `None` otherwise (`FI_ADDR_NOTAVAIL`), and of whatever is no message received by a
    /// connectionless endpoint.
    pub fn source(&self) -> Option<FabricAddr> {
        self.source.as_ref()?.name().fabric
    }

    /// What the application calls the sender: the identifier that its address was inserted with
    /// (`FI_AV_USER_ID`).
    pub fn source_user_id(&self) -> Option<u64> {
        self.source.as_ref()?.name().user_id
    }

    /// The sender's address, where it listens if it is reliable, whether or not the address vector
    /// has it: what to insert there to answer a sender that is not known. `None` once the endpoint
    /// is closed, except of a datagram.
    pub fn source_addr(&self) -> Option<SocketAddr> {
        self.source.as_ref()?.name().address
    }

    /// A success without length, data or buffers.
    pub(crate) fn new(
        endpoint: EndpointId,
        context: UserContext,
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
            offset: 0,
            data: None,
            tag: None,
            endpoint,
            result: Ok(()),
            source: None,
            buffers: SmallVec::new(),
        }
    }

    pub(crate) fn with_tag(mut self, tag: u64) -> Self {
        self.tag = Some(tag);
        self
    }

    pub(crate) fn with_source(mut self, source: Source) -> Self {
        self.source = Some(source);
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

    pub(crate) fn with_buffers(mut self, buffers: SmallVec<[Buffer; 1]>) -> Self {
        self.buffers = buffers;
        self
    }

    /// Takes the operation's buffer; of a vectored operation, the first that was not taken yet, in
    /// the order in which they were given. `None` when there are no more: an operation on region
    /// slices or inlined bytes gives nothing back. Buffers not taken are freed with the completion.
    pub fn take_buffer(&mut self) -> Option<Buffer> {
        (!self.buffers.is_empty()).then(|| self.buffers.remove(0))
    }

    /// Takes all buffers that were not taken yet, in the order in which they were given.
    pub fn take_buffers(&mut self) -> Vec<Buffer> {
        std::mem::take(&mut self.buffers).into_vec()
    }

    /// How many buffers are left to take.
    pub fn buffer_count(&self) -> usize {
        self.buffers.len()
    }
}

/// Why an operation failed, and how far it came (`fi_cq_err_entry`).
#[doc(alias("fi_cq_err_entry", "fi_cq_readerr", "fi_cq_strerror"))]
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
