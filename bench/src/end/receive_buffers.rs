//! Where a plain TCP end reads to: small messages share one read, each large one has a buffer of
//! its own, in turn, so that no subject works in a warmer cache than the others.

use super::payload;
use crate::job::Job;

/// Bytes asked of the kernel at a time where messages are small; this library's own staging size.
const SHARED_SIZE: usize = 64 << 10;

/// Buffers, and how much of the message that is coming is there.
#[derive(Debug)]
pub struct ReceiveBuffers {
    buffers: Vec<Vec<u8>>,
    /// Bytes of a message.
    size: usize,
    /// The buffer to read to.
    at: usize,
    /// Bytes of the message that is not whole yet.
    part: usize,
}

impl ReceiveBuffers {
    pub fn new(job: &Job) -> ReceiveBuffers {
        let buffers = if job.size < SHARED_SIZE {
            vec![vec![0; SHARED_SIZE]]
        } else {
            messages(job)
        };
        ReceiveBuffers {
            buffers,
            size: job.size,
            at: 0,
            part: 0,
        }
    }

    /// For answers only.
    pub fn of_answers() -> ReceiveBuffers {
        let size = crate::job::ANSWER_SIZE;
        ReceiveBuffers {
            buffers: vec![vec![0; 256 * size]],
            size,
            at: 0,
            part: 0,
        }
    }

    /// Where the next bytes go; never empty.
    pub fn room(&mut self) -> &mut [u8] {
        let filled = if self.is_shared() { 0 } else { self.part };
        &mut self.buffers[self.at][filled..]
    }

    /// So many bytes have come. Gives the number of messages that are whole now.
    pub fn took(&mut self, bytes: usize) -> usize {
        self.part += bytes;
        let whole = self.part / self.size;
        self.part %= self.size;
        if !self.is_shared() {
            self.at = (self.at + whole) % self.buffers.len();
        }
        whole
    }

    fn is_shared(&self) -> bool {
        self.buffers[0].len() > self.size
    }
}

/// One message for each place of the window, to be sent in turn.
pub fn messages(job: &Job) -> Vec<Vec<u8>> {
    vec![payload(job.size); job.window]
}

#[test]
fn large_messages_have_a_buffer_each_and_small_ones_share() {
    let job = |size| Job {
        work: crate::job::Work::Stream,
        host: std::net::Ipv4Addr::LOCALHOST,
        size,
        window: 2,
        connections: 1,
        bulk: 0,
        load: 0,
        watches_each: false,
        counts_syscalls: false,
        warm: Default::default(),
        run: Default::default(),
    };
    let mut large = ReceiveBuffers::new(&job(SHARED_SIZE));
    assert_eq!((large.took(SHARED_SIZE - 1), large.room().len()), (0, 1));
    assert_eq!(
        (large.took(1), large.room().len(), large.at),
        (1, SHARED_SIZE, 1)
    );
    let mut small = ReceiveBuffers::new(&job(64));
    assert_eq!(
        (small.took(65), small.took(63), small.room().len()),
        (1, 1, SHARED_SIZE)
    );
}
