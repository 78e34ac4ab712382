//! A connection whose bytes go through rings in shared memory, while its socket stays open.
//!
//! ```text
//!   sends      Socket ──the peer reads the ring──▶ Ring
//!   receives   Socket ──the peer has begun──▶ Rest(n) ──n bytes of the socket received──▶ Ring
//! ```
//! Each direction changes from the socket to the ring once, after a number of bytes that the sender
//! stores. So the bytes stay one ordered stream, and the protocol above does not notice.
//!
//! The socket reports that the peer has ended its stream, or is gone: bytes that the peer wrote to
//! the ring before are received first. A side that finds nothing to read, or no room, sleeps on its
//! doorbell; the other side rings the doorbell of a sleeping side only. A reader that is polled
//! all the time (busy polling) does not sleep.

use std::cell::Cell;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Poll, Waker};
use std::time::Instant;

use super::ring::{RingReader, RingWriter};
use crate::buf::{AccessError, SendBatch, Stage};
use crate::edges::{check_edge, state_machine};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{DIRECT_PIECE_MAX, LOCAL_PIECE_LEN};
use crate::transport::stream::{Stream, Submissions};
use crate::transport::{DirectBuffer, LinkStats, Receive, Transport};

/// A descriptor that the peer writes to when this side sleeps.
pub(crate) trait Doorbell: Send {
    /// Registers the waker for the peer's next ring. If the peer has rung since the last call, the
    /// waker may be woken at once.
    fn register(&mut self);
}

/// One side's result of the rendezvous: its ends of the two rings, and both doorbells.
pub(crate) struct LocalParts {
    pub(super) writer: RingWriter,
    pub(super) reader: RingReader,
    pub(super) own_bell: OwnedFd,
    pub(super) peer_bell: OwnedFd,
}

debug_fields!(LocalParts, self => writer: self.writer);

impl LocalParts {
    #[cfg(test)]
    pub(in crate::transport) fn ring_peer(&self) {
        ring(&self.peer_bell);
    }

    /// Makes the carrier of a link with this waker. The transport watches the carrier's doorbell.
    pub(in crate::transport) fn into_carrier(
        self,
        transport: &dyn Transport,
        waker: &Waker,
    ) -> Result<LocalCarrier> {
        Ok(LocalCarrier {
            writer: self.writer,
            reader: self.reader,
            own_bell: transport.watch_bell(self.own_bell, waker.clone())?,
            peer_bell: self.peer_bell,
            sends: SendPath::Socket,
            receives: ReceivePath::Socket,
            is_polled: false,
            last_write: Cell::new(LastWrite {
                written: 0,
                at: Instant::now(),
            }),
        })
    }
}

/// The path of the next sent bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendPath {
    Socket,
    Ring,
}

state_machine! { SendPath {
    Socket => [Ring],
    Ring => [],
}}

/// The path of the next received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReceivePath {
    Socket,
    /// Through the socket, until this many bytes in all have been received through it.
    Rest(u64),
    Ring,
}

state_machine! { ReceivePath {
    Socket => [Rest],
    Rest => [Ring],
    Ring => [],
}}

/// The last observed count of bytes that the peer has written to its ring, and when it changed.
#[derive(Clone, Copy)]
struct LastWrite {
    written: u64,
    at: Instant,
}

/// The rings of one connection, and the state of each direction.
pub(crate) struct LocalCarrier {
    writer: RingWriter,
    reader: RingReader,
    own_bell: Box<dyn Doorbell>,
    peer_bell: OwnedFd,
    sends: SendPath,
    receives: ReceivePath,
    /// See [`Link::set_polled`](crate::transport::Link::set_polled).
    is_polled: bool,
    last_write: Cell<LastWrite>,
}

impl fmt::Debug for LocalCarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalCarrier")
            .field("sends", &self.sends)
            .field("receives", &self.receives)
            .finish_non_exhaustive()
    }
}

impl LocalCarrier {
    /// Informs the peer that this side reads the ring from now on.
    pub(in crate::transport) fn open(&self) {
        self.reader.open();
    }

