//! The machine of a datagram endpoint against a plain list of what ought to happen.

use std::net::SocketAddr;

use proptest::prelude::*;

use crate::buf::Payload;
use crate::error::ErrorKind;
use crate::limits::UNEXPECTED_OVERHEAD;
use crate::proto::{Dgram, DgramSizes, OpKey, OpKind, Operation, PostOptions, Withdrawn};
use crate::sync::OwnedRecord;

const RECEIVES: usize = 6;
const BUDGET: usize = 3 * (8 + UNEXPECTED_OVERHEAD);

#[derive(Clone, Debug)]
enum Step {
    /// Posts a receive for anyone's datagrams, or for one peer's.
    Post(Option<u8>),
    /// A datagram from this peer; in a destination if there is one, else on the copying path.
    Arrive { from: u8, in_place: bool },
    /// Takes back the receive that was posted as the n-th.
    Cancel(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => proptest::option::of(0..3u8).prop_map(Step::Post),
        4 => (0..3u8, any::<bool>()).prop_map(|(from, in_place)| Step::Arrive { from, in_place }),
        1 => (0..30usize).prop_map(Step::Cancel),
    ];
    proptest::collection::vec(step, 0..80)
}

fn peer(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number], 7471))
}

fn receive(name: usize) -> OwnedRecord<Operation<usize>> {
    let payload = Payload::from_vec(vec![0; 8]);
    let options = PostOptions::default();
    OwnedRecord::new(Operation::new(OpKind::Receive, payload, name, options))
}

/// The reference: receives in the order of their posts, datagrams in the order of their coming.
#[derive(Default)]
struct Plain {
    posted: Vec<(usize, Option<u8>)>,
    unexpected: Vec<(u8, u64)>,
    dropped: u64,
    /// The receives that have ended, with the datagram they got; `None`: cancelled.
    ended: Vec<(usize, Option<u64>)>,
}

impl Plain {
    fn post(&mut self, name: usize, from: Option<u8>) {
        match self
            .unexpected
            .iter()
            .position(|(it, _)| from.is_none_or(|from| from == *it))
        {
            Some(at) => {
                let (_, datagram) = self.unexpected.remove(at);
                self.ended.push((name, Some(datagram)));
            }
            None => self.posted.push((name, from)),
        }
    }

    fn arrive(&mut self, from: u8, datagram: u64) {
        let takes = |wanted: &Option<u8>| wanted.is_none_or(|wanted| wanted == from);
        match self.posted.iter().position(|(_, wanted)| takes(wanted)) {
            Some(at) => {
                let (name, _) = self.posted.remove(at);
                self.ended.push((name, Some(datagram)));
            }
            None if self.unexpected.len() < 3 => self.unexpected.push((from, datagram)),
            None => self.dropped += 1,
        }
    }
}

fn play(steps: Vec<Step>) {
    let mut machine: Dgram<usize> = Dgram::new(DgramSizes {
        tx_size: 1,
        rx_size: RECEIVES,
        unexpected_bytes: BUDGET,
    });
    let (mut plain, mut keys): (Plain, Vec<OpKey>) = Default::default();
    let mut ended = Vec::new();
    for (number, step) in steps.into_iter().enumerate() {
        let datagram = number as u64;
        match step {
            Step::Post(from) => {
                let name = keys.len();
                match machine.post(receive(name), from.map(peer), |_| true) {
                    Ok(key) => {
                        keys.push(key);
                        plain.post(name, from);
                    }
                    Err(refused) => {
                        assert_eq!(refused.error.kind(), ErrorKind::Again);
                        assert_eq!(plain.posted.len(), RECEIVES, "only a full context refuses");
                    }
                }
            }
            Step::Arrive { from, in_place } => {
                let bytes = datagram.to_le_bytes();
                let mut places = match in_place {
                    true => machine.destinations(2),
                    false => Vec::new(),
                }
                .into_iter();
                match places.next() {
                    Some((key, mut payload)) => {
                        payload.copy_in(0, &bytes).unwrap();
                        machine.landed(key, payload, peer(from), bytes.len());
                    }
                    None => machine.arrived(peer(from), &bytes),
                }
                for (key, payload) in places {
                    machine.put_back(key, payload);
                }
                plain.arrive(from, datagram);
            }
            Step::Cancel(name) => {
                let Some(&key) = keys.get(name) else { continue };
                let live = plain.posted.iter().position(|(posted, _)| *posted == name);
                let withdrawn = machine.cancel(key);
                assert_eq!(withdrawn == Withdrawn::Ended, live.is_some());
                if let Some(at) = live {
                    plain.posted.remove(at);
                    plain.ended.push((name, None));
                }
            }
        }
        while let Some(op) = machine.pop_completed() {
            let mut bytes = [0; 8];
            let payload = op.payload.as_ref().unwrap();
            payload.copy_out(0, &mut bytes).unwrap();
            let got = op.end.result.is_ok().then(|| u64::from_le_bytes(bytes));
            ended.push((op.token, got));
        }
        assert_eq!(ended, plain.ended);
        assert_eq!(machine.dropped(), plain.dropped);
        assert_eq!(
            machine.held_bytes(),
            plain.unexpected.len() * (8 + UNEXPECTED_OVERHEAD)
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// fi_getinfo(3): "use the source address of an incoming message when matching it with a
    /// receive buffer", first posted first; what no receive takes is kept in order, within
    /// the budget.
    #[test]
    fn datagrams_are_matched_as_a_plain_list_would(steps in steps()) {
        play(steps);
    }
}

/// A receive that is dropped after its datagram had come gives it back: to the next receive, or to
/// the head of those kept.
#[test]
fn a_datagram_given_back_is_the_first() {
    let mut machine: Dgram<usize> = Dgram::new(DgramSizes {
        tx_size: 1,
        rx_size: 4,
        unexpected_bytes: BUDGET,
    });
    machine.arrived(peer(1), b"second");
    machine.give_back(&Payload::from_vec(b"first...".to_vec()), 5, 0, peer(1));
    for (name, len) in [(0, 5), (1, 6)] {
        machine.post(receive(name), None, |_| true).unwrap();
        let op = machine.pop_completed().expect("it has its datagram");
        let got = (op.token, op.end.len, op.end.sender_address());
        assert_eq!(got, (name, len, Some(peer(1))));
    }
}
