//! The rules one by one, on one machine; whole endpoints in all interleavings are in
//! [`simulation`].

mod claims;
mod simulation;
mod world;

use std::net::SocketAddrV6;

use super::address::wins;
use super::*;

const DEADLINE: Duration = Duration::from_secs(30);

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 2], port))
}

/// Greater and smaller than our own address, 10.0.0.2:5000.
const OURS: u16 = 5000;
const GREATER: u16 = 5001;
const SMALLER: u16 = 4999;

fn settings() -> PeerSettings {
    PeerSettings {
        incarnation: 7,
        connect_deadline: DEADLINE,
        idle: None,
    }
}

/// A machine and its time.
struct Alone {
    peers: Peers,
    now: Instant,
}

impl Alone {
    fn new(settings: PeerSettings) -> Self {
        Alone {
            peers: Peers::new(settings, 1),
            now: Instant::now(),
        }
    }

    fn request(&mut self, from: u16, incarnation: u32) -> Answer {
        self.ask(Request {
            from: at(from),
            to: at(OURS),
            incarnation,
            undialable: false,
            is_proven: true,
            is_known: false,
        })
    }

    /// A request of somebody who has proven nothing.
    fn claim(&mut self, from: u16, incarnation: u32) -> Answer {
        self.ask(Request {
            from: at(from),
            to: at(OURS),
            incarnation,
            undialable: false,
            is_proven: false,
            is_known: false,
        })
    }

    fn ask(&mut self, request: Request) -> Answer {
        let answer = self.peers.request(&request, self.now);
        self.peers.check();
        answer
    }

