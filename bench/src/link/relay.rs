//! What the kernel's queues do not do: packets that arrive later, or never. A thread for each
//! direction reads IP packets from one TUN device and writes them to the other; TCP itself, with
//! its retransmissions and windows, is the kernel's at both ends.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::sys::{self, TUN_READ_MAX};

/// Packets read before those that are due are looked for again.
const READS_MAX: usize = 64;

/// Two threads. Dropped, they end.
#[derive(Debug)]
pub struct Relay {
    delay_ns: Arc<AtomicU64>,
    /// Closed, it ends the threads.
    _until: PipeWriter,
}

impl Relay {
    /// Between these devices, for now without delay; of a million packets so many are lost.
    ///
    /// # Errors
    /// The system has no threads or descriptors left.
    pub fn start([one, other]: [File; 2], lost: u32, seed: u64) -> Result<Relay> {
        let delay_ns = Arc::new(AtomicU64::new(0));
        let (ends, until) = pipe()?;
        let pairs = [
            (one.try_clone()?, other.try_clone()?, ends.try_clone()?),
            (other, one, ends),
        ];
        for (at, (from, to, ends)) in pairs.into_iter().enumerate() {
            let direction = Direction {
                from,
                to,
                ends,
                delay_ns: Arc::clone(&delay_ns),
                dice: Dice(seed ^ at as u64),
                lost,
            };
            let thread = std::thread::Builder::new().name("relay".to_owned());
            thread.spawn(move || direction.carry())?;
        }
        Ok(Relay {
            delay_ns,
            _until: until,
        })
    }

    /// From now on packets are delayed so.
    pub fn set_delay(&self, delay: Duration) {
        let delay = delay.as_nanos() as u64;
        self.delay_ns.store(delay, Ordering::Relaxed);
    }
}

struct Direction {
    from: File,
    to: File,
    /// Readable at the end.
    ends: PipeReader,
    delay_ns: Arc<AtomicU64>,
    dice: Dice,
    /// Of a million.
    lost: u32,
}

impl Direction {
    fn carry(mut self) {
        // Without it the ends would delay the packets that they wait for. It needs rights that root
        // may lack.
        let _ = sys::run_in_real_time();
        let mut under_way: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
        let mut spare: Vec<Vec<u8>> = Vec::new();
        let mut buffer = vec![0; TUN_READ_MAX];
        loop {
            let mut is_drained = false;
            for _ in 0..READS_MAX {
                let Ok(len) = self.from.read(&mut buffer) else {
                    is_drained = true;
                    break;
                };
                if self.dice.throw() < self.lost {
                    continue;
                }
                match self.delay_ns.load(Ordering::Relaxed) {
                    0 if under_way.is_empty() => self.deliver(&buffer[..len]),
                    delay => {
                        let mut packet = spare.pop().unwrap_or_default();
                        packet.clear();
                        packet.extend_from_slice(&buffer[..len]);
                        let due = Instant::now() + Duration::from_nanos(delay);
                        under_way.push_back((due, packet));
                    }
                }
            }
            let now = Instant::now();
            while under_way.front().is_some_and(|(due, _)| *due <= now) {
                let Some((_, packet)) = under_way.pop_front() else {
                    break;
                };
                self.deliver(&packet);
                spare.push(packet);
            }
            if is_drained && self.has_ended(under_way.front().map(|packet| packet.0)) {
                return;
            }
        }
    }

    /// A device that is down loses what it is given, as a link does.
    fn deliver(&self, packet: &[u8]) {
        let _ = (&self.to).write(packet);
    }

    /// Waits for a packet, for this moment or for the end; whether that has come.
    fn has_ended(&self, due: Option<Instant>) -> bool {
        let timeout = due.map(|due| {
            let left = due.saturating_duration_since(Instant::now());
            Timespec::try_from(left).unwrap_or_default()
        });
        let mut waits = [
            PollFd::new(&self.from, PollFlags::IN),
            PollFd::new(&self.ends, PollFlags::IN),
        ];
        let _ = poll(&mut waits, timeout.as_ref());
        !waits[1].revents().is_empty()
    }
}

/// Numbers that look random (splitmix64).
struct Dice(u64);

impl Dice {
    /// Less than a million.
    fn throw(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % 1_000_000) as u32
    }
}

#[test]
fn as_many_packets_are_lost_as_were_asked_for() {
    let mut dice = Dice(7);
    let lost = (0..1_000_000).filter(|_| dice.throw() < 1000).count();
    assert!((900..1100).contains(&lost), "{lost} of a million");
}
