//! A doorbell whose rings Tokio's reactor reports. It is never read: each write to it is an edge.

use std::task::{Poll, Waker};

use super::watched::Watched;
use super::{IoDirection, poll_ready};
use crate::transport::local::Doorbell;

pub(super) struct EpollDoorbell(pub(super) Watched);

impl Doorbell for EpollDoorbell {
    fn register(&mut self, waker: &Waker) {
        // Once the runtime has ended, nothing wakes any more; the driver ends too.
        while let Poll::Ready(Ok(mut guard)) = poll_ready(&self.0, IoDirection::Read, waker) {
            guard.clear_ready();
        }
    }
}