    /// Returns true once both directions go through the rings.
    pub(in crate::transport) fn is_complete(&self) -> bool {
        (self.sends, self.receives) == (SendPath::Ring, ReceivePath::Ring)
    }

    /// Rings the peer's doorbell if the peer sleeps.
    fn ring_if(&self, sleeps: bool) {
        if sleeps {
            ring(&self.peer_bell);
        }
    }

    /// Sends as much of the submitted batch as there is room for.
    ///
    /// # Errors
    /// The peer has broken the ring's protocol; the connection must end.
    pub(in crate::transport) fn poll_send(
        &mut self,
        io: &mut Submissions,
        socket: &mut impl Stream,
    ) -> Result<()> {
        if self.sends == SendPath::Socket {
            if io.is_send_in_flight() || !self.writer.is_read() {
                socket.poll_send(io);
                return Ok(());
            }
            self.writer.begin(io.counts.sent);
            check_edge(&self.sends, &SendPath::Ring);
            self.sends = SendPath::Ring;
        }
        let Some(batch) = io.batch() else {
            return Ok(());
        };
        let room = self.writer.room()?;
        if room == 0 && !self.writer.is_abandoned() {
            self.own_bell.register();
            if !self.writer.sleep_for_room() {
                io.waker.wake_by_ref();
            }
            return Ok(());
        }
        if self.writer.is_abandoned() {
            let gone = Error::new(ErrorKind::ConnectionReset, "by the peer");
            io.end_send(Err(gone));
            return Ok(());
        }
        let len_max = io.sizes.send.min(DIRECT_PIECE_MAX);
        let (mut sent, mut room) = (0, room);
        // Writes in pieces: the reader copies a piece while this side writes the next.
        let refused = loop {
            let len = room.min(LOCAL_PIECE_LEN).min(len_max - sent);
            self.writer.prepare(len.min(batch.remaining() - sent))?;
            let (written, refused) = self.write(batch, sent, len);
            let sleeps = self.writer.publish(written);
            self.ring_if(sleeps);
            sent += written;
            room = self.writer.room()?;
            if written < LOCAL_PIECE_LEN || sent == len_max || room == 0 || refused.is_some() {
                break refused;
            }
        };
        io.end_send(match refused {
            Some(refused @ AccessError::Fault(_)) if sent == 0 => Err(refused.error("sending")),
            _ => Ok(sent),
        });
        Ok(())
    }

    /// Writes up to `len` bytes of the batch to the ring, after its first `skipped` bytes. Returns
    /// the number of bytes written, and the reason if a region refused access.
    fn write(
        &mut self,
        batch: &SendBatch,
        skipped: usize,
        len: usize,
    ) -> (usize, Option<AccessError>) {
        let mut written = 0;
        for room in self.writer.room_for(len) {
            let wanted = room.len();
            let (count, refused) = batch.copy_out(skipped + written, room);
            written += count;
            if count < wanted || refused.is_some() {
                return (written, refused);
            }
        }
        (written, None)
    }

    /// Receives for the armed receive.
    ///
    /// # Errors
    /// As for [`poll_send`](Self::poll_send).
    pub(in crate::transport) fn poll_receive(
        &mut self,
        io: &mut Submissions,
        socket: &mut impl Stream,
    ) -> Result<()> {
        // A receive that the kernel got before the change to the ring must end or be returned
        // first.
        if io.is_receive_in_flight() {
            socket.poll_receive(io);
            if io.armed().is_none() {
                return Ok(());
            }
        }
        if self.receives != ReceivePath::Ring && !self.turn_to_ring(io)? {
            socket.poll_receive(io);
            if io.armed().is_some() && !self.sleep(io)? {
                io.waker.wake_by_ref();
            }
            return Ok(());
        }
        if self.take_available(io)? {
            return Ok(());
        }
        let Poll::Ready(end) = socket.poll_end(io) else {
            // Takes bytes that have just come, once. For more bytes this side polls again, so that
            // the writer cannot keep it in this call.
            if !self.sleep(io)? && !self.take_available(io)? {
                io.waker.wake_by_ref();
            }
            return Ok(());
        };
        // Bytes that the peer has written before its end come first.
        if !self.take_available(io)? {
            match end {
                Ok(()) => io.end_stream(),
                Err(error) => io.fail_receive(error),
            }
        }
        Ok(())
    }

