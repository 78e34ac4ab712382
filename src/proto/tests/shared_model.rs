//! Random lists of operations between connectionless endpoints, against what must hold of them:
//! everything accepted ends exactly once; a message is received once, whole, with its tag, data and
//! source, by a receive that wants it; of one sender's messages none passes another that the same
//! receive would take; what was withdrawn left no trace; a fenced operation waits. Connections end
//! by agreement, at any moment and without the help of a clock, and what the peer had no receive
//! for goes over the next one.

use std::collections::{BTreeMap, BTreeSet};

use super::model::depth;
use super::pair::{Pair, REMOTE, Rng, TestConnection, memory_of, operation, segments};
use super::receives::{EXTENDED, Setup, announced, plain, wants};
use crate::buf::Payload;
use crate::error::{ErrorKind, OperationKind, Phase};
use crate::limits::{DIRECT_RECEIVE_MIN, UNEXPECTED_OVERHEAD};
use crate::proto::{
    LongMessages, MatchCriteria, MessageKind, OpKey, OpKind, PostOptions, SendOrder, Withdrawn,
};
use crate::wire::ByteOrder;

const REGION_LEN: usize = 4096;

struct Sent {
    key: OpKey,
    operation: OperationKind,
    fence: bool,
    place: u64,
}

struct Message {
    kind: MessageKind,
    bytes: Vec<u8>,
    data: Option<u64>,
}

struct Receive {
    wanted: MatchCriteria,
    len: usize,
    place: u64,
}

#[derive(Default)]
struct Model {
    /// Open transmit operations, by token; tokens grow with their posts.
    sent: BTreeMap<u64, Sent>,
    /// All messages ever accepted and not withdrawn, by token.
    messages: BTreeMap<u64, Message>,
    receives: BTreeMap<u64, Receive>,
    /// For each message that was received: the place of its receive, and what that receive wanted.
    matched: BTreeMap<u64, (u64, MatchCriteria)>,
    ended: usize,
    seen: usize,
    link: Link,
}

/// The state of a connection's end, as the port knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Link {
    #[default]
    Up,
    /// This side ends it.
    Ending,
    /// It is over; the unsent rest goes over the next connection.
    Over,
}

fn some_kind(rng: &mut Rng) -> MessageKind {
    match rng.below(4) {
        0 => MessageKind::Message,
        _ => MessageKind::Tagged {
            tag: rng.below(4) as u64,
        },
    }
}

fn some_wanted(rng: &mut Rng) -> MatchCriteria {
    match some_kind(rng) {
        MessageKind::Message => MatchCriteria::Message,
        MessageKind::Tagged { tag } => MatchCriteria::Tagged {
            tag,
            ignore: [0, 0, 1, 2, u64::MAX][rng.below(5)],
        },
    }
}

fn post(side: &mut TestConnection, model: &mut Model, token: u64, rng: &mut Rng) {
    let len = match rng.below(20) {
        0 => 0,
        1 => DIRECT_RECEIVE_MIN + rng.below(50_000),
        2..8 => rng.below(3000),
        _ => 8 + rng.below(100),
    };
    // A message is recognised by its first bytes, or by its data.
    let mut bytes = rng.bytes(len.max(8));
    bytes[..8].copy_from_slice(&token.to_le_bytes());
    bytes.truncate(len);
    let data = (len < 8 || rng.chance(30)).then_some(token);
    let ack = rng.chance(40);
    let kind = some_kind(rng);
    let payload = Payload::from_vec(bytes.clone());
    let post = match rng.below(12) {
        0 => operation(
            OpKind::Inject {
                data,
                tag: kind.tag(),
            },
            payload,
        ),
        1 => operation(
            OpKind::Write {
                data: None,
                ack,
                commit: false,
                segments: segments(&[(7, 0, 16)]),
            },
            Payload::from_vec(vec![1; 16]),
        ),
        2 => operation(
            OpKind::Read {
                segments: segments(&[(7, 0, 16)]),
            },
            Payload::from_vec(vec![0; 16]),
        ),
        _ => operation(
            OpKind::Send {
                data,
                ack,
                tag: kind.tag(),
            },
            payload,
        ),
    };
    let operation = post.operation();
    let is_message = matches!(operation, OperationKind::Send | OperationKind::Inject);
    let message = is_message.then_some(Message { kind, bytes, data });
    let flags = PostOptions {
        wait: rng.chance(80),
        fence: rng.chance(10),
        ..PostOptions::default()
    };
    match side.try_post_with(token, post, flags) {
        Ok(key) => {
            if let Some(message) = message {
                model.messages.insert(token, message);
            }
            let sent = Sent {
                key,
                operation,
                fence: flags.fence,
                place: token,
            };
            model.sent.insert(token, sent);
        }
        Err(error) if error.kind() == ErrorKind::PeerClosed => {
            assert!(side.machine.is_peer_closing(), "it says so");
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::Again),
    }
}

