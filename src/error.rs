//! One error type for every call and every failed operation: the cause ([`ErrorKind`]), the
//! operation, its phase, and the peer. Each kind has a number from `fi_errno(3)`.

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;

mod operation;
mod refusal;

pub use operation::{OperationKind, Phase};
pub use refusal::Refusal;

/// The cause of an [`Error`].
///
/// A kind identifies what went wrong, so that a program can choose a remedy; the text of the error
/// suggests one.
///
/// ```
/// use std::time::Duration;
/// use tokio_fabric::ErrorKind;
/// use tokio_fabric::testing::Net;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let (a, b) = Net::loopback().pair().await?;
/// let late = b.recv(vec![0; 8]).timeout(Duration::from_millis(5)).await.unwrap_err();
/// match late.kind() {
///     // Connect again. A peer that has fallen silent is TimedOut too: ask this first.
///     _ if late.error().is_connection_lost() => {}
///     ErrorKind::TimedOut => {} // The time limit of this call passed: ask again.
///     ErrorKind::Again => {}    // Something is full: the error says what.
///     kind => panic!("{kind:?}"),
/// }
/// # drop(a);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A resource that the call needs is full or in use at the moment; the same call may succeed
    /// later (`FI_EAGAIN`).
    #[doc(alias = "FI_EAGAIN")]
    Again,
    /// The object is in use by others; the message names them (`FI_EBUSY`).
    Busy,
    /// An argument is invalid; the message names it (`FI_EINVAL`).
    InvalidArgument,
    /// The object is not in a state that allows this call (`FI_EOPBADSTATE`).
    BadState,
    /// The endpoint has no connection yet (`FI_ENOTCONN`).
    NotConnected,
    /// The endpoint is connected or connecting already (`FI_EISCONN`).
    AlreadyConnected,
    /// No listener has that address, or the peer rejected the request; [`Error::data`] has its
    /// answer (`FI_ECONNREFUSED`).
    ConnectionRefused,
    /// The peer closed the connection before the operation ended (`FI_ESHUTDOWN`).
    PeerClosed,
    /// The connection was reset: the peer died, or refused something (`FI_ECONNRESET`).
    ConnectionReset,
    /// No route to that address (`FI_EHOSTUNREACH`).
    Unreachable,
    /// The time limit of a call has passed and its connection is alive; or the peer has been silent
    /// for so long that it is considered dead, and [`Error::is_connection_lost`] is true
    /// (`FI_ETIMEDOUT`).
    TimedOut,
    /// The operation was cancelled by its owner, or its endpoint was closed (`FI_ECANCELED`).
    #[doc(alias = "FI_ECANCELED")]
    Canceled,
    /// The peer broke the protocol; the connection is gone (`FI_EREMOTEIO`).
    ProtocolViolation,
    /// The peer speaks another protocol or version (`FI_ENOPROTOOPT`).
    Incompatible,
    /// The message was larger than the buffer; the part that fits was received (`FI_ETRUNC`).
    Truncated,
    /// A message or vector is larger than the limit allows (`FI_EMSGSIZE`).
    TooLarge,
    /// A buffer is too small for its contents (`FI_ETOOSMALL`).
    TooSmall,
    /// The requested key is already in use (`FI_ENOKEY`).
    KeyInUse,
    /// The requested key is not available: it is out of range, or the provider chooses the keys
    /// (`FI_EKEYREJECTED`).
    KeyRejected,
    /// One of the two sides of a connection has an authorization key that the other does not have
    /// or prove, or demands a TLS certificate that the other does not have (`FI_EKEYREJECTED`).
    NotAuthorized,
    /// The region does not grant this access, or the range is outside of it (`FI_EACCES`); if the
    /// peer refused it, [`Error::refusal`] has its reason.
    AccessDenied,
    /// The memory does not exist: a page of an address range is not mapped, or not for this kind of
    /// access (`FI_EFAULT`).
    BadAddress,
    /// These flags are not supported here (`FI_EBADFLAGS`).
    #[doc(alias = "FI_EBADFLAGS")]
    BadFlags,
    /// Nothing available matches the hints, or nothing has the requested name (`FI_ENODATA`).
    NoMatch,
    /// The call needs a capability, or a direction of one, that the endpoint or domain was opened
    /// without; the message names it (`FI_EOPNOTSUPP`).
    NoCapability,
    /// Not supported by this object (`FI_ENOSYS`).
    Unsupported,
    /// The address is in use (`FI_EADDRINUSE`).
    AddressInUse,
    /// The address does not belong to this machine; or the peer has no such context, or has closed
    /// it ([`AddressVector::rx_addr`](crate::AddressVector::rx_addr); `FI_EADDRNOTAVAIL`).
    AddressNotAvailable,
    /// A system limit was reached: memory, descriptors (`FI_ENOMEM`).
    LimitReached,
    /// No waiting message matches (`FI_ENOMSG`).
    NoMessage,
    /// The peer has no receive for the message and will not have one: it is closing, or its
    /// endpoint was opened without receives. The message was not delivered, so it may be sent again
    /// (`FI_ENORX`).
    #[doc(alias = "FI_ENORX")]
    NoReceive,
    /// Operations failed while a counter was awaited; their errors are reported elsewhere
    /// (`FI_EAVAIL`).
    ErrorAvailable,
    /// An asynchronous call needs an event queue, and none is bound (`FI_ENOEQ`).
    NoEventQueue,
    /// Called outside of a Tokio runtime that has what the backend needs (`FI_ENOEQ`, in the
    /// absence of a better number).
    NoRuntime,
    /// The progress driver has ended, with its runtime or because the system refuses its ring
    /// ([`Error::os_error`] then has the number): open a new domain (`FI_EOTHER`).
    DriverGone,
    /// The operating system reported an error; [`Error::os_error`] has its number.
    System,
}

