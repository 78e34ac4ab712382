//! The authorization of calls.

use crate::cx::Cx;
use crate::status::Result;

/// Decides whether a call may be made, before its arguments are decoded; passed to
/// [`Server::authorize`](super::Server::authorize).
///
/// Closures implement it.
///
/// ```
/// use tokio_fabric_rpc::{Code, Cx, Result, Server, Status};
///
/// let server = Server::new().authorize(|call: &Cx| match call.metadata().value("token") {
///     Some(b"secret") => Ok(()),
///     Some(_) => Err(Status::new(Code::PermissionDenied, "not this token")),
///     None => Err(Status::new(Code::Unauthenticated, "a token is missing")),
/// });
/// ```
pub trait Authorize: Send + Sync + 'static {
    /// Returns `Ok` to allow the call, for instance by the caller's address, the method or the
    /// metadata. Runs on the task that reads the frames of all connections, so it must not block.
    ///
    /// # Errors
    /// The status that the caller gets, as not started: usually
    /// [`Code::Unauthenticated`](crate::Code::Unauthenticated) or
    /// [`Code::PermissionDenied`](crate::Code::PermissionDenied).
    fn authorize(&self, call: &Cx) -> Result<()>;
}

impl<F: Fn(&Cx) -> Result<()> + Send + Sync + 'static> Authorize for F {
    fn authorize(&self, call: &Cx) -> Result<()> {
        self(call)
    }
}
