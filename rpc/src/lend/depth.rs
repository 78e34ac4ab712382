//! The number of chunks of a transfer that are in flight.
//!
//! A small frame of the connection waits behind the chunks that are queued at the sender, so they
//! are few. Chunks on a long path delay no frame, and a transfer that does not fill the path is
//! slower than it could be.

use std::time::Duration;

use tokio::time::Instant;
use tokio_fabric::Endpoint;
use tokio_fabric::ep::TcpOps;

use crate::limits::{CHUNK_DEPTH, CHUNK_DEPTH_MAX};

/// The number of chunks of one transfer that may be in flight: [`CHUNK_DEPTH`], and as many more as
/// the path between the hosts holds.
#[derive(Debug)]
pub(super) struct Depth {
    chunks: usize,
    /// The round-trip time of the path without queues; asked once per transfer.
    round_trip: Option<Duration>,
}

impl Depth {
    pub(super) fn new() -> Self {
        Depth {
            chunks: CHUNK_DEPTH,
            round_trip: None,
        }
    }

    pub(super) fn chunks(&self) -> usize {
        self.chunks
    }

    /// Adjusts the number when the oldest of so many chunks in flight has ended, which was
    /// requested at `since`. Called while chunks are left to be requested.
    pub(super) fn chunk_ended(&mut self, endpoint: &Endpoint, in_flight: usize, since: Instant) {
        let round_trip = *self
            .round_trip
            .get_or_insert_with(|| round_trip_of(endpoint));
        self.adjust(in_flight, round_trip, since.elapsed());
    }

    /// `took`: the time from the request of a chunk to its end. Of the chunks in flight, the part
    /// `round_trip / took` is on the path, and the rest is queued or handled.
    fn adjust(&mut self, in_flight: usize, round_trip: Duration, took: Duration) {
        let on_path = (in_flight as u128 * round_trip.as_nanos()).checked_div(took.as_nanos());
        let on_path = on_path.and_then(|it| usize::try_from(it).ok());
        let chunks = CHUNK_DEPTH.saturating_add(on_path.unwrap_or(0));
        self.chunks = chunks.min(CHUNK_DEPTH_MAX);
    }
}

/// Returns the least round-trip time that the system has seen lately; zero where it is not known.
fn round_trip_of(endpoint: &Endpoint) -> Duration {
    let info = endpoint.ops::<TcpOps>().and_then(|tcp| tcp.info());
    info.map_or(Duration::ZERO, |info| info.min_round_trip)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Transfers chunks over a path of this round trip, whose sender sends one chunk in `sending`;
    /// returns the final depth and the time that a small frame waits behind queued chunks.
    fn last_depth(round_trip: Duration, sending: Duration) -> (usize, Duration) {
        let mut depth = Depth::new();
        for _ in 0..100 {
            let all = depth.chunks() as u32 * sending;
            depth.adjust(depth.chunks(), round_trip, all.max(round_trip + sending));
        }
        let all = depth.chunks() as u32 * sending;
        (depth.chunks(), all.saturating_sub(round_trip))
    }

    /// The path is filled as far as the limit allows, and no small frame waits for more than three
    /// chunks, nor longer on a short path than before.
    #[test]
    fn chunks_fill_a_long_path_and_do_not_queue() {
        let micros = Duration::from_micros;
        // Within one host, and at 10 Gbit/s on a short path.
        assert_eq!(last_depth(micros(20), micros(150)).0, CHUNK_DEPTH);
        assert_eq!(last_depth(micros(60), micros(420)).0, CHUNK_DEPTH);
        for (round_trip, sending) in [(10_000, 4_400), (2_000, 420), (1_000, 420), (30_000, 4_400)]
        {
            let (chunks, waits) = last_depth(micros(round_trip), micros(sending));
            let fills = micros(sending) * chunks as u32 >= micros(round_trip + sending);
            assert!(
                fills || chunks == CHUNK_DEPTH_MAX,
                "{round_trip} us: {chunks}"
            );
            assert!(waits <= 3 * micros(sending), "{round_trip} us: {waits:?}");
        }
        assert_eq!(last_depth(micros(200_000), micros(400)).0, CHUNK_DEPTH_MAX);
        assert_eq!(last_depth(Duration::ZERO, Duration::ZERO).0, CHUNK_DEPTH);
    }
}