impl ErrorKind {
    /// The positive libfabric number of this kind (`fi_errno(3)`). For [`ErrorKind::System`] prefer
    /// [`Error::fi_errno`], which returns the system's own number.
    pub fn fi_errno(self) -> i32 {
        match self {
            ErrorKind::Again => 11,
            ErrorKind::Busy => 16,
            ErrorKind::InvalidArgument => 22,
            ErrorKind::BadState => 258,
            ErrorKind::NotConnected => 107,
            ErrorKind::AlreadyConnected => 106,
            ErrorKind::ConnectionRefused => 111,
            ErrorKind::PeerClosed => 108,
            ErrorKind::ConnectionReset => 104,
            ErrorKind::Unreachable => 113,
            ErrorKind::TimedOut => 110,
            ErrorKind::Canceled => 125,
            ErrorKind::ProtocolViolation => 121,
            ErrorKind::Incompatible => 92,
            ErrorKind::Truncated => 265,
            ErrorKind::TooLarge => 90,
            ErrorKind::TooSmall => 257,
            ErrorKind::KeyInUse => 266,
            ErrorKind::KeyRejected | ErrorKind::NotAuthorized => 129,
            ErrorKind::AccessDenied => 13,
            ErrorKind::BadAddress => 14,
            ErrorKind::BadFlags => 260,
            ErrorKind::NoMatch => 61,
            ErrorKind::NoCapability => 95,
            ErrorKind::Unsupported => 38,
            ErrorKind::AddressInUse => 98,
            ErrorKind::AddressNotAvailable => 99,
            ErrorKind::LimitReached => 12,
            ErrorKind::NoMessage => 42,
            ErrorKind::NoReceive => 269,
            ErrorKind::ErrorAvailable => 259,
            ErrorKind::NoEventQueue | ErrorKind::NoRuntime => 261,
            ErrorKind::DriverGone | ErrorKind::System => 256,
        }
    }

