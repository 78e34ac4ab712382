//! The outer link: a channel behind the trait `Stream`.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::task::Poll;

use super::TlsEnd;
use super::channel::{Channel, ChannelPhase};
use crate::error::Result;
use crate::identity::PeerIdentity;
use crate::transport::stream::{Stream, Submissions};
use crate::transport::{KeepAliveConfig, LinkStats, RawLink, TrafficMark};

pub(super) struct TlsStream {
    /// `None` once the connection is taken out.
    channel: Option<Box<Channel>>,
}

impl TlsStream {
    pub(super) fn new(channel: Channel) -> Self {
        TlsStream {
            channel: Some(Box::new(channel)),
        }
    }

    fn pump(&mut self, io: &mut Submissions) {
        if let Some(channel) = &mut self.channel {
            channel.pump(io, true);
        }
    }
}

impl Stream for TlsStream {
    fn poll_connect(&mut self, io: &mut Submissions) -> Poll<Result<SocketAddr>> {
        let Some(channel) = &mut self.channel else {
            return Poll::Pending;
        };
        // Submissions wait for the handshake.
        channel.pump(io, false);
        match (channel.phase, channel.failure()) {
            (ChannelPhase::Open, _) => Poll::Ready(Ok(channel.link.local_addr())),
            (_, Some(error)) => Poll::Ready(Err(error.clone())),
            _ => Poll::Pending,
        }
    }

    fn poll_send(&mut self, io: &mut Submissions) {
        self.pump(io);
    }

    fn poll_receive(&mut self, io: &mut Submissions) {
        self.pump(io);
    }

    fn poll_watch(&mut self, io: &mut Submissions) {
        self.pump(io);
    }

    fn poll_idle(&mut self, io: &mut Submissions) {
        self.pump(io);
    }

    fn arm(&mut self, io: &mut Submissions) {
        if let Some(channel) = &mut self.channel {
            channel.arm(io);
        }
    }

    fn try_receive(&mut self, io: &mut Submissions) {
        if let Some(channel) = &mut self.channel {
            channel.try_receive(io);
        }
    }

    fn withdraw_batch(&mut self) -> usize {
        let channel = self.channel.as_mut();
        channel.map_or(0, |channel| channel.withdraw_batch())
    }

    fn abort(&mut self) {
        match &mut self.channel {
            // The connection ends with the alert that was sent; a reset would overtake the alert.
            Some(channel) if channel.phase == ChannelPhase::Failed => {}
            Some(channel) => channel.link.reset(),
            None => {}
        }
    }

    fn finish(&mut self, io: &mut Submissions) {
        if let Some(channel) = &mut self.channel {
            channel.finish();
            channel.pump(io, true);
            io.notify_if_received();
        }
    }

    fn unread_bytes(&self) -> usize {
        let channel = self.channel.as_ref();
        channel.map_or(0, |channel| channel.unread_bytes())
    }

    fn stats(&self) -> Option<LinkStats> {
        self.channel.as_ref()?.link.stats()
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.channel.as_ref()?.link.socket()
    }

    fn set_keep_alive(&mut self, config: KeepAliveConfig) -> bool {
        let channel = self.channel.as_mut();
        channel.is_some_and(|channel| channel.link.set_keep_alive(config))
    }

    fn set_traffic(&mut self, mark: TrafficMark) -> Result<()> {
        let channel = self.channel.as_mut();
        channel.map_or(Ok(()), |channel| channel.link.set_traffic(mark))
    }

    fn take_raw(&mut self, _io: &Submissions) -> Option<RawLink> {
        let channel = self.channel.take_if(|channel| channel.is_idle())?;
        let (raw, parts) = channel.into_raw()?;
        Some(RawLink::Tls(Box::new(TlsEnd {
            raw: Box::new(raw),
            parts: Some(parts),
        })))
    }

    fn identity(&self) -> Option<PeerIdentity> {
        let channel = self.channel.as_ref()?;
        let is_open = channel.phase == ChannelPhase::Open;
        channel.session.identity().filter(|_| is_open)
    }
}
