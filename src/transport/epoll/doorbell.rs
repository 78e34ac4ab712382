//! A doorbell that Tokio's reactor watches. It is never read: each write to it is an edge.

use std::task::{Poll, Waker};

use super::watched::Watched;
use super::{IoDirection, poll_ready};
use crate::transport::Doorbell;

pub(super) struct EpollDoorbell {
    pub(super) bell: Watched,
    pub(super) waker: Waker,
}

impl Doorbell for EpollDoorbell {
    fn register(&mut self) {
        // Once the runtime has ended, nothing wakes any more; the driver ends too.
        while let Poll::Ready(Ok(mut guard)) =
            poll_ready(&self.bell, IoDirection::Read, &self.waker)
        {
            guard.clear_ready();
        }
    }
}
