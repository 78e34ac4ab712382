//! One machine in the hands of a test, and what it needs around it: its regions, its completion
//! queue, the bytes that come, and the events that it reported.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::receives::Shared;
use crate::buf::{CopyTo, Leases, Payload, RegionMemory, RegionTraits, RegionUse, SendBatch};
use crate::error::{Error, ErrorKind, OperationKind, Refusal};
use crate::id::EndpointId;
use crate::info::{Caps, SideCaps};
use crate::mr::{Access, AccessRequest, KeyPolicy, MrAddressing, MrTable, RawKeys};
use crate::proto::{
    ConnEvent, Connection, ExtensionParams, Host, OpKey, OpKind, Operation, PostOptions, RdmParams,
    ReceivePlan, Receives, Sizes,
};
use crate::random::{RandomSource, SplitMix};
use crate::sync::OwnedRecord;
use crate::wire::{RemoteSegment, Segments};

/// Tokens with this bit report to the completion queue, and so need one of its slots.
pub(super) const QUEUED: u64 = 1 << 63;
/// Tokens with this bit too have got their slot.
const RESERVED: u64 = 1 << 62;

/// Numbers from a seed.
#[derive(Clone, Debug)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        let mut generator = SplitMix(self.0);
        let number = generator.next();
        self.0 = generator.0;
        number
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..len.div_ceil(8))
            .flat_map(|_| self.next().to_le_bytes())
            .collect();
        bytes.truncate(len);
        bytes
    }
}

/// The host of one machine.
pub(super) struct TestHost {
    pub(super) regions: MrTable,
    /// Free slots of the completion queue.
    pub(super) slots: usize,
    /// Slots reserved for remote data that has not been reported yet.
    pub(super) unasked: usize,
    /// The capabilities of the endpoint, which limit its peer.
    pub(super) caps: SideCaps,
    /// Receives that are shared with other connections.
    pub(super) shared: Option<Shared>,
}

impl TestHost {
    pub(super) fn new() -> Self {
        let keys = KeyPolicy::Application { key_size: 8 };
        TestHost {
            regions: MrTable::new(
                MrAddressing::Offset,
                keys,
                RawKeys::new(false, &RandomSource::default()).expect("a secret"),
                RandomSource::default(),
            ),
            slots: usize::MAX / 2,
            unasked: 0,
            caps: SideCaps::ALL,
            shared: None,
        }
    }

    pub(super) fn region(&mut self, key: u64, bytes: Vec<u8>, access: Access) -> Arc<RegionMemory> {
        let memory = RegionMemory::new(vec![bytes.into()], RegionTraits::plain(access.bits()))
            .expect("one buffer");
        self.regions
            .insert(Some(key), &memory, None)
            .expect("a free key");
        memory
    }

    fn take_slot(&mut self) -> bool {
        let free = self.slots > 0;
        self.slots -= usize::from(free);
        free
    }
}

impl Host<u64> for TestHost {
    fn reserve(&mut self, operation: &mut OwnedRecord<Operation<u64>>) -> bool {
        let token = &mut operation.token;
        if *token & QUEUED == 0 {
            return true;
        }
        let taken = *token & RESERVED == 0 && self.take_slot();
        *token |= if taken { RESERVED } else { 0 };
        *token & RESERVED != 0
    }

    fn reserve_remote_completion(&mut self) -> bool {
        let taken = self.take_slot();
        self.unasked += usize::from(taken);
        taken
    }

    fn resolve(&mut self, request: &AccessRequest) -> Result<RegionUse, Refusal> {
        self.regions.resolve(request, EndpointId::next())
    }

    fn admits(&self, need: Caps) -> bool {
        self.caps.has(need)
    }

    fn shared(&mut self) -> Option<&mut dyn Receives> {
        self.shared.as_mut().map(|it| it as &mut dyn Receives)
    }
}

/// An operation that is to be posted.
pub(super) fn operation(kind: OpKind, payload: Payload) -> Operation<u64> {
    Operation::new(kind, payload, 0, PostOptions::default())
}

/// A direct receive that is armed.
struct Direct {
    payload: Payload,
    offset: usize,
    len: usize,
    _leases: Leases,
}

