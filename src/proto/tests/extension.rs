//! Negotiating the extension: who gets it, what goes over the wire for it, and what a HELLO that is
//! none does.

use super::pair::{PLAIN, Pair, Rng, sizes};
use crate::error::ErrorKind;
use crate::proto::{ExtensionParams, OFFERED};
use crate::wire::{ByteOrder, Capabilities, CloseReason, FrameHeader, Hello, MessageCredit};

pub(super) const EXTENDED: ExtensionParams = ExtensionParams {
    capabilities: OFFERED,
    incarnation: 0x1234,
    refusals_max: 7,
    probes_after_ms: 750,
};

/// docs/extension.md: "The extension is on exactly when both control frames carry an offer."
#[test]
fn the_extension_is_on_exactly_when_both_offer_it() {
    for (a, b) in [
        (EXTENDED, EXTENDED),
        (EXTENDED, PLAIN),
        (PLAIN, EXTENDED),
        (PLAIN, PLAIN),
    ] {
        for order in [ByteOrder::Native, ByteOrder::Big] {
            let mut pair = Pair::idle_with(sizes(), a, b);
            pair.handshake(order, b"asked", b"answered");
            let both = !a.capabilities.is_empty() && !b.capabilities.is_empty();
            assert_eq!(pair.a.events, [r#"connected b"answered""#]);
            assert_eq!(pair.b.events, [r#"connected b"""#]);
            for side in [&pair.a.machine, &pair.b.machine] {
                assert_eq!(side.peer_hello().is_some(), both);
                let agreed = if both { OFFERED } else { Capabilities::empty() };
                assert_eq!(side.agreed(), agreed);
            }
            pair.b.receive(1, 5);
            pair.a.send(1, b"hello");
            pair.run();
            assert_eq!(pair.b.end_of(1), (Ok(5), b"hello".to_vec()));
        }
    }
}

/// docs/extension.md: "A side is connected once it has the other's HELLO", and nothing that comes
/// behind it, in whatever pieces, is looked at before.
#[test]
fn connected_comes_before_what_stands_behind_the_hello() {
    for seed in 0..200 {
        let rng = &mut Rng(seed);
        let mut pair = Pair::idle_with(sizes(), EXTENDED, EXTENDED);
        pair.b.receive(1, 3);
        pair.a.machine.begin_connect(b"");
        pair.a.hand_out();
        pair.a.move_out(usize::MAX, &mut pair.b.wire);
        let offer = pair.request().offer();
        pair.b.machine.begin_accept(b"", ByteOrder::Native, offer);
        pair.b.hand_out();
        // The acceptor's answer is out, but the link has not said so yet.
        let mut answer = Default::default();
        let half = rng.below(40);
        pair.b.move_out(half, &mut answer);
        pair.b.hand_out();
        pair.b.move_out(usize::MAX, &mut answer);
        pair.a.wire.extend(answer);
        while pair.a.move_in(1 + rng.below(50)) {}
        assert_eq!(pair.a.events, [r#"connected b"""#]);
        pair.a.send(1, b"abc");
        assert!(pair.b.events.is_empty(), "its peer's hello has not come");
        pair.run_in_pieces(1 + rng.below(50));
        assert_eq!(pair.b.events, [r#"connected b"""#]);
        assert_eq!(pair.b.end_of(1), (Ok(3), b"abc".to_vec()));
    }
}

/// docs/extension.md: "A side is connected once it has the other's HELLO": it goes out also when
/// the answer to a request comes before the word that the request has left.
#[test]
fn a_hello_survives_the_late_end_of_the_request() {
    let mut pair = Pair::idle_with(sizes(), EXTENDED, EXTENDED);
    pair.a.machine.begin_connect(b"");
    let request = pair
        .a
        .machine
        .poll_transmit(&mut pair.a.host)
        .expect("a request");
    let mut bytes = vec![0; request.remaining()];
    assert_eq!(
        request.copy_out(0, crate::buf::CopyTo::Slice(&mut bytes)).0,
        bytes.len()
    );
    pair.b.wire.extend(&bytes);
    let offer = pair.request().offer();
    pair.b.machine.begin_accept(b"", ByteOrder::Native, offer);
    pair.b.hand_out();
    pair.b.move_out(usize::MAX, &mut pair.a.wire);
    while pair.a.move_in(usize::MAX) {}
    assert_eq!(pair.a.events, [r#"connected b"""#]);
    pair.a.machine.handle_sent(request, bytes.len());
    pair.run();
    assert_eq!(pair.b.events, [r#"connected b"""#]);
}

/// docs/extension.md: "A side that sends a frame of the extension without the agreement that the
/// table requires [...] breaks the protocol."
#[test]
fn extension_frames_without_the_extension_are_violations() {
    let frames = [
        FrameHeader::Ping { token: 1 },
        FrameHeader::Credit { posted: 1 },
        FrameHeader::Close {
            reason: CloseReason::Done,
        },
        FrameHeader::Hello { len: 0 },
        FrameHeader::ReadEnd { refused: None },
    ];
    for header in frames {
        let mut pair = Pair::connected();
        let bytes = header.encode(ByteOrder::Native, 0);
        pair.b.wire.extend(bytes.iter());
        pair.run();
        let kind = pair.b.machine.fault().map(|error| error.kind());
        assert_eq!(kind, Some(ErrorKind::ProtocolViolation), "{header:?}");
    }
}

/// A HELLO that is damaged, cut, or none at all ends the attempt, and never panics.
#[test]
fn a_damaged_hello_ends_the_attempt() {
    let hello = Hello {
        incarnation: 5,
        messages: MessageCredit::default(),
        refusals_max: 0,
        probes_after_ms: None,
        announce_min: None,
        local: None,
    };
    let good = hello.encode(ByteOrder::Native, 0, |_| None);
    let (mut refused, mut fine) = (0, 0);
    for seed in 0..4000 {
        let rng = &mut Rng(seed);
        let mut pair = Pair::idle_with(sizes(), EXTENDED, EXTENDED);
        pair.a.machine.begin_connect(b"");
        pair.a.hand_out();
        pair.a.move_out(usize::MAX, &mut pair.b.wire);
        let offer = pair.request().offer();
        pair.b.machine.begin_accept(b"", ByteOrder::Native, offer);
        pair.b.hand_out();
        pair.b.move_out(usize::MAX, &mut pair.a.wire);
        let mut bytes = good.clone();
        let at = rng.below(bytes.len());
        bytes[at] = rng.next() as u8;
        pair.b.wire.extend(bytes);
        pair.b.finished = true;
        for _ in 0..40 {
            pair.b.move_in(1 + rng.below(60));
        }
        assert!(pair.b.machine.fault().is_some(), "at least by its end");
        match pair.b.events.len() {
            0 => refused += 1,
            _ => fine += 1,
        }
    }
    assert!(refused > 500 && fine > 500, "{refused} {fine}");
}

/// A side that asked for nothing is given nothing.
#[test]
fn an_answer_beyond_the_question_is_refused() {
    let mut pair = Pair::idle_with(sizes(), PLAIN, EXTENDED);
    pair.a.machine.begin_connect(b"");
    pair.a.hand_out();
    pair.a.move_out(usize::MAX, &mut pair.b.wire);
    pair.request();
    let mut other = Pair::idle_with(sizes(), EXTENDED, EXTENDED);
    other.a.machine.begin_connect(b"");
    other.a.hand_out();
    other.a.move_out(usize::MAX, &mut other.b.wire);
    let offer = other.request().offer();
    pair.b.machine.begin_accept(b"", ByteOrder::Native, offer);
    pair.run();
    let kind = pair.a.machine.fault().map(|error| error.kind());
    assert_eq!(kind, Some(ErrorKind::Incompatible));
}

/// docs/extension.md: "It is answered with a PONG that carries its token": a PING.
#[test]
fn a_ping_is_answered() {
    let mut pair = Pair::idle_with(sizes(), EXTENDED, EXTENDED);
    pair.handshake(ByteOrder::Native, b"", b"");
    let ping = FrameHeader::Ping { token: 0xABCD };
    pair.b.wire.extend(ping.encode(ByteOrder::Native, 0).iter());
    while pair.b.move_in(usize::MAX) {}
    pair.b.hand_out();
    pair.b.move_out(usize::MAX, &mut pair.a.wire);
    let pong = FrameHeader::Pong { token: 0xABCD };
    let sent: Vec<u8> = pair.a.wire.iter().copied().collect();
    assert_eq!(sent, *pong.encode(ByteOrder::Native, 1));
    pair.run();
    assert!(pair.a.machine.fault().is_none() && pair.b.machine.fault().is_none());
}
