//! The steps of a message's way whose instructions are counted (`benches/instructions.rs`). Not an
//! interface: it is built with the private feature `__instructions` only, and changes at will.

use std::hint::black_box;

use crate::buf::{Payload, RegionUse};
use crate::error::Refusal;
use crate::mr::Claim;
use crate::proto::{
    Arrival, Arrived, Budget, Connection, ConnectionId, Event, Host, Kind, Outgoing, Post,
    PostFlags, PostedReceive, SendOrder, SharedMatcher, Sizes, SourceId, Terms, Wanted,
};
use crate::slab::Key;
use crate::wire::{ByteOrder, Capabilities, ControlFrame, ControlKind, FrameHeader, decode};

/// Bytes of the message.
const LEN: usize = 64;
/// Messages that go out together.
pub const GATHERED: usize = 32;

fn header() -> FrameHeader {
    FrameHeader::Message {
        data: None,
        ack: false,
        len: LEN as u64,
    }
}

/// A header to bytes.
pub fn encode() {
    black_box(black_box(header()).encode(ByteOrder::Native, 7));
}

/// A header's bytes, for [`decode_header`].
pub fn header_bytes() -> Vec<u8> {
    header().encode(ByteOrder::Native, 7).to_vec()
}

/// Bytes to a header.
pub fn decode_header(bytes: &[u8]) {
    let decoded = decode(black_box(bytes), ByteOrder::Native);
    black_box(decoded.expect("these are right"));
}

/// Receives of a thousand tags, shared by the connections of an endpoint.
#[allow(missing_debug_implementations, reason = "no interface")]
pub struct Matching {
    matcher: SharedMatcher<()>,
    next: u64,
}

impl Matching {
    /// With a thousand receives posted.
    #[allow(clippy::new_without_default, reason = "no interface")]
    pub fn new() -> Self {
        let mut matcher = SharedMatcher::new(Budget {
            total_bytes: 1 << 20,
            peer_bytes: 1 << 20,
        });
        matcher.join(ConnectionId(1), SourceId(1));
        let mut matching = Matching { matcher, next: 0 };
        for tag in 0..1000 {
            matching.post(tag);
        }
        matching
    }

    fn post(&mut self, tag: u64) {
        let receive = PostedReceive {
            token: (),
            payload: Payload::empty(),
            wanted: Wanted::Tagged { tag, ignore: 0 },
            source: None,
            order: 0,
            key: Key::from_bits(0),
        };
        black_box(self.matcher.post(receive));
    }

    /// A message finds its receive, which is posted again.
    pub fn one(&mut self) {
        let tag = self.next % 1000;
        self.next += 7;
        let mut arrival = Arrival {
            source: SourceId(1),
            connection: ConnectionId(1),
            kind: Kind::Tagged { tag },
            len: 0,
            data: None,
            order: 0,
        };
        let arrived = self.matcher.arrive(&mut arrival);
        assert!(matches!(arrived, Arrived::Receive(_)), "it is posted");
        self.post(tag);
    }
}

/// Nothing around a connection is ever short, and it has no regions.
struct Alone;

impl Host<()> for Alone {
    fn reserve(&mut self, (): &mut ()) -> bool {
        true
    }

    fn reserve_unasked(&mut self) -> bool {
        true
    }

    fn resolve(&mut self, _: &Claim) -> Result<RegionUse, Refusal> {
        Err(Refusal::UnknownKey)
    }
}

/// A connection, and the buffer of its one operation.
#[allow(missing_debug_implementations, reason = "no interface")]
pub struct Side {
    machine: Connection<()>,
    buffer: Option<Payload>,
}

impl Side {
    /// Connected, to a peer that speaks the plain protocol.
    #[allow(clippy::new_without_default, reason = "no interface")]
    pub fn new() -> Self {
        let sizes = Sizes {
            tx_size: GATHERED,
            rx_size: 16,
            unexpected_bytes: 1 << 20,
            send_order: SendOrder::Free,
        };
        let terms = Terms {
            capabilities: Capabilities::empty(),
            incarnation: 1,
            refusals_max: 0,
            asks_after_ms: 0,
        };
        let mut machine = Connection::new(sizes, terms);
        machine.begin_connect(&[]);
        if let Some(Outgoing { frames, .. }) = machine.poll_transmit(&mut Alone) {
            let len = frames.iter().map(|frame| frame.remaining()).sum();
            machine.handle_sent(frames, len);
        }
        let response = ControlFrame::new(ControlKind::Response, bytes::Bytes::new());
        let response = response.expect("no data is not too much").encode();
        machine.handle_stage(&response, &mut Alone);
        let connected = machine.take_events();
        assert!(matches!(connected.front(), Some(Event::Connected { .. })));
        Side {
            machine,
            buffer: Some(Payload::from_vec(vec![0; LEN])),
        }
    }

    /// A send is posted, handed out, sent and told.
    pub fn send(&mut self) {
        let post = Post::Send {
            payload: self.buffer.take().expect("no send is under way"),
            data: None,
            ack: false,
            tag: None,
        };
        let posted = self
            .machine
            .post(post, (), PostFlags::default(), &mut Alone);
        black_box(posted.expect("there is room"));
        let outgoing = self.machine.poll_transmit(&mut Alone);
        let Outgoing { frames, leases, .. } = outgoing.expect("a frame is queued");
        self.machine.end_leases(leases);
        let len = frames.iter().map(|frame| frame.remaining()).sum();
        self.machine.handle_sent(frames, len);
        self.end();
    }

    /// Several messages are injected, handed out together and sent.
    pub fn inject(&mut self, message: &[u8]) {
        for _ in 0..GATHERED {
            let injected = self.machine.inject(message, None);
            injected.expect("there is room");
        }
        let outgoing = self.machine.poll_transmit(&mut Alone);
        let Outgoing { frames, leases, .. } = outgoing.expect("a frame is queued");
        self.machine.end_leases(leases);
        let len = frames.iter().map(|frame| frame.remaining()).sum();
        self.machine.handle_sent(frames, len);
        black_box(self.machine.take_injected_ends());
    }

    /// A receive is posted, a message comes, and its end is told.
    pub fn receive(&mut self, message: &[u8]) {
        let payload = self.buffer.take().expect("no receive is under way");
        let post = Post::Receive { payload };
        let posted = self
            .machine
            .post(post, (), PostFlags::default(), &mut Alone);
        black_box(posted.expect("there is room"));
        let taken = self.machine.handle_stage(message, &mut Alone);
        assert_eq!(taken, message.len());
        self.end();
    }

    fn end(&mut self) {
        let mut events = self.machine.take_events();
        match events.front_mut() {
            Some(Event::Ended { end, .. }) => self.buffer = Some(end.payload.take()),
            other => panic!("it ended, and not {other:?}"),
        }
        self.machine.keep_events(events);
    }
}

/// A message as it comes, for [`Side::receive`].
pub fn message() -> Vec<u8> {
    let mut bytes = header_bytes();
    bytes.resize(bytes.len() + LEN, 0);
    bytes
}
