//! The errors with which a call can end.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use tokio_fabric::ErrorKind;

use crate::call_info::{CallInfo, TimeText};
use crate::limits::MESSAGE_MAX;

/// `Result` with this crate's [`Status`], which the methods of a service return too.
pub type Result<T, E = Status> = std::result::Result<T, E>;

/// The reason why a call failed; see [`Status::code`].
///
/// If the code does not come from the handler itself, it determines [`Status::started`]:
///
/// | code | started |
/// |---|---|
/// | `Overloaded`, `Unavailable`, `Unimplemented` | `NotStarted` |
/// | `Unauthenticated`, `PermissionDenied` | `NotStarted` |
/// | `ConnectionLost` | `MaybeRan`; `NotStarted` if the request had not been sent |
/// | `DeadlineExceeded` | `MaybeRan`; `NotStarted` if it was not sent, or refused |
/// | `Draining` | `NotStarted`; `MaybeRan` if the drain's deadline cancelled the handler |
/// | `TooLarge` | request: `NotStarted`; response: `Ran`; item of a stream: `MaybeRan` |
/// | `Cancelled`, `HandlerPanicked` | `MaybeRan` |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// The caller has cancelled the call.
    Cancelled,
    /// The call's deadline has passed.
    DeadlineExceeded,
    /// The server has reached a limit; [`Status::retry_after`] recommends when to retry.
    Overloaded,
    /// The server is shutting down: use another server.
    Draining,
    /// There is no connection to a server.
    Unavailable,
    /// The connection was lost before the response arrived.
    ConnectionLost,
    /// The server has no such method: no method of this name, of this version, or with this
    /// [signature](macro@crate::service).
    Unimplemented,
    /// The request cannot be decoded.
    BadRequest,
    /// A request, a response or lent memory is larger than the peer accepts.
    TooLarge,
    /// The server does not know the caller.
    Unauthenticated,
    /// The caller is not allowed to make this call.
    PermissionDenied,
    /// Access to the lent memory was refused: because of its rights, its range, or the call's end.
    LentRefused,
    /// The handler panicked.
    HandlerPanicked,
    /// An internal error of the server or of this library. The message says which; report an error
    /// of the library.
    Internal,
    /// A number of the service's own, below 2^31 ([`Status::application`]).
    Application(u32),
}

/// The bit that marks the codes of services.
const APPLICATION: u32 = 1 << 31;

const CODES: [Code; 14] = [
    Code::Cancelled,
    Code::DeadlineExceeded,
    Code::Overloaded,
    Code::Draining,
    Code::Unavailable,
    Code::ConnectionLost,
    Code::Unimplemented,
    Code::BadRequest,
    Code::TooLarge,
    Code::Unauthenticated,
    Code::PermissionDenied,
    Code::LentRefused,
    Code::HandlerPanicked,
    Code::Internal,
];

impl Code {
    /// The number on the wire: from 1 on, in the order above; [`Application`](Self::Application)
    /// has the top bit set.
    pub fn number(self) -> u32 {
        match self {
            Code::Application(number) => APPLICATION | number,
            code => {
                let at = CODES.iter().position(|it| *it == code);
                at.map_or(0, |at| at as u32 + 1)
            }
        }
    }

    /// Returns the code with this number; a number of a later version is [`Code::Internal`].
    pub(crate) fn from_number(number: u32) -> Code {
        if number & APPLICATION != 0 {
            return Code::Application(number & !APPLICATION);
        }
        let at = (number as usize).wrapping_sub(1);
        CODES.get(at).copied().unwrap_or(Code::Internal)
    }
}

impl Code {
    /// The name in metrics and spans, such as `DEADLINE_EXCEEDED`; `APPLICATION` for all of a
    /// service's own codes.
    pub fn name(self) -> &'static str {
        match self {
            Code::Cancelled => "CANCELLED",
            Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Code::Overloaded => "OVERLOADED",
            Code::Draining => "DRAINING",
            Code::Unavailable => "UNAVAILABLE",
            Code::ConnectionLost => "CONNECTION_LOST",
            Code::Unimplemented => "UNIMPLEMENTED",
            Code::BadRequest => "BAD_REQUEST",
            Code::TooLarge => "TOO_LARGE",
            Code::Unauthenticated => "UNAUTHENTICATED",
            Code::PermissionDenied => "PERMISSION_DENIED",
            Code::LentRefused => "LENT_REFUSED",
            Code::HandlerPanicked => "HANDLER_PANICKED",
            Code::Internal => "INTERNAL",
            Code::Application(_) => "APPLICATION",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Code::Cancelled => "cancelled",
            Code::DeadlineExceeded => "the deadline passed",
            Code::Overloaded => "the server is overloaded",
            Code::Draining => "the server is about to stop",
            Code::Unavailable => "not connected",
            Code::ConnectionLost => "the connection was lost",
            Code::Unimplemented => "the server has no such method",
            Code::BadRequest => "the request cannot be decoded",
            Code::TooLarge => "too large",
            Code::Unauthenticated => "the caller is not known",
            Code::PermissionDenied => "the caller may not do this",
            Code::LentRefused => "the lent memory was refused",
            Code::HandlerPanicked => "the handler panicked",
            Code::Internal => "internal error",
            Code::Application(number) => return write!(f, "application error {number}"),
        })
    }
}

