//! Random lists of operations against a plain model: queues of messages and arrays of bytes.
//!
//! What is checked: every operation that was accepted ends exactly once; messages arrive in order,
//! whole, with their data; memory holds what was written, in order; reads bring what is there; what
//! was cancelled left no trace; what was refused says why, in its place; and the machine's own
//! invariants hold after each step. Half of the connections have the extension.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::pair::{PLAIN, Pair, QUEUED, Rng, TestConnection, memory_of, operation, segments};
use crate::buf::{Payload, RegionMemory};
use crate::error::{ErrorKind, OperationKind, Phase, Refusal};
use crate::limits::DIRECT_RECEIVE_MIN;
use crate::mr::Access;
use crate::proto::{ExtensionParams, OFFERED, OpKey, OpKind, SendOrder, Sizes, Withdrawn};
use crate::wire::ByteOrder;

/// The region each side may write, and the one it may read.
const WRITABLE: u64 = 1;
const READABLE: u64 = 2;
/// The key that no region has.
const UNKNOWN: u64 = 3;
const REGION_LEN: usize = 100_000;

/// The extension, with more refusals than there are.
const LIVING_ON: ExtensionParams = ExtensionParams {
    capabilities: OFFERED,
    incarnation: 1,
    probes_after_ms: 0,
    refusals_max: u32::MAX,
};

struct Posted {
    key: OpKey,
    operation: OperationKind,
    bytes: Vec<u8>,
    detached: bool,
    /// The operation names a key that no region has.
    refused: bool,
}

struct Message {
    token: u64,
    bytes: Vec<u8>,
    /// Bytes of it that are left, after a receive that was dropped while it landed there.
    left: usize,
    data: Option<u64>,
}

struct Written {
    token: u64,
    at: usize,
    bytes: Vec<u8>,
    data: Option<u64>,
}

/// The operations that one side has posted, and the ends that they must have.
struct Model {
    open: BTreeMap<u64, Posted>,
    /// Messages on their way to the other side, oldest first.
    messages: VecDeque<Message>,
    writes: VecDeque<Written>,
    /// Receives posted here, oldest first.
    receives: VecDeque<u64>,
    seen: usize,
    writable: Arc<RegionMemory>,
    readable: Vec<u8>,
    ended: usize,
    /// Operations that await acks, in the order of their posts. RMA may pass messages that wait for
    /// credit, and its acks with it.
    acks: VecDeque<(u64, OperationKind)>,
    large: usize,
    /// Operations can be refused, and every write is answered.
    extended: bool,
}

impl Model {
    fn new(side: &mut TestConnection, extended: bool, rng: &mut Rng) -> Self {
        let readable = rng.bytes(REGION_LEN);
        side.host
            .region(READABLE, readable.clone(), Access::REMOTE_READ);
        let writable = side
            .host
            .region(WRITABLE, vec![0; REGION_LEN], Access::REMOTE_WRITE);
        Model {
            open: BTreeMap::new(),
            messages: VecDeque::new(),
            writes: VecDeque::new(),
            receives: VecDeque::new(),
            seen: 0,
            writable,
            readable,
            ended: 0,
            acks: VecDeque::new(),
            large: [2, 5, 20][rng.below(3)],
            extended,
        }
    }

    /// Handles an answer, which has to be the next one of its kind.
    fn answered(&mut self, token: u64, operation: OperationKind) {
        let of_kind = |(_, kind): &(u64, _)| *kind == operation;
        let first = self.acks.iter().position(of_kind).expect("this one");
        let first = self.acks.remove(first);
        assert_eq!(first, Some((token, operation)), "answers come in order");
    }

    fn forget(&mut self, token: u64) {
        self.acks.retain(|(awaits, _)| *awaits != token);
        self.messages.retain(|message| message.token != token);
        self.writes.retain(|written| written.token != token);
        self.receives.retain(|receive| *receive != token);
    }
}

/// Draws a length; `large` of a hundred are received straight into their memory.
fn some_len(large: usize, rng: &mut Rng) -> usize {
    if rng.chance(large) {
        return DIRECT_RECEIVE_MIN + rng.below(50_000);
    }
    match rng.below(20) {
        0..3 => 0,
        3..14 => rng.below(64),
        _ => rng.below(3000),
    }
}

