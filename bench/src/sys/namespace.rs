//! Network namespaces without a name: one exists while its descriptor is open or a process is in
//! it, so none is left behind, however this process ends.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

use anyhow::{Context, Result};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// The one that the calling thread is in.
const OF_THIS_THREAD: &str = "/proc/thread-self/ns/net";

/// A network namespace.
#[derive(Debug)]
pub struct Namespace(File);

impl Namespace {
    /// An empty one: not even its loopback device is up.
    ///
    /// # Errors
    /// This process may not make one.
    pub fn new() -> Result<Namespace> {
        // On a thread of its own, which ends in it.
        let making = std::thread::spawn(|| {
            // SAFETY: only the table of descriptors must not be unshared, and it is not.
            let unshared = unsafe { unshare_unsafe(UnshareFlags::NEWNET) };
            unshared.context("making a network namespace, which needs root (CAP_SYS_ADMIN)")?;
            Ok(Namespace(File::open(OF_THIS_THREAD)?))
        });
        making.join().expect("nothing in it panics")
    }

    /// Does this within the namespace: what processes, sockets and devices it makes are there.
    ///
    /// # Errors
    /// Those of the work, and of changing the namespace.
    pub fn within<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let before = File::open(OF_THIS_THREAD)?;
        enter(&self.0)?;
        let done = work();
        enter(&before).and(done)
    }

    /// A path under which other processes find it.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()).into()
    }
}

fn enter(namespace: &File) -> Result<()> {
    let entered = move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network));
    entered.context("entering a network namespace")
}