/// Whether the handler of a failed call has run, or may have run. This decides whether the call may
/// be retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Started {
    /// The handler has not run and will not: any call may be retried. This changes the result only
    /// if the cause may pass: [`Code::Overloaded`], [`Code::Draining`], [`Code::Unavailable`] and
    /// [`Code::ConnectionLost`].
    NotStarted,
    /// The handler may have run, completely or in part: only an idempotent call may be retried.
    MaybeRan,
    /// The handler has run to its end, and the error is its response.
    Ran,
}

/// The error of a call, from this library or from the handler: a [`Code`], a message, and whether
/// the handler may have run.
///
/// A handler returns [`Status::new`], or [`Status::application`] with a number of its own. The
/// caller reads [`started`](Self::started) to find out whether the handler may have run.
///
/// ```
/// use tokio_fabric_rpc::{Code, Cx, Result, Started, Status, service, testing};
///
/// #[service]
/// trait Divide {
///     async fn divide(&self, cx: &Cx, number: u32, by: u32) -> Result<u32>;
/// }
/// struct Divider;
/// impl Divide for Divider {
///     async fn divide(&self, _: &Cx, number: u32, by: u32) -> Result<u32> {
///         number.checked_div(by).ok_or_else(|| Status::application(1, "division by zero"))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<()> {
/// let (channel, server) = testing::pair(DivideServer::new(Divider)).await?;
/// let client = DivideClient::over(channel.clone());
/// let status = client.divide(1, 0).await.unwrap_err();
/// assert_eq!((status.code(), status.started()), (Code::Application(1), Started::Ran));
///
/// channel.close().await;
/// let status = client.divide(1, 1).await.unwrap_err();
/// assert!(status.is_not_started()); // It can be retried elsewhere.
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Status(Box<Parts>);

/// Behind a pointer, since results are moved often and are seldom errors.
#[derive(Clone)]
struct Parts {
    code: Code,
    started: Started,
    retry_after: Option<Duration>,
    message: Cow<'static, str>,
    subject: Subject,
    source: Option<tokio_fabric::Error>,
}

/// The subject of a status: the step or the call that failed.
#[derive(Clone)]
enum Subject {
    /// The subject is not known, for instance in a handler.
    Unknown,
    /// A step other than a call, as text, for instance "listening".
    Step(String),
    Call(CallInfo),
}

impl Status {
    /// A status of a handler, which has run.
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Status {
        Status(Box::new(Parts {
            code,
            started: Started::Ran,
            retry_after: None,
            message: message.into(),
            subject: Subject::Unknown,
            source: None,
        }))
    }

    /// A status of a handler with a number of the service's own, of which the lower 31 bits are
    /// used.
    pub fn application(number: u32, message: impl Into<Cow<'static, str>>) -> Status {
        Status::new(Code::Application(number & !APPLICATION), message)
    }

    /// Creates a status of this library, for a call that no handler has seen.
    pub(crate) fn not_started(code: Code, message: impl Into<Cow<'static, str>>) -> Status {
        Status::new(code, message).with_started(Started::NotStarted)
    }

    /// Creates a status of this library, for a call that a handler may have seen.
    pub(crate) fn maybe_ran(code: Code, message: impl Into<Cow<'static, str>>) -> Status {
        Status::new(code, message).with_started(Started::MaybeRan)
    }

    pub(crate) fn with_started(mut self, started: Started) -> Status {
        self.0.started = started;
        self
    }

    /// Returns the status of later calls on a connection that this status has ended.
    pub(crate) fn of_later_calls(mut self) -> Status {
        if self.0.code == Code::ConnectionLost {
            self.0.code = Code::Unavailable;
        }
        self
    }