    /// Changes to the ring once the socket's bytes are received. Returns true if it has changed.
    fn turn_to_ring(&mut self, io: &Submissions) -> Result<bool> {
        if self.receives == ReceivePath::Socket {
            let Some(begun) = self.reader.begun() else {
                return Ok(false);
            };
            self.go(ReceivePath::Rest(begun));
        }
        let ReceivePath::Rest(begun) = self.receives else {
            return Ok(true);
        };
        if io.counts.received > begun {
            let what = "it has sent more through the socket than it says";
            return Err(Error::new(ErrorKind::ProtocolViolation, what));
        }
        let is_rest_here = io.counts.received == begun;
        if is_rest_here {
            self.go(ReceivePath::Ring);
        }
        Ok(is_rest_here)
    }

    fn go(&mut self, to: ReceivePath) {
        check_edge(&self.receives, &to);
        self.receives = to;
    }

    /// Registers the waker for bytes in the ring, unless this side is polled. Returns false if
    /// bytes have come meanwhile.
    fn sleep(&mut self, io: &Submissions) -> Result<bool> {
        // The rest of the socket's bytes comes first, and the socket wakes for them.
        if let ReceivePath::Rest(_) = self.receives {
            return Ok(true);
        }
        if self.is_polled {
            return Ok(true);
        }
        self.own_bell.register();
        let wanted = io.armed().map_or(1, Receive::wake_bytes);
        let sleeps = self.reader.sleep_for(wanted.into());
        if !sleeps && self.receives == ReceivePath::Socket && self.reader.begun().is_none() {
            let what = "it has written to the ring without having begun";
            return Err(Error::new(ErrorKind::ProtocolViolation, what));
        }
        Ok(sleeps)
    }

    /// Begins or ends busy polling.
    ///
    /// # Errors
    /// As for [`poll_send`](Self::poll_send).
    pub(in crate::transport) fn set_polled(
        &mut self,
        polled: bool,
        io: &Submissions,
    ) -> Result<()> {
        self.is_polled = polled;
        if polled {
            self.reader.awake();
        } else if io.armed().is_some() && !self.sleep(io)? {
            io.waker.wake_by_ref();
        }
        Ok(())
    }

    /// Ends the armed receive with bytes of the ring. Returns false if the ring is empty.
    fn take_available(&mut self, io: &mut Submissions) -> Result<bool> {
        let available = self.reader.available()?;
        if available == 0 {
            return Ok(false);
        }
        self.reader.awake();
        match io.armed_direct() {
            None => self.take_stage(io, available),
            Some(_) => self.take_direct(io, available)?,
        }
        Ok(true)
    }

    fn take_stage(&mut self, io: &mut Submissions, available: usize) {
        let mut stage = Stage::take();
        let room = stage.spare();
        let len = available.min(io.sizes.receive).min(room.len());
        self.reader.copy(&mut room[..len]);
        stage.fill(len);
        self.free(len);
        io.end_receive(len, Some(stage));
    }

    /// Copies to the direct destination in pieces: the writer refills one while the next is copied.
    fn take_direct(&mut self, io: &mut Submissions, mut available: usize) -> Result<()> {
        let len_max = io.sizes.receive.min(DIRECT_PIECE_MAX);
        let Some(direct) = io.armed_direct() else {
            return Ok(());
        };
        let len = len_max.min(direct.len as usize);
        let mut copied = 0;
        let refused = loop {
            let piece = available.min(LOCAL_PIECE_LEN).min(len - copied);
            let (count, refused) = self.copy_to(direct, copied, piece);
            self.free(count);
            copied += count;
            available = self.reader.available()?;
            if copied == len || available == 0 || refused.is_some() {
                break refused;
            }
        };
        match refused {
            Some(AccessError::Closed(_)) if copied == 0 => io.end_cancelled(),
            Some(fault) if copied == 0 => io.fail_receive(fault.error("receiving")),
            _ => io.end_receive(copied, None),
        }
        Ok(())
    }

