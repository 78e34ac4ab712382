//! Steps of a message's path, for a benchmark that counts their instructions
//! (`benches/instructions`). Not a public interface: it is built only with the private feature
//! `__instructions`, and may change at any time.

use std::collections::VecDeque;
use std::hint::black_box;
use std::num::NonZeroU32;

use crate::buf::{AccessError, Payload, RegionUse};
use crate::error::{Error, Refusal};
use crate::info::{Caps, SideCaps};
use crate::limits::HEADER_SIZE_MAX;
use crate::mr::AccessRequest;
use crate::proto::{
    Announcement, Arrival, ArrivalOutcome, ClearToSend, ConnEvent, ConnIds, Connection,
    ConnectionId, ExtensionParams, Host, InboxId, InboxMessage, LongMessages, MatchCriteria,
    MessageKind, OpKind, Operation, PostOptions, PostedReceive, RdmParams, ReadCount,
    ReceivedMessage, Receives, SendOrder, SharedMatcher, SharedParams, Sizes, SourceId,
    UnexpectedBudget,
};
use crate::slab::{Key, Slab};
use crate::sync::OwnedRecord;
use crate::wire::{
    ByteOrder, Capabilities, ControlFrame, ControlKind, FrameHeader, NamedContexts, PeerData,
    RemoteSegment, Segments, decode,
};

/// Bytes of a message that is copied.
const LEN: usize = 64;
/// Bytes of a message that is not copied.
const LONG_LEN: usize = 1024;
/// Number of messages that are sent together.
pub const GATHERED: usize = 32;

fn header() -> FrameHeader {
    FrameHeader::Message {
        data: None,
        ack: false,
        len: LEN as u64,
    }
}

/// Encodes a header.
pub fn encode() {
    let header = black_box(header());
    let mut room = [0; HEADER_SIZE_MAX];
    header.encode_into(ByteOrder::Native, 7, &mut room[..header.encoded_len()]);
    black_box(room);
}

/// Returns the bytes of a header, for [`decode_header`].
pub fn header_bytes() -> Vec<u8> {
    header().encode(ByteOrder::Native, 7)
}

/// Decodes the bytes of a header.
pub fn decode_header(bytes: &[u8]) {
    let decoded = decode(black_box(bytes), ByteOrder::Native);
    black_box(decoded.expect("these are right"));
}

/// Receives with a thousand different tags, which the connections of an endpoint share.
#[allow(missing_debug_implementations, reason = "no interface")]
pub struct Matching {
    matcher: SharedMatcher,
    next: u64,
}

impl Matching {
    /// Posts a thousand receives.
    #[allow(clippy::new_without_default, reason = "no interface")]
    pub fn new() -> Self {
        let mut matcher = SharedMatcher::new(UnexpectedBudget {
            total_bytes: 1 << 20,
            peer_bytes: 1 << 20,
        });
        matcher.attach(ConnectionId::numbered(1), SourceId(1));
        let mut matching = Matching { matcher, next: 0 };
        for tag in 0..1000 {
            matching.post(tag);
        }
        matching
    }

    fn post(&mut self, tag: u64) {
        let receive = PostedReceive {
            wanted: MatchCriteria::Tagged { tag, ignore: 0 },
            source: None,
            order: 0,
            key: Key::from_bits(0),
        };
        black_box(self.matcher.post(receive));
    }

    /// Matches a message with its receive, and posts the receive again.
    pub fn one(&mut self) {
        let tag = self.next % 1000;
        self.next += 7;
        let mut arrival = Arrival {
            source: SourceId(1),
            connection: ConnectionId::numbered(1),
            kind: MessageKind::Tagged { tag },
            len: 0,
            data: None,
            order: 0,
        };
        let arrived = self.matcher.begin_message(&mut arrival, |_| false);
        assert!(
            matches!(arrived, ArrivalOutcome::Matched(_)),
            "it is posted"
        );
        self.post(tag);
    }
}

/// A host with unlimited resources and without regions.
struct UnlimitedHost {
    /// The receives of a connectionless endpoint.
    shared: Option<SharedReceives>,
}

impl Host<()> for UnlimitedHost {
    fn reserve(&mut self, _: &mut OwnedRecord<Operation<()>>) -> bool {
        true
    }