    /// Returns the status with this error as its cause. The error's text leaves out the peer and
    /// what failed, since the status names both.
    pub(crate) fn with_source(mut self, source: &tokio_fabric::Error) -> Status {
        self.0.message = source.clone().nested().to_string().into();
        self.0.source = Some(source.clone());
        self
    }

    /// Returns the status with the reason of `why` appended to its text, and with the cause of
    /// `why`.
    pub(crate) fn because_of(mut self, why: &Status) -> Status {
        self.0.message = format!("{}: {}", self.0.message, why.reason()).into();
        self.0.source = why.0.source.clone();
        self
    }

    pub(crate) fn with_message(mut self, message: String) -> Status {
        self.0.message = message.into();
        self
    }

    #[cfg(feature = "tower")]
    pub(crate) fn add_to_message(&mut self, what: &'static str) {
        self.0.message = match self.0.message.is_empty() {
            true => what.into(),
            false => format!("{}; {what}", self.0.message).into(),
        };
    }

    /// Returns the status for a step that is not a call, such as "listening".
    pub(crate) fn of_step(mut self, step: impl Into<String>) -> Status {
        self.0.subject = Subject::Step(step.into());
        self
    }

    /// Returns why it failed, without naming what failed.
    pub(crate) fn reason(&self) -> String {
        match (self.0.code, self.0.message.is_empty()) {
            // The code is left out: the text implies that there is no connection.
            (Code::Unavailable, false) => self.0.message.to_string(),
            (code, true) => code.to_string(),
            (code, false) => format!("{code}: {}", self.0.message),
        }
    }

    /// Makes this the status of `call`. If it is the status of another call, as in a stream whose
    /// source makes calls, its text becomes the message.
    pub(crate) fn set_call(&mut self, call: CallInfo) {
        if let Subject::Call(_) = self.0.subject {
            self.0.message = self.to_string().into();
        }
        self.0.subject = Subject::Call(call);
    }

    /// Recommends to the caller to retry after this time.
    pub fn with_retry_after(mut self, after: Duration) -> Status {
        self.0.retry_after = Some(after);
        self
    }

    /// The reason of the failure.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// Details as text; may be empty.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Whether the handler may have run.
    pub fn started(&self) -> Started {
        self.0.started
    }

    /// True if any call may be retried: the handler has not run and will not.
    pub fn is_not_started(&self) -> bool {
        self.0.started == Started::NotStarted
    }

