//! Proving an authorization key, and all that does not prove it: peers without the extension, wrong
//! keys, replayed and reflected proofs, and an attacker in between that changes what is said.

use super::extension::EXTENDED;
use super::pair::{PLAIN, Pair, Rng, TestConnection, sizes};
use crate::edges::EdgeCoverage;
use crate::error::ErrorKind;
use crate::limits::CM_DATA_SIZE_MAX;
use crate::mr::AuthSecret;
use crate::proto::ExtensionParams;
use crate::wire::{ByteOrder, Capabilities};

const PAGE: &str = include_str!("../../../docs/extension.md");
const KEY: &[u8] = b"tokio-fabric key";

/// Returns the frame of this name in section 9.
fn golden(name: &str) -> Vec<u8> {
    let (_, block) = PAGE.split_once("```proof\n").expect("the golden block");
    let (block, _) = block.split_once("```").expect("its end");
    let mut hex = String::new();
    let mut is_wanted = false;
    for line in block.lines() {
        let rest = match line.split_once(':') {
            Some((found, rest)) => {
                is_wanted = found == name;
                rest
            }
            None => line,
        };
        if is_wanted {
            hex.extend(rest.chars().filter(|it| !it.is_whitespace()));
        }
    }
    let digits = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex digits");
    assert!(!hex.is_empty(), "no golden bytes are called {name:?}");
    (0..hex.len()).step_by(2).map(digits).collect()
}

fn nonce(first: u8) -> [u8; 32] {
    std::array::from_fn(|at| first.wrapping_add(at as u8))
}

fn demand(side: &mut TestConnection, key: &[u8], first: u8) {
    side.machine.demand_key(AuthSecret::of(key), nonce(first));
}

/// Two machines with these keys.
fn pair_of(initiator: &[u8], acceptor: &[u8]) -> Pair {
    let mut pair = Pair::idle_with(sizes(), EXTENDED, EXTENDED);
    demand(&mut pair.a, initiator, 0x20);
    demand(&mut pair.b, acceptor, 0);
    pair
}

/// The direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    ToAcceptor,
    ToInitiator,
}

/// Returns all bytes that one side sends now.
fn say(side: &mut TestConnection) -> Vec<u8> {
    let mut said = std::collections::VecDeque::new();
    loop {
        side.nudge();
        side.hand_out();
        if side.move_out(usize::MAX, &mut said) == 0 {
            return said.into();
        }
    }
}

fn hear(side: &mut TestConnection, bytes: &[u8]) {
    side.wire.extend(bytes);
    while side.move_in(usize::MAX) {}
}

/// Connects through an attacker that sees all that is said, and may change it. Returns what was
/// said each way.
fn connect_through(
    pair: &mut Pair,
    mut change: impl FnMut(Direction, &mut Vec<u8>),
) -> (Vec<u8>, Vec<u8>) {
    let Pair { a, b } = pair;
    a.machine.begin_connect(b"asked");
    let (mut to_b, mut to_a) = (say(a), Vec::new());
    change(Direction::ToAcceptor, &mut to_b);
    b.wire.extend(&to_b);
    let offer = pair.request().offer();
    let Pair { a, b } = pair;
    b.machine
        .begin_accept(b"answered", ByteOrder::Native, offer);
    loop {
        let mut answer = say(b);
        change(Direction::ToInitiator, &mut answer);
        hear(a, &answer);
        let mut word = say(a);
        change(Direction::ToAcceptor, &mut word);
        hear(b, &word);
        if answer.is_empty() && word.is_empty() {
            break;
        }
        to_a.extend(answer);
        to_b.extend(word);
    }
    (to_b, to_a)
}

fn connect(pair: &mut Pair) -> (Vec<u8>, Vec<u8>) {
    connect_through(pair, |_, _| {})
}

fn is_connected(side: &TestConnection) -> bool {
    side.events
        .iter()
        .any(|event| event.starts_with("connected"))
}

fn fault(side: &TestConnection) -> Option<ErrorKind> {
    side.machine.fault().map(|error| error.kind())
}