fn post(
    side: &mut TestConnection,
    model: &mut Model,
    peer_readable: &[u8],
    token: u64,
    rng: &mut Rng,
) {
    let token = if rng.chance(40) {
        token | QUEUED
    } else {
        token
    };
    let len = some_len(model.large, rng);
    let data = rng.chance(30).then(|| rng.next());
    let ack = rng.chance(30);
    let refused = model.extended && rng.chance(15);
    let named = |key| if refused { UNKNOWN } else { key };
    let at = rng.below(REGION_LEN - len + 1);
    let split = rng.below(len + 1);
    let both = |key| {
        segments(&[
            (key, at as u64, split as u64),
            (key, (at + split) as u64, (len - split) as u64),
        ])
    };
    let kind = rng.below(100);
    let bytes = match kind {
        45..80 => vec![0; len],
        80..90 => peer_readable[at..at + len].to_vec(),
        _ => rng.bytes(len),
    };
    let payload = match kind {
        80..90 => Payload::from_vec(vec![0; len]),
        _ => Payload::from_vec(bytes.clone()),
    };
    let post = match kind {
        0..40 => operation(
            OpKind::Send {
                data,
                ack,
                tag: None,
            },
            payload,
        ),
        40..45 => operation(OpKind::Inject { data, tag: None }, payload),
        45..80 => operation(OpKind::Receive, payload),
        80..90 => operation(
            OpKind::Read {
                segments: both(named(READABLE)),
            },
            payload,
        ),
        _ => operation(
            OpKind::Write {
                data,
                ack,
                commit: false,
                segments: both(named(WRITABLE)),
            },
            payload,
        ),
    };
    let operation = post.operation();
    let refused = refused && matches!(operation, OperationKind::Write | OperationKind::Read);
    // The model comes first: a receive may end within its post.
    match operation {
        OperationKind::Receive => model.receives.push_back(token),
        OperationKind::Send | OperationKind::Inject => {
            model.messages.push_back(Message {
                token,
                left: len,
                bytes: bytes.clone(),
                data,
            });
        }
        OperationKind::Write if !refused => {
            model.writes.push_back(Written {
                token,
                at,
                bytes: bytes.clone(),
                data,
            });
        }
        _ => {}
    }
    if matches!(
        post.kind,
        OpKind::Send { ack: true, .. } | OpKind::Write { ack: true, .. }
    ) || model.extended && operation == OperationKind::Write
    {
        model.acks.push_back((token, operation));
    }
    match side.try_post(token, post, rng.chance(80)) {
        Ok(key) => {
            model.open.insert(
                token,
                Posted {
                    key,
                    operation,
                    bytes,
                    detached: false,
                    refused,
                },
            );
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Again);
            model.forget(token);
        }
    }
}

/// Asks some open operation to end early.
fn withdraw(side: &mut TestConnection, model: &mut Model, rng: &mut Rng) {
    let Some(at) = (!model.open.is_empty()).then(|| rng.below(model.open.len())) else {
        return;
    };
    let (&token, posted) = model.open.iter_mut().nth(at).expect("counted");
    if posted.detached {
        return;
    }
    let key = posted.key;
    let phase = side.machine.phase(key);
    let is_started = !matches!(phase, Some(Phase::Waiting | Phase::Queued));
    let (detach, withdrawn) = match rng.below(3) {
        0 => (true, side.machine.withdraw(key)),
        1 => (false, side.machine.cancel(key)),
        // Its owner gets the operation back; no event follows.
        _ => (true, side.machine.expire(key, None)),
    };
    match withdrawn {
        // The peer does, or has done, what it was asked; only its answer is dropped.
        Withdrawn::Ended if is_started => model.acks.retain(|(ack, _)| *ack != token),
        Withdrawn::Ended => model.forget(token),
        Withdrawn::Running => {
            posted.detached |= detach;
            if detach && posted.operation == OperationKind::Receive {
                // Its message goes to the next receive.
                model.receives.retain(|receive| *receive != token);
            }
        }
        Withdrawn::Gone => panic!("an open operation is not gone"),
    }
    side.take_events();
}

