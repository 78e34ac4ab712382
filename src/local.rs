//! Futures on the thread that sleeps in the ring, for domains with
//! [`Driver::Local`](crate::Driver::Local).
//!
//! [`block_on`] runs a future and the driver of a domain on the calling thread. Where the system
//! permits io_uring, the thread sleeps in the domain's ring: one system call submits what was
//! posted, waits, and takes what has completed, and no wake-up of a task or thread comes between.
//! Elsewhere it sleeps in the epoll of a Tokio runtime. Several threads with a domain each use
//! several processors.
//!
//! The future may await anything. Operations of its domain are fast. What belongs to Tokio (timers,
//! sockets, tasks by `tokio::spawn`) belongs to a runtime of the call's own, which beside a ring
//! runs on a thread `fabric-tokio`: each such event costs a wake-up from thread to thread.
//! [`spawn`] starts tasks on the calling thread. The guide, chapter 12, has the rules.
//!
//! ```
//! use tokio_fabric::{Driver, Event, Fabric, Hints, Result, local};
//!
//! fn main() -> Result<()> {
//!     let fabric = Fabric::open(Hints::new())?;
//!     let domain = fabric.domain().driver(Driver::Local).open()?;
//!     local::block_on(&domain, async {
//!         let events = fabric.event_queue().open()?;
//!         let listener = fabric.passive_endpoint(&events).listen_at(([127, 0, 0, 1], 0).into())?;
//!         let served = domain.clone();
//!         let serving = local::spawn(async move {
//!             let Some(Event::ConnRequest(request)) = events.next().await else {
//!                 panic!("no request");
//!             };
//!             let endpoint = request.accept(&served).await?;
//!             endpoint.recv(vec![0; 16]).await.map_err(tokio_fabric::Error::from)
//!         });
//!         let endpoint = domain.endpoint().open()?;
//!         endpoint.connect(listener.local_addr()).await?;
//!         endpoint.send(b"hello".to_vec()).await?;
//!         let (received, bytes) = serving.await.expect("it does not panic")?;
//!         assert_eq!(&bytes[..received.len], b"hello");
//!         Ok(())
//!     })?
//! }
//! ```

use std::future::Future;

use tokio::task::JoinHandle;

use crate::domain::Domain;
use crate::error::{Error, ErrorKind, Result};
use crate::transport::is_within_block_on;

/// Runs a future to its end on this thread, and the driver of `domain` between its polls.
///
/// The domain has [`Driver::Local`](crate::Driver::Local), and may be opened on any thread. Nothing
/// of it moves before this call: what was posted waits. When the future has ended, the tasks of
/// [`spawn`] are dropped, and then the driver ends as with the end of a runtime: operations fail
/// with [`ErrorKind::DriverGone`], and peers see their connections lost. To close gracefully, await
/// [`Domain::close`] in the future.
///
/// While the future is polled, the domain makes no progress: code that blocks stops it, and so its
/// peers. Tokio's cooperative budget holds for the future and for the tasks of [`spawn`].
///
/// If the driver ends first (closed, or its ring is lost), the future runs on without it.
///
/// # Panics
/// In asynchronous code of Tokio's, as Tokio's own `block_on`; the domain is untouched then. A
/// panic of the future leaves this call, once tasks and driver have ended.
///
/// # Errors
/// - [`ErrorKind::InvalidArgument`] if the domain has another driver.
/// - [`ErrorKind::BadState`] if the domain was given to a `block_on` before, or within another
///   `block_on` of this module.
/// - [`ErrorKind::LimitReached`] if no descriptor or thread is left for Tokio's runtime, and
///   [`ErrorKind::System`] if the ring cannot be started. The domain has ended then.
pub fn block_on<F: Future>(domain: &Domain, future: F) -> Result<F::Output> {
    let Some(waiting) = domain.waiting_driver() else {
        let what = "block_on: the domain has another driver; open it with Driver::Local";
        return Err(Error::new(ErrorKind::InvalidArgument, what));
    };
    waiting.block_on(future)
}

/// Starts a task on this thread, beside the future of [`block_on`]. It need not be `Send`.
///
/// # Cancel safety
/// Dropping the handle lets the task go on, until it ends or the `block_on` does. Aborting it drops
/// its future.
///
/// # Panics
/// Outside of [`block_on`], as `tokio::task::spawn_local` outside of a `LocalSet`.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    tokio::task::spawn_local(future)
}

/// Returns true on a thread that is within [`block_on`], so that [`spawn`] may be called.
#[inline]
pub fn is_here() -> bool {
    is_within_block_on()
}
