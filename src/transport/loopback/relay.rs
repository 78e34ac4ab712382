//! The path between the two ends of a connection between hosts: bytes take time to arrive, and wait
//! while the wire is cut. No bytes are lost, as TCP would resend them: bytes in transit when the
//! wire is cut leave again when it is whole. Only a reset may be lost, since TCP does not resend
//! it: then nothing more passes between the two ends.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::time::{Instant, Sleep, sleep_until};

use super::hosts::Wire;
use super::pipe::{Front, Pipe};
use crate::limits::{LOOPBACK_PIPE_SIZE, LOOPBACK_SEGMENT_MAX};

enum InTransit {
    Bytes(Vec<u8>),
    End,
    Reset,
}

/// One direction of a connection.
pub(super) struct Direction {
    source: Arc<Pipe>,
    sink: Arc<Pipe>,
    wire: Arc<Wire>,
    /// Bytes and ends of the stream that have left the source, with their times of arrival.
    in_transit: VecDeque<(Instant, InTransit)>,
    in_transit_bytes: usize,
    /// The number of cuts of the wire that the items in transit have seen.
    cuts: u64,
    /// True once the source has ended.
    source_ended: bool,
    /// Time at which the source learns that the sink is no longer read, and the number of cuts at
    /// the time of the notice.
    abandoned: Option<(Instant, u64)>,
    is_over: bool,
}

impl Direction {
    pub(super) fn new(source: &Arc<Pipe>, sink: &Arc<Pipe>, wire: Arc<Wire>) -> Self {
        Direction {
            source: Arc::clone(source),
            sink: Arc::clone(sink),
            wire,
            in_transit: VecDeque::new(),
            in_transit_bytes: 0,
            cuts: 0,
            source_ended: false,
            abandoned: None,
            is_over: false,
        }
    }

    /// Returns true if the source has reset the connection while the wire loses resets.
    fn is_severed(&self, waker: &Waker) -> bool {
        if self.is_over || self.source_ended || !self.wire.loses_resets() {
            return false;
        }
        match self.source.poll_front(waker) {
            Front::Reset => return true,
            Front::Chunk(chunk) => self.source.give_back(chunk, 0),
            Front::Empty | Front::End => {}
        }
        false
    }

    /// Moves all items that can move now. Returns when more can move. `back` is the wire of the
    /// other direction.
    fn advance(&mut self, back: &Wire, waker: &Waker) -> Option<Instant> {
        if self.is_over {
            return None;
        }
        let cuts = self.wire.poll_whole(waker);
        if let Some(cuts) = cuts {
            self.leave_anew(cuts);
            self.take_from_source(waker);
            self.deliver(waker);
        }
        let notified_at = self.notify_source(back, waker);
        if self.is_over {
            return None;
        }
        let first = self.in_transit.front().map(|(at, _)| *at);
        // An item that is due and has not been delivered waits for room, or for the wire.
        let next = first.filter(|at| cuts.is_some() && *at > Instant::now());
        next.into_iter().chain(notified_at).min()
    }

    fn leave_anew(&mut self, cuts: u64) {
        if self.cuts == cuts {
            return;
        }
        self.cuts = cuts;
        for (at, item) in &mut self.in_transit {
            *at = self.wire.arrival(item.len());
        }
    }

    fn take_from_source(&mut self, waker: &Waker) {
        while !self.source_ended && self.in_transit_bytes < LOOPBACK_PIPE_SIZE {
            let item = match self.source.poll_front(waker) {
                Front::Empty => return,
                Front::Chunk(chunk) => {
                    let bytes = chunk.unread();
                    let bytes = bytes[..bytes.len().min(LOOPBACK_SEGMENT_MAX)].to_vec();
                    self.source.give_back(chunk, bytes.len());
                    InTransit::Bytes(bytes)
                }
                Front::End => InTransit::End,
                Front::Reset => InTransit::Reset,
            };
            self.source_ended = !matches!(item, InTransit::Bytes(_));
            self.in_transit_bytes += item.len();
            let at = self.wire.arrival(item.len());
            // If the wire has become faster, later items still do not overtake earlier ones.
            let last = self.in_transit.back().map_or(at, |(last, _)| *last);
            self.in_transit.push_back((at.max(last), item));
        }
    }

    fn deliver(&mut self, waker: &Waker) {
        while let Some((at, _)) = self.in_transit.front()
            && *at <= Instant::now()
        {
            let Some((at, item)) = self.in_transit.pop_front() else {
                return;
            };
            self.in_transit_bytes -= item.len();
            match item {
                InTransit::Bytes(mut bytes) => {
                    // A sink without a reader accepts everything.
                    let room = self.sink.poll_writer(waker).unwrap_or(bytes.len());
                    if room < bytes.len() {
                        let rest = bytes.split_off(room);
                        self.in_transit_bytes += rest.len();
                        self.in_transit.push_front((at, InTransit::Bytes(rest)));
                    }
                    if bytes.is_empty() {
                        return;
                    }
                    self.sink.write(&mut bytes);
                }
                InTransit::End => {
                    self.sink.finish();
                    self.is_over = true;
                }
                InTransit::Reset => {
                    self.sink.reset();
                    self.is_over = true;
                }
            }
            // There is room for more.
            self.take_from_source(waker);
        }
    }

    /// Resets the source once nothing reads from the sink, after the latency of the way back.
    fn notify_source(&mut self, back: &Wire, waker: &Waker) -> Option<Instant> {
        if self.sink.poll_writer(waker).is_ok() {
            return None;
        }
        let cuts = back.poll_whole(waker)?;
        let at = match self.abandoned {
            Some((at, seen)) if seen == cuts => at,
            _ => back.arrival(0),
        };
        self.abandoned = Some((at, cuts));
        if at > Instant::now() {
            return Some(at);
        }
        self.source.reset();
        self.is_over = true;
        None
    }
}

impl InTransit {
    fn len(&self) -> usize {
        match self {
            InTransit::Bytes(bytes) => bytes.len(),
            InTransit::End | InTransit::Reset => 0,
        }
    }
}

/// Both directions of one connection, until both are over.
pub(super) struct Relay {
    directions: [Direction; 2],
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Relay {
    pub(super) fn new(there: Direction, back: Direction) -> Self {
        Relay {
            directions: [there, back],
            sleep: None,
        }
    }
}

impl Future for Relay {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        loop {
            let [there, back] = &mut this.directions;
            if there.is_severed(cx.waker()) || back.is_severed(cx.waker()) {
                return Poll::Ready(());
            }
            let (to, from) = (Arc::clone(&there.wire), Arc::clone(&back.wire));
            let one = there.advance(&from, cx.waker());
            let other = back.advance(&to, cx.waker());
            if there.is_over && back.is_over {
                return Poll::Ready(());
            }
            let Some(at) = one.into_iter().chain(other).min() else {
                return Poll::Pending;
            };
            let sleep = this.sleep.get_or_insert_with(|| Box::pin(sleep_until(at)));
            if sleep.deadline() != at {
                sleep.as_mut().reset(at);
            }
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}
