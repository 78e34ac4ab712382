//! One direction of an in-process connection: a bounded queue of bytes between one writer and one
//! reader.
//!
//! Invariants: `held` is the sum of the chunks' unread bytes plus those of a chunk that the reader
//! has taken out, and `held <= LOOPBACK_PIPE_SIZE`. Only the writer adds to `held`, so room that it
//! has seen cannot shrink. Payload is copied, and wakers are woken, with the lock released.

use std::collections::VecDeque;
use std::task::Waker;

use crate::error::{Error, ErrorKind};
use crate::limits::{LOOPBACK_APPEND_MAX, LOOPBACK_PIPE_SIZE};
use crate::sync::{Lock, WakeList};

/// Bytes in the pipe; those before `start` have been read.
pub(super) struct Chunk {
    bytes: Vec<u8>,
    start: usize,
}

impl Chunk {
    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

#[derive(Default)]
struct State {
    chunks: VecDeque<Chunk>,
    held: usize,
    /// True once the writer has finished: the end of the stream follows the chunks.
    finished: bool,
    /// True once the reader is gone: written bytes are lost.
    abandoned: bool,
    /// True once either side has aborted the connection; both ends fail.
    reset: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

pub(super) struct Pipe {
    state: Lock<State>,
}

/// The front of the pipe, as a reader finds it.
pub(super) enum Front {
    /// The oldest bytes, lent out; [`Pipe::give_back`] must follow.
    Chunk(Chunk),
    /// No bytes now; the waker is registered.
    Empty,
    End,
    Reset,
}

impl Pipe {
    pub(super) fn new() -> Self {
        Pipe {
            state: Lock::new(State::default()),
        }
    }

    /// Returns how many bytes fit in now. Zero: the waker is woken when the pipe has room, or ends.
    pub(super) fn poll_room(&self, waker: &Waker) -> Result<usize, Error> {
        let mut state = self.state.lock("look for room");
        if state.reset || state.abandoned {
            return Err(Error::new(
                ErrorKind::ConnectionReset,
                "the other end is gone",
            ));
        }
        if state.finished {
            return Err(Error::new(
                ErrorKind::BadState,
                "this side has ended its stream",
            ));
        }
        let room = LOOPBACK_PIPE_SIZE - state.held;
        if room == 0 {
            state.writer = Some(waker.clone());
        }
        Ok(room)
    }

    /// As [`Pipe::poll_room`], but the waker is also woken when the reader is dropped, even if
    /// there is room. `Err`: the reader is gone, or the pipe is reset.
    #[cfg(any(test, feature = "test-util"))]
    pub(super) fn poll_writer(&self, waker: &Waker) -> Result<usize, ()> {
        let mut state = self.state.lock("look for the reader");
        if state.reset || state.abandoned {
            return Err(());
        }
        state.writer = Some(waker.clone());
        Ok(LOOPBACK_PIPE_SIZE - state.held)
    }

    /// Adds bytes, no more than `poll_room` returned. Takes the vector, or leaves it empty for
    /// reuse.
    pub(super) fn write(&self, bytes: &mut Vec<u8>) {
        let mut wakes = WakeList::new();
        let mut state = self.state.lock("write");
        if state.reset || state.abandoned {
            // The bytes are lost, as on a wire; the next write reports the loss.
            bytes.clear();
            return;
        }
        state.held += bytes.len();
        debug_assert!(
            state.held <= LOOPBACK_PIPE_SIZE,
            "only what fits is written"
        );
        match state.chunks.back_mut() {
            Some(last)
                if bytes.len() <= LOOPBACK_APPEND_MAX && last.bytes.len() < LOOPBACK_PIPE_SIZE =>
            {
                last.bytes.append(bytes);
            }
            _ => state.chunks.push_back(Chunk {
                bytes: std::mem::take(bytes),
                start: 0,
            }),
        }
        if let Some(reader) = state.reader.take() {
            wakes.push(reader);
        }
        // Guards drop in reverse order: the lock first, then the list, which wakes.
        drop(state);
    }

    /// Returns the number of bytes written and not read.
    pub(super) fn held(&self) -> usize {
        self.state.lock("count").held
    }

    /// Takes the oldest bytes out to be copied. Registers `waker` if there are none.
    pub(super) fn poll_front(&self, waker: &Waker) -> Front {
        let mut state = self.state.lock("read");
        if state.reset {
            return Front::Reset;
        }
        if let Some(chunk) = state.chunks.pop_front() {
            return Front::Chunk(chunk);
        }
        if state.finished {
            return Front::End;
        }
        state.reader = Some(waker.clone());
        Front::Empty
    }

    /// Ends a loan: `count` bytes of the chunk have been read.
    pub(super) fn give_back(&self, mut chunk: Chunk, count: usize) {
        let mut wakes = WakeList::new();
        let mut state = self.state.lock("end a read");
        chunk.start += count;
        if state.reset {
            return;
        }
        state.held -= count;
        if !chunk.unread().is_empty() {
            state.chunks.push_front(chunk);
        }
        if count > 0
            && let Some(writer) = state.writer.take()
        {
            wakes.push(writer);
        }
        drop(state);
    }

    /// Returns how the stream has ended, if it has, even if bytes are left to read; else registers
    /// `waker`.
    pub(super) fn poll_gone(&self, waker: &Waker) -> Option<Error> {
        let mut state = self.state.lock("watch");
        if state.reset {
            return Some(Error::new(ErrorKind::ConnectionReset, "by its other end"));
        }
        if state.finished {
            return Some(Error::new(ErrorKind::PeerClosed, "it ended its stream"));
        }
        state.reader = Some(waker.clone());
        None
    }

    pub(super) fn finish(&self) {
        self.change("finish", |state| state.finished = true);
    }

    pub(super) fn abandon(&self) {
        self.change("abandon", |state| {
            state.abandoned = true;
            state.chunks.clear();
            state.held = 0;
        });
    }

    pub(super) fn reset(&self) {
        self.change("reset", |state| {
            state.reset = true;
            state.chunks.clear();
            state.held = 0;
        });
    }

    fn change(&self, purpose: &'static str, change: impl FnOnce(&mut State)) {
        let mut wakes = WakeList::new();
        let mut state = self.state.lock(purpose);
        change(&mut state);
        for waker in [state.reader.take(), state.writer.take()]
            .into_iter()
            .flatten()
        {
            wakes.push(waker);
        }
        drop(state);
    }
}
