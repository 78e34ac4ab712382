//! Futures on the thread that sleeps in the ring, for domains with
//! [`Driver::Local`](crate::Driver::Local).
//!
//! [`block_on`] runs a future and the driver of a domain on the calling thread. Where the system
//! permits io_uring, the thread sleeps in the domain's ring: one system call submits what was
//! posted, waits, and takes what has completed, and no task or thread needs to be woken in between.
//! Elsewhere it sleeps in the epoll of a Tokio runtime. To use several processors, start several
//! threads with one domain each.
//!
//! The future may await anything. Operations of its domain are fast. Tokio's timers, sockets and
//! tasks (`tokio::spawn`) run in a Tokio runtime that the call creates. If the thread sleeps in a
//! ring, this runtime has a thread `fabric-tokio`, and each of its events costs a wake-up from
//! thread to thread. [`spawn`] starts tasks on the calling thread. The guide, chapter 12, has the
//! rules.
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
/// The domain has [`Driver::Local`](crate::Driver::Local), and may be opened on any thread. The
/// domain makes no progress before this call: posted operations wait. When the future has ended,
/// the tasks of [`spawn`] are dropped, and then the driver ends as when a runtime ends: operations
/// fail with [`ErrorKind::DriverGone`], and peers see their connections lost. To close gracefully,
/// await [`Domain::close`] in the future.
///
/// While the future is polled, the domain makes no progress: code that blocks stops the domain, and
/// with it the peers. Tokio's cooperative budget applies to the future and to the tasks of
/// [`spawn`].
///
/// If the driver ends first (the domain is closed, or the ring is lost), the future continues
/// without it.
///
/// # Panics
/// When called in asynchronous code, as Tokio's own `block_on`; the domain is then unchanged. A
/// panic of the future propagates out of this call, once the tasks and the driver have ended.
///
/// # Errors
/// - [`ErrorKind::InvalidArgument`] if the domain has another driver.
/// - [`ErrorKind::BadState`] if the domain was given to a `block_on` before, or if called within
///   another `block_on` of this module.
/// - [`ErrorKind::LimitReached`] if no descriptor or thread is left for Tokio's runtime, and
///   [`ErrorKind::System`] if the ring cannot be started. The domain has ended then.
pub fn block_on<F: Future>(domain: &Domain, future: F) -> Result<F::Output> {
    let Some(waiting) = domain.waiting_driver() else {
        let what = "block_on: the domain has another driver; open it with Driver::Local";
        return Err(Error::new(ErrorKind::InvalidArgument, what));
    };
    waiting.block_on(future)
}

/// Starts a task that runs on this thread, concurrently with the future of [`block_on`]. The task
/// need not be `Send`.
///
/// # Cancel safety
/// If the handle is dropped, the task continues until it or the `block_on` ends. Aborting it drops
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
