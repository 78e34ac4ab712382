//! Who may call what.

use crate::cx::Cx;
use crate::status::Result;

/// Decides about a call before its arguments are decoded; given to
/// [`Server::authorize`](super::Server::authorize). A closure is one.
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
    /// `Ok`, or why not: [`Code::Unauthenticated`](crate::Code::Unauthenticated) or
    /// [`Code::PermissionDenied`](crate::Code::PermissionDenied). The peer, the method and the
    /// metadata are what there is to decide by. It runs where frames are read, so it must not
    /// block.
    ///
    /// # Errors
    /// The caller gets it, as not started.
    fn authorize(&self, call: &Cx) -> Result<()>;
}

impl<F: Fn(&Cx) -> Result<()> + Send + Sync + 'static> Authorize for F {
    fn authorize(&self, call: &Cx) -> Result<()> {
        self(call)
    }
}
