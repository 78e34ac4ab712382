//! Two machines and a link between them that a test controls: the test (or its seed) decides when
//! bytes move, and in which pieces.

use crate::mr::Access;
use crate::proto::{ExtensionParams, SendOrder, Sizes};
use crate::wire::{ByteOrder, Capabilities, CmDecoded, CmDecoder, ControlFrame, ControlKind};

pub(super) use super::side::{
    QUEUED, Rng, TestConnection, bytes_of, memory_of, operation, segments,
};

/// Two machines, connected or about to be.
pub(super) struct Pair {
    pub(super) a: TestConnection,
    pub(super) b: TestConnection,
}

/// The rights that let a peer read and write.
pub(super) const REMOTE: Access = Access::REMOTE;

/// Contexts of one operation, and no room for unexpected messages.
pub(super) const TINY: Sizes = Sizes {
    tx_size: 1,
    rx_size: 1,
    unexpected_bytes: 0,
    send_order: SendOrder::Free,
};

/// The protocol without the extension.
pub(super) const PLAIN: ExtensionParams = ExtensionParams {
    capabilities: Capabilities::empty(),
    incarnation: 1,
    refusals_max: 0,
    probes_after_ms: 0,
};

pub(super) fn sizes() -> Sizes {
    Sizes {
        tx_size: 64,
        rx_size: 64,
        unexpected_bytes: 1 << 20,
        send_order: SendOrder::Free,
    }
}

impl Pair {
    /// Neither side has begun, and neither has the extension.
    pub(super) fn idle(sizes: Sizes) -> Pair {
        Pair::idle_with(sizes, PLAIN, PLAIN)
    }

    pub(super) fn idle_with(sizes: Sizes, a: ExtensionParams, b: ExtensionParams) -> Pair {
        Pair {
            a: TestConnection::new(sizes, a),
            b: TestConnection::new(sizes, b),
        }
    }

    pub(super) fn connected() -> Pair {
        Pair::with(sizes())
    }

    pub(super) fn with(sizes: Sizes) -> Pair {
        let mut pair = Pair::idle(sizes);
        pair.handshake(ByteOrder::Native, b"", b"");
        pair
    }

    /// Connects: `a` asks, `b` answers. With `Big`, each side believes that the other's numbers are
    /// laid out the other way round.
    pub(super) fn handshake(&mut self, order: ByteOrder, asked: &[u8], answered: &[u8]) {
        self.a.machine.begin_connect(asked);
        self.a.hand_out();
        self.a.move_out(usize::MAX, &mut self.b.wire);
        let request = self.request();
        assert_eq!(request.data(), asked);
        self.b
            .machine
            .begin_accept(answered, order, request.offer());
        self.b.hand_out();
        self.b.move_out(usize::MAX, &mut self.a.wire);
        if order == ByteOrder::Big {
            self.a.wire.make_contiguous()[24..32].reverse();
        }
        self.run();
    }

    /// The listener's part, which is not the machine's: reads the request.
    pub(super) fn request(&mut self) -> ControlFrame {
        let bytes: Vec<u8> = self.b.wire.drain(..).collect();
        match CmDecoder::new().feed(&bytes) {
            Ok(CmDecoded::Frame {
                frame, consumed, ..
            }) => {
                assert_eq!(
                    (frame.kind(), consumed),
                    (ControlKind::Request, bytes.len())
                );
                frame
            }
            other => panic!("{other:?} instead of a request"),
        }
    }

    /// Moves whatever can move, until nothing does.
    pub(super) fn run(&mut self) {
        self.run_in_pieces(usize::MAX);
    }

    pub(super) fn run_in_pieces(&mut self, most: usize) {
        loop {
            let Pair { a, b } = self;
            let first = step(a, b, most);
            let second = step(b, a, most);
            if !first && !second {
                break;
            }
        }
        self.a.machine.check();
        self.b.machine.check();
    }
}

pub(super) fn step(here: &mut TestConnection, there: &mut TestConnection, most: usize) -> bool {
    here.nudge();
    here.hand_out();
    let sent = here.move_out(most, &mut there.wire) > 0;
    let received = here.move_in(most);
    sent || received || here.machine.wants_admission()
}
