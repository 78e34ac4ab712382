//! Wrapping a transport: the wrapper handles connections, and leaves the rest to the inner one.

/// Implements the methods of [`Transport`](super::Transport) that do not concern connections, by
/// calling `self.inner`.
macro_rules! leave_to_inner {
    () => {
        fn backend(&self) -> $crate::transport::Backend {
            self.inner.backend()
        }

        fn poll_drive(&self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Result<()>> {
            self.inner.poll_drive(cx)
        }

        fn try_park(&self, driver: &std::task::Waker) -> bool {
            self.inner.try_park(driver)
        }

        fn check_up(&self) -> Result<()> {
            self.inner.check_up()
        }

        fn has_completions(&self) -> bool {
            self.inner.has_completions()
        }

        fn ring(&self) -> Option<$crate::transport::RingInfo> {
            self.inner.ring()
        }

        fn shutdown(&self) {
            self.inner.shutdown();
        }

        fn open_clock(&self) -> Result<Box<dyn $crate::transport::Clock>> {
            self.inner.open_clock()
        }
    };
}

pub(super) use leave_to_inner;