/// One machine with its host, its link and what it reported.
pub(super) struct TestConnection {
    pub(super) machine: Connection<u64>,
    pub(super) host: TestHost,
    /// Bytes on their way here.
    pub(super) wire: VecDeque<u8>,
    /// The peer has sent its last byte.
    pub(super) finished: bool,
    /// The link has reported the end of the peer's stream.
    pub(super) has_seen_end: bool,
    pub(super) sending: Option<Box<SendBatch>>,
    direct: Option<Direct>,
    stage: Vec<u8>,
    /// Results reported, by token.
    pub(super) ended: BTreeMap<u64, OwnedRecord<Operation<u64>>>,
    /// Tokens in the order in which they ended.
    pub(super) order: Vec<u64>,
    pub(super) remote_data: Vec<(u64, usize)>,
    pub(super) remote_accesses: Vec<OperationKind>,
    pub(super) remote_updates: usize,
    /// Events of the connection itself.
    pub(super) events: Vec<String>,
    pub(super) sent_bytes: u64,
}

impl TestConnection {
    pub(super) fn new(sizes: Sizes, terms: ExtensionParams) -> Self {
        TestConnection {
            machine: Connection::new(sizes, terms),
            host: TestHost::new(),
            wire: VecDeque::new(),
            finished: false,
            has_seen_end: false,
            sending: None,
            direct: None,
            stage: Vec::new(),
            ended: BTreeMap::new(),
            order: Vec::new(),
            remote_data: Vec::new(),
            remote_accesses: Vec::new(),
            remote_updates: 0,
            events: Vec::new(),
            sent_bytes: 0,
        }
    }

    /// A machine of a connectionless endpoint, whose receives are `shared`.
    pub(super) fn of_peer(
        sizes: Sizes,
        terms: ExtensionParams,
        peering: RdmParams,
        shared: Shared,
    ) -> Self {
        let mut side = TestConnection::new(sizes, terms);
        side.machine = Connection::new_rdm(sizes, terms, peering);
        side.host.shared = Some(shared);
        side
    }

    /// Posts an operation, and notes what has ended by that.
    #[track_caller]
    pub(super) fn post(&mut self, token: u64, post: Operation<u64>) -> OpKey {
        self.try_post(token, post, true)
            .expect("the post is accepted")
    }

    pub(super) fn try_post(
        &mut self,
        token: u64,
        post: Operation<u64>,
        wait: bool,
    ) -> Result<OpKey, Error> {
        self.try_post_with(
            token,
            post,
            PostOptions {
                wait,
                ..PostOptions::default()
            },
        )
    }

    pub(super) fn try_post_with(
        &mut self,
        token: u64,
        post: Operation<u64>,
        options: PostOptions,
    ) -> Result<OpKey, Error> {
        let post = Operation {
            token,
            options,
            ..post
        };
        let posted = self.machine.post(OwnedRecord::new(post), &mut self.host);
        self.take_events();
        posted.map_err(|refused| refused.error)
    }

    pub(super) fn send(&mut self, token: u64, bytes: &[u8]) -> OpKey {
        let payload = Payload::from_vec(bytes.to_vec());
        self.post(
            token,
            operation(
                OpKind::Send {
                    data: None,
                    ack: false,
                    tag: None,
                },
                payload,
            ),
        )
    }

    pub(super) fn send_acked(&mut self, token: u64, bytes: &[u8]) -> OpKey {
        let payload = Payload::from_vec(bytes.to_vec());
        self.post(
            token,
            operation(
                OpKind::Send {
                    data: None,
                    ack: true,
                    tag: None,
                },
                payload,
            ),
        )
    }

    pub(super) fn receive(&mut self, token: u64, len: usize) -> OpKey {
        self.post(
            token,
            operation(OpKind::Receive, Payload::from_vec(vec![0; len])),
        )
    }

    pub(super) fn write(&mut self, token: u64, bytes: &[u8], to: &[(u64, u64, u64)]) -> OpKey {
        self.write_with(token, bytes, None, true, to)
    }

    pub(super) fn write_with(
        &mut self,
        token: u64,
        bytes: &[u8],
        data: Option<u64>,
        ack: bool,
        to: &[(u64, u64, u64)],
    ) -> OpKey {
        let payload = Payload::from_vec(bytes.to_vec());
        self.post(
            token,
            operation(
                OpKind::Write {
                    data,
                    ack,
                    commit: false,
                    segments: segments(to),
                },
                payload,
            ),
        )
    }