    fn reserve_remote_completion(&mut self) -> bool {
        true
    }

    fn resolve(&mut self, _: &AccessRequest) -> Result<RegionUse, Refusal> {
        Err(Refusal::UnknownKey)
    }

    fn admits(&self, need: Caps) -> bool {
        SideCaps::ALL.has(need)
    }

    fn shared(&mut self) -> Option<&mut dyn Receives> {
        self.shared.as_mut().map(|it| it as &mut dyn Receives)
    }
}

/// The receives of a connectionless endpoint with one connection; every message finds a receive.
struct SharedReceives {
    matcher: SharedMatcher,
    records: Slab<OwnedRecord<Operation<()>>>,
    ended: Option<OwnedRecord<Operation<()>>>,
}

impl SharedReceives {
    fn post(&mut self, tag: u64, payload: Payload) {
        let record = Operation::new(OpKind::Receive, payload, (), PostOptions::default());
        let receive = PostedReceive {
            wanted: MatchCriteria::Tagged { tag, ignore: 0 },
            source: None,
            order: 0,
            key: self.records.insert(OwnedRecord::new(record)),
        };
        black_box(self.matcher.post(receive));
    }
}

impl Receives for SharedReceives {
    fn begin_message(&mut self, arrival: &mut Arrival) -> ArrivalOutcome<(Key, Payload)> {
        let _ = arrival;
        unreachable!("a message comes whole")
    }

    fn take_message(&mut self, arrival: &mut Arrival, bytes: &[u8]) -> bool {
        let begun = self.matcher.begin_message(arrival, |_| false);
        let ArrivalOutcome::Matched(matched) = begun else {
            unreachable!("a receive is posted")
        };
        let record = self.records.remove(matched.receive.key);
        let mut record = record.expect("it is posted");
        record.end_with_bytes(arrival, bytes);
        self.ended = Some(record);
        true
    }

    fn take_buffer(&mut self, _: Key) -> Payload {
        unreachable!("a message comes whole")
    }

    fn end_receive(&mut self, _: Key, _: ReceivedMessage, _: Option<AccessError>) {
        unreachable!("a message comes whole")
    }

    fn held_messages(&self) -> u64 {
        0
    }

    fn forget_announcements(&mut self) {}

    fn request_credit_wake(&mut self) {}

    fn store_message(&mut self, _: ReceivedMessage) {
        unreachable!("a receive is posted")
    }

    fn abort_message(&mut self, _: &Arrival) {
        unreachable!("a receive is posted")
    }

    fn begin_announcement(&mut self, _: &mut Announcement) -> ArrivalOutcome<Key> {
        unreachable!("nothing is announced")
    }

    fn poll_clear_to_send(&mut self) -> Option<ClearToSend> {
        None
    }

    fn withdraw_announcement(&mut self, _: &Announcement) {
        unreachable!("nothing is announced")
    }

    fn requeue_receive(&mut self, _: Key, _: Option<Payload>, _: Error) {
        unreachable!("the connection lives")
    }

    fn fail_receives(&mut self, _: Vec<(Key, Option<Payload>)>, _: &Error) {
        unreachable!("the connection lives")
    }
}

/// A connection, with the buffer of its only operation.
#[allow(missing_debug_implementations, reason = "no interface")]
pub struct SteppedConnection {
    machine: Connection<()>,
    host: UnlimitedHost,
    buffer: Option<Payload>,
    /// The inbox of a message stream, its unread messages, and buffers to return.
    inbox: Option<InboxId>,
    unread: VecDeque<InboxMessage>,
    reads: ReadCount,
    read: Vec<Vec<u8>>,
}

fn sizes() -> Sizes {
    Sizes {
        tx_size: GATHERED,
        rx_size: 16,
        unexpected_bytes: 1 << 20,
        send_order: SendOrder::Free,
    }
}

fn params() -> ExtensionParams {
    ExtensionParams {
        capabilities: Capabilities::empty(),
        incarnation: 1,
        refusals_max: 0,
        probes_after_ms: 0,
    }
}