/// Does what the port of this side does about the end of its connection.
fn look_after(side: &mut TestConnection, there: &mut TestConnection, model: &mut Model) {
    if model.link == Link::Over {
        return;
    }
    there.finished |= side.machine.is_close_exchanged();
    if side.machine.is_close_exchanged() && side.machine.is_closed_in_order() {
        model.link = Link::Over;
        if side.machine.has_carried_over() {
            side.take_back();
            side.machine.reset_attempt();
            return;
        }
        side.close();
        assert_eq!(
            side.events.last().map(String::as_str),
            Some("closed: in order")
        );
        assert!(!side.machine.has_events() && side.machine.outstanding() == 0);
    }
}

/// Both ends of a connection have ended: the next one comes up.
fn connect_again(pair: &mut Pair, a: &mut Model, b: &mut Model, setup: Setup) {
    if (a.link, b.link) != (Link::Over, Link::Over) {
        return;
    }
    let Pair { a: near, b: far } = setup.idle();
    for (side, model, fresh) in [(&mut pair.a, a, near), (&mut pair.b, b, far)] {
        model.link = Link::Up;
        if side.machine.lifecycle().is_closed() {
            side.machine = fresh.machine;
        }
        side.wire.clear();
        side.finished = false;
    }
    pair.handshake_peers(ByteOrder::Native);
}

/// A side that has nothing to send can end a connection at any moment: the other side needs neither
/// a receive for that, nor a clock.
fn must_agree(pair: &mut Pair, a: &mut Model, b: &mut Model, seed: u64) {
    for _ in 0..4 {
        pair.run();
        look_after(&mut pair.a, &mut pair.b, a);
        look_after(&mut pair.b, &mut pair.a, b);
    }
    assert_eq!((a.link, b.link), (Link::Over, Link::Over), "seed {seed}");
}

/// Asks some open operation to end early.
fn withdraw(side: &mut TestConnection, model: &mut Model, rng: &mut Rng) {
    if rng.chance(30) && !model.receives.is_empty() {
        let at = rng.below(model.receives.len());
        let token = *model.receives.keys().nth(at).expect("counted");
        if side.withdraw_shared(token) {
            model.receives.remove(&token);
        }
        return;
    }
    if model.sent.is_empty() {
        return;
    }
    let at = rng.below(model.sent.len());
    let (&token, sent) = model.sent.iter().nth(at).expect("counted");
    let phase = side.machine.phase(sent.key);
    let withdrawn = match rng.below(3) {
        0 => side.machine.cancel(sent.key),
        1 => side.machine.withdraw(sent.key),
        _ => side.machine.expire(sent.key, None),
    };
    assert_ne!(withdrawn, Withdrawn::Gone, "an open operation is not gone");
    // An operation that is moving ends so only if it was announced, and is withdrawn.
    let is_unsent = matches!(phase, Some(Phase::Waiting | Phase::Queued | Phase::Moving));
    if withdrawn == Withdrawn::Ended && is_unsent {
        model.messages.remove(&token);
    }
    side.take_events();
}

/// Looks at what has ended on `side`; `from` is the other side's model.
fn compare(side: &mut TestConnection, model: &mut Model, from: &mut Model, source: u64) {
    while let Some(&token) = side.order.get(model.seen) {
        model.seen += 1;
        model.ended += 1;
        let end = side.ended.remove(&token).expect("it is in the order");
        if let Some(sent) = model.sent.remove(&token) {
            assert_eq!(end.operation(), sent.operation);
            if sent.fence && end.end.result.is_ok() {
                let before = model.sent.values().filter(|it| it.place < sent.place);
                assert_eq!(before.count(), 0, "what is before a fence has ended");
            }
            match &end.end.result {
                Ok(()) => {}
                Err(error) => {
                    let kind = error.kind();
                    assert!(
                        matches!(
                            kind,
                            ErrorKind::Canceled
                                | ErrorKind::TimedOut
                                | ErrorKind::PeerClosed
                                | ErrorKind::NoReceive
                        ),
                        "{error}"
                    );
                    if matches!(kind, ErrorKind::PeerClosed | ErrorKind::NoReceive) {
                        assert!(!model.matched.contains_key(&token), "no receive got it");
                        model.messages.remove(&token);
                    }
                }
            }
            continue;
        }
        let receive = model
            .receives
            .remove(&token)
            .expect("only what is open ends");
        assert_eq!(end.operation(), OperationKind::Receive);
        let got = memory_of(&end);
        assert_eq!(got.len(), receive.len, "the buffer is the one given");
        let named = end.end.data.filter(|_| end.end.len < 8);
        let number = named.unwrap_or_else(|| {
            u64::from_le_bytes(
                *got.first_chunk()
                    .expect("longer messages begin with their number"),
            )
        });
        let message = from.messages.get(&number).expect("a message that was sent");
        assert!(wants(receive.wanted, message.kind));
        assert_eq!(
            (end.end.tag, end.end.data),
            (message.kind.tag(), message.data)
        );
        assert_eq!(end.end.source().map(|it| it.0), Some(source));
        assert_eq!(end.end.len, message.bytes.len().min(receive.len));
        assert_eq!(end.end.overflow, message.bytes.len() - end.end.len);
        assert_eq!(end.end.result.is_ok(), end.end.overflow == 0);
        assert_eq!(got[..end.end.len], message.bytes[..end.end.len]);
        let before = from.matched.insert(number, (receive.place, receive.wanted));
        assert!(before.is_none(), "message {number} came twice");
    }
}