    fn describe(self) -> &'static str {
        match self {
            ErrorKind::Again => "full or taken right now, try again",
            ErrorKind::Busy => "in use",
            ErrorKind::InvalidArgument => "invalid argument",
            ErrorKind::BadState => "not permitted in the current state",
            ErrorKind::NotConnected => "not connected",
            ErrorKind::AlreadyConnected => "already connected or connecting",
            ErrorKind::ConnectionRefused => "connection refused",
            ErrorKind::PeerClosed => "the peer closed the connection",
            ErrorKind::ConnectionReset => "the connection was reset",
            ErrorKind::Unreachable => "the peer cannot be reached",
            ErrorKind::TimedOut => "the deadline passed",
            ErrorKind::Canceled => "canceled",
            ErrorKind::ProtocolViolation => "the peer broke the protocol",
            ErrorKind::Incompatible => "the peer speaks another protocol or version",
            ErrorKind::Truncated => "the message was larger than the buffer",
            ErrorKind::TooLarge => "larger than the limit",
            ErrorKind::TooSmall => "the buffer is too small",
            ErrorKind::KeyInUse => "the requested key is in use",
            ErrorKind::KeyRejected => "the requested key is not available",
            ErrorKind::NotAuthorized => "not authorized",
            ErrorKind::AccessDenied => "the region does not allow this access",
            ErrorKind::BadAddress => "the memory is not there",
            ErrorKind::BadFlags => "flags not supported",
            ErrorKind::NoMatch => "nothing that is there fits",
            ErrorKind::NoCapability => "opened without the capability",
            ErrorKind::Unsupported => "not supported",
            ErrorKind::AddressInUse => "address in use",
            ErrorKind::AddressNotAvailable => "address not available",
            ErrorKind::LimitReached => "a system limit was met",
            ErrorKind::NoMessage => "no such message waits",
            ErrorKind::NoReceive => "the peer has no receive",
            ErrorKind::ErrorAvailable => "operations failed",
            ErrorKind::NoEventQueue => "no event queue is bound",
            ErrorKind::NoRuntime => "no suitable Tokio runtime",
            ErrorKind::DriverGone => "the progress driver is gone",
            ErrorKind::System => "the operating system refused",
        }
    }
}

struct Inner {
    kind: ErrorKind,
    operation: Option<OperationKind>,
    phase: Option<Phase>,
    peer: Option<SocketAddr>,
    os: Option<i32>,
    refusal: Option<Refusal>,
    /// True if the error ended an established connection.
    ends_connection: bool,
    message: Cow<'static, str>,
    data: Bytes,
}

/// The error of every call, and the reason in every failed completion.
///
/// Cheap to clone, since a lost connection gives one to each of its operations.
///
/// ```
/// use tokio_fabric::testing::Net;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let (a, b) = Net::loopback().pair().await?;
/// drop(a);
/// let failed = b.recv(vec![0; 8]).await.unwrap_err();
/// let error = failed.error();
/// assert!(error.is_connection_lost());
/// println!("{error}"); // Which operation, why, and which peer.
/// println!("libfabric's number: {}", error.fi_errno());
/// # Ok(()) }
/// ```
#[doc(alias("fi_strerror", "fi_errno"))]
#[derive(Clone)]
pub struct Error(Arc<Inner>);

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Creates an error without details, for layers above this library and for tests of error handling.
impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Error {
        Error::new(kind, "")
    }
}

