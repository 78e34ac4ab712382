//! Shared receives as a plain list, and pairs of machines that use them.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use super::pair::{PLAIN, Pair, TestConnection, operation, sizes};
use crate::buf::{AccessError, Payload};
use crate::error::{Error, Phase};
use crate::limits::UNEXPECTED_OVERHEAD;
use crate::proto::{
    Announcement, Arrival, ArrivalOutcome, ClearToSend, ConnIds, Connection, ConnectionId,
    ExtensionParams, LongMessages, MatchCriteria, MessageKind, OFFERED, OpKey, OpKind, Operation,
    PostOptions, PostedReceive, RdmParams, ReceivedMessage, Receives, SharedParams, Sizes,
    SourceId,
};
use crate::slab::Slab;
use crate::sync::OwnedRecord;
use crate::wire::{ByteOrder, NamedContexts, PeerData};

/// A message that no receive has taken.
#[derive(Debug)]
pub(super) enum Kept {
    Whole(ReceivedMessage),
    PayloadInProgress(Arrival),
    Announced(Announcement),
}

impl Kept {
    fn arrival(&self) -> &Arrival {
        match self {
            Kept::Whole(unexpected) => &unexpected.arrival,
            Kept::PayloadInProgress(arrival) => arrival,
            Kept::Announced(announcement) => &announcement.arrival,
        }
    }

    fn cost(&self) -> u64 {
        let len = match self {
            Kept::Announced(_) => 0,
            _ => self.arrival().len,
        };
        len.saturating_add(UNEXPECTED_OVERHEAD as u64)
    }
}

/// The receives of one endpoint, as one of its connections sees them.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) posted: Vec<PostedReceive>,
    pub(super) kept: Vec<Kept>,
    /// Bytes that may be kept.
    pub(super) room: u64,
    next_order: u64,
    /// Receives that have ended.
    pub(super) ended: Vec<OwnedRecord<Operation<u64>>>,
    pub(super) is_stalled: bool,
    /// Receives that were matched, until their message has come.
    pub(super) awaiting: BTreeMap<OpKey, PostedReceive>,
    /// Tokens of receives whose message was withdrawn after they were matched with it.
    pub(super) put_back: BTreeSet<u64>,
    /// Receives that were put back, and the announcements that they take.
    pub(super) offers: Vec<(PostedReceive, Announcement)>,
    /// The receives that have not ended.
    records: Slab<OwnedRecord<Operation<u64>>>,
}

pub(super) fn wants(wanted: MatchCriteria, kind: MessageKind) -> bool {
    match (wanted, kind) {
        (MatchCriteria::Message, MessageKind::Message) => true,
        (MatchCriteria::Tagged { tag, ignore }, MessageKind::Tagged { tag: is }) => {
            (tag ^ is) & !ignore == 0
        }
        _ => false,
    }
}

impl Shared {
    pub(super) fn with_room(room: u64) -> Self {
        Shared {
            posted: Vec::new(),
            kept: Vec::new(),
            room,
            next_order: 0,
            ended: Vec::new(),
            is_stalled: false,
            awaiting: BTreeMap::new(),
            put_back: BTreeSet::new(),
            offers: Vec::new(),
            records: Slab::new(),
        }
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.kept.iter().map(Kept::cost).sum()
    }

    /// True if all messages that are kept have come in full.
    pub(super) fn is_at_rest(&self) -> bool {
        self.kept.iter().all(|it| matches!(it, Kept::Whole(_)))
    }

    /// Returns the record of a receive that has not ended.
    pub(super) fn record(&self, receive: OpKey) -> &Operation<u64> {
        self.records.get(receive).expect("it has not ended")
    }

    /// Returns the tokens of the posted receives, in their order.
    pub(super) fn posted_tokens(&self) -> Vec<u64> {
        let tokens = self.posted.iter().map(|it| self.record(it.key).token);
        tokens.collect()
    }

    fn take_posted(&mut self, arrival: &Arrival) -> Option<PostedReceive> {
        let takes = |it: &PostedReceive| {
            wants(it.wanted, arrival.kind) && it.source.is_none_or(|it| it == arrival.source)
        };
        let at = self.posted.iter().position(takes)?;
        Some(self.posted.remove(at))
    }