impl SteppedConnection {
    /// Creates a connected endpoint whose peer speaks the plain protocol.
    #[allow(clippy::new_without_default, reason = "no interface")]
    pub fn new() -> Self {
        let mut machine = Connection::new(sizes(), params());
        machine.begin_connect(&[]);
        SteppedConnection::connected(machine, None, bytes::Bytes::new())
    }

    /// Creates the connection to a peer of a connectionless endpoint; the peer speaks the plain
    /// protocol.
    pub fn of_peer() -> Self {
        let ids = ConnIds {
            source: SourceId(1),
            connection: ConnectionId::numbered(1),
        };
        let peering = RdmParams {
            shared: SharedParams {
                ids,
                promised_bytes: 1 << 20,
                long_messages: LongMessages::Announced { min: 1 << 14 },
            },
            listening_port: 1,
            incarnation: NonZeroU32::MIN,
            contexts: NamedContexts::FIRST,
        };
        let mut machine = Connection::new_rdm(sizes(), params(), peering);
        machine.begin_connect_peer();
        let mut matcher = SharedMatcher::new(UnexpectedBudget {
            total_bytes: 1 << 20,
            peer_bytes: 1 << 20,
        });
        matcher.attach(ids.connection, ids.source);
        let request = PeerData::request(1, NonZeroU32::MIN, None);
        let response = request.response(NonZeroU32::MIN, None).encode();
        SteppedConnection::connected(
            machine,
            Some(SharedReceives {
                matcher,
                records: Slab::new(),
                ended: None,
            }),
            response.to_vec().into(),
        )
    }

    fn connected(
        mut machine: Connection<()>,
        shared: Option<SharedReceives>,
        response: bytes::Bytes,
    ) -> Self {
        let mut host = UnlimitedHost { shared };
        if let Some(batch) = machine.poll_transmit(&mut host) {
            let len = batch.remaining();
            machine.handle_sent(batch, len);
        }
        let response = ControlFrame::new(ControlKind::Response, response);
        let response = response.expect("it is not too much data").encode();
        machine.handle_stage(&response, &mut host);
        let connected = machine.take_events();
        assert!(matches!(
            connected.first(),
            Some(ConnEvent::Connected { .. })
        ));
        SteppedConnection {
            machine,
            host,
            buffer: Some(Payload::from_vec(vec![0; LEN])),
            inbox: None,
            unread: VecDeque::new(),
            reads: ReadCount::default(),
            read: Vec::new(),
        }
    }

    /// Posts a small message by a copy, takes it out, sends it, and notices its end.
    pub fn send_copied(&mut self, message: &[u8]) {
        let number = self.machine.inject_awaited(message, None);
        let number = number.expect("it is open").expect("there is room");
        self.transmit();
        black_box(self.machine.take_injected_ends());
        assert!(number < self.machine.injected_ended_before());
    }

    /// As `send_copied`, for a message that is not copied.
    pub fn send_long(&mut self) {
        if self.buffer.as_ref().is_some_and(|it| it.len() == LEN) {
            self.buffer = Some(Payload::from_vec(vec![0; LONG_LEN]));
        }
        self.send(None);
    }

    /// Posts, takes out, sends and completes a send.
    pub fn send(&mut self, tag: Option<u64>) {
        let payload = self.take_buffer();
        self.post(
            OpKind::Send {
                data: None,
                ack: false,
                tag,
            },
            payload,
        );
        self.transmit();
        self.end();
    }

    /// Posts, takes out, sends, acknowledges and completes a write.
    pub fn write(&mut self, ack: &[u8]) {
        let payload = self.take_buffer();
        self.post(
            OpKind::Write {
                data: None,
                ack: true,
                commit: false,
                segments: segments(),
            },
            payload,
        );
        self.transmit();
        self.match_or_admit(ack);
        self.end();
    }

    /// Posts a read, requests it, answers it and completes it.
    pub fn read(&mut self, response: &[u8]) {
        let payload = self.take_buffer();
        self.post(
            OpKind::Read {
                segments: segments(),
            },
            payload,
        );
        self.transmit();
        self.match_or_admit(response);
        self.end();
    }

