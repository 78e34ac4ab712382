//! The error of a call that took buffers; it returns them.

use std::{fmt, io};

use crate::error::{Error, ErrorKind};

/// The error of an operation, together with its buffers, which are returned on failure too.
///
/// `?` converts it into an [`Error`], a [`std::io::Error`], a boxed error or an `anyhow::Error`,
/// and drops the buffers.
///
/// ```
/// use tokio_fabric::testing::Net;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tokio_fabric::Result<()> {
/// let (a, b) = Net::loopback().pair().await?;
/// drop(a);
/// let (error, buffer) = b.recv(vec![0; 8]).await.unwrap_err().into_parts();
/// assert!(error.is_connection_lost());
/// assert_eq!(buffer, Some(vec![0; 8])); // It is yours again.
/// # Ok(()) }
/// ```
pub struct Failed<B> {
    error: Error,
    buffers: Option<B>,
    len: usize,
    overflow_len: usize,
}

impl<B> Failed<B> {
    pub(crate) fn new(error: Error, buffers: Option<B>) -> Self {
        Failed {
            error,
            buffers,
            len: 0,
            overflow_len: 0,
        }
    }

    /// Adds the lengths of a receive that got `len` bytes and lost `overflow_len`.
    pub(crate) fn with_lengths(mut self, len: usize, overflow_len: usize) -> Self {
        self.len = len;
        self.overflow_len = overflow_len;
        self
    }

    /// Bytes of a truncated message that were received: the first bytes of the buffers. 0 for all
    /// other failures, after which the contents of the buffers are unspecified.
    pub fn received_len(&self) -> usize {
        self.len
    }

    /// Bytes of a truncated message that did not fit and are lost (`olen` of `fi_cq_err_entry`).
    pub fn overflow_len(&self) -> usize {
        self.overflow_len
    }

    /// The error, without the buffers.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// Shorthand for the error's kind.
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }

    /// The error alone; the buffers are dropped.
    pub fn into_error(self) -> Error {
        self.error
    }

    /// The error and the buffers. `None` only if the kernel was still using them: the progress
    /// driver ended with its runtime, or the operation timed out while its bytes were being
    /// transferred.
    pub fn into_parts(self) -> (Error, Option<B>) {
        (self.error, self.buffers)
    }
}

impl<B> From<Failed<B>> for Error {
    fn from(failed: Failed<B>) -> Error {
        failed.error
    }
}

impl<B> From<Failed<B>> for io::Error {
    fn from(failed: Failed<B>) -> io::Error {
        failed.error.into()
    }
}

impl<B> fmt::Display for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

debug_fields!([B] Failed<B>, self => error: self.error, has_buffers: self.buffers.is_some());

impl<B> std::error::Error for Failed<B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // `Display` shows the inner error's text already: as a source it would be shown twice.
        self.error.source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chain of causes, as error reports print it, says nothing twice.
    #[test]
    fn a_chain_of_causes_says_nothing_twice() {
        let failed: Failed<Vec<u8>> =
            Failed::new(Error::new(ErrorKind::PeerClosed, "so it is"), None);
        let mut chain = vec![failed.to_string()];
        let mut cause = std::error::Error::source(&failed);
        while let Some(error) = cause {
            chain.push(error.to_string());
            cause = error.source();
        }
        assert_eq!(chain, [failed.error().to_string()]);
    }
}
