//! Deregistering a region, which returns its buffers.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::core::{RegionCore, buffers_taken};
use crate::buf::ConvertMany;
use crate::error::Result;
use crate::sync::{Drain, DrainScope, HasGate, ProgressWaiter};

/// A future that deregisters the region at its first poll, waits until the gate is drained, and
/// takes the buffers. The region was made of a `B`, or `B` can be made of any buffers.
pub(super) struct Deregistration<B> {
    core: Arc<RegionCore>,
    state: State,
    contents: PhantomData<fn() -> B>,
}

enum State {
    Open,
    Draining(Drain, ProgressWaiter),
    Drained,
}

impl<B> Deregistration<B> {
    pub(super) fn new(core: &Arc<RegionCore>) -> Self {
        Deregistration {
            core: Arc::clone(core),
            state: State::Open,
            contents: PhantomData,
        }
    }

    #[cold]
    fn wait(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let State::Open = self.state {
            let drained = self.core.memory().drained(DrainScope::All);
            let waiter = ProgressWaiter::new(self.core.progress());
            self.state = State::Draining(drained, waiter);
        }
        if let State::Draining(draining, waiter) = &mut self.state {
            ready!(waiter.poll(context, |cx| Pin::new(&mut *draining).poll(cx)));
        }
        self.state = State::Drained;
        Poll::Ready(())
    }
}

impl<B: ConvertMany> Future for Deregistration<B> {
    type Output = Result<B>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<B>> {
        let is_drained = match self.state {
            State::Open => self.core.deregister()?,
            State::Draining(..) => false,
            State::Drained => true,
        };
        if !is_drained {
            ready!(self.wait(context));
        }
        let taken = self.core.memory().take().ok_or_else(buffers_taken)?;
        let back = B::from_owned_buffers(taken);
        Poll::Ready(Ok(back.expect("the handle has the type of its buffers")))
    }
}