    pub(super) fn read(&mut self, token: u64, len: usize, from: &[(u64, u64, u64)]) -> OpKey {
        let payload = Payload::from_vec(vec![0; len]);
        self.post(
            token,
            operation(
                OpKind::Read {
                    segments: segments(from),
                },
                payload,
            ),
        )
    }

    /// The bytes that an operation gave back, and how it ended.
    #[track_caller]
    pub(super) fn end_of(&mut self, token: u64) -> (Result<usize, ErrorKind>, Vec<u8>) {
        let op = self.ended.remove(&token).expect("the operation has ended");
        let bytes = op.payload.as_ref().map(bytes_of).unwrap_or_default();
        let result = op.end.result.as_ref();
        let len = result.map(|()| op.end.len);
        (len.map_err(|error| error.kind()), bytes)
    }

    #[track_caller]
    pub(super) fn end_kind(&mut self, token: u64) -> ErrorKind {
        self.end_of(token).0.expect_err("the operation failed")
    }

    #[track_caller]
    pub(super) fn end_of_error(&mut self, token: u64) -> Error {
        let op = self.ended.remove(&token).expect("the operation has ended");
        let result = op.end.result.clone();
        result.expect_err("the operation failed")
    }

    pub(super) fn take_events(&mut self) {
        let ended = self.host.shared.as_mut().map(|it| it.ended.split_off(0));
        for end in ended.unwrap_or_default() {
            let token = end.token;
            self.order.push(token);
            let before = self.ended.insert(token, end);
            assert!(before.is_none(), "operation {token} ended twice");
        }
        for event in self.machine.take_events() {
            match event {
                ConnEvent::Completed(end) => {
                    let token = end.token;
                    self.host.slots += usize::from(token & RESERVED != 0);
                    let token = token & !RESERVED;
                    self.order.push(token);
                    let before = self.ended.insert(token, end);
                    assert!(before.is_none(), "operation {token} ended twice");
                }
                ConnEvent::RemoteAccess {
                    data: Some(data),
                    memory,
                    ..
                } => {
                    self.host.unasked -= 1;
                    self.host.slots += 1;
                    self.remote_data.push((data, memory.len()));
                }
                ConnEvent::RemoteDataVoid => {
                    self.host.unasked -= 1;
                    self.host.slots += 1;
                }
                ConnEvent::RemoteAccess { operation, .. } => self.remote_accesses.push(operation),
                ConnEvent::RemoteUpdate { .. } => self.remote_updates += 1,
                ConnEvent::Connected { data } => self.events.push(format!("connected {data:?}")),
                ConnEvent::ConnectFailed { error } => {
                    self.events.push(format!(
                        "not connected: {:?} {:?}",
                        error.kind(),
                        error.data()
                    ));
                }
                ConnEvent::Closed { connected, lost } => {
                    let what = if connected { "closed" } else { "given up" };
                    let why = lost.map(|error| format!("{:?}", error.kind()));
                    let why = why.as_deref().unwrap_or("in order");
                    self.events.push(format!("{what}: {why}"));
                }
            }
        }
    }

    /// Hands the next frames out, if there are any and none are out.
    pub(super) fn hand_out(&mut self) {
        if self.sending.is_none()
            && let Some(batch) = self.machine.poll_transmit(&mut self.host)
        {
            self.sending = Some(batch);
        }
    }

    /// Moves up to `most` bytes of what is out to the other side's wire; what is left comes back.
    /// Zero: the batch is taken back.
    pub(super) fn move_out(&mut self, most: usize, wire: &mut VecDeque<u8>) -> usize {
        let Some(batch) = self.sending.take() else {
            return 0;
        };
        let mut bytes = vec![0; batch.remaining().min(most)];
        let (count, refused) = batch.copy_out(0, CopyTo::Slice(&mut bytes));
        assert!(refused.is_none(), "leased regions are open");
        wire.extend(&bytes[..count]);
        self.machine.handle_sent(batch, count);
        self.sent_bytes += count as u64;
        self.take_events();
        count
    }

    /// Feeds what is staged; else arms, or ends, a receive of up to `most` bytes. True if anything
    /// moved.
    pub(super) fn move_in(&mut self, most: usize) -> bool {
        let moved = self.move_in_some(most);
        self.take_events();
        moved
    }