    /// Injects several messages, takes them out together and sends them.
    pub fn inject(&mut self, message: &[u8]) {
        for _ in 0..GATHERED {
            let injected = self.machine.inject(message, None);
            injected.expect("there is room");
        }
        self.transmit();
        black_box(self.machine.take_injected_ends());
    }

    /// Posts a receive and completes it with a message.
    pub fn receive(&mut self, message: &[u8]) {
        let payload = self.take_buffer();
        self.post(OpKind::Receive, payload);
        self.match_or_admit(message);
        self.end();
    }

    /// Takes several arriving messages with a stream.
    pub fn take_messages(&mut self, messages: &[u8]) {
        let inbox = *self.inbox.get_or_insert_with(|| {
            let reads = self.reads.clone();
            let opened = (self.machine).open_inbox(LEN, GATHERED, reads, &mut self.host);
            opened.expect("it has receives of its own")
        });
        for bytes in [messages, &[]] {
            self.match_or_admit(bytes);
            black_box(self.machine.take_inbox_counts());
            let (unread, read) = (&mut self.unread, &mut self.read);
            (self.machine).take_messages(inbox, unread, |free| free.append(read), &mut self.host);
            assert_eq!(self.unread.len() * bytes.len(), GATHERED * bytes.len());
            while let Some(message) = self.unread.pop_front() {
                self.reads.add_one();
                self.read.push(message.buffer);
            }
        }
    }

    /// As `receive`, for a tagged message and a receive that the connections of an endpoint share.
    pub fn receive_shared(&mut self, message: &[u8]) {
        let payload = self.take_buffer();
        let shared = self.host.shared.as_mut().expect("of a peer");
        shared.post(TAG, payload);
        self.match_or_admit(message);
        let shared = self.host.shared.as_mut().expect("of a peer");
        let mut ended = shared.ended.take().expect("its message has come");
        self.buffer = Some(ended.take_payload());
    }

    fn take_buffer(&mut self) -> Payload {
        self.buffer.take().expect("nothing is under way")
    }

    fn post(&mut self, kind: OpKind, payload: Payload) {
        let operation = Operation::new(kind, payload, (), PostOptions::default());
        let posted = self
            .machine
            .post(OwnedRecord::new(operation), &mut self.host);
        black_box(posted.expect("there is room"));
    }

    fn transmit(&mut self) {
        let outgoing = self.machine.poll_transmit(&mut self.host);
        let batch = outgoing.expect("a frame is queued");
        let len = batch.remaining();
        self.machine.handle_sent(batch, len);
    }

    fn match_or_admit(&mut self, bytes: &[u8]) {
        let taken = self.machine.handle_stage(bytes, &mut self.host);
        assert_eq!(taken, bytes.len());
    }

    fn end(&mut self) {
        let mut events = self.machine.take_events();
        match events.first_mut() {
            Some(ConnEvent::Completed(op)) => self.buffer = op.payload.take(),
            other => panic!("it ended, and not {other:?}"),
        }
        self.machine.keep_events(events);
    }
}

/// The tag of tagged messages.
pub const TAG: u64 = 7;

fn segments() -> Segments {
    let segment = RemoteSegment {
        addr: 0,
        len: LEN as u64,
        key: 1,
    };
    Segments::new(&[segment]).expect("one is not too many")
}

/// Returns the bytes of a message, for [`SteppedConnection::receive`].
pub fn message() -> Vec<u8> {
    frame(&header())
}

/// Returns the bytes of a tagged message, for [`SteppedConnection::receive_shared`].
pub fn tagged_message() -> Vec<u8> {
    frame(&FrameHeader::Tagged {
        data: None,
        tag: TAG,
        ack: false,
        len: LEN as u64,
    })
}

/// Returns the answer to a write, for [`SteppedConnection::write`].
pub fn ack() -> Vec<u8> {
    FrameHeader::Ack.encode(ByteOrder::Native, 7)
}

/// Returns the answer to a read, for [`SteppedConnection::read`].
pub fn read_response() -> Vec<u8> {
    frame(&FrameHeader::ReadResponse { len: LEN as u64 })
}

fn frame(header: &FrameHeader) -> Vec<u8> {
    let mut bytes = header.encode(ByteOrder::Native, 7);
    bytes.resize(bytes.len() + LEN, 0);
    bytes
}