    /// Ends a receive with this message.
    fn end(&mut self, receive: OpKey, unexpected: ReceivedMessage) {
        let mut record = self.records.remove(receive).expect("it has not ended");
        record.end_with_message(unexpected);
        self.ended.push(record);
    }

    /// Takes a receive whose message has come, or does not.
    fn take_awaiting(&mut self, receive: OpKey) -> PostedReceive {
        self.awaiting.remove(&receive).expect("once of each")
    }

    fn place(&mut self, arrival: &mut Arrival, kept: impl FnOnce(Arrival) -> Kept) -> bool {
        let mut placed = *arrival;
        placed.order = self.next_order;
        let kept = kept(placed);
        if self.held_bytes() + kept.cost() > self.room {
            return false;
        }
        self.next_order += 1;
        *arrival = placed;
        self.kept.push(kept);
        true
    }
}

impl Receives for Shared {
    fn begin_message(&mut self, arrival: &mut Arrival) -> ArrivalOutcome<(OpKey, Payload)> {
        match self.take_posted(arrival) {
            Some(receive) => {
                self.awaiting.insert(receive.key, receive);
                ArrivalOutcome::Matched((receive.key, self.take_buffer(receive.key)))
            }
            None if self.place(arrival, Kept::PayloadInProgress) => ArrivalOutcome::Store,
            None => ArrivalOutcome::Stalled,
        }
    }

    fn take_message(&mut self, arrival: &mut Arrival, bytes: &[u8]) -> bool {
        let unexpected = |arrival| ReceivedMessage {
            arrival,
            payload: Payload::from_vec(bytes.to_vec()),
            len: bytes.len(),
            overflow: 0,
        };
        match self.take_posted(arrival) {
            Some(receive) => {
                self.end(receive.key, unexpected(*arrival));
                true
            }
            None => self.place(arrival, |arrival| Kept::Whole(unexpected(arrival))),
        }
    }

    fn store_message(&mut self, unexpected: ReceivedMessage) {
        let is_it =
            |it: &Kept| matches!(it, Kept::PayloadInProgress(it) if *it == unexpected.arrival);
        let at = self.kept.iter().position(is_it).expect("it was to be kept");
        match self.take_posted(&unexpected.arrival) {
            Some(receive) => {
                self.kept.remove(at);
                self.end(receive.key, unexpected);
            }
            None => self.kept[at] = Kept::Whole(unexpected),
        }
    }

    fn abort_message(&mut self, arrival: &Arrival) {
        let is_it = |it: &Kept| matches!(it, Kept::PayloadInProgress(it) if it == arrival);
        let at = self.kept.iter().position(is_it).expect("it was to be kept");
        self.kept.remove(at);
    }

    fn begin_announcement(&mut self, announcement: &mut Announcement) -> ArrivalOutcome<OpKey> {
        if let Some(receive) = self.take_posted(&announcement.arrival) {
            self.awaiting.insert(receive.key, receive);
            return ArrivalOutcome::Matched(receive.key);
        }
        let index = announcement.index;
        let kept = |arrival| Kept::Announced(Announcement { arrival, index });
        match self.place(&mut announcement.arrival, kept) {
            true => ArrivalOutcome::Store,
            false => ArrivalOutcome::Stalled,
        }
    }

    fn poll_clear_to_send(&mut self) -> Option<ClearToSend> {
        let (receive, announcement) = self.offers.pop()?;
        self.awaiting.insert(receive.key, receive);
        Some(ClearToSend {
            receive: receive.key,
            announcement,
        })
    }

    fn withdraw_announcement(&mut self, announcement: &Announcement) {
        let is_it = |it: &Kept| matches!(it, Kept::Announced(it) if it == announcement);
        let at = self.kept.iter().position(is_it).expect("it is kept");
        self.kept.remove(at);
    }

    fn take_buffer(&mut self, receive: OpKey) -> Payload {
        let record = self.records.get_mut(receive).expect("it has not ended");
        record.phase = Phase::Moving;
        record.take_payload()
    }

    fn end_receive(
        &mut self,
        receive: OpKey,
        message: ReceivedMessage,
        failed: Option<AccessError>,
    ) {
        self.take_awaiting(receive);
        let mut record = self.records.remove(receive).expect("it has not ended");
        record.end_with_placed(message, failed);
        self.ended.push(record);
    }