    /// Copies the next `len` bytes of the ring to a destination, after its first `copied` bytes.
    /// Returns the number of bytes copied, and the reason if a region refused access.
    fn copy_to(
        &self,
        direct: &mut DirectBuffer,
        copied: usize,
        len: usize,
    ) -> (usize, Option<AccessError>) {
        let mut count = 0;
        for bytes in self.reader.bytes(len) {
            let (at, len) = (direct.offset + copied + count, bytes.len());
            if let Err(refused) = direct.payload.copy_in_from(at, bytes) {
                return (count, Some(refused));
            }
            count += len;
        }
        (count, None)
    }

    /// Frees the room of the next `len` bytes, which have been copied.
    fn free(&mut self, len: usize) {
        let sleeps = self.reader.consume(len);
        self.ring_if(sleeps);
    }

    /// Receives for the armed receive if the ring has bytes, without asking for readiness.
    ///
    /// # Errors
    /// As for [`poll_send`](Self::poll_send).
    pub(in crate::transport) fn try_receive(
        &mut self,
        io: &mut Submissions,
        socket: &mut impl Stream,
    ) -> Result<()> {
        if self.receives != ReceivePath::Ring && !self.turn_to_ring(io)? {
            socket.try_receive(io);
            return Ok(());
        }
        self.take_available(io).map(drop)
    }

    /// Registers the waker for the armed receive, or wakes it.
    ///
    /// # Errors
    /// As for [`poll_send`](Self::poll_send).
    pub(in crate::transport) fn arm(
        &mut self,
        io: &mut Submissions,
        socket: &mut impl Stream,
    ) -> Result<()> {
        if self.receives != ReceivePath::Ring && !self.turn_to_ring(io)? {
            socket.arm(io);
        } else if self.reader.available()? > 0 || socket.poll_end(io).is_ready() {
            io.notify();
            return Ok(());
        }
        if !self.sleep(io)? {
            io.notify();
        }
        Ok(())
    }

    /// Returns the number of bytes in the ring that no receive has taken.
    pub(in crate::transport) fn unread_bytes(&self) -> usize {
        self.reader.unread() as usize
    }

    /// Frees memory that an idle connection does not need.
    pub(in crate::transport) fn shrink(&mut self) {
        self.writer.give_back();
    }

    /// Adds the ring's facts to the system's facts about the socket. Called at intervals, which
    /// limit how exactly the time of the peer's last write is known.
    pub(in crate::transport) fn add_stats(&self, stats: LinkStats) -> LinkStats {
        let written = self.reader.written();
        let now = Instant::now();
        if written != self.last_write.get().written {
            self.last_write.set(LastWrite { written, at: now });
        }
        let silent = now.saturating_duration_since(self.last_write.get().at);
        let (confirmed, unconfirmed) = self.writer.progress();
        LinkStats {
            silent: stats.silent.min(silent),
            confirmed: stats.confirmed + confirmed,
            unconfirmed: stats.unconfirmed + unconfirmed,
            unanswered: stats.unanswered,
        }
    }
}

impl Drop for LocalCarrier {
    fn drop(&mut self) {
        self.reader.abandon();
        self.ring_if(true);
    }
}

fn ring(bell: &OwnedFd) {
    // Fails only if the descriptor's count is at its maximum: the bell has then been rung already.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// Makes a doorbell: a write to it wakes its owner.
pub(super) fn make_bell() -> Result<OwnedFd> {
    use rustix::event::{EventfdFlags, eventfd};
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|error| Error::from_io(&error.into(), "making a doorbell"))
}

/// Returns true if the descriptor is a doorbell (an eventfd), and writing to it never blocks.
pub(super) fn is_bell(fd: &OwnedFd) -> bool {
    use rustix::fs::{OFlags, fcntl_getfl};
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(fd));
    let target = std::fs::read_link(path);
    let is_eventfd = target.is_ok_and(|it| {
        it.as_os_str()
            .as_encoded_bytes()
            .starts_with(b"anon_inode:[eventfd")
    });
    let flags = fcntl_getfl(fd.as_fd());
    is_eventfd && flags.is_ok_and(|flags| flags.contains(OFlags::NONBLOCK))
}
