//! The operation that an error belongs to, and the progress that it had made.

/// The kind of operation that an error or a completion belongs to.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::error::OperationKind;
/// use tokio_fabric::testing::Net;
///
/// let (a, b) = Net::loopback().pair().await?;
/// drop(a);
/// let failed = b.recv(vec![0; 8]).await.unwrap_err();
/// assert_eq!(failed.error().operation(), Some(OperationKind::Receive));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OperationKind {
    /// A message sent (`fi_send`).
    Send,
    /// A message received (`fi_recv`).
    Receive,
    /// A write into the peer's memory (`fi_write`).
    Write,
    /// A read from the peer's memory (`fi_read`).
    Read,
    /// A message copied and sent (`fi_inject`).
    Inject,
    /// A connection made (`fi_connect`).
    Connect,
    /// A connection request accepted (`fi_accept`).
    Accept,
    /// A listener opened (`fi_listen`).
    Listen,
    /// Memory registered (`fi_mr_reg`).
    Register,
    /// An atomic operation on the peer's memory (`fi_atomic`).
    Atomic,
    /// An atomic operation on the peer's memory that returns the value before (`fi_fetch_atomic`,
    /// `fi_compare_atomic`).
    FetchAtomic,
    /// A peer's write into this side's memory, or its atomic operation on it: counted, and
    /// completed if it carried data (`FI_REMOTE_WRITE`).
    RemoteWrite,
    /// A peer's read from this side's memory: counted (`FI_REMOTE_READ`).
    RemoteRead,
}

/// The progress of an operation.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// use tokio_fabric::error::Phase;
/// use tokio_fabric::testing::Net;
///
/// let (_a, b) = Net::loopback().pair().await?;
/// let receive = b.recv(vec![0; 8]).post()?;
/// assert_eq!(receive.phase(), Phase::Queued); // No message has arrived.
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Phase {
    /// It waits for room in its queue, and has not been accepted yet.
    Waiting,
    /// It has been accepted; no byte has been transferred.
    Queued,
    /// Some of its bytes may have been transferred.
    Moving,
    /// All its bytes have been transferred; it waits for the peer's answer.
    AwaitingPeer,
    /// It has completed.
    Ended,
}
