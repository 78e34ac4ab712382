//! A method, as both ends of a connection know it.

/// A method of a service, as the layers of a server see it
/// ([`Request::method`](crate::Request::method)).
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// `Service/method`, with `#version` if it has one.
    pub name: &'static str,
    /// The number of the name on the wire.
    pub id: u32,
    /// True if the handler of a cancelled call continues to its end (`#[rpc(to_end)]`).
    pub to_end: bool,
    /// True if a call may be retried even if it may have run (`#[rpc(idempotent)]`).
    pub idempotent: bool,
    /// True if the handler runs in a task of its own from the beginning (`#[rpc(spawn)]`).
    pub spawn: bool,
}
