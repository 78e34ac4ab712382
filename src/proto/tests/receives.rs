//! Shared receives as a plain list, and pairs of machines that use them.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use super::pair::{PLAIN, Pair, TestConnection, operation, sizes};
use crate::buf::Payload;
use crate::error::{Error, ErrorKind};
use crate::limits::UNEXPECTED_OVERHEAD;
use crate::proto::{
    Announcement, Arrival, ArrivalOutcome, ClearToSend, ConnIds, Connection, ConnectionId,
    ExtensionParams, LongMessages, MatchCriteria, MessageKind, OFFERED, OpKey, OpKind, Operation,
    PostOptions, PostedReceive, RdmParams, Receives, SharedParams, Sizes, SourceId,
    UnexpectedMessage,
};
use crate::slab::Slab;
use crate::sync::OwnedRecord;
use crate::wire::{ByteOrder, NamedContexts, PeerData};

/// A message that no receive has taken.
#[derive(Debug)]
pub(super) enum Kept {
    FifoMessage(UnexpectedMessage),
    PayloadInProgress(Arrival),
    Announced(Announcement),
}

impl Kept {
    fn arrival(&self) -> &Arrival {
        match self {
            Kept::FifoMessage(unexpected) => &unexpected.arrival,
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
    pub(super) posted: Vec<PostedReceive<u64>>,
    pub(super) kept: Vec<Kept>,
    /// Bytes that may be kept.
    pub(super) room: u64,
    next_order: u64,
    /// Receives that complete outside of a connection.
    pub(super) ended: Vec<OwnedRecord<Operation<u64>>>,
    pub(super) is_stalled: bool,
    /// Receives that a connection has, until they end.
    pub(super) awaiting: BTreeSet<OpKey>,
    /// Tokens of receives whose message was withdrawn after they were matched with it.
    pub(super) put_back: BTreeSet<u64>,
    /// Receives that were put back, and the announcements that they take.
    pub(super) offers: Vec<(PostedReceive<u64>, Announcement)>,
    keys: Slab<()>,
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
            awaiting: BTreeSet::new(),
            put_back: BTreeSet::new(),
            offers: Vec::new(),
            keys: Slab::new(),
        }
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.kept.iter().map(Kept::cost).sum()
    }

    /// True if all messages that are kept have come in full.
    pub(super) fn is_at_rest(&self) -> bool {
        self.kept
            .iter()
            .all(|it| matches!(it, Kept::FifoMessage(_)))
    }

    fn take_posted(&mut self, arrival: &Arrival) -> Option<PostedReceive<u64>> {
        let takes = |it: &PostedReceive<u64>| {
            wants(it.wanted, arrival.kind) && it.source.is_none_or(|it| it == arrival.source)
        };
        let at = self.posted.iter().position(takes)?;
        Some(self.posted.remove(at))
    }