    fn fail_receives(&mut self, receives: Vec<(OpKey, Option<Payload>)>, error: &Error) {
        let mut receives = receives;
        receives.sort_by_key(|(receive, _)| self.awaiting[receive].order);
        for (receive, buffer) in receives {
            let record = self.records.get_mut(receive).expect("it has not ended");
            if buffer.is_some() {
                record.payload = buffer;
            }
            let is_whole = record.payload.is_some();
            if is_whole && self.awaiting[&receive].source.is_none() {
                self.requeue_receive(receive, None, error.clone());
                continue;
            }
            self.take_awaiting(receive);
            let mut record = self.records.remove(receive).expect("as above");
            record.payload.get_or_insert_with(Payload::empty);
            record.set_end(Err(error.clone()), 0);
            self.ended.push(record);
        }
    }

    fn requeue_receive(&mut self, receive: OpKey, buffer: Option<Payload>, _: Error) {
        let receive = self.take_awaiting(receive);
        let record = self.records.get_mut(receive.key);
        let record = record.expect("it has not ended");
        if buffer.is_some() {
            record.payload = buffer;
        }
        self.put_back.insert(record.token);
        let kind = |it: &Kept| match it {
            Kept::PayloadInProgress(_) => None,
            it => Some(it.arrival().kind),
        };
        let fits = |it: &Kept| kind(it).is_some_and(|kind| wants(receive.wanted, kind));
        match self.kept.iter().position(fits) {
            None => {
                let later = |it: &PostedReceive| it.order > receive.order;
                let at = self.posted.iter().position(later);
                self.posted.insert(at.unwrap_or(self.posted.len()), receive);
            }
            Some(at) => match self.kept.remove(at) {
                Kept::Whole(unexpected) => self.end(receive.key, unexpected),
                Kept::Announced(announcement) => self.offers.push((receive, announcement)),
                Kept::PayloadInProgress(_) => unreachable!("not looked for"),
            },
        }
    }

    fn forget_announcements(&mut self) {
        self.kept.retain(|it| !matches!(it, Kept::Announced(_)));
    }

    fn held_messages(&self) -> u64 {
        self.kept.len() as u64
    }

    fn request_credit_wake(&mut self) {
        self.is_stalled = true;
    }
}

impl TestConnection {
    /// Posts a shared receive, for anybody's message.
    pub(super) fn receive_any(&mut self, token: u64, wanted: MatchCriteria, len: usize) {
        self.post_shared(token, wanted, len);
        self.take_events();
    }

    /// Posts a shared receive for messages of the peer of this source alone.
    pub(super) fn receive_from(&mut self, token: u64, source: SourceId, len: usize) {
        self.receive_any(token, MatchCriteria::Message, len);
        let shared = self.shared();
        let is_it = |it: &&mut PostedReceive| {
            shared
                .records
                .get(it.key)
                .is_some_and(|it| it.token == token)
        };
        let posted = shared.posted.iter_mut().find(is_it);
        posted.expect("no message is there").source = Some(source);
    }

    fn post_shared(&mut self, token: u64, wanted: MatchCriteria, len: usize) {
        let shared = self.host.shared.as_mut().expect("its receives are shared");
        shared.next_order += 1;
        let payload = Payload::from_vec(vec![0; len]);
        let record = Operation::new(OpKind::Receive, payload, token, PostOptions::default());
        let receive = PostedReceive {
            wanted,
            source: None,
            order: shared.next_order,
            key: shared.records.insert(OwnedRecord::new(record)),
        };
        let fits = |it: &Kept| {
            let is_whole = !matches!(it, Kept::PayloadInProgress(_));
            is_whole && wants(wanted, it.arrival().kind)
        };
        let Some(at) = shared.kept.iter().position(fits) else {
            shared.posted.push(receive);
            return;
        };
        match shared.kept.remove(at) {
            Kept::Whole(unexpected) => shared.end(receive.key, unexpected),
            Kept::Announced(announcement) => {
                shared.offers.push((receive, announcement));
                self.answer_offers();
            }
            Kept::PayloadInProgress(_) => unreachable!("not looked for"),
        }
    }

    /// Asks for announced messages that receives were matched with, as each turn does.
    pub(super) fn answer_offers(&mut self) {
        self.machine.resume(&mut self.host);
    }

    pub(super) fn receive_tagged(&mut self, token: u64, tag: u64, len: usize) {
        self.receive_any(token, MatchCriteria::Tagged { tag, ignore: 0 }, len);
    }