    /// The time after which the server recommends a retry, if it does.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// The failed call: its method, its server, and the time until its end. `None` for a status of
    /// a handler, of connecting, or of listening.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tokio_fabric_rpc::{Cx, Result, service, testing};
    ///
    /// #[service]
    /// trait Store {
    ///     async fn put(&self, cx: &Cx) -> Result<()>;
    /// }
    /// # struct Slow;
    /// # impl Store for Slow {
    /// #     async fn put(&self, _: &Cx) -> Result<()> { std::future::pending().await }
    /// # }
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<()> {
    /// # let (channel, server) = testing::pair(StoreServer::new(Slow)).await?;
    /// let store = StoreClient::over(channel);
    /// let late = store.put().deadline(Duration::from_millis(500)).await.unwrap_err();
    /// let call = late.call().unwrap();
    /// assert_eq!((call.method, call.address), ("Store/put", Some(server.local_addr())));
    /// assert!(late.to_string().contains(": deadline of 500 ms passed after 50"));
    /// # Ok(()) }
    /// ```
    pub fn call(&self) -> Option<&CallInfo> {
        match &self.0.subject {
            Subject::Call(call) => Some(call),
            Subject::Unknown | Subject::Step(_) => None,
        }
    }

    /// The error of tokio-fabric that caused this one: an error of the connection, or of an access
    /// to lent memory. [`message`](Self::message) already contains its text, so it is not the
    /// [`source`](std::error::Error::source) of this error: a printed chain of errors would show it
    /// twice.
    pub fn fabric_error(&self) -> Option<&tokio_fabric::Error> {
        self.0.source.as_ref()
    }

    /// Encodes the status for the wire: microseconds until the caller should retry, then the
    /// message.
    pub(crate) fn encode(&self, mut put: impl FnMut(&[u8])) {
        let after = self.0.retry_after.map_or(0, |it| it.as_micros());
        put(&u32::try_from(after).unwrap_or(u32::MAX).to_le_bytes());
        // The status of a call that the handler made names that call.
        let message = match self.0.subject {
            Subject::Unknown => Cow::Borrowed(&*self.0.message),
            Subject::Step(_) | Subject::Call(_) => self.to_string().into(),
        };
        let mut cut = message.len().min(MESSAGE_MAX);
        while !message.is_char_boundary(cut) {
            cut -= 1;
        }
        put(&message.as_bytes()[..cut]);
    }

    /// Decodes the output of [`encode`](Self::encode). If the body is shorter, or is not text,
    /// decodes as much as possible.
    pub(crate) fn decode(code: u32, not_started: bool, body: &[u8]) -> Status {
        let code = Code::from_number(code);
        let (after, message) = match body.split_first_chunk::<4>() {
            Some((after, message)) => (u32::from_le_bytes(*after), message),
            None => (0, &[][..]),
        };
        let message = &message[..message.len().min(MESSAGE_MAX)];
        let started = match (not_started, code) {
            (true, _) => Started::NotStarted,
            (_, Code::Cancelled | Code::DeadlineExceeded | Code::HandlerPanicked) => {
                Started::MaybeRan
            }
            (_, Code::Draining | Code::ConnectionLost) => Started::MaybeRan,
            _ => Started::Ran,
        };
        Status(Box::new(Parts {
            code,
            started,
            retry_after: (after > 0).then(|| Duration::from_micros(after.into())),
            message: String::from_utf8_lossy(message).into_owned().into(),
            subject: Subject::Unknown,
            source: None,
        }))
    }
}

/// Shows for a call: its method and server, the code, the time that has passed, whether the handler
/// may have run, and the message, each once. Examples: `Store/put at 10.0.0.7:7901 (cache-2:7901):
/// deadline of 500 ms passed after 500.3 ms, may have run`, or `Store/get at 10.0.0.7:7901: the
/// handler panicked (after 118.4 ms), may have run`.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.subject {
            Subject::Unknown => write!(f, "{}", self.0.code)?,
            Subject::Step(step) => return write!(f, "{step}: {}", self.reason()),
            Subject::Call(call) => self.write_call(f, call)?,
        }
        match self.0.message.is_empty() {
            true => Ok(()),
            false => write!(f, ": {}", self.0.message),
        }
    }
}

impl Status {
    fn write_call(&self, f: &mut fmt::Formatter<'_>, call: &CallInfo) -> fmt::Result {
        write!(f, "{call}: ")?;
        match call.limit {
            Some(limit) if self.0.code == Code::DeadlineExceeded && call.elapsed >= limit => {
                write!(f, "deadline of {} passed", TimeText::of_limit(limit))?;
            }
            _ => write!(f, "{}", self.0.code)?,
        }
        let elapsed = TimeText(call.elapsed);
        match self.0.code {
            Code::DeadlineExceeded => write!(f, " after {elapsed}")?,
            _ => write!(f, " (after {elapsed})")?,
        }
        if call.attempt > 1 {
            write!(f, ", attempt {}", call.attempt)?;
        }
        f.write_str(match self.0.started {
            Started::NotStarted => ", not started",
            Started::MaybeRan => ", may have run",
            Started::Ran => "",
        })
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Status");
        shown.field("code", &self.0.code);
        shown.field("started", &self.0.started);
        shown.field("message", &self.0.message);
        match &self.0.subject {
            Subject::Unknown => {}
            Subject::Step(step) => drop(shown.field("step", step)),
            Subject::Call(call) => drop(shown.field("call", call)),
        }
        if let Some(after) = self.0.retry_after {
            shown.field("retry_after", &after);
        }
        // The message contains the text of the source.
        shown.finish()
    }
}

impl std::error::Error for Status {}

/// For errors of opening, listening and connecting: no call has started.
impl From<tokio_fabric::Error> for Status {
    fn from(error: tokio_fabric::Error) -> Status {
        let code = match error.kind() {
            ErrorKind::NotAuthorized => Code::Unauthenticated,
            _ => Code::Unavailable,
        };
        Status::not_started(code, "").with_source(&error)
    }
}

/// The error type of a call: a [`Status`], a [`CallError`] that may contain one, or a
/// [`FailedCall`](crate::FailedCall) with one of these. Sealed.
pub trait CallFailure: sealed::Sealed {
    /// The status; `None` for an error of the method's own type.
    fn status(&self) -> Option<&Status>;
}

pub(crate) mod sealed {
    use super::Status;