    #[track_caller]
    fn accepted(&mut self, from: u16, incarnation: u32) -> AttemptId {
        match self.request(from, incarnation) {
            Answer::Accept(attempt) => attempt,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn dialled(&mut self, peer: u16) -> AttemptId {
        self.peers.want(at(peer), self.now);
        self.dials(peer)
    }

    #[track_caller]
    fn dials(&mut self, peer: u16) -> AttemptId {
        match self.peers.poll() {
            Some(Command::Dial { peer: to, attempt }) if to == at(peer) => attempt,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn up(&mut self, peer: u16, incarnation: u32) -> AttemptId {
        let attempt = self.dialled(peer);
        self.peers
            .connected(at(peer), attempt, incarnation, self.now);
        attempt
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.peers.tick(self.now);
        self.peers.check();
    }

    /// Until something is to be done.
    #[track_caller]
    fn next(&mut self) -> (Duration, Command) {
        let begun = self.now;
        loop {
            if let Some(command) = self.peers.poll() {
                return (self.now - begun, command);
            }
            self.now = self.peers.next_deadline().expect("something is due");
            self.pass(Duration::ZERO);
        }
    }
}

/// wire-protocol.md 2.4: "compare P's address with ours: bytes of the IP in network order, then
/// bytes of the port"; P smaller: rejected; P greater: "drop ours, accept P's".
#[test]
fn the_greater_address_wins_a_tie() {
    let mut alone = Alone::new(settings());
    alone.dialled(SMALLER);
    assert_eq!(alone.request(SMALLER, 1), Answer::Reject);
    let ours = alone.dialled(GREATER);
    let theirs = alone.accepted(GREATER, 1);
    assert_ne!(ours, theirs);
    // Whatever becomes of ours now is no news.
    alone
        .peers
        .failed(at(GREATER), ours, Failure::Rejected, alone.now);
    alone.peers.connected(at(GREATER), theirs, 1, alone.now);
    assert_eq!(alone.request(GREATER, 1), Answer::Reject);
    assert_eq!(alone.peers.poll(), None);

    let v4 = |ip: [u8; 4], port| SocketAddr::from((ip, port));
    assert!(wins(v4([10, 0, 1, 0], 1), v4([10, 0, 0, 255], 9)));
    assert!(wins(v4([200, 0, 0, 0], 1), v4([100, 0, 0, 0], 1)));
    assert!(wins(v4([10, 0, 0, 1], 0x0100), v4([10, 0, 0, 1], 0x00ff)));
    assert!(!wins(v4([10, 0, 0, 1], 5), v4([10, 0, 0, 1], 5)));
    assert!(wins("[fe80::1]:1".parse().unwrap(), v4([255, 0, 0, 1], 5)));
    assert!(wins(
        "[2:ff00::]:1".parse().unwrap(),
        "[2:00ff::]:2".parse().unwrap()
    ));
}

/// An IPv4 peer of a listener at all IPv6 addresses is the same as elsewhere.
#[test]
fn an_address_names_the_same_peer_in_each_of_its_forms() {
    let mapped: SocketAddr = "[::ffff:10.0.0.2]:5001".parse().unwrap();
    assert_eq!(canonical(mapped), at(GREATER));
    let flow = SocketAddrV6::new("fe80::1".parse().unwrap(), 3, 99, 2);
    let plain = SocketAddrV6::new("fe80::1".parse().unwrap(), 3, 0, 2);
    assert_eq!(canonical(flow.into()), plain.into());
}

/// wire-protocol.md 2.4, connected: "equals request's pid → reject. Different → peer restarted:
/// close the old, accept the new".
#[test]
fn another_incarnation_replaces_the_old_connection() {
    let mut alone = Alone::new(settings());
    let old = alone.up(GREATER, 1);
    assert_eq!(alone.request(GREATER, 1), Answer::Reject);
    let new = alone.accepted(GREATER, 2);
    let close = Command::Close {
        peer: at(GREATER),
        attempt: old,
        why: Close::Restarted,
    };
    assert_eq!(alone.peers.poll(), Some(close));
    alone.peers.closed(at(GREATER), old, false, alone.now);
    // Also before it was up: then nothing is lost, and the attempt just begins again.
    assert_eq!(alone.request(GREATER, 2), Answer::Reject);
    let newer = alone.accepted(GREATER, 3);
    assert_ne!(new, newer);
    assert_eq!(alone.peers.poll(), None);
}

/// "connection to oneself works": our own request is accepted beside the connection it came over,
/// once, and only if it is ours.
#[test]
fn a_request_of_our_own_is_accepted_aside() {
    let mut alone = Alone::new(settings());
    assert_eq!(alone.request(OURS, 7), Answer::Reject);
    let attempt = alone.dialled(OURS);
    assert_eq!(alone.request(OURS, 8), Answer::Reject);
    assert_eq!(alone.request(OURS, 7), Answer::AcceptAside);
    assert_eq!(alone.request(OURS, 7), Answer::Reject);
    alone.peers.connected(at(OURS), attempt, 7, alone.now);
    assert_eq!(alone.peers.poll(), None);
}

/// "an operation to a peer that never answers ends as Unreachable at the connect deadline": one
/// attempt waits for it all the time, refused ones are repeated with growing pauses.
#[test]
fn a_peer_that_is_not_there_is_given_up_at_the_deadline() {
    let mut alone = Alone::new(settings());
    alone.dialled(GREATER);
    let given_up = Command::GiveUp {
        peer: at(GREATER),
        why: GiveUp::Deadline,
    };
    assert_eq!(alone.next(), (DEADLINE, given_up));

    alone.pass(DEADLINE);
    assert_eq!(alone.peers.len(), 0, "nothing is remembered of it");
    let begun = alone.now;
    let mut attempt = alone.dialled(GREATER);
    let mut pauses = Vec::new();
    loop {
        alone
            .peers
            .failed(at(GREATER), attempt, Failure::Passing, alone.now);
        let (pause, command) = alone.next();
        match command {
            Command::Dial { attempt: next, .. } => attempt = next,
            other => {
                assert_eq!(other, given_up);
                break;
            }
        }
        pauses.push(pause);
    }
    assert_eq!(alone.now - begun, DEADLINE);
    assert!(pauses[0] >= PAUSE_MIN / 2 && pauses[0] <= PAUSE_MIN);
    assert!(pauses.iter().all(|pause| *pause <= PAUSE_MAX));
    assert!(pauses.len() < 75, "{} attempts", pauses.len());
    let distinct: std::collections::HashSet<_> = pauses.iter().collect();
    assert!(distinct.len() > pauses.len() / 2, "pauses differ");
}

/// "give up with an error after k rejects in a row"; a connection between them starts the row anew.
#[test]
fn a_peer_that_always_rejects_is_given_up() {
    let mut alone = Alone::new(settings());
    let mut attempt = alone.dialled(GREATER);
    for _ in 1..REJECTIONS_MAX {
        alone
            .peers
            .failed(at(GREATER), attempt, Failure::Rejected, alone.now);
        match alone.next() {
            (_, Command::Dial { attempt: next, .. }) => attempt = next,
            other => panic!("{other:?}"),
        }
    }
    alone
        .peers
        .failed(at(GREATER), attempt, Failure::Rejected, alone.now);
    let given_up = Command::GiveUp {
        peer: at(GREATER),
        why: GiveUp::Rejected,
    };
    assert_eq!(alone.peers.poll(), Some(given_up));
    // Who asks again at once does not make it spin.
    alone.peers.want(at(GREATER), alone.now);
    assert_eq!(alone.peers.poll(), None);
    let (pause, command) = alone.next();
    assert!(matches!(command, Command::Dial { .. }));
    assert!(pause >= PAUSE_MAX / 2);
}

/// An attempt that no repetition will mend is given up at once.
#[test]
fn what_cannot_succeed_is_not_repeated() {
    let mut alone = Alone::new(settings());
    let attempt = alone.dialled(GREATER);
    alone
        .peers
        .failed(at(GREATER), attempt, Failure::Final, alone.now);
    let why = GiveUp::Final;
    let peer = at(GREATER);
    assert_eq!(alone.peers.poll(), Some(Command::GiveUp { peer, why }));
}

/// wire-protocol.md 2.5: "A peer marked \"firewall\" is never dialled".
#[test]
fn a_peer_behind_a_firewall_is_never_dialled() {
    let mut alone = Alone::new(settings());
    let request = Request {
        from: at(GREATER),
        to: at(OURS),
        incarnation: 1,
        undialable: true,
        is_proven: false,
        is_known: false,
    };
    let Answer::Accept(attempt) = alone.peers.request(&request, alone.now) else {
        panic!("not accepted")
    };
    alone.peers.connected(at(GREATER), attempt, 1, alone.now);
    alone.peers.closed(at(GREATER), attempt, true, alone.now);
    alone.pass(DEADLINE);
    alone.peers.want(at(GREATER), alone.now);
    let why = GiveUp::Undialable;
    let peer = at(GREATER);
    assert_eq!(alone.peers.poll(), Some(Command::GiveUp { peer, why }));
    alone.peers.check();
    let request = Request {
        undialable: false,
        ..request
    };
    assert!(matches!(
        alone.peers.request(&request, alone.now),
        Answer::Accept(_)
    ));
}

/// What is posted while a connection ends goes over the next, which is dialled when the old one has
/// ended; a peer that is faster with that is accepted.
#[test]
fn the_next_connection_begins_when_the_old_one_has_ended() {
    let mut alone = Alone::new(settings());
    let old = alone.up(GREATER, 1);
    alone.peers.ending(at(GREATER), old, alone.now);
    alone.peers.want(at(GREATER), alone.now);
    assert_eq!(alone.peers.poll(), None);
    alone.peers.closed(at(GREATER), old, true, alone.now);
    let next = alone.dials(GREATER);
    alone.peers.connected(at(GREATER), next, 1, alone.now);
    alone.peers.ending(at(GREATER), next, alone.now);
    alone.accepted(GREATER, 1);
    alone.peers.closed(at(GREATER), next, true, alone.now);
    assert_eq!(alone.peers.poll(), None);
}

/// "idle policy (keep, or close after a duration)".
#[test]
fn an_idle_connection_is_closed_after_its_time() {
    let idle = Duration::from_secs(8);
    let mut alone = Alone::new(PeerSettings {
        idle: Some(idle),
        ..settings()
    });
    let attempt = alone.up(GREATER, 1);
    let peer = at(GREATER);
    let mut looks = Vec::new();
    // It is at work at first, then something is outstanding, then it is silent.
    for activity in [
        Some(1),
        Some(2),
        None,
        None,
        Some(2),
        Some(2),
        Some(2),
        Some(2),
        Some(2),
    ] {
        let (_, command) = alone.next();
        assert_eq!(command, Command::LookAt { peer, attempt });
        alone.peers.looked_at(peer, attempt, activity, alone.now);
        looks.push(alone.peers.poll());
    }
    let close = Command::Close {
        peer,
        attempt,
        why: Close::Idle,
    };
    let (last, before) = looks.split_last().unwrap();
    assert_eq!(*last, Some(close));
    assert!(before.iter().all(Option::is_none), "{before:?}");

    let mut alone = Alone::new(settings());
    alone.up(GREATER, 1);
    assert_eq!(alone.peers.next_deadline(), None, "kept, and no timer runs");
}

/// "bounded memory against a hostile crowd": of peers that nobody asked for, so many per host and
/// in all; whoever is wanted is not counted.
#[test]
fn a_crowd_of_strangers_is_bounded() {
    let mut alone = Alone::new(settings());
    let mut attempts = Vec::new();
    for port in 0..UNINVITED_OF_HOST_MAX as u16 {
        attempts.push((port, alone.peers.request(&from_host(1, port), alone.now)));
    }
    assert!(
        attempts
            .iter()
            .all(|(_, answer)| matches!(answer, Answer::Accept(_)))
    );
    assert_eq!(
        alone.peers.request(&from_host(1, 9999), alone.now),
        Answer::Reject
    );
    for host in 2..=(UNINVITED_MAX / UNINVITED_OF_HOST_MAX) as u8 {
        for port in 0..UNINVITED_OF_HOST_MAX as u16 {
            alone.peers.request(&from_host(host, port), alone.now);
        }
    }
    assert_eq!(alone.peers.len(), UNINVITED_MAX);
    let other = Request {
        from: SocketAddr::from(([10, 0, 0, 1], 1)),
        ..from_host(1, 1)
    };
    assert_eq!(alone.peers.request(&other, alone.now), Answer::Reject);
    // Who is wanted comes in all the same, and makes room.
    let wanted = from_host(1, 9999);
    alone.peers.want(wanted.from, alone.now);
    assert!(matches!(
        alone.peers.request(&wanted, alone.now),
        Answer::Accept(_)
    ));
    alone.peers.want(from_host(1, 5).from, alone.now);
    assert!(matches!(
        alone.peers.request(&other, alone.now),
        Answer::Accept(_)
    ));
    // Those that go are forgotten.
    for (port, answer) in attempts {
        let Answer::Accept(attempt) = answer else {
            panic!()
        };
        let from = from_host(1, port).from;
        alone
            .peers
            .failed(from, attempt, Failure::Passing, alone.now);
    }
    alone.pass(PAUSE_MAX);
    let left = UNINVITED_MAX - UNINVITED_OF_HOST_MAX + 3;
    assert_eq!(alone.peers.len(), left);
}

fn from_host(host: u8, port: u16) -> Request {
    Request {
        from: SocketAddr::from(([10, 1, 0, host], port)),
        to: at(OURS),
        incarnation: 1,
        undialable: false,
        is_proven: false,
        is_known: false,
    }
}

/// A closing endpoint waits for who is wanted until its own deadline, and takes nobody else.
#[test]
fn a_closing_endpoint_takes_only_who_is_wanted() {
    let mut alone = Alone::new(settings());
    alone.dialled(GREATER);
    let until = alone.now + Duration::from_secs(5);
    alone.peers.close(until, alone.now);
    assert_eq!(alone.request(SMALLER, 1), Answer::Reject);
    alone.accepted(GREATER, 1);
    let why = GiveUp::Deadline;
    let peer = at(GREATER);
    let given_up = Command::GiveUp { peer, why };
    assert_eq!(alone.next(), (Duration::from_secs(5), given_up));
}