/// fi_endpoint(3), message order: of two messages of one sender that both of two receives take, the
/// first goes to the first.
fn check_order(model: &Model, put_back: &BTreeSet<u64>) {
    let all: Vec<_> = model.matched.iter().collect();
    for (at, (first, (place, wanted))) in all.iter().enumerate() {
        for (second, (later, wanted_later)) in &all[at + 1..] {
            let kinds = [first, second].map(|token| model.messages[*token].kind);
            let both = |wanted: MatchCriteria| kinds.iter().all(|kind| wants(wanted, *kind));
            // A message that came while a receive was matched with a withdrawn one has passed it
            // by.
            let is_late = put_back.contains(later);
            assert!(
                is_late || !(both(*wanted) && both(*wanted_later)) || place < later,
                "{second} has passed {first}"
            );
        }
    }
}

fn receive(
    side: &mut TestConnection,
    model: &mut Model,
    token: u64,
    wanted: MatchCriteria,
    len: usize,
) {
    let receive = Receive {
        wanted,
        len,
        place: token,
    };
    model.receives.insert(token, receive);
    side.receive_any(token, wanted, len);
}

/// Posts a receive for the oldest message that none of the posted ones wants: those that have begun
/// may be stuck behind it.
fn offer(
    side: &mut TestConnection,
    model: &mut Model,
    from: &Model,
    next: &mut u64,
    rng: &mut Rng,
) {
    let posted = &side.shared().posted;
    let is_coming = |token: &u64, message: &Message| {
        let is_wanted = posted.iter().any(|it| wants(it.wanted, message.kind));
        !from.matched.contains_key(token) && !is_wanted
    };
    let mut all = from.messages.iter();
    let Some((_, message)) = all.find(|(token, message)| is_coming(token, message)) else {
        return;
    };
    *next += 1;
    let wanted = match message.kind {
        MessageKind::Message => MatchCriteria::Message,
        MessageKind::Tagged { tag } => MatchCriteria::Tagged { tag, ignore: 0 },
    };
    receive(side, model, *next, wanted, 8 + rng.below(60_000));
}

/// Lets everything end: each message gets a receive.
fn drain(
    pair: &mut Pair,
    a: &mut Model,
    b: &mut Model,
    next: &mut u64,
    setup: Setup,
    rng: &mut Rng,
) {
    let is_done = |model: &Model| {
        model.sent.is_empty()
            && model.matched.len() == model.messages.len()
            && model.link == Link::Up
    };
    let mut rounds = 0;
    while !is_done(a) || !is_done(b) {
        rounds += 1;
        assert!(rounds < 1000, "everything ends once both sides receive");
        offer(&mut pair.a, a, b, next, rng);
        offer(&mut pair.b, b, a, next, rng);
        pair.run_in_pieces(1 + rng.below(50_000));
        look_after(&mut pair.a, &mut pair.b, a);
        look_after(&mut pair.b, &mut pair.a, b);
        connect_again(pair, a, b, setup);
        compare(&mut pair.a, a, b, 1);
        compare(&mut pair.b, b, a, 2);
    }
}

