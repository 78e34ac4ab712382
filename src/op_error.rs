//! The error of a call that took buffers: it gives them back.

use std::fmt;

use crate::error::{Error, ErrorKind};

/// Why an operation failed, with the buffers it was given (decision 1 of the design: buffers come
/// back on error too). `?` turns it into an [`Error`], dropping them.
pub struct Failed<B> {
    error: Error,
    buffers: Option<B>,
}

impl<B> Failed<B> {
    pub(crate) fn new(error: Error, buffers: Option<B>) -> Self {
        Failed { error, buffers }
    }

    /// What went wrong.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// Shorthand for the error's kind.
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }

    /// The error alone; the buffers are freed.
    pub fn into_error(self) -> Error {
        self.error
    }

    /// The error and the buffers. They are missing only if the progress driver ended with its
    /// runtime while the kernel still had them.
    pub fn into_parts(self) -> (Error, Option<B>) {
        (self.error, self.buffers)
    }
}

impl<B> From<Failed<B>> for Error {
    fn from(failed: Failed<B>) -> Error {
        failed.error
    }
}

impl<B> fmt::Display for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> fmt::Debug for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failed")
            .field("error", &self.error)
            .field("has_buffers", &self.buffers.is_some())
            .finish()
    }
}

impl<B> std::error::Error for Failed<B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
