//! The end of the peer's stream while reading is paused, whatever paused it and wherever the stream
//! ends: the connection ends, or says that something waits for an ended peer.

use super::pair::{Pair, REMOTE, TestConnection, sizes};
use super::receives::{Setup, plain};
use crate::error::ErrorKind;
use crate::limits::{READ_REQUESTS_MAX, UNEXPECTED_OVERHEAD};
use crate::proto::{MatchCriteria, Sizes};

/// The reason why reading pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    /// A receive of the connection's own, or room in its store.
    Receive,
    /// A receive that connections share, or room in their store.
    SharedReceive,
    /// Room in the completion queue, for the data of a write.
    Report,
    /// Room in the queue of answers.
    Answers,
}

const PAUSES: [Pause; 4] = [
    Pause::Receive,
    Pause::SharedReceive,
    Pause::Report,
    Pause::Answers,
];

/// Bytes of a message, and of its header.
const LEN: usize = 3000;
const HEADER: usize = 16;

/// A pair whose first side has sent what pauses the second: it waits in the second's wire, with
/// `behind` bytes of a message behind it. The second side has sent a message that waits for an
/// answer, if `is_sending`.
fn pair_of(pause: Pause, behind: usize, is_sending: bool) -> Pair {
    let mut pair = match pause {
        Pause::SharedReceive => {
            let promised = UNEXPECTED_OVERHEAD as u64;
            let setup = Setup {
                promised,
                ..plain()
            };
            setup.connected()
        }
        _ => Pair::with(Sizes {
            unexpected_bytes: LEN / 2,
            tx_size: READ_REQUESTS_MAX + 4,
            ..sizes()
        }),
    };
    pair.b.host.region(7, vec![0; 8], REMOTE);
    if is_sending {
        pair.b.send_acked(50, b"await an ack");
        pair.b.hand_out();
        pair.b.move_out(usize::MAX, &mut pair.a.wire);
    }
    match pause {
        Pause::Receive | Pause::SharedReceive => _ = pair.a.send(1, &[1; LEN]),
        Pause::Report => {
            pair.b.host.slots = 0;
            pair.a.write_with(1, b"data", Some(1), false, &[(7, 0, 4)]);
        }
        Pause::Answers => {
            for token in 0..READ_REQUESTS_MAX as u64 + 2 {
                pair.a.read(1000 + token, 4, &[(7, 0, 4)]);
                put_out(&mut pair, usize::MAX);
            }
        }
    }
    put_out(&mut pair, usize::MAX);
    if behind > 0 {
        pair.a.send(2, &[2; LEN]);
        put_out(&mut pair, behind);
    }
    pair
}

fn put_out(pair: &mut Pair, most: usize) {
    pair.a.hand_out();
    pair.a.move_out(most, &mut pair.b.wire);
}

/// Reads as far as it goes; `ends`: the link reports the end of the stream when reading pauses.
fn read_on(side: &mut TestConnection, piece: usize, ends: bool) {
    side.finished |= ends;
    for _ in 0..1_000_000 {
        let moved = side.move_in(piece);
        side.nudge();
        // The link reports it once.
        if side.is_paused() && side.finished && !side.has_seen_end {
            side.has_seen_end = true;
            side.watch();
        }
        if !moved && !side.move_in(piece) {
            return;
        }
    }
    panic!("it reads without end");
}

fn fault(side: &TestConnection) -> Option<ErrorKind> {
    side.machine.fault().map(|error| error.kind())
}

/// "A peer's death is always found": each pause, by each place where the stream ends behind it,
/// seen when the pause begins or later, with the bytes read in pieces of each size.
#[test]
fn the_end_of_a_stream_is_found_behind_every_pause() {
    let places = [0, 5, HEADER, HEADER + LEN / 2, HEADER + LEN];
    for pause in PAUSES {
        for behind in places {
            for (piece, seen_later, is_sending) in [
                (usize::MAX, false, true),
                (usize::MAX, true, true),
                (1000, false, true),
                (7, true, true),
                (1000, true, false),
            ] {
                let what = format!("{pause:?}, {behind}, {piece}, {seen_later}, {is_sending}");
                let mut pair = pair_of(pause, behind, is_sending);
                let b = &mut pair.b;
                if seen_later {
                    read_on(b, piece, false);
                    assert!(b.is_paused(), "{what}");
                    assert!(!b.machine.awaits_ended_peer(), "{what}");
                }
                read_on(b, piece, true);
                match pause {
                    // A message that is here as a whole is stored, and the rest is no message.
                    Pause::Receive => assert_eq!(fault(b), Some(ErrorKind::PeerClosed), "{what}"),
                    Pause::Answers => assert!(b.machine.awaits_ended_peer(), "{what}"),
                    Pause::SharedReceive | Pause::Report => {
                        assert_eq!(fault(b), None, "{what}: it is here as a whole");
                        assert_eq!(b.machine.awaits_ended_peer(), is_sending, "{what}");
                    }
                }
                // The pause ends, so the end of the stream is read, or found out of reach.
                b.host.slots = usize::MAX / 2;
                if pause == Pause::SharedReceive {
                    b.receive_any(1, MatchCriteria::Message, LEN);
                    read_on(b, piece, true);
                    assert_eq!(b.end_of(1), (Ok(LEN), vec![1; LEN]));
                    if behind == HEADER + LEN {
                        assert_eq!(b.machine.awaits_ended_peer(), is_sending, "{what}");
                        b.receive_any(2, MatchCriteria::Message, LEN);
                    }
                }
                while pause == Pause::Answers && b.machine.queued_answers() > 0 {
                    b.hand_out();
                    b.move_out(usize::MAX, &mut pair.a.wire);
                }
                read_on(b, piece, true);
                assert_eq!(fault(b), Some(ErrorKind::PeerClosed), "{what}");
                b.close();
                if is_sending {
                    assert_eq!(b.end_kind(50), ErrorKind::PeerClosed, "{what}");
                }
            }
        }
    }
}