impl Error {
    /// Creates an error of this kind. The message gives the details and may be empty.
    pub(crate) fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Error(Arc::new(Inner {
            kind,
            operation: None,
            phase: None,
            peer: None,
            os: None,
            refusal: None,
            ends_connection: false,
            message: message.into(),
            data: Bytes::new(),
        }))
    }

    /// Creates the error of an operation that the peer refused for this reason.
    pub(crate) fn refused(reason: Refusal) -> Self {
        let kind = match reason {
            Refusal::Fault => ErrorKind::BadAddress,
            Refusal::Misaligned => ErrorKind::InvalidArgument,
            Refusal::Unsupported => ErrorKind::Unsupported,
            _ => ErrorKind::AccessDenied,
        };
        let mut this = Error::new(kind, reason.to_string());
        this.edit(|inner| inner.refusal = Some(reason));
        this
    }

    /// Creates the error of a failed system call. Causes that a caller can handle have kinds of
    /// their own.
    pub(crate) fn from_io(error: &std::io::Error, doing: &'static str) -> Self {
        use std::io::ErrorKind as Io;
        let os = error.raw_os_error();
        let kind = match error.kind() {
            Io::ConnectionRefused => ErrorKind::ConnectionRefused,
            Io::ConnectionReset | Io::ConnectionAborted | Io::BrokenPipe => {
                ErrorKind::ConnectionReset
            }
            Io::HostUnreachable | Io::NetworkUnreachable => ErrorKind::Unreachable,
            Io::TimedOut => ErrorKind::TimedOut,
            Io::AddrInUse => ErrorKind::AddressInUse,
            Io::AddrNotAvailable => ErrorKind::AddressNotAvailable,
            Io::NotConnected => ErrorKind::NotConnected,
            Io::OutOfMemory => ErrorKind::LimitReached,
            _ if os == Some(libc::EFAULT) => ErrorKind::BadAddress,
            _ if matches!(os, Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS)) => {
                ErrorKind::LimitReached
            }
            _ => ErrorKind::System,
        };
        // The system's text is left out if the kind says the same.
        let message = match kind {
            ErrorKind::ConnectionRefused => {
                "no listener at that address: start the peer first, or check the address".into()
            }
            ErrorKind::AddressInUse | ErrorKind::AddressNotAvailable | ErrorKind::TimedOut => {
                Cow::from(doing)
            }
            _ => format!("{doing}: {error}").into(),
        };
        let mut this = Error::new(kind, message);
        this.edit(|inner| inner.os = os);
        this
    }

    fn edit(&mut self, change: impl FnOnce(&mut Inner)) {
        // A shared error is copied first, so that one operation's details never show in another's.
        if Arc::get_mut(&mut self.0).is_none() {
            let copy = Inner {
                kind: self.0.kind,
                operation: self.0.operation,
                phase: self.0.phase,
                peer: self.0.peer,
                os: self.0.os,
                refusal: self.0.refusal,
                ends_connection: self.0.ends_connection,
                message: self.0.message.clone(),
                data: self.0.data.clone(),
            };
            self.0 = Arc::new(copy);
        }
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            change(inner);
        }
    }

    pub(crate) fn with_os(mut self, number: Option<i32>) -> Self {
        self.edit(|inner| inner.os = number);
        self
    }

    pub(crate) fn with_operation(mut self, operation: OperationKind) -> Self {
        self.edit(|inner| inner.operation = Some(operation));
        self
    }

    pub(crate) fn with_phase(mut self, phase: Phase) -> Self {
        self.edit(|inner| inner.phase = Some(phase));
        self
    }

    /// Marks the error as one that ends an established connection.
    pub(crate) fn ending_connection(mut self) -> Self {
        self.edit(|inner| inner.ends_connection = true);
        self
    }

    pub(crate) fn with_peer(mut self, peer: SocketAddr) -> Self {
        self.edit(|inner| inner.peer = Some(peer));
        self
    }

    /// The same error without the peer and the operation, for use within another error that names
    /// them.
    pub fn nested(mut self) -> Self {
        self.edit(|inner| (inner.peer, inner.operation) = (None, None));
        self
    }

    /// Adds the address at which a listener was to be opened, and a remedy.
    pub(crate) fn listening_at(mut self, address: SocketAddr) -> Self {
        let why = match self.kind() {
            ErrorKind::AddressInUse if address.port() == 0 => "no port that may be used is free",
            ErrorKind::AddressInUse => {
                "another socket has it: close that one, or take another port (0: any)"
            }
            ErrorKind::AddressNotAvailable => "no interface of this machine has this address",
            _ => &self.0.message.clone(),
        };
        let message = format!("{address}: {why}");
        self.edit(|inner| inner.message = message.into());
        self
    }

    pub(crate) fn with_data(mut self, data: Bytes) -> Self {
        self.edit(|inner| inner.data = data);
        self
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The positive libfabric error number (`fi_errno(3)`), or the system's own for
    /// [`ErrorKind::System`].
    pub fn fi_errno(&self) -> i32 {
        match (self.0.kind, self.0.os) {
            (ErrorKind::System, Some(os)) => os,
            (kind, _) => kind.fi_errno(),
        }
    }

    /// The operation that failed, if the error belongs to one.
    pub fn operation(&self) -> Option<OperationKind> {
        self.0.operation
    }

    /// How far the operation had got when it failed.
    pub fn phase(&self) -> Option<Phase> {
        self.0.phase
    }

    /// The peer's address, if the error belongs to a connection.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.0.peer
    }

    /// The operating system's error number, if it gave one.
    pub fn os_error(&self) -> Option<i32> {
        self.0.os
    }

    /// The reason why the peer refused the operation, if it did and reported one. A peer without
    /// this library's extension closes the connection instead.
    pub fn refusal(&self) -> Option<Refusal> {
        self.0.refusal
    }

    /// Data that belongs to the error (`err_data` of `fi_eq_err_entry`): the private data of a peer
    /// that rejected a connection. Empty otherwise.
    pub fn data(&self) -> &Bytes {
        &self.0.data
    }

    /// True if the same call may succeed later without any change.
    pub fn is_again(&self) -> bool {
        self.0.kind == ErrorKind::Again
    }

    /// True if the connection of the operation was lost: the peer closed it, died, fell silent or
    /// violated the protocol, or the domain's driver is gone. False if this side closed the
    /// connection, or if it was never established.
    pub fn is_connection_lost(&self) -> bool {
        let by_kind = matches!(
            self.0.kind,
            ErrorKind::PeerClosed
                | ErrorKind::NoReceive
                | ErrorKind::ConnectionReset
                | ErrorKind::ProtocolViolation
                | ErrorKind::DriverGone
        );
        by_kind || self.0.ends_connection
    }

    /// True if the operation was cancelled by its owner or by closing its endpoint.
    pub fn is_canceled(&self) -> bool {
        self.0.kind == ErrorKind::Canceled
    }

    /// True if a message did not fit into its receive buffer.
    pub fn is_truncated(&self) -> bool {
        self.0.kind == ErrorKind::Truncated
    }

    /// True if other objects still depend on the object that was to be closed.
    pub fn is_busy(&self) -> bool {
        self.0.kind == ErrorKind::Busy
    }

    /// True if a deadline has passed.
    pub fn is_timed_out(&self) -> bool {
        self.0.kind == ErrorKind::TimedOut
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(operation) = self.0.operation {
            write!(f, "{operation:?}: ")?;
        }
        f.write_str(match self.0.refusal {
            Some(_) => "refused by the peer",
            None => self.0.kind.describe(),
        })?;
        if !self.0.message.is_empty() {
            write!(f, ": {}", self.0.message)?;
        }
        if let Some(peer) = self.0.peer {
            write!(f, " (peer {peer})")?;
        }
        Ok(())
    }
}