    pub trait Sealed {
        /// Returns the status, so that the client can add the call to it.
        fn status_mut(&mut self) -> Option<&mut Status>;
    }
}

impl CallFailure for Status {
    fn status(&self) -> Option<&Status> {
        Some(self)
    }
}

impl sealed::Sealed for Status {
    fn status_mut(&mut self) -> Option<&mut Status> {
        Some(self)
    }
}

impl<E> CallFailure for CallError<E> {
    fn status(&self) -> Option<&Status> {
        match self {
            CallError::App(_) => None,
            CallError::Rpc(status) => Some(status),
        }
    }
}

impl<E> sealed::Sealed for CallError<E> {
    fn status_mut(&mut self) -> Option<&mut Status> {
        match self {
            CallError::App(_) => None,
            CallError::Rpc(status) => Some(status),
        }
    }
}

/// The error of a call whose method has its own error type.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use tokio_fabric_rpc::{CallError, Code, Cx, Result, Status, service, testing};
///
/// #[derive(Debug, Serialize, Deserialize)]
/// pub enum Refused {
///     TooLittle { missing: u64 },
/// }
///
/// #[service]
/// pub trait Bank {
///     async fn draw(&self, cx: &Cx, amount: u64) -> Result<u64, Refused>;
///     async fn name(&self, cx: &Cx) -> Result<String>;
/// }
///
/// struct Poor;
///
/// impl Bank for Poor {
///     async fn draw(&self, _: &Cx, amount: u64) -> Result<u64, Refused> {
///         Err(Refused::TooLittle { missing: amount })
///     }
///     // Without a type of its own: a number, and words.
///     async fn name(&self, _: &Cx) -> Result<String> {
///         Err(Status::application(17, "it has none"))
///     }
/// }
///
/// #[tokio::main(flavor = "current_thread", start_paused = true)]
/// async fn main() -> Result<()> {
///     let (channel, _server) = testing::pair(BankServer::new(Poor)).await?;
///     let bank = BankClient::over(channel);
///     let refused = bank.draw(5).await.unwrap_err();
///     assert!(matches!(refused, CallError::App(Refused::TooLittle { missing: 5 })));
///     assert_eq!(bank.name().await.unwrap_err().code(), Code::Application(17));
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug)]
pub enum CallError<E> {
    /// The handler's own error: the handler has run.
    App(E),
    /// Any other failure.
    Rpc(Status),
}

impl<E> CallError<E> {
    /// Whether the handler may have run.
    pub fn started(&self) -> Started {
        match self {
            CallError::App(_) => Started::Ran,
            CallError::Rpc(status) => status.started(),
        }
    }
}

impl<E> From<Status> for CallError<E> {
    fn from(status: Status) -> CallError<E> {
        CallError::Rpc(status)
    }
}

impl<E: fmt::Display> fmt::Display for CallError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::App(error) => error.fmt(f),
            CallError::Rpc(status) => status.fmt(f),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for CallError<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_keep_their_numbers() {
        for (at, code) in CODES.into_iter().enumerate() {
            assert_eq!(code.number(), at as u32 + 1);
            assert_eq!(Code::from_number(code.number()), code);
        }
        assert_eq!(Code::Application(7).number(), 0x8000_0007);
        assert_eq!(Code::from_number(0x8000_0007), Code::Application(7));
        assert_eq!(Code::from_number(0), Code::Internal);
        assert_eq!(Code::from_number(1000), Code::Internal);
    }

    #[test]
    fn a_status_crosses_the_wire_and_its_message_is_cut_at_a_character() {
        let long = "ä".repeat(MESSAGE_MAX);
        let status = Status::new(Code::Overloaded, long).with_retry_after(Duration::from_millis(5));
        let mut bytes = Vec::new();
        status.encode(|it| bytes.extend_from_slice(it));
        assert_eq!(bytes.len(), 4 + MESSAGE_MAX);
        let back = Status::decode(Code::Overloaded.number(), true, &bytes);
        assert_eq!(back.code(), Code::Overloaded);
        assert_eq!(back.retry_after(), Some(Duration::from_millis(5)));
        assert!(back.is_not_started());
        assert_eq!(back.message(), "ä".repeat(MESSAGE_MAX / 2));
    }

    #[test]
    fn a_status_of_any_bytes_is_some_status() {
        for len in 0..8 {
            let bytes = vec![0xff; len];
            assert_eq!(Status::decode(3, false, &bytes).code(), Code::Overloaded);
        }
    }
}
