//! A call's request as it can be sent, and the account of it.

use std::sync::Arc;

use bytes::Bytes;
#[cfg(feature = "metrics")]
use tokio::time::Instant;
use tokio_fabric::Domain;
use tracing::Span;

use super::ChannelInner;
use crate::lend::{Lend, LentRead};
use crate::limits::{BODY_MAX, FRAME_MAX, HEADER_LEN};
use crate::observe;
use crate::server::Method;
use crate::status::{Code, Result, Status};
use crate::wire::{
    FrameBuf, FrameHead, Prefix, insert_prefix, reference_frame, write_request_head,
};

/// A request as it can be sent.
#[derive(Default)]
pub(super) struct Described {
    pub(super) frame: FrameBuf,
    /// A body that is too large for the frame, which then says where it is. Nothing of it is the
    /// caller's, so it is shut at the call's end and freed when nothing uses it.
    pub(super) body: Option<Box<LentRead<Bytes>>>,
    /// Its length.
    pub(super) body_len: u64,
}

impl Described {
    /// Completes a request of which only header and body are there.
    pub(super) fn complete(&mut self, prefix: &Prefix<'_>, domain: &Domain) -> Result<()> {
        let frame = &mut self.frame;
        if frame.len() > FRAME_MAX - prefix.len() {
            let bytes = Bytes::from(std::mem::take(frame).into_vec()).slice(HEADER_LEN..);
            if bytes.len() > BODY_MAX {
                return Err(too_large(bytes.len() as u64, BODY_MAX as u64));
            }
            self.body_len = bytes.len() as u64;
            let mut lent = Lend::read(bytes);
            *frame = reference_frame(&lent.lend(domain)?);
            self.body = Some(Box::new(lent));
        }
        let prefix = Prefix {
            is_by_reference: self.body.is_some(),
            ..*prefix
        };
        if !prefix.is_empty() {
            insert_prefix(frame, &prefix);
        }
        Ok(())
    }

    /// The frame, to be sent under this name.
    pub(super) fn named(&mut self, head: FrameHead) -> &mut FrameBuf {
        write_request_head(&mut self.frame, head);
        &mut self.frame
    }

    /// Its frame was given to the endpoint, which may have failed.
    pub(super) fn is_sent(&self) -> bool {
        self.frame.is_empty()
    }
}

pub(super) fn too_large(len: u64, max: u64) -> Status {
    let what = format!("a request of {len} bytes, the server takes {max}: lend what is large");
    Status::not_started(Code::TooLarge, what)
}

/// Who counts a call, and where its span is.
pub(super) struct CallRecord {
    pub(super) channel: Arc<ChannelInner>,
    pub(super) method: &'static Method,
    pub(super) span: Span,
    /// Since its first poll.
    #[cfg(feature = "metrics")]
    pub(super) begun: Option<Instant>,
}

impl CallRecord {
    /// The one end of a call that was polled: the code of its answer, or why there is none.
    pub(super) fn end(&self, end: Result<u32, &Status>) {
        self.channel.counters.end(end);
        let code = observe::code_of(end);
        observe::record_end(&self.span, code);
        #[cfg(feature = "metrics")]
        if let Some(begun) = self.begun {
            let times = &self.channel.counters.times;
            times.record(self.method, code, begun.elapsed());
        }
    }

    /// Its caller has dropped it instead.
    pub(super) fn drop_call(&self) {
        self.channel.counters.drop_call();
    }

    /// For the rest of the call.
    pub(super) fn take(&mut self) -> CallRecord {
        CallRecord {
            channel: Arc::clone(&self.channel),
            method: self.method,
            span: std::mem::replace(&mut self.span, Span::none()),
            #[cfg(feature = "metrics")]
            begun: self.begun,
        }
    }
}
