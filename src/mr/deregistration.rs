//! The end of a region, for who wants its buffers back.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::core::{RegionCore, given_back};
use crate::buf::RegionMemory;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{Drained, Draining, Gated};

/// Deregisters at its first poll, waits for those inside, and takes what `take` gives. Written by
/// hand, so that the usual way is part of its caller: a buffer is a handful of words, and the
/// processor waits for those that are written one by one and read in pairs.
pub(super) struct Deregistration<T> {
    core: Arc<RegionCore>,
    /// Refuse a region of several buffers, or of none.
    of_one: bool,
    take: T,
    state: State,
}

enum State {
    Open,
    Draining(Draining),
    Drained,
}

impl<B, T: Fn(&RegionMemory) -> Option<B> + Unpin> Deregistration<T> {
    #[inline(always)]
    pub(super) fn new(core: &Arc<RegionCore>, of_one: bool, take: T) -> Self {
        Deregistration {
            core: Arc::clone(core),
            of_one,
            take,
            state: State::Open,
        }
    }

    /// Says whether nobody is inside.
    #[inline(always)]
    fn begin(&self) -> Result<bool> {
        if self.of_one && self.core.memory().segment_count() != 1 {
            return Err(several());
        }
        self.core.deregister()
    }

    #[cold]
    fn wait(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let State::Open = self.state {
            self.state = State::Draining(self.core.memory().drained(Drained::All));
        }
        if let State::Draining(draining) = &mut self.state {
            ready!(Pin::new(draining).poll(context));
        }
        self.state = State::Drained;
        Poll::Ready(())
    }
}

impl<B, T: Fn(&RegionMemory) -> Option<B> + Unpin> Future for Deregistration<T> {
    type Output = Result<B>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<B>> {
        let is_drained = match self.state {
            State::Open => self.begin()?,
            State::Draining(_) => false,
            State::Drained => true,
        };
        if !is_drained {
            ready!(self.wait(context));
        }
        let taken = (self.take)(self.core.memory());
        Poll::Ready(taken.ok_or_else(given_back))
    }
}

#[cold]
fn several() -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        "the region has several buffers: deregister_all gives them back",
    )
}