/// The connection dies, wherever everything stands.
fn end(side: &mut TestConnection, model: &mut Model) {
    let before = side.order.len();
    side.cut();
    for token in &side.order[before..] {
        let is_sent = model.sent.remove(token).is_some();
        let is_received = model.receives.remove(token).is_some();
        assert!(is_sent != is_received, "only what is open ends");
        let end = side.ended.remove(token).expect("it has ended");
        assert!(end.end.result.is_err());
    }
    assert!(model.sent.is_empty(), "with it end its operations");
    let posted = side.shared().posted_tokens();
    assert_eq!(posted.len(), model.receives.len(), "others stay posted");
    assert!(posted.iter().all(|it| model.receives.contains_key(it)));
    assert!(
        side.shared().is_at_rest(),
        "nothing is kept for what never comes"
    );
    side.machine.check();
}

fn run(seed: u64, steps: usize) {
    let rng = &mut Rng(seed);
    let is_extended = rng.chance(60);
    let mut setup = plain();
    if is_extended {
        setup.params = EXTENDED;
    }
    let promised = [0, 1, 3, 40, 5000][rng.below(5)] * UNEXPECTED_OVERHEAD as u64;
    let is_announcing = rng.chance(70);
    let long_messages = match is_announcing {
        true => announced([0, 50, 1000, u64::MAX][rng.below(4)]),
        false => LongMessages::Refused { max: 100_000 },
    };
    setup = Setup {
        promised,
        long_messages,
        ..setup
    };
    setup.sizes.tx_size = 1 + rng.below(30);
    setup.sizes.send_order = [SendOrder::Free, SendOrder::Strict][rng.below(2)];
    let mut pair = setup.idle();
    for side in [&mut pair.a, &mut pair.b] {
        side.host.region(7, vec![0; REGION_LEN], REMOTE);
        // A peer that keeps nothing may announce all the same.
        side.shared().room = promised.max(UNEXPECTED_OVERHEAD as u64);
    }
    let (mut a, mut b) = (Model::default(), Model::default());
    let mut next = 0;
    let early = rng.below(20);
    let most = [3, 50, 2000, 100_000][rng.below(4)];
    for step in 0..steps {
        next += 1;
        if step == early {
            pair.handshake_peers(ByteOrder::Native);
            compare(&mut pair.a, &mut a, &mut b, 1);
            compare(&mut pair.b, &mut b, &mut a, 2);
        }
        let is_up = step >= early;
        let Pair { a: near, b: far } = &mut pair;
        let (side, there, model, from, source) = if rng.chance(50) {
            (near, far, &mut a, &mut b, 1)
        } else {
            (far, near, &mut b, &mut a, 2)
        };
        let mut is_ending = false;
        match rng.below(100) {
            0..20 if model.link == Link::Up => post(side, model, next, rng),
            20..40 => {
                let len = [8 + rng.below(100), 60_000][rng.below(2)];
                let wanted = some_wanted(rng);
                receive(side, model, next, wanted, len);
            }
            40..44 => withdraw(side, model, rng),
            _ if !is_up => {}
            44..62 => side.hand_out(),
            62..80 => drop(side.move_out(1 + rng.below(most), &mut there.wire)),
            80..97 => drop(side.move_in(1 + rng.below(most))),
            // Rarely, so that much is under way.
            97 if is_extended && model.link == Link::Up && rng.chance(20) => {
                side.machine.request_close();
                side.take_events();
                model.link = Link::Ending;
                is_ending = model.sent.is_empty();
            }
            _ => side.nudge(),
        }
        look_after(side, there, model);
        if is_extended && is_announcing {
            assert!(
                !side.is_paused(),
                "seed {seed}: an honest peer stops no other"
            );
        }
        assert!(side.shared().held_bytes() <= side.shared().room);
        side.machine.check();
        compare(side, model, from, source);
        if is_ending && rng.chance(50) {
            must_agree(&mut pair, &mut a, &mut b, seed);
        }
        connect_again(&mut pair, &mut a, &mut b, setup);
        if rng.chance(1) && rng.chance(10) && is_up {
            drain(&mut pair, &mut a, &mut b, &mut next, setup, rng);
        }
    }
    if early >= steps {
        pair.handshake_peers(ByteOrder::Native);
    }
    if rng.chance(50) || (a.link, b.link) != (Link::Up, Link::Up) {
        drain(&mut pair, &mut a, &mut b, &mut next, setup, rng);
    }
    end(&mut pair.a, &mut a);
    end(&mut pair.b, &mut b);
    check_order(&a, &pair.b.shared().put_back);
    check_order(&b, &pair.a.shared().put_back);
    assert!(a.ended + b.ended > steps / 100, "seed {seed}: {}", a.ended);
}

/// Tagged messages, others and RMA, announced or not, with receives of all kinds.
#[test]
fn random_operations_of_peers_keep_their_promises() {
    for seed in 0..40 * depth() {
        println!("seed {seed}");
        run(seed, 1500);
    }
}