    /// Withdraws a shared receive; false: a connection has it, or it has ended.
    pub(super) fn withdraw_shared(&mut self, token: u64) -> bool {
        let shared = self.host.shared.as_mut().expect("its receives are shared");
        let is_it = |it: &PostedReceive| shared.record(it.key).token == token;
        let at = shared.posted.iter().position(is_it);
        let posted = at.map(|at| shared.posted.remove(at));
        posted.map(|it| shared.records.remove(it.key)).is_some()
    }

    pub(super) fn send_tagged(&mut self, token: u64, tag: u64, bytes: &[u8]) -> OpKey {
        self.post(token, tagged(tag, bytes, None, false))
    }

    pub(super) fn shared(&mut self) -> &mut Shared {
        self.host.shared.as_mut().expect("its receives are shared")
    }
}

pub(super) fn tagged(tag: u64, bytes: &[u8], data: Option<u64>, ack: bool) -> Operation<u64> {
    operation(
        OpKind::Send {
            data,
            ack,
            tag: Some(tag),
        },
        Payload::from_vec(bytes.to_vec()),
    )
}

/// The extension, as connectionless endpoints offer it.
pub(super) const EXTENDED: ExtensionParams = ExtensionParams {
    capabilities: OFFERED,
    incarnation: 1,
    refusals_max: 3,
    probes_after_ms: 0,
};

/// Longer messages are announced.
pub(super) fn announced(min: u64) -> LongMessages {
    LongMessages::Announced { min }
}

/// How a pair of connectionless endpoints is set up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) params: ExtensionParams,
    pub(super) sizes: Sizes,
    pub(super) promised: u64,
    pub(super) long_messages: LongMessages,
}

impl Setup {
    pub(super) fn new(params: ExtensionParams) -> Self {
        Setup {
            params,
            sizes: sizes(),
            promised: 1 << 20,
            long_messages: announced(1000),
        }
    }

    fn shared_params(self, number: u64) -> SharedParams {
        SharedParams {
            ids: ConnIds {
                source: SourceId(number),
                connection: ConnectionId::numbered(number + 10),
            },
            promised_bytes: self.promised,
            long_messages: self.long_messages,
        }
    }

    /// A pair of connected endpoints that is not connected: `b` shares its receives.
    pub(super) fn sharing(self) -> Pair {
        let mut b = TestConnection::new(self.sizes, self.params);
        b.machine = Connection::new_shared(self.sizes, self.params, self.shared_params(2));
        b.host.shared = Some(Shared::with_room(self.promised));
        Pair {
            a: TestConnection::new(self.sizes, self.params),
            b,
        }
    }

    fn side(self, number: u32) -> TestConnection {
        let peering = RdmParams {
            shared: self.shared_params(u64::from(number)),
            listening_port: 0x1000 + number as u16,
            incarnation: NonZeroU32::new(number + 1).expect("not zero"),
            contexts: NamedContexts::FIRST,
        };
        let shared = Shared::with_room(self.promised);
        TestConnection::of_peer(self.sizes, self.params, peering, shared)
    }

    /// Neither side has begun.
    pub(super) fn idle(self) -> Pair {
        Pair {
            a: self.side(1),
            b: self.side(2),
        }
    }

    pub(super) fn connected(self) -> Pair {
        let mut pair = self.idle();
        pair.handshake_peers(ByteOrder::Native);
        pair
    }
}

/// Peers that speak the plain protocol, as those of libfabric do.
pub(super) fn plain() -> Setup {
    Setup::new(PLAIN)
}

/// Peers of this library.
pub(super) fn extended() -> Setup {
    Setup::new(EXTENDED)
}

impl Pair {
    /// Connects: `a` dials `b`.
    pub(super) fn handshake_peers(&mut self, order: ByteOrder) {
        self.a.machine.begin_connect_peer();
        self.a.hand_out();
        self.a.move_out(usize::MAX, &mut self.b.wire);
        let request = self.request();
        let asked = PeerData::read(request.data()).expect("our own");
        self.b.machine.begin_accept_peer(&asked, order, None);
        self.b.hand_out();
        self.b.move_out(usize::MAX, &mut self.a.wire);
        if order == ByteOrder::Big {
            self.a.wire.make_contiguous()[24..32].reverse();
        }
        self.run();
    }
}
