//! How a call ends that does not end well.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use tokio_fabric::ErrorKind;

use crate::limits::MESSAGE_MAX;

/// `Result` with the layer's [`Status`]; of a service's methods too.
pub type Result<T, E = Status> = std::result::Result<T, E>;

/// Why a call did not give its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// The caller has given the call up.
    Cancelled,
    /// The call's time is over.
    DeadlineExceeded,
    /// The server has as many calls as it takes: [`Status::retry_after`] says when to come again.
    Overloaded,
    /// The server is about to stop: call another one.
    Draining,
    /// There is no connection.
    Unavailable,
    /// The connection ended before the answer came.
    ConnectionLost,
    /// The server has no such method, or not in this version.
    UnknownMethod,
    /// The request cannot be decoded.
    BadRequest,
    /// A request, an answer or lent memory is larger than the peer takes.
    TooLarge,
    /// The server does not know who calls.
    Unauthenticated,
    /// The caller may not do this.
    PermissionDenied,
    /// The memory that the call lent was not to be had: its rights, its range, or the call's end.
    LentRefused,
    /// The handler has panicked.
    HandlerPanicked,
    /// Something that should not happen.
    Internal,
    /// The service's own number, below 2^31.
    Application(u32),
}

/// The bit of the service's own codes.
const APPLICATION: u32 = 1 << 31;

const CODES: [Code; 14] = [
    Code::Cancelled,
    Code::DeadlineExceeded,
    Code::Overloaded,
    Code::Draining,
    Code::Unavailable,
    Code::ConnectionLost,
    Code::UnknownMethod,
    Code::BadRequest,
    Code::TooLarge,
    Code::Unauthenticated,
    Code::PermissionDenied,
    Code::LentRefused,
    Code::HandlerPanicked,
    Code::Internal,
];

impl Code {
    /// The number on the wire: 1 and up, in the order above; the service's own have the top bit.
    pub fn number(self) -> u32 {
        match self {
            Code::Application(number) => APPLICATION | number,
            code => {
                let at = CODES.iter().position(|it| *it == code);
                at.map_or(0, |at| at as u32 + 1)
            }
        }
    }

    /// What the number means; a number of a later version is [`Code::Internal`].
    pub(crate) fn from_number(number: u32) -> Code {
        if number & APPLICATION != 0 {
            return Code::Application(number & !APPLICATION);
        }
        let at = (number as usize).wrapping_sub(1);
        CODES.get(at).copied().unwrap_or(Code::Internal)
    }
}

impl Code {
    /// As metrics and spans name it; the service's own numbers are all `APPLICATION`.
    pub fn name(self) -> &'static str {
        match self {
            Code::Cancelled => "CANCELLED",
            Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Code::Overloaded => "OVERLOADED",
            Code::Draining => "DRAINING",
            Code::Unavailable => "UNAVAILABLE",
            Code::ConnectionLost => "CONNECTION_LOST",
            Code::UnknownMethod => "UNKNOWN_METHOD",
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
            Code::UnknownMethod => "no such method",
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

/// Whether the handler of a call that failed can have run: what decides if the call may be made
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Started {
    /// It has not and will not: any call may be made again.
    NotStarted,
    /// It may have, in whole or in part: only what is idempotent may be made again.
    MaybeRan,
    /// It has, to its end, and this is its answer.
    Ran,
}

/// How a call ended that did not give its result; of the layer, or of the handler.
///
/// A handler makes one by [`Status::new`], or by [`Status::application`] with a number of its own.
/// At the caller every status says by [`started`](Self::started) whether the handler can have run.
#[derive(Clone)]
pub struct Status {
    code: Code,
    started: Started,
    retry_after: Option<Duration>,
    message: Cow<'static, str>,
    source: Option<tokio_fabric::Error>,
}

impl Status {
    /// A handler's: it has run.
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Status {
        Status {
            code,
            started: Started::Ran,
            retry_after: None,
            message: message.into(),
            source: None,
        }
    }

    /// A handler's, with a number of the service's own, of which the lower 31 bits count.
    pub fn application(number: u32, message: impl Into<Cow<'static, str>>) -> Status {
        Status::new(Code::Application(number & !APPLICATION), message)
    }

    /// The layer's, of a call that no handler has seen.
    pub(crate) fn not_started(code: Code, message: impl Into<Cow<'static, str>>) -> Status {
        Status::new(code, message).with_started(Started::NotStarted)
    }

    /// The layer's, of a call that a handler may have seen.
    pub(crate) fn maybe_ran(code: Code, message: impl Into<Cow<'static, str>>) -> Status {
        Status::new(code, message).with_started(Started::MaybeRan)
    }

    pub(crate) fn with_started(mut self, started: Started) -> Status {
        self.started = started;
        self
    }

    pub(crate) fn with_source(mut self, source: tokio_fabric::Error) -> Status {
        self.source = Some(source);
        self
    }

    /// Says when the caller may come again.
    pub fn with_retry_after(mut self, after: Duration) -> Status {
        self.retry_after = Some(after);
        self
    }

    /// What happened.
    pub fn code(&self) -> Code {
        self.code
    }

    /// What exactly; may be empty.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether the handler can have run.
    pub fn started(&self) -> Started {
        self.started
    }

    /// True if any call that ended so may be made again: its handler has not run and will not.
    pub fn is_not_started(&self) -> bool {
        self.started == Started::NotStarted
    }

    /// When the server would like to be asked again.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The library's error behind it: of the connection, or of an access to lent memory.
    pub fn fabric_error(&self) -> Option<&tokio_fabric::Error> {
        self.source.as_ref()
    }

    /// As it goes over the wire: microseconds until the caller may come again, then the message.
    pub(crate) fn encode(&self, mut put: impl FnMut(&[u8])) {
        let after = self.retry_after.map_or(0, |it| it.as_micros());
        put(&u32::try_from(after).unwrap_or(u32::MAX).to_le_bytes());
        let mut cut = self.message.len().min(MESSAGE_MAX);
        while !self.message.is_char_boundary(cut) {
            cut -= 1;
        }
        put(&self.message.as_bytes()[..cut]);
    }

    /// What [`encode`](Self::encode) wrote. A body that is shorter, or no text, only says less.
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
        Status {
            code,
            started,
            retry_after: (after > 0).then(|| Duration::from_micros(after.into())),
            message: String::from_utf8_lossy(message).into_owned().into(),
            source: None,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.code.fmt(f)?;
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        f.write_str(match self.started {
            Started::NotStarted => " (the call was not started)",
            Started::MaybeRan => " (the call may have run)",
            Started::Ran => "",
        })
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Status");
        shown.field("code", &self.code);
        shown.field("started", &self.started);
        shown.field("message", &self.message);
        if let Some(after) = self.retry_after {
            shown.field("retry_after", &after);
        }
        if let Some(source) = &self.source {
            shown.field("source", source);
        }
        shown.finish()
    }
}

impl std::error::Error for Status {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|it| it as _)
    }
}

/// Of opening, listening and connecting: no call has started.
impl From<tokio_fabric::Error> for Status {
    fn from(error: tokio_fabric::Error) -> Status {
        let code = match error.kind() {
            ErrorKind::NotAuthorized => Code::Unauthenticated,
            _ => Code::Unavailable,
        };
        Status::not_started(code, error.to_string()).with_source(error)
    }
}

/// The failure of a call whose method has an error type of its own.
#[derive(Clone, Debug)]
pub enum CallError<E> {
    /// The handler's own error: it has run.
    App(E),
    /// Everything else.
    Rpc(Status),
}

impl<E> CallError<E> {
    /// Whether the handler can have run.
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