/// Compares the operations that have ended on `side` with those that were to end; `from` is the
/// other side's model.
fn compare(side: &mut TestConnection, model: &mut Model, from: &mut Model) {
    while let Some(&token) = side.order.get(model.seen) {
        model.seen += 1;
        model.ended += 1;
        let end = side
            .ended
            .remove(&token)
            .expect("what is in the order has ended");
        let posted = model.open.remove(&token).expect("only what is open ends");
        assert_eq!(end.operation(), posted.operation);
        let got = memory_of(&end);
        match &end.end.result {
            Err(error) if matches!(error.kind(), ErrorKind::Canceled | ErrorKind::TimedOut) => {
                assert!(posted.detached || got.len() == posted.bytes.len());
                model.receives.retain(|receive| *receive != token);
                if posted.detached && posted.operation == OperationKind::Receive {
                    let message = from.messages.front_mut().expect("one was landing");
                    message.left = message.left.min(posted.bytes.len());
                }
            }
            Err(error) if posted.refused => {
                assert_eq!(error.refusal(), Some(Refusal::UnknownKey));
                assert_eq!((end.end.len, got.len()), (0, posted.bytes.len()));
                if posted.operation == OperationKind::Write {
                    model.answered(token, OperationKind::Write);
                }
            }
            Err(error) if error.kind() != ErrorKind::Truncated => panic!("{error}"),
            _ if posted.refused => panic!("a {:?} with a bad key is done", posted.operation),
            _ if posted.operation == OperationKind::Receive => {
                assert_eq!(
                    model.receives.pop_front(),
                    Some(token),
                    "receives end in order"
                );
                let message = from.messages.pop_front().expect("a message was sent");
                let fits = message.left.min(got.len());
                assert_eq!((end.end.len, end.end.data), (fits, message.data));
                assert_eq!(end.end.overflow, message.bytes.len() - fits);
                assert_eq!(end.end.result.is_ok(), end.end.overflow == 0);
                assert_eq!(got[..fits], message.bytes[..fits]);
                assert_eq!(got.len(), posted.bytes.len(), "the buffer is the one given");
            }
            _ => {
                if model.acks.iter().any(|(awaits, _)| *awaits == token) {
                    model.answered(token, end.operation());
                }
                assert_eq!(end.end.len, posted.bytes.len());
                assert_eq!(got, posted.bytes);
            }
        }
    }
}

/// Compares the memory here with what the other side wrote, once nothing is on its way.
fn compare_memory(side: &mut TestConnection, model: &Model, from: &mut Model, memory: &mut [u8]) {
    let mut reported = side.remote_data.drain(..);
    for Written {
        at, bytes, data, ..
    } in from.writes.drain(..)
    {
        memory[at..at + bytes.len()].copy_from_slice(&bytes);
        if let Some(data) = data {
            assert_eq!(
                reported.next(),
                Some((data, bytes.len())),
                "remote data comes in order"
            );
        }
    }
    assert_eq!(reported.next(), None);
    drop(reported);
    let mut got = vec![0; REGION_LEN];
    model.writable.read_at(0, &mut got).unwrap();
    assert!(got == memory, "memory differs");
}

/// Lets everything that is under way end.
fn drain(pair: &mut Pair, a: &mut Model, b: &mut Model, next: &mut u64, rng: &mut Rng) {
    // Posted receives may hold all slots while remote data, ahead of their messages, waits for one:
    // the application's doing, and here undone by a larger queue for the time being.
    pair.a.host.slots += 1000;
    pair.b.host.slots += 1000;
    let mut rounds = 0;
    while !(a.open.is_empty()
        && b.open.is_empty()
        && a.messages.is_empty()
        && b.messages.is_empty())
    {
        rounds += 1;
        assert!(rounds < 10_000, "everything ends once both sides receive");
        offer(&mut pair.a, a, b, next);
        offer(&mut pair.b, b, a, next);
        pair.run_in_pieces(1 + rng.below(50_000));
        compare(&mut pair.a, a, b);
        compare(&mut pair.b, b, a);
    }
    pair.a.host.slots -= 1000;
    pair.b.host.slots -= 1000;
}

/// Posts a receive for a message that has none, or withdraws those that no message will come for.
fn offer(side: &mut TestConnection, model: &mut Model, from: &Model, next: &mut u64) {
    if model.receives.len() < from.messages.len() {
        *next += 1;
        model.receives.push_back(*next);
        let key = side.receive(*next, 2000);
        let operation = OperationKind::Receive;
        let posted = Posted {
            key,
            operation,
            bytes: vec![0; 2000],
            detached: false,
            refused: false,
        };
        model.open.insert(*next, posted);
    } else if from.messages.is_empty() {
        for posted in model.open.values() {
            if posted.operation == OperationKind::Receive {
                side.machine.cancel(posted.key);
            }
        }
        side.take_events();
    }
}