#[track_caller]
fn assert_refused(pair: &mut Pair) {
    for side in [&mut pair.a, &mut pair.b] {
        assert_eq!(fault(side), Some(ErrorKind::NotAuthorized));
        side.close();
        assert_eq!(side.events, [r#"not connected: NotAuthorized b"""#]);
    }
}

/// Both sides prove the key; the initiator's proof is wrong; the acceptor's is.
#[test]
fn every_edge_of_proving_a_key_is_walked() {
    let coverage = EdgeCoverage::begin("AuthState");
    connect(&mut pair_of(KEY, KEY));
    connect(&mut pair_of(KEY, b"another key"));
    let mut frames = 0;
    connect_through(&mut pair_of(KEY, KEY), |way, bytes| {
        frames += usize::from(way == Direction::ToInitiator);
        if (way, frames) == (Direction::ToInitiator, 2) {
            bytes[20] ^= 1; // Of the seal, behind a header of 16 bytes.
        }
    });
    coverage.expect_all();
}

/// docs/extension.md, section 9: what two sides with a key say is what the page shows.
#[cfg(target_endian = "little")]
#[test]
fn the_golden_proofs_of_the_page_are_what_we_say() {
    let params = |incarnation| ExtensionParams {
        capabilities: Capabilities::REFUSAL | Capabilities::LIVENESS,
        incarnation,
        ..EXTENDED
    };
    let play = |key: &[u8]| {
        let mut pair = Pair::idle_with(sizes(), params(0x0a), params(0x0b));
        demand(&mut pair.a, key, 0x20);
        demand(&mut pair.b, KEY, 0);
        pair.a.machine.begin_connect(b"");
        let request = say(&mut pair.a);
        pair.b.wire.extend(&request);
        let offer = pair.request().offer();
        pair.b
            .machine
            .begin_accept(b"data", ByteOrder::Native, offer);
        let mut said = vec![say(&mut pair.b)];
        for at in 0..4 {
            let (hears, heard) = match at % 2 {
                0 => (&mut pair.a, &said[at]),
                _ => (&mut pair.b, &said[at]),
            };
            hear(hears, heard);
            said.push(say(hears));
        }
        said
    };
    let said = play(KEY);
    assert_eq!(said[0][32..], golden("challenge"));
    assert_eq!(said[1], golden("answer"));
    assert_eq!(
        said[2],
        [golden("proof"), golden("acceptor hello")].concat()
    );
    assert_eq!(said[3], golden("initiator hello"));
    // For the refusal, the page shows the first frame of a sender.
    let mut refused = play(b"another key")[2].clone();
    refused[7] = 0;
    assert_eq!(refused, golden("refused"));
}

/// fi_endpoint(3): "Only peer endpoints that are programmed to use the same authorization key may
/// communicate."
#[test]
fn who_has_the_same_key_is_connected() {
    for order in [ByteOrder::Native, ByteOrder::Big] {
        let mut pair = pair_of(KEY, KEY);
        pair.handshake(order, b"asked", &[7; CM_DATA_SIZE_MAX]);
        let connected = format!("connected {:?}", bytes::Bytes::from(vec![7; 256]));
        assert_eq!(pair.a.events, [connected]);
        assert_eq!(pair.b.events, [r#"connected b"""#]);
        assert_eq!(pair.a.machine.peer_hello().unwrap().refusals_max, 7);
        assert!(pair.b.machine.agreed().contains(Capabilities::AUTH));
        pair.b.receive(1, 5);
        pair.a.receive(2, 5);
        pair.a.send(11, b"hello");
        pair.b.send(12, b"hello");
        pair.run();
        assert_eq!(pair.b.end_of(1).1, b"hello");
        assert_eq!(pair.a.end_of(2).1, b"hello");
    }
    for piece in 1..90 {
        let mut pair = pair_of(KEY, KEY);
        pair.a.machine.begin_connect(b"");
        let request = say(&mut pair.a);
        pair.b.wire.extend(&request);
        let offer = pair.request().offer();
        pair.b.machine.begin_accept(b"d", ByteOrder::Native, offer);
        pair.run_in_pieces(piece);
        assert!(is_connected(&pair.a) && is_connected(&pair.b), "{piece}");
    }
}

/// docs/extension.md: "Whichever fails, the answer is the same PROOF 4": whatever the wrong key has
/// in common with the right one, and without a word of what the acceptor is.
#[test]
fn a_wrong_key_learns_that_it_is_refused_and_nothing_else() {
    let mut answers = Vec::new();
    let near = [&KEY[..15], b"!"].concat();
    for wrong in [&b"x"[..], &near, &KEY[..15], &[KEY, &[0]].concat()] {
        let mut pair = pair_of(wrong, KEY);
        let (_, answer) = connect(&mut pair);
        assert_refused(&mut pair);
        answers.push(answer);
    }
    // The response without data, the challenge, and the refusal.
    assert_eq!(answers[0].len(), 32 + 52 + 16);
    assert!(answers.iter().all(|answer| *answer == answers[0]));
}

/// docs/extension.md: "If it has one and AUTH is not agreed on, it ends the attempt."
#[test]
fn a_peer_without_a_key_is_ended_before_anything_is_said() {
    for peer in [PLAIN, EXTENDED] {
        let mut pair = Pair::idle_with(sizes(), peer, EXTENDED);
        demand(&mut pair.b, KEY, 0);
        let (_, answer) = connect(&mut pair);
        assert_eq!(answer, [0; 0]);
        assert_eq!(fault(&pair.b), Some(ErrorKind::NotAuthorized));

        let mut pair = Pair::idle_with(sizes(), EXTENDED, peer);
        demand(&mut pair.a, KEY, 0x20);
        let (asked, _) = connect(&mut pair);
        assert_eq!(asked.len(), 32 + 5, "the request with its data");
        assert_eq!(fault(&pair.a), Some(ErrorKind::NotAuthorized));
        assert!(!is_connected(&pair.a));
    }
}

/// docs/extension.md: "A proof is of no use on another connection, in the other direction, or
/// later."
#[test]
fn a_replayed_proof_is_refused() {
    let mut pair = pair_of(KEY, KEY);
    let (asked, answered) = connect(&mut pair);
    assert!(is_connected(&pair.a) && is_connected(&pair.b));
    // All bytes of the initiator are replayed to the acceptor's next connection.
    let mut pair = pair_of(KEY, KEY);
    demand(&mut pair.b, KEY, 0x80);
    pair.b.wire.extend(&asked[..37]);
    let offer = pair.request().offer();
    pair.b.machine.begin_accept(b"", ByteOrder::Native, offer);
    say(&mut pair.b);
    hear(&mut pair.b, &asked[37..]);
    assert_eq!(say(&mut pair.b).len(), 16, "a refusal");
    assert_eq!(fault(&pair.b), Some(ErrorKind::NotAuthorized));
    assert!(!is_connected(&pair.b));
    // All bytes of the acceptor are replayed to the initiator's next connection.
    let mut pair = pair_of(KEY, KEY);
    demand(&mut pair.a, KEY, 0x90);
    pair.a.machine.begin_connect(b"asked");
    say(&mut pair.a);
    hear(&mut pair.a, &answered);
    let said = say(&mut pair.a);
    assert_eq!(said.len(), 84 + 16, "an answer, and a refusal");
    assert_eq!(fault(&pair.a), Some(ErrorKind::NotAuthorized));
    assert!(!is_connected(&pair.a));
}

/// docs/extension.md: "A proof is of no use on another connection, in the other direction, or
/// later."
#[test]
fn a_reflected_proof_is_refused() {
    // An acceptor without the key gives the initiator its own proof back.
    let mut pair = pair_of(KEY, b"");
    let mut answer = Vec::new();
    let (said, _) = connect_through(&mut pair, |way, bytes| match way {
        Direction::ToAcceptor if bytes.len() == 84 => answer.clone_from(bytes),
        Direction::ToInitiator if !answer.is_empty() => {
            let mut header = golden("proof")[..16].to_vec();
            header[8] = 16 + 32;
            *bytes = [header, answer.split_off(52)].concat();
            answer.clear();
        }
        _ => {}
    });
    assert_eq!(said.len(), 37 + 84 + 16, "an answer, and a refusal");
    assert_eq!(fault(&pair.a), Some(ErrorKind::NotAuthorized));
    assert!(!is_connected(&pair.a));
    // The acceptor too gets its own auth_hello back, as the initiator's.
    let mut pair = pair_of(KEY, KEY);
    let mut auth_hello = Vec::new();
    connect_through(&mut pair, |way, bytes| match way {
        Direction::ToInitiator if bytes.len() == 84 => auth_hello = bytes[48..].to_vec(),
        Direction::ToAcceptor if bytes.len() == 84 => bytes[16..52].copy_from_slice(&auth_hello),
        _ => {}
    });
    assert_refused(&mut pair);
}

/// docs/extension.md: "A proof is of no use on another connection": an initiator's proof for one
/// acceptor is shown to another acceptor that asks for one.
#[test]
fn a_proof_for_another_connection_is_refused() {
    let mut lured = pair_of(KEY, b"the impostor's");
    let mut answer = Vec::new();
    connect_through(&mut lured, |way, bytes| {
        if way == Direction::ToAcceptor && bytes.len() == 84 {
            answer.clone_from(bytes);
        }
    });
    let mut pair = pair_of(b"the impostor's", KEY);
    demand(&mut pair.b, KEY, 0xa0);
    connect_through(&mut pair, |way, bytes| {
        if way == Direction::ToAcceptor && bytes.len() == 84 {
            bytes.clone_from(&answer);
        }
    });
    assert_refused(&mut pair);
}

/// docs/extension.md: "the agreed version and capabilities are those that follow from the two
/// introductions [...]: otherwise a third party in between has changed them."
#[test]
fn a_man_in_the_middle_cannot_take_a_capability_away() {
    let all = EXTENDED.capabilities | Capabilities::AUTH;
    for bit in all.iter() {
        for (from_request, also_introductions) in [(true, false), (false, false), (true, true)] {
            let mut pair = pair_of(KEY, KEY);
            let masks = (!bit.bits()).to_be_bytes();
            connect_through(&mut pair, |way, bytes| {
                let is_control = bytes.len() >= 32 && bytes[8..12] == *b"tofa";
                if is_control && (from_request || way == Direction::ToInitiator) {
                    (bytes[14], bytes[15]) = (bytes[14] & masks[0], bytes[15] & masks[1]);
                }
                // Behind the response, or behind the header of the answer.
                let at = if way == Direction::ToInitiator { 32 } else { 0 };
                if also_introductions && bytes.len() == 84 {
                    let at = at + 16 + 2;
                    bytes[at] &= masks[0];
                    bytes[at + 1] &= masks[1];
                }
            });
            assert!(!is_connected(&pair.a) && !is_connected(&pair.b), "{bit:?}");
            // CREDIT without RENDEZVOUS is no answer: it is refused before anything is proven.
            let is_answer = bit == Capabilities::RENDEZVOUS && !from_request;
            let expected = match is_answer {
                true => ErrorKind::Incompatible,
                false => ErrorKind::NotAuthorized,
            };
            let faults = [fault(&pair.a), fault(&pair.b)];
            assert!(faults.contains(&Some(expected)), "{bit:?}: {faults:?}");
        }
    }
}

/// docs/extension.md: "A side accepts a proof or a seal if [...] it equals the value that results
/// from the key and from what this side has sent and received": of no byte of an auth_hello, a
/// proof, the private data or a sealed HELLO can anybody in between make another.
#[test]
fn no_byte_of_what_is_proven_can_be_changed() {
    let (asked, answered) = connect(&mut pair_of(KEY, KEY));
    // Headers have fields that are ignored. Of the rest: auth_hello and proof; challenge,
    // proof with data, HELLO.
    let hello = 16 + 12 + 24 + 8 + 8 + 36;
    let of_initiator = (37 + 16..37 + 84).chain(37 + 84 + 16..asked.len());
    let of_acceptor = (32 + 16..84).chain(84 + 16..84 + 56);
    let of_acceptor = of_acceptor.chain(84 + 56 + 16..answered.len());
    assert_eq!(
        (asked.len(), answered.len()),
        (37 + 84 + hello, 84 + 56 + hello)
    );
    let cases = (of_initiator.map(|at| (Direction::ToAcceptor, at)))
        .chain(of_acceptor.map(|at| (Direction::ToInitiator, at)));
    for (way, at) in cases {
        let mut pair = pair_of(KEY, KEY);
        let mut passed = 0;
        connect_through(&mut pair, |going, bytes| {
            if going == way {
                if (passed..passed + bytes.len()).contains(&at) {
                    bytes[at - passed] ^= 1 << (at % 8);
                }
                passed += bytes.len();
            }
        });
        let hears = match way {
            Direction::ToAcceptor => &pair.b,
            Direction::ToInitiator => &pair.a,
        };
        assert!(!is_connected(hears), "{way:?} {at}");
        assert!(fault(hears).is_some() || fault(&pair.a).is_some(), "{at}");
    }
}

/// docs/extension.md: "A PROOF of another step, of a size that is not its step's, or where none is
/// due breaks the protocol."
#[test]
fn a_proof_that_is_none_breaks_the_protocol() {
    let answer = golden("answer");
    let sized = |step: u8, len: usize| {
        let mut frame = answer.clone();
        frame[4] = step;
        frame.resize(16 + len, 0);
        frame[8..16].copy_from_slice(&(16 + len as u64).to_le_bytes());
        frame
    };
    let mut longer_header = answer.clone();
    longer_header[6] = 24;
    let mut huge = answer.clone();
    huge[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    for frame in [
        sized(0, 68),
        sized(1, 36),
        sized(2, 67),
        sized(2, 69),
        sized(3, 32),
        sized(3, 31),
        sized(3, 289),
        sized(4, 1),
        sized(5, 0),
        longer_header,
        huge,
        golden("initiator hello"),
        b"\x03\x00\0\0\0\0\x10\0\x10\0\0\0\0\0\0\0".to_vec(),
    ] {
        let mut pair = pair_of(KEY, KEY);
        connect_through(&mut pair, |way, bytes| {
            if way == Direction::ToAcceptor && bytes.len() == 84 {
                bytes.clone_from(&frame);
            }
        });
        assert_eq!(fault(&pair.b), Some(ErrorKind::ProtocolViolation));
        assert!(!is_connected(&pair.b));
    }
    // Once the key is proven, and where there is none.
    for mut pair in [
        pair_of(KEY, KEY),
        Pair::idle_with(sizes(), EXTENDED, EXTENDED),
    ] {
        connect(&mut pair);
        assert!(is_connected(&pair.b));
        hear(&mut pair.b, &golden("refused"));
        assert_eq!(fault(&pair.b), Some(ErrorKind::ProtocolViolation));
    }
}

/// docs/extension.md: the value 0x8010 is there "with AUTH yes; otherwise it must be missing".
#[test]
fn a_hello_is_sealed_exactly_behind_proofs() {
    let mut pair = pair_of(KEY, KEY);
    connect_through(&mut pair, |way, bytes| {
        if way == Direction::ToAcceptor && bytes.len() == 104 {
            bytes.truncate(68);
            bytes[8] = 68;
        }
    });
    assert_eq!(fault(&pair.b), Some(ErrorKind::ProtocolViolation));
    let mut pair = Pair::idle_with(sizes(), EXTENDED, EXTENDED);
    connect_through(&mut pair, |way, bytes| {
        if way == Direction::ToAcceptor && bytes.len() == 68 {
            *bytes = golden("initiator hello");
        }
    });
    assert_eq!(fault(&pair.b), Some(ErrorKind::Incompatible));
}

/// Whatever bytes a stranger sends for its proof, and wherever it ends, nothing panics and it is
/// not let in.
#[test]
fn random_bytes_prove_nothing() {
    let (asked, _) = connect(&mut pair_of(KEY, KEY));
    for seed in 0..4000 {
        let rng = &mut Rng(seed);
        let mut pair = pair_of(KEY, KEY);
        // Another connection than the one that was overheard.
        demand(&mut pair.b, KEY, 0x80);
        pair.b.wire.extend(&asked[..37]);
        let offer = pair.request().offer();
        pair.b.machine.begin_accept(b"", ByteOrder::Native, offer);
        say(&mut pair.b);
        let mut bytes = asked[37..].to_vec();
        for _ in 0..rng.below(4) {
            let at = rng.below(bytes.len());
            bytes[at] = rng.next() as u8;
        }
        bytes.truncate(rng.below(bytes.len() + 1));
        for piece in bytes.chunks(1 + rng.below(100)) {
            hear(&mut pair.b, piece);
            say(&mut pair.b);
        }
        pair.b.finished = true;
        while pair.b.move_in(usize::MAX) {}
        assert!(fault(&pair.b).is_some(), "at least by its end");
        assert!(!is_connected(&pair.b));
        pair.b.close();
    }
}