debug_fields!(Error, self =>
    kind: self.0.kind, operation: self.0.operation, phase: self.0.phase, peer: self.0.peer,
    os: self.0.os, refusal: self.0.refusal, message: self.0.message, data_len: self.0.data.len()
);

impl std::error::Error for Error {}

/// For code that uses [`std::io`]. The error itself is inside
/// ([`get_ref`](std::io::Error::get_ref)), and the kind is the most similar one.
impl From<Error> for std::io::Error {
    fn from(error: Error) -> std::io::Error {
        use std::io::ErrorKind as Io;
        let kind = match error.kind() {
            ErrorKind::Again => Io::WouldBlock,
            ErrorKind::InvalidArgument => Io::InvalidInput,
            ErrorKind::NotConnected => Io::NotConnected,
            ErrorKind::ConnectionRefused => Io::ConnectionRefused,
            ErrorKind::PeerClosed | ErrorKind::NoReceive => Io::UnexpectedEof,
            ErrorKind::ConnectionReset => Io::ConnectionReset,
            ErrorKind::Unreachable => Io::HostUnreachable,
            ErrorKind::TimedOut => Io::TimedOut,
            ErrorKind::ProtocolViolation => Io::InvalidData,
            ErrorKind::AccessDenied | ErrorKind::NotAuthorized => Io::PermissionDenied,
            ErrorKind::Unsupported | ErrorKind::NoCapability => Io::Unsupported,
            ErrorKind::AddressInUse => Io::AddrInUse,
            ErrorKind::AddressNotAvailable => Io::AddrNotAvailable,
            ErrorKind::LimitReached => Io::OutOfMemory,
            _ => Io::Other,
        };
        std::io::Error::new(kind, error)
    }
}
