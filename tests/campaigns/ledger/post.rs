//! What a side posts.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use bytes::BytesMut;
use tokio_fabric::{ErrorKind, RemoteRegion, Result, error::OperationKind};

use super::{
    Awaited, CUT_MIN, LOCAL_AT, LedgerEndpoint, NOISE_AT, NOISE_LEN, RECEIVES_MAX, RECEIVES_MIN,
    RegionSlot, SHARED_AT, SLOT_SIZE,
};
use crate::ledger::book::{Entry, OpOutcome, OpTreatment};
use crate::ledger::payload::{LEN_MAX, NAMED_LEN_MIN, counted, cut, payload};
use crate::ledger::pending::Pending;

impl LedgerEndpoint {
    /// Posts one operation. False if the connection is lost.
    pub(super) fn post(&mut self) -> bool {
        if self.live_receives < RECEIVES_MIN {
            return self.post_receive();
        }
        match self.random.below(100) {
            0..36 if self.live_receives < RECEIVES_MAX => self.post_receive(),
            0..68 => {
                let ack = self.random.chance(35);
                let limit = self.time_limit();
                self.post_send(ack, limit)
            }
            68..76 => self.inject(),
            76..90 => self.post_write(),
            _ => self.post_read(),
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Few operations have one: their ends do not say whether the peer has done them.
    fn time_limit(&mut self) -> Option<Duration> {
        let limit = self.random.within(0, 4000) as u64;
        self.random.chance(8).then(|| Duration::from_micros(limit))
    }

    fn message_len(&mut self) -> usize {
        match self.random.below(100) {
            0..4 => 0,
            4..80 => self.random.within(NAMED_LEN_MIN, 1500),
            80..96 => self.random.within(1500, 20_000),
            _ => self.random.within(20_000, LEN_MAX),
        }
    }

    fn entry(&mut self, kind: OperationKind, len: usize, queued: bool) -> Entry {
        Entry {
            kind,
            queued,
            fate: OpTreatment::Kept,
            ends: Vec::new(),
            acked: false,
            data: false,
            len,
            buffers: 0,
            freed: Arc::new(AtomicUsize::new(0)),
        }
    }

    fn hold(
        &mut self,
        id: u64,
        entry: Entry,
        posted: Result<Pending, ErrorKind>,
        place: Option<RegionSlot>,
        noise_at: usize,
    ) -> bool {
        match posted {
            Ok(pending) => {
                self.live_receives += usize::from(entry.kind == OperationKind::Receive);
                self.book.post(id, entry);
                self.awaited.push(Awaited {
                    id,
                    pending,
                    place,
                    noise_at,
                });
                true
            }
            Err(kind) => {
                // Never posted; the connection is lost.
                assert_eq!(OpOutcome::of(kind), OpOutcome::Lost);
                false
            }
        }
    }

    pub(super) fn post_receive(&mut self) -> bool {
        let id = self.number();
        let len = match self.random.below(12) {
            0 => CUT_MIN,
            1 => LEN_MAX,
            2 | 3 => 24_000,
            _ => 1500,
        };
        let count = self.random.within(1, 5);
        let buffers: Vec<_> = cut(len, count)
            .map(|(from, to)| BytesMut::zeroed(to - from))
            .collect();
        let queued = self.random.chance(30);
        let entry = self.entry(OperationKind::Receive, len, queued);
        let mut draft = self.endpoint.recv(buffers);
        if let Some(limit) = self.time_limit() {
            draft = draft.timeout(limit);
        }
        let posted = match queued {
            false => draft.post().map(Pending::Receive),
            true => draft.queue(id).post().map(Pending::InAccepted),
        };
        self.hold(id, entry, posted.map_err(|failed| failed.kind()), None, 0)
    }

    fn post_send(&mut self, ack: bool, limit: Option<Duration>) -> bool {
        let id = self.number();
        let len = self.message_len();
        let queued = self.random.chance(30);
        let mut entry = self.entry(OperationKind::Send, len, queued);
        entry.buffers = self.random.within(1, 5);
        let mut draft = self
            .endpoint
            .send(counted(&payload(id, len), entry.buffers, &entry.freed));
        (entry.acked, entry.data) = (ack, self.random.chance(30));
        if ack {
            draft = draft.delivery_complete();
        }
        if entry.data {
            draft = draft.imm(id);
        }
        if self.random.chance(10) {
            draft = draft.more();
        }
        if let Some(limit) = limit {
            draft = draft.timeout(limit);
        }
        let posted = match queued {
            false => draft.post().map(Pending::Out),
            true => draft.queue(id).post().map(Pending::OutAccepted),
        };
        self.hold(id, entry, posted.map_err(|failed| failed.kind()), None, 0)
    }

    /// Sends a last message that is acknowledged; returns its number.
    pub fn post_last(&mut self) -> Option<u64> {
        self.post_send(true, None).then_some(self.next)
    }

    pub fn is_done(&self, id: u64) -> bool {
        self.book.entries[&id].ends == [OpOutcome::Done]
    }

    fn inject(&mut self) -> bool {
        let id = self.number();
        let len = self.random.within(NAMED_LEN_MIN, 129);
        let bytes = payload(id, len);
        let (kind, result) = match (self.random.below(4), self.remote) {
            (0, Some(remote)) => {
                let place = remote.slice(SHARED_AT as u64..).expect("within the region");
                (
                    OperationKind::Write,
                    self.endpoint.inject_write(&bytes, place),
                )
            }
            (1, _) => (OperationKind::Inject, self.endpoint.inject_data(&bytes, id)),
            _ => (OperationKind::Inject, self.endpoint.inject(&bytes)),
        };
        match result {
            Ok(()) => {
                let mut entry = self.entry(kind, len, false);
                entry.ends.push(OpOutcome::Done); // Reported by the call itself, and counted.
                self.book.post(id, entry);
                true
            }
            Err(error) if error.kind() == ErrorKind::Again => true,
            Err(error) => {
                assert_eq!(OpOutcome::of(error.kind()), OpOutcome::Lost);
                false
            }
        }
    }

    fn post_write(&mut self) -> bool {
        let Some(remote) = self.remote else {
            return true;
        };
        let id = self.number();
        let (place, at, len) = match self.remote_slots.pop() {
            Some(slot) if self.random.chance(85) => (
                Some(RegionSlot::Remote(slot)),
                slot * SLOT_SIZE,
                self.random.within(0, SLOT_SIZE + 1),
            ),
            slot => {
                self.remote_slots.extend(slot);
                (None, SHARED_AT, self.random.within(0, LEN_MAX))
            }
        };
        let queued = self.random.chance(30);
        let mut entry = self.entry(OperationKind::Write, len, queued);
        entry.buffers = self.random.within(1, 5);
        entry.acked = place.is_some() || self.random.chance(30);
        entry.data = self.random.chance(30);
        let segments = segments(remote, at, len, self.random.within(1, 5));
        let buffers = counted(&payload(id, len), entry.buffers, &entry.freed);
        let mut draft = self.endpoint.write(buffers, &segments[..]);
        if entry.acked {
            draft = draft.delivery_complete();
        }
        if entry.data {
            draft = draft.imm(id);
        }
        if let Some(limit) = self.time_limit() {
            draft = draft.timeout(limit);
        }
        let posted = match queued {
            false => draft.post().map(Pending::Out),
            true => draft.queue(id).post().map(Pending::OutAccepted),
        };
        self.hold(id, entry, posted.map_err(|failed| failed.kind()), place, 0)
    }

    fn post_read(&mut self) -> bool {
        let Some(remote) = self.remote else {
            return true;
        };
        let id = self.number();
        let count = self.random.within(1, 5);
        let local = if self.random.chance(40) {
            self.local_slots.pop()
        } else {
            None
        };
        let len = match (local, self.random.below(8)) {
            (None, 0) => self.random.within(0, LEN_MAX),
            _ => self.random.within(0, SLOT_SIZE + 1),
        };
        let noise_at = self.random.within(0, NOISE_LEN - len);
        let segments = segments(remote, NOISE_AT + noise_at, len, self.random.within(1, 5));
        let queued = local.is_none() && self.random.chance(30);
        let entry = self.entry(OperationKind::Read, len, queued);
        let posted = match local {
            Some(slot) => {
                let at = LOCAL_AT + slot * SLOT_SIZE;
                let slices = cut(len, count)
                    .map(|(from, to)| {
                        self.region
                            .slice(at + from..at + to)
                            .expect("in the region")
                    })
                    .collect::<Vec<_>>();
                let mut draft = self.endpoint.read(slices, &segments[..]);
                if let Some(limit) = self.time_limit() {
                    draft = draft.timeout(limit);
                }
                draft
                    .post()
                    .map(Pending::ReadSlice)
                    .map_err(|failed| failed.kind())
            }
            None => {
                let buffers: Vec<_> = cut(len, count)
                    .map(|(from, to)| BytesMut::zeroed(to - from))
                    .collect();
                let mut draft = self.endpoint.read(buffers, &segments[..]);
                if let Some(limit) = self.time_limit() {
                    draft = draft.timeout(limit);
                }
                match queued {
                    false => draft.post().map(Pending::Read),
                    true => draft.queue(id).post().map(Pending::InAccepted),
                }
                .map_err(|failed| failed.kind())
            }
        };
        self.hold(id, entry, posted, local.map(RegionSlot::Local), noise_at)
    }
}

/// `len` bytes at `at` of a remote region, as so many ranges.
fn segments(remote: RemoteRegion, at: usize, len: usize, count: usize) -> Vec<RemoteRegion> {
    cut(len, count)
        .map(|(from, to)| {
            remote
                .slice((at + from) as u64..(at + to) as u64)
                .expect("in the region")
        })
        .collect()
}