    fn end(&mut self, receive: PostedReceive<u64>, unexpected: UnexpectedMessage) {
        let PostedReceive { mut record, .. } = receive;
        let mut payload = record.take_payload();
        let len = unexpected.len.min(payload.len());
        payload
            .copy_from(&unexpected.payload, len)
            .expect("held memory");
        let overflow = unexpected.overflow + unexpected.len - len;
        let result = match overflow {
            0 => Ok(()),
            _ => Err(Error::new(ErrorKind::Truncated, "")),
        };
        record.payload = Some(payload);
        record.set_end(result, len);
        let end = &mut record.end;
        end.overflow = overflow;
        end.data = unexpected.arrival.data;
        end.tag = unexpected.arrival.kind.tag();
        end.origin = Some(unexpected.arrival.origin());
        end.order = unexpected.arrival.order;
        self.ended.push(record);
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

impl Receives<u64> for Shared {
    fn begin_message(&mut self, arrival: &mut Arrival) -> ArrivalOutcome<u64> {
        match self.take_posted(arrival) {
            Some(receive) => {
                self.awaiting.insert(receive.key);
                ArrivalOutcome::Matched(receive)
            }
            None if self.place(arrival, Kept::PayloadInProgress) => ArrivalOutcome::Store,
            None => ArrivalOutcome::Stalled,
        }
    }

    fn store_message(&mut self, unexpected: UnexpectedMessage) {
        let is_it =
            |it: &Kept| matches!(it, Kept::PayloadInProgress(it) if *it == unexpected.arrival);
        let at = self.kept.iter().position(is_it).expect("it was to be kept");
        match self.take_posted(&unexpected.arrival) {
            Some(receive) => {
                self.kept.remove(at);
                self.end(receive, unexpected);
            }
            None => self.kept[at] = Kept::FifoMessage(unexpected),
        }
    }

    fn abort_message(&mut self, arrival: &Arrival) {
        let is_it = |it: &Kept| matches!(it, Kept::PayloadInProgress(it) if it == arrival);
        let at = self.kept.iter().position(is_it).expect("it was to be kept");
        self.kept.remove(at);
    }

    fn begin_announcement(&mut self, announcement: &mut Announcement) -> ArrivalOutcome<u64> {
        if let Some(receive) = self.take_posted(&announcement.arrival) {
            self.awaiting.insert(receive.key);
            return ArrivalOutcome::Matched(receive);
        }
        let index = announcement.index;
        let kept = |arrival| Kept::Announced(Announcement { arrival, index });
        match self.place(&mut announcement.arrival, kept) {
            true => ArrivalOutcome::Store,
            false => ArrivalOutcome::Stalled,
        }
    }

    fn poll_clear_to_send(&mut self) -> Option<ClearToSend<u64>> {
        let (receive, announcement) = self.offers.pop()?;
        self.awaiting.insert(receive.key);
        Some(ClearToSend {
            receive,
            announcement,
        })
    }

    fn withdraw_announcement(&mut self, announcement: &Announcement) {
        let is_it = |it: &Kept| matches!(it, Kept::Announced(it) if it == announcement);
        let at = self.kept.iter().position(is_it).expect("it is kept");
        self.kept.remove(at);
    }

    fn receive_ended(&mut self, receive: OpKey) {
        let taken = self.awaiting.remove(&receive);
        assert!(taken, "once of each");
    }

    fn requeue_receive(&mut self, receive: PostedReceive<u64>, _: Error) {
        self.receive_ended(receive.key);
        self.put_back.insert(receive.record.token);
        let kind = |it: &Kept| match it {
            Kept::PayloadInProgress(_) => None,
            it => Some(it.arrival().kind),
        };
        let fits = |it: &Kept| kind(it).is_some_and(|kind| wants(receive.wanted, kind));
        match self.kept.iter().position(fits) {
            None => {
                let later = |it: &PostedReceive<u64>| it.order > receive.order;
                let at = self.posted.iter().position(later);
                self.posted.insert(at.unwrap_or(self.posted.len()), receive);
            }
            Some(at) => match self.kept.remove(at) {
                Kept::FifoMessage(unexpected) => self.end(receive, unexpected),
                Kept::Announced(announcement) => self.offers.push((receive, announcement)),
                Kept::PayloadInProgress(_) => unreachable!("not looked for"),
            },
        }
    }

    fn forget_announcements(&mut self) {
        self.kept.retain(|it| !matches!(it, Kept::Announced(_)));
    }

    fn requeue_message(&mut self, _: UnexpectedMessage) {
        unreachable!("no receive of these tests is dropped");
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
        let posted = shared.posted.iter_mut().find(|it| it.record.token == token);
        posted.expect("no message is there").source = Some(source);
    }

    fn post_shared(&mut self, token: u64, wanted: MatchCriteria, len: usize) {
        let shared = self.host.shared.as_mut().expect("its receives are shared");
        let key: OpKey = shared.keys.insert(());
        shared.next_order += 1;
        let payload = Payload::from_vec(vec![0; len]);
        let record = Operation::new(OpKind::Receive, payload, token, PostOptions::default());
        let receive = PostedReceive {
            record: OwnedRecord::new(record),
            wanted,
            source: None,
            order: shared.next_order,
            key,
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
            Kept::FifoMessage(unexpected) => shared.end(receive, unexpected),
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
        let at = shared.posted.iter().position(|it| it.record.token == token);
        at.map(|at| shared.posted.remove(at)).is_some()
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
                connection: ConnectionId(number + 10),
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