fn run(seed: u64, steps: usize) {
    let rng = &mut Rng(seed);
    let sizes = Sizes {
        tx_size: 1 + rng.below(10),
        rx_size: 1 + rng.below(10),
        unexpected_bytes: [0, 200, 5000, 1 << 20][rng.below(4)],
        send_order: [SendOrder::Free, SendOrder::Strict][rng.below(2)],
    };
    let extended = rng.chance(50);
    let params = if extended { LIVING_ON } else { PLAIN };
    let mut pair = Pair::idle_with(sizes, params, params);
    pair.handshake(ByteOrder::Native, b"", b"");
    let mut a = Model::new(&mut pair.a, extended, rng);
    let mut b = Model::new(&mut pair.b, extended, rng);
    let (slots, most) = (1 + rng.below(6), [3, 50, 2000, 100_000][rng.below(4)]);
    (pair.a.host.slots, pair.b.host.slots) = (slots, slots);
    let (mut memory_a, mut memory_b) = (vec![0; REGION_LEN], vec![0; REGION_LEN]);
    let (eager, mut next) = (20 + rng.below(60), 0);
    for step in 0..steps {
        next += 1;
        let Pair { a: near, b: far } = &mut pair;
        let (side, there, model, from) = if rng.chance(50) {
            (near, far, &mut a, &mut b)
        } else {
            (far, near, &mut b, &mut a)
        };
        match rng.below(100) {
            at if at < eager / 4 => post(side, model, &from.readable, next, rng),
            at if at < eager / 3 => withdraw(side, model, rng),
            _ => match rng.below(5) {
                0 => side.nudge(),
                1 => side.hand_out(),
                2 => {
                    let most = rng.below(most + 1);
                    side.move_out(most, &mut there.wire);
                }
                _ => {
                    side.move_in(1 + rng.below(most));
                }
            },
        }
        side.machine.check();
        compare(side, model, from);
        if step % 5000 == 4999 {
            drain(&mut pair, &mut a, &mut b, &mut next, rng);
            compare_memory(&mut pair.a, &a, &mut b, &mut memory_a);
            compare_memory(&mut pair.b, &b, &mut a, &mut memory_b);
            assert_eq!(
                (pair.a.host.slots, pair.b.host.slots),
                (slots, slots),
                "no slot is lost"
            );
        }
    }
    // The end: of the link, of one side and then of the other, or of one side's stream, somewhere
    // within what it was sending.
    match rng.below(3) {
        0 => {
            pair.a.cut();
            pair.b.cut();
        }
        1 => {
            pair.a.close();
            pair.b.cut();
        }
        _ => {
            let Pair { a, b } = &mut pair;
            a.move_out(rng.below(most + 1), &mut b.wire);
            a.cut();
            end_stream(b, most, rng);
            b.close();
        }
    }
    for (side, model) in [(&mut pair.a, &mut a), (&mut pair.b, &mut b)] {
        while let Some(token) = side.order.get(model.seen) {
            model.seen += 1;
            model.ended += 1;
            let posted = model.open.remove(token).expect("only what is open ends");
            let end = &side.ended[token];
            assert!(
                posted.detached || memory_of(end).len() == posted.bytes.len(),
                "memory comes back"
            );
            assert!(end.end.result.is_err() || posted.operation != OperationKind::Read);
        }
        assert!(model.open.is_empty(), "the close has ended everything");
        assert_eq!(side.host.slots + side.host.unasked, slots);
        side.machine.check();
    }
    assert!(
        a.ended + b.ended > steps / 100,
        "the test has tested something"
    );
}

/// The peer's stream ends behind what is in the wire, and the link reports that once, at whatever
/// moment reading is paused. Nothing is posted any more: each pause that only the application could
/// end has a time limit, or nothing waits for the peer.
fn end_stream(side: &mut TestConnection, most: usize, rng: &mut Rng) {
    side.finished = true;
    let (mut idle, mut is_reported) = (0, false);
    while idle < 10 && side.machine.fault().is_none() {
        let moved = side.move_in(1 + rng.below(most));
        if rng.chance(50) {
            side.nudge();
        }
        if side.is_paused() && !is_reported && (idle > 5 || rng.chance(30)) {
            is_reported = true;
            side.watch();
        }
        idle = if moved { 0 } else { idle + 1 };
    }
    let machine = &side.machine;
    let waits = machine.awaits_ended_peer() || !machine.is_sending();
    assert!(
        machine.fault().is_some() || machine.is_read_paused() && waits,
        "the end of the stream is found"
    );
}

/// Runs with TOKIO_FABRIC_DEEP=1 are a hundred times as long.
pub(crate) fn depth() -> u64 {
    match std::env::var("TOKIO_FABRIC_DEEP") {
        Ok(deep) if deep != "0" => 100,
        _ => 1,
    }
}

/// "Each accepted op completes exactly once", and the model and the machine agree.
#[test]
fn random_operations_agree_with_the_model() {
    for seed in 0..12 * depth() {
        println!("seed {seed}");
        run(seed, 10_000);
    }
}
