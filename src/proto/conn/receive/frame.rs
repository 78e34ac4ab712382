//! Dispatch of frames by their headers.

use crate::error::Error;
use crate::info::Caps;
use crate::limits::READ_REQUESTS_MAX;
use crate::proto::Host;
use crate::proto::conn::receive_state::ReceiveState;
use crate::proto::conn::{Connection, violation};
use crate::wire::{CloseReason, FrameHeader, WireError};

impl<T> Connection<T> {
    /// Dispatches a header. The receive state is [`ReceiveState::Header`] before; a frame that has
    /// a payload, or has to wait, changes it.
    pub(in crate::proto::conn) fn begin_frame(
        &mut self,
        header: FrameHeader,
        host: &mut impl Host<T>,
    ) -> Result<(), Error> {
        let passes = header.is_answer() || matches!(header, FrameHeader::Ping { .. });
        if self.tx.queued_answers() > READ_REQUESTS_MAX && !passes {
            // The peer does not read its answers: no further requests are taken from the peer.
            self.rx.go(ReceiveState::AwaitRoom { header });
            return Ok(());
        }
        match header {
            FrameHeader::Tagged { .. } if !self.shares_receives() => {
                return Err(WireError::TaggedOnMsg.into());
            }
            FrameHeader::Message { len, .. } | FrameHeader::Tagged { len, .. } => {
                if !is_received(header.tag(), host) {
                    return self.refuse_message(header.tag().is_some());
                }
                if let Some(max) = self.message_max().filter(|max| len > *max) {
                    return self.refuse_long_message(len, max);
                }
                self.begin_message(header, host);
            }
            FrameHeader::Rts { tag, .. } => {
                if !is_received(tag, host) {
                    return self.refuse_message(tag.is_some());
                }
                self.handle_rts(header, host)?;
            }
            FrameHeader::Cts { index } => self.handle_cts(index)?,
            FrameHeader::Data { index, len, .. } => self.begin_data(index, len, host)?,
            FrameHeader::Withdraw { index } => self.handle_withdraw(index, host)?,
            FrameHeader::Withdrawn { index } => self.handle_withdrawn(index)?,
            FrameHeader::Ack => self.handle_answer(Ok(()))?,
            FrameHeader::Acks { count } => self.handle_acks(count)?,
            FrameHeader::Refused { reason } => self.handle_answer(Err(reason))?,
            FrameHeader::ReadRequest { segments } => self.begin_read(&segments, host)?,
            FrameHeader::ReadResponse { len } => self.begin_read_response(len)?,
            FrameHeader::ReadData { len } => self.begin_read_data(len)?,
            FrameHeader::ReadEnd { refused } => self.handle_read_end(refused)?,
            FrameHeader::Ping { token } => self.tx.probe_frames_mut().answer(token),
            FrameHeader::Pong { .. } => {}
            FrameHeader::Credit { posted } => self.handle_credit(posted),
            FrameHeader::Stalled { .. } => self.handle_stalled(host),
            FrameHeader::Close {
                reason: CloseReason::Refusals,
            } => {
                self.rx.close();
                self.handle_guess_limit();
            }
            FrameHeader::Close {
                reason: CloseReason::NoReceive,
            } => {
                self.rx.close();
                self.handle_no_receive();
            }
            FrameHeader::Close {
                reason: CloseReason::TooLong,
            } => {
                self.rx.close();
                self.handle_too_long();
            }
            FrameHeader::Close {
                reason: CloseReason::Done,
            } => self.handle_close()?,
            FrameHeader::Hello { .. } => return Err(violation("a second hello")),
            FrameHeader::Write {
                data,
                ack,
                commit,
                segments,
            } => self.begin_write(data, ack, commit, segments, host)?,
            FrameHeader::Atomic {
                call,
                ref segments,
                len,
            } => self.begin_atomic(call, segments, len, host)?,
        }
        self.complete_payload(host);
        Ok(())
    }
}

/// True if the endpoint was opened to receive messages of this kind, tagged or untagged.
#[inline]
pub(in crate::proto::conn) fn is_received<T>(tag: Option<u64>, host: &impl Host<T>) -> bool {
    let message = match tag {
        None => Caps::MSG,
        Some(_) => Caps::TAGGED,
    };
    host.admits(message.union(Caps::RECV))
}