    fn move_in_some(&mut self, most: usize) -> bool {
        if let Some(Direct {
            mut payload,
            offset,
            len,
            _leases,
        }) = self.direct.take()
        {
            let count = len.min(most).min(self.wire.len());
            let bytes: Vec<u8> = self.wire.iter().copied().take(count).collect();
            // A region that refuses by now: the link takes nothing from the stream for it.
            let count = payload.copy_in(offset, &bytes).map_or(0, |()| count);
            self.wire.drain(..count);
            drop(_leases);
            self.machine.handle_direct(payload, count, &mut self.host);
            return count > 0;
        }
        if !self.stage.is_empty() {
            let taken = self.machine.handle_stage(&self.stage, &mut self.host);
            self.stage.drain(..taken);
            return taken > 0;
        }
        match self.machine.poll_receive() {
            ReceivePlan::Paused => false,
            ReceivePlan::Direct {
                payload,
                offset,
                len,
                leases,
                frame_len,
                frame_left,
            } => {
                assert!(
                    len > 0 && offset + len <= payload.len(),
                    "a plan lies within its payload"
                );
                assert!(
                    len as u64 <= frame_left && frame_left <= frame_len,
                    "a plan lies within its frame"
                );
                self.direct = Some(Direct {
                    payload,
                    offset,
                    len,
                    _leases: leases,
                });
                true
            }
            ReceivePlan::Stage => {
                self.stage = self.wire.drain(..most.min(self.wire.len())).collect();
                if self.stage.is_empty() && self.finished && !self.has_ended() {
                    self.machine.handle_end();
                    return true;
                }
                !self.stage.is_empty()
            }
        }
    }

    fn has_ended(&self) -> bool {
        self.machine.fault().is_some() || self.machine.is_closed_in_order()
    }

    /// Does what the driver does besides: admits operations that wait.
    pub(super) fn nudge(&mut self) {
        self.answer_offers();
        self.machine.admit_waiting(&mut self.host);
        self.machine.resume(&mut self.host);
        self.take_events();
    }

    /// While reading is paused, the link reports that the peer has finished.
    pub(super) fn watch(&mut self) {
        if self.finished && self.machine.is_read_paused() {
            let unread = self.wire.len() + self.stage.len();
            self.machine
                .handle_last_bytes(unread as u64, &mut self.host);
            self.take_events();
        }
    }

    pub(super) fn is_paused(&self) -> bool {
        self.machine.is_read_paused()
    }

    /// Takes everything back from the link and ends the machine, with its fault if it has one.
    pub(super) fn close(&mut self) {
        self.take_back();
        self.machine.handle_closed(&mut self.host);
        self.take_events();
        assert!(self.machine.lifecycle().is_closed());
    }

    /// The link gives everything back.
    pub(super) fn take_back(&mut self) {
        if let Some(batch) = self.sending.take() {
            self.machine.handle_sent(batch, 0);
        }
        if let Some(Direct { payload, .. }) = self.direct.take() {
            self.machine.handle_direct(payload, 0, &mut self.host);
        }
        self.stage.clear();
    }

    /// Drops the bytes that were read of an attempt that is given up.
    pub(super) fn forget_stage(&mut self) {
        self.stage.clear();
    }

    /// The link breaks.
    pub(super) fn cut(&mut self) {
        self.machine
            .fail(Error::new(ErrorKind::ConnectionReset, "cut by the test"));
        self.close();
    }
}

pub(super) fn segments(list: &[(u64, u64, u64)]) -> Segments {
    let list: Vec<RemoteSegment> = list
        .iter()
        .map(|&(key, addr, len)| RemoteSegment { addr, len, key })
        .collect();
    Segments::new(&list).expect("one to four segments")
}

/// The memory of an operation that has ended.
#[track_caller]
pub(super) fn memory_of(op: &Operation<u64>) -> Vec<u8> {
    bytes_of(op.payload.as_ref().expect("its memory came back"))
}

pub(super) fn bytes_of(payload: &Payload) -> Vec<u8> {
    let mut bytes = vec![0; payload.len()];
    payload.copy_out(0, &mut bytes).expect("no region refuses");
    bytes
}
