//! One completion: the operation that ended, its result, and the buffers that it returns.

use std::fmt;
use std::net::SocketAddr;

use smallvec::SmallVec;

use super::source::Source;
use crate::buf::Buffer;
use crate::error::{Error, OperationKind};
use crate::id::{EndpointId, FabricAddr, UserContext};

bitflags::bitflags! {
    /// The kind of operation that a completion reports, with libfabric's bit values (`fi_cq(3)`,
    /// "Completion Flags").
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
    /// use tokio_fabric::cq::CompletionFlags;
    /// use tokio_fabric::testing::Net;
    ///
    /// let (a, b) = Net::loopback().pair().await?;
    /// b.recv(vec![0; 8]).queue(1).await?;
    /// a.send("hello").await?;
    /// let completion = b.receive_queue().next().await.expect("it is open");
    /// assert_eq!(completion.flags, CompletionFlags::MSG | CompletionFlags::RECV);
    /// # Ok(()) }
    /// ```
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
        /// A read that this process initiated (`FI_READ`).
        const READ = 1 << 8;
        /// A write that this process initiated (`FI_WRITE`).
        const WRITE = 1 << 9;
        /// A receive (`FI_RECV`).
        const RECV = 1 << 10;
        /// A send (`FI_SEND`).
        const SEND = 1 << 11;
        /// A write that a peer initiated (`FI_REMOTE_WRITE`).
        const REMOTE_WRITE = 1 << 13;
        /// The library has released a buffer for several messages (`FI_MULTI_RECV`). Together with
        /// [`RECV`](Self::RECV): this message was the last one in it.
        const MULTI_RECV = 1 << 16;
        /// The peer sent completion data; it is in [`Completion::data`] (`FI_REMOTE_CQ_DATA`).
        const REMOTE_CQ_DATA = 1 << 17;
        /// A receive of a claimed message (`FI_CLAIM`).
        const CLAIM = 1 << 59;
    }
}

/// The result of one queued operation, or the report of a peer's write that carried data
/// (`fi_cq_tagged_entry` and `fi_cq_err_entry` of `fi_cq(3)` in one).
///
/// It returns the operation's buffers.
///
/// ```
/// use tokio_fabric::UserContext;
/// use tokio_fabric::testing::Net;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let (a, b) = Net::loopback().pair().await?;
/// b.recv(vec![0; 8]).queue(42).await?;
/// a.send("hello").await?;
/// let completion = b.receive_queue().next().await.expect("it is open");
/// assert_eq!(completion.context, UserContext(42));
/// assert!(completion.result.is_ok());
/// assert_eq!(completion.len, 5);
/// # Ok(()) }
/// ```
#[doc(alias = "fi_cq_entry")]
#[derive(Debug)]
#[non_exhaustive]
pub struct Completion {
    /// The context the operation was posted with. `UserContext(0)` (NULL in `fi_cq(3)`) for a
    /// peer's write with completion data, which has no post on this side.
    pub context: UserContext,
    /// The kind of the operation.
    pub operation: OperationKind,
    /// The kind of the operation, as libfabric's flags.
    pub flags: CompletionFlags,
    /// For a receive, the number of bytes in its buffer, also if the message was truncated. For a
    /// peer's write, the number of bytes written. Otherwise 0.
    pub len: usize,
    /// The offset of the message in a buffer for several messages, in bytes from the start of the
    /// posted buffer (`buf` of `fi_cq_data_entry`). Otherwise 0.
    pub offset: usize,
    /// The data that the peer sent with the message or write, in host byte order; `Some` exactly if
    /// [`CompletionFlags::REMOTE_CQ_DATA`] is set.
    pub data: Option<u64>,
    /// The tag of a tagged message that was received.
    pub tag: Option<u64>,
    /// The endpoint of the operation.
    pub endpoint: EndpointId,
    /// Whether the operation succeeded.
    pub result: Result<(), CompletionError>,
    source: Option<Source>,
    buffers: SmallVec<[Buffer; 1]>,
}

impl Completion {
    /// The sender of the message that was received (`FI_SOURCE`; `fi_cq_readfrom`), if it is in the
    /// endpoint's address vector: looked up now for a reliable sender, and at arrival for the
    /// sender of a datagram. `None` otherwise (`FI_ADDR_NOTAVAIL`), and if this is not a message
    /// that was received by a connectionless endpoint.
    #[doc(alias("fi_cq_readfrom", "fi_cq_sreadfrom"))]
    pub fn source(&self) -> Option<FabricAddr> {
        self.source.as_ref()?.name().fabric
    }

    /// The application's identifier of the sender: the one its address was inserted with
    /// (`FI_AV_USER_ID`).
    pub fn source_user_id(&self) -> Option<u64> {
        self.source.as_ref()?.name().user_id
    }

    /// The sender's address, whether or not it is in the address vector. For a reliable sender this
    /// is the address at which it listens. Insert it into the vector to answer an unknown sender.
    /// `None` once the endpoint is closed, except for a datagram.
    pub fn source_addr(&self) -> Option<SocketAddr> {
        self.source.as_ref()?.name().address
    }

    /// Creates a success without length, data or buffers.
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

    /// Sets the data and the flag for it.
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

    /// Takes the operation's buffer; for a vectored operation, the first one that has not been
    /// taken yet, in the order in which they were passed. `None` if there are no more: an operation
    /// on region slices or inlined bytes returns no buffers. Buffers that are not taken are freed
    /// with the completion.
    pub fn take_buffer(&mut self) -> Option<Buffer> {
        (!self.buffers.is_empty()).then(|| self.buffers.remove(0))
    }

    /// Takes all buffers that have not been taken yet, in the order in which they were passed.
    pub fn take_buffers(&mut self) -> Vec<Buffer> {
        std::mem::take(&mut self.buffers).into_vec()
    }

    /// How many buffers are left to take.
    pub fn buffer_count(&self) -> usize {
        self.buffers.len()
    }
}

/// The cause of an operation's failure, and how far the operation got (`fi_cq_err_entry`).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::ErrorKind;
/// use tokio_fabric::testing::Net;
///
/// let (a, b) = Net::loopback().pair().await?;
/// b.recv(vec![0; 4]).queue(1).await?;
/// a.send("too long").await?;
/// let completion = b.receive_queue().next().await.expect("it is open");
/// let failed = completion.result.as_ref().unwrap_err();
/// assert_eq!(failed.error.kind(), ErrorKind::Truncated);
/// assert_eq!((completion.len, failed.overflow_len), (4, 4)); // Received, discarded.
/// # Ok(()) }
/// ```
#[doc(alias("fi_cq_err_entry", "fi_cq_readerr", "fi_cq_strerror"))]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CompletionError {
    /// The reason: `err` is [`Error::fi_errno`], `err_data` is [`Error::data`].
    pub error: Error,
    /// `olen`: bytes of a message that did not fit into its receive buffer and were discarded. 0
    /// for other failures.
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
